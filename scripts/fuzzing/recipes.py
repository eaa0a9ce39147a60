"""Runs the input pipelines of all fine-tuning recipes, without a network, on small images of every kind.

python scripts/fuzzing/recipes.py [--steps 2000] [--batch 8] [--only configs/reduction/coco.py …] [--out recipes.csv]

Every recipe crops, augments on the host and augments on the device as its config says; only the size of its images,
the batch size and the data differ. Recipes with the same pipeline run once. Run it with oldest and newest versions of
Pillow, NumPy and JAX (`scripts/check_versions.py` shows how to install them). Status 1 if a step raised.
"""

import argparse
import dataclasses
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import PIL
from PIL import Image

from jaxprune import main as program
from jaxprune.commands.shared import inputs
from jaxprune.data.augment import augment
from jaxprune.data.folder import ImageFolder
from jaxprune.data.source import turned
from jaxprune.report.table import Table, column

ROOT = Path(__file__).parent.parent.parent
SIZE, CLASSES = 48, 3
RECIPES = (
    *(
        f"configs/mim/imagenet_finetune.py:framework={framework}{options}"
        for framework, options in (
            ("mae", ""),
            ("mae", ",size=large"),
            ("simmim", ""),
            ("simmim", ",encoder=swin"),
            ("greenmim", ""),
            ("greenmim", ",size=large"),
            ("localmim", ""),
            ("localmim", ",size=large"),
            ("localmim", ",encoder=swin"),
            ("localmim", ",encoder=swin,size=large"),
            ("tec", ""),
            ("tec", ",size=large"),
        )
    ),
    "configs/finetune.py",
    *(f"configs/mim/transfer.py:data={data}" for data in ("inat18", "inat19", "nabirds")),
    *(f"configs/reduction/{name}.py:method=topk" for name in ("imagenet", "coco", "nabirds", "nus_wide")),
    "configs/reduction/imagenet.py:method=dynamicvit",
    "configs/reduction/small.py:data=cifar10",
    "configs/reduction/small.py:data=caltech101",
    "configs/hierarchical/small.py:data=cifar10",
    "configs/hierarchical/small.py:data=caltech101",
    *(f"configs/dynamic/{name}.py" for name in ("dvt", "dyn_perceiver", "sar", "laudnet", "small")),
    "configs/ranking/proposal.py",
    "configs/ranking/efficient.py",
    "configs/ranking/efficient_imagenet.py",
)
NESTED = ("configs/quickstart.py", "configs/mim/cifar10.py", "configs/reproduce/table2.py")  # among other phases


@dataclasses.dataclass(frozen=True)
class Row:
    """How the steps of one pipeline ended."""

    recipes: str = column("recipes")
    steps: int = column("steps")
    images: int = column("images")
    seconds: float = column("seconds")
    failed: str = column("exception")


def configs() -> Iterator[tuple[str, Any]]:
    """Yields the name and the config of every fine-tuning recipe."""
    for text in RECIPES:
        yield text, program.load_config(str(ROOT / text))
    for text in NESTED:
        config = program.load_config(str(ROOT / text))
        for phase in ("finetune", "scratch"):
            if phase in config and "data" in config[phase]:
                yield f"{text}, {phase}", config[phase]


def pipeline(config: Any) -> str:
    """What distinguishes the pipelines of recipes, as text."""
    data = {
        name: config.data[name]
        for name in ("crop", "crop_scale", "randaugment", "cutout", "repeats", "interpolation", "exif", "mean", "std")
    }
    return json.dumps({**data, **config.augment.to_dict(), "loss": config.loss}, sort_keys=True, default=str)


def fill(folder: Path, count: int = 240) -> None:
    """Writes small pictures of every mode and odd size: noise, gradients, single colours, lines of pixels."""
    rng = np.random.default_rng(0)
    shapes = ((SIZE, SIZE), (SIZE, 30), (31, SIZE), (1, SIZE), (SIZE, 1), (1, 1), (7, 300))
    kinds = itertools.cycle(itertools.product(("RGB", "L", "RGBA", "P", "CMYK", "1"), ("noise", "ramp", "plain")))
    for number, (mode, kind) in zip(range(count), kinds, strict=False):
        height, width = shapes[0] if number % 4 else shapes[rng.integers(len(shapes))]
        pixels = {
            "noise": rng.integers(0, 256, (height, width, 3)),
            "ramp": np.linspace(0, 255, height * width * 3).reshape(height, width, 3),
            "plain": np.full((height, width, 3), rng.choice((0, 1, 127, 254, 255))),
        }[kind]
        place = folder / f"class{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        suffix = "jpg" if mode in ("RGB", "L", "CMYK") and number % 2 else "tif" if mode == "CMYK" else "png"
        Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(place / f"{number:04d}.{suffix}")


def run(config: Any, folder: Path, steps: int, batch_size: int) -> tuple[int, str]:
    """Takes steps of the pipeline of a recipe; returns how many, and the exception that ended them."""
    config.unlock()
    config.update(batch_size=batch_size)
    config.data.update(img_size=SIZE, num_threads=2)
    source = ImageFolder(folder, exif=config.data.exif)
    assert turned(source) == config.data.exif
    several = config.loss == "asymmetric"
    options = {**config.augment, "num_classes": CLASSES, "mean": config.data.mean, "std": config.data.std}
    on_device = jax.jit(lambda key, images, labels: augment(key, images, labels, **options))
    key, step = jax.random.key(config.seed), 0
    try:
        for step, batch in enumerate(itertools.islice(inputs.train_batches(config, source), steps)):
            labels = np.eye(CLASSES, dtype=np.float32)[batch["label"]] if several else batch["label"]
            images, targets = on_device(jax.random.fold_in(key, step), batch["image"], labels)
            if step % 100 == 0 and not (np.isfinite(images).all() and np.isfinite(targets).all()):
                raise ValueError(f"values that are not finite in step {step}")
    except Exception as error:
        return step, f"{type(error).__name__} in step {step}: {str(error)[:200]}"
    return step + 1, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--only", nargs="+", default=(), help="recipes whose names begin so")
    parser.add_argument("--out", type=Path, default=Path("recipes.csv"))
    args = parser.parse_args()
    by_pipeline: dict[str, list[tuple[str, Any]]] = {}
    for name, config in configs():
        if not args.only or name.startswith(tuple(args.only)):
            by_pipeline.setdefault(pipeline(config), []).append((name, config))
    versions = {"python": sys.version.split()[0], "pillow": PIL.__version__, "numpy": np.__version__}
    versions["jax"] = jax.__version__
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        for recipes in by_pipeline.values():
            start = time.monotonic()
            steps, failed = run(recipes[0][1], Path(folder), args.steps, args.batch)
            names = " ".join(name.removeprefix("configs/") for name, _ in recipes)
            rows.append(Row(names, steps, steps * args.batch, time.monotonic() - start, failed))
            print(f"{names}: {steps} steps {failed}", file=sys.stderr, flush=True)
            Table(rows).write_csv(args.out, **versions)
    print(Table(rows).text(ends=False))
    count = sum(map(len, by_pipeline.values()))
    print(f"{count} recipes, {len(rows)} pipelines, {sum(row.images for row in rows):,} images; {versions}")
    sys.exit(any(row.failed for row in rows))


if __name__ == "__main__":
    main()
