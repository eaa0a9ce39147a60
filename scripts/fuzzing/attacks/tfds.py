"""Prepared data sets whose descriptions were damaged: the images, or one short line."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from attacks import Case
from attacks.mutations import damaged, damaged_json
from jaxprune.data.broken_examples import Unreadable
from jaxprune.data.prepare import prepare
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import UserError


def descriptions(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields data sets with one damaged description."""
    pixels = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (folder / "in" / "train" / name).mkdir(parents=True)
        for number in range(2):
            image = Image.fromarray(pixels.integers(0, 256, (12, 10, 3)).astype(np.uint8))
            image.save(folder / "in" / "train" / name / f"{number}.png")
    prepare(folder / "in", folder / "out", name="animals")
    files = sorted(path for path in (folder / "out").rglob("*") if path.suffix in (".json", ".txt"))
    rng = random.Random(seed)
    for _ in range(count):
        path = rng.choice(files)
        content = path.read_bytes()
        data, damage = damaged_json(content, rng) if path.suffix == ".json" else (damaged(content, rng), "bytes")
        path.write_bytes(data)
        yield Case((path.name, damage), lambda: _read(folder / "out"))
        path.write_bytes(content)


def _read(folder: Path) -> bool:
    try:
        source = Tfds(str(folder), split="train")
        for index in range(min(len(source), 3)):
            source[index]
    except Unreadable as error:  # of single images, which training replaces
        raise UserError(str(error)) from error
    return True
