"""What a fuzzer feeds with bytes: each target writes them as a file of its kind and reads it as the library does.

A `UserError` of one printable line is a refusal. Any other exception is found, and so is a value that is not sound.
"""

import io
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch_files
from attacks import boxes, objects, pickles, pictures, plans, weights, without_type_checks
from safetensors.numpy import save

from jaxprune.errors import UserError
from jaxprune.reduction import Plan
from jaxprune.weights.read import read_tensors


class Target(NamedTuple):
    """A kind of file.

    Attributes:
      name: of the file, below a folder that is empty but for what `prepare` wrote.
      read: reads the folder or its file, see `attacks.Case`.
      seeds: whole files to begin with.
      prepare: writes what lies beside the file.
    """

    name: str
    read: Callable[[Path], bool]
    seeds: Callable[[], Iterable[bytes]]
    prepare: Callable[[Path], None] = lambda folder: None


def _arrays(path: Path) -> bool:
    return all(isinstance(array, np.ndarray) and array.dtype != object for array in read_tensors(path).values())


def _archives() -> list[bytes]:
    buffers = []
    for write in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        write(buffer, **weights.TENSORS)
        buffers.append(buffer.getvalue())
    return buffers


def _of_pytorch() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.pth"
        return [torch_files.write(path, pickles.VALUE, legacy=legacy).read_bytes() for legacy in (False, True)]


def _index(folder: Path) -> bool:
    return _arrays(folder.parent)


def _shards(folder: Path) -> None:
    for number, name in enumerate(weights.TENSORS):
        (folder / f"{number}.safetensors").write_bytes(save({name: weights.TENSORS[name]}))


def _places() -> list[bytes]:
    places = {name: f"{number}.safetensors" for number, name in enumerate(weights.TENSORS)}
    return [json.dumps({"metadata": {"total_size": 96}, "weight_map": places}).encode()]


def _plan(path: Path) -> bool:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError:
        return True
    plan = Plan.from_text(text)
    return Plan.from_text(plan.text) == plan


TARGETS: dict[str, Target] = {
    "safetensors": Target("file.safetensors", _arrays, lambda: [save(weights.TENSORS)]),
    "npz": Target("file.npz", _arrays, _archives),
    "pytorch": Target("file.pth", _arrays, _of_pytorch),
    "shards": Target("model.safetensors.index.json", _index, _places, _shards),
    "plan": Target("plan.txt", _plan, lambda: [text.encode() for text in plans.PLANS]),
    "yolo": Target(
        "labels/a.txt", lambda path: boxes.read_yolo(path.parent.parent), boxes.yolo_seeds, boxes.beside_yolo
    ),
    "voc": Target(
        "Annotations/a.xml", lambda path: boxes.read_voc(path.parent.parent), boxes.voc_seeds, boxes.beside_voc
    ),
    "coco": Target(
        "annotations/instances_train.json",
        lambda path: objects.read_coco(path.parent.parent),
        objects.seeds,
        objects.beside_coco,
    ),
    "picture": Target("picture", pictures.read, pictures.seeds),
}


class Feed:
    """Feeds a target with bytes.

    Args:
      name: a key of `TARGETS`.
      folder: an empty one, best in memory.
    """

    def __init__(self, name: str, folder: Path):
        self.target, self.path = TARGETS[name], folder / TARGETS[name].name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.target.prepare(folder)

    def __call__(self, content: bytes) -> bool:
        """Reads a file with this content; returns whether it was refused.

        Raises:
          AssertionError: something wrong was read, or a refusal is no printable line.
        """
        self.path.write_bytes(content)
        try:
            with without_type_checks():
                assert self.target.read(self.path), "something wrong was read"
        except UserError as error:
            assert str(error).isprintable(), f"the message is not one printable line: {str(error)!r}"
            return True
        return False


def write_seeds(name: str, corpus: Path) -> None:
    """Writes whole files of a target's kind, to begin with."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{number}").write_bytes(content)
