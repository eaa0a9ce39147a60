"""A command's training step compiled for devices that are described (`--compile_for`): no data, no device."""

import dataclasses
import importlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxprune import accelerators, commands, parallel
from jaxprune.accelerators import DoesNotFit, Target
from jaxprune.accelerators.chips import GIB
from jaxprune.commands.shared import described_page, inputs
from jaxprune.commands.shared.compiled_step import CompiledStep, text_of
from jaxprune.commands.shared.training import Length, total_steps
from jaxprune.config import Config
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.files import make_directory, write_atomically
from jaxprune.nn.patch_embed import pair
from jaxprune.report.table import Table
from jaxprune.train.abstract_step import Step, lower

# Of data that are not read: those of ImageNet-1k.
NUM_CLASSES, NUM_IMAGES = 1000, 1_281_167

_log = logging.getLogger(__name__)


class DescribedStep(NamedTuple):
    """A training step and the columns of its batch, as shapes."""

    step: Step
    batch: dict[str, jax.ShapeDtypeStruct]


def described_batch(config: Config, num_classes: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
    """The columns of a training batch.

    Args:
      num_classes: of images with several classes each; 0 where an image has one.
    """
    rows, (height, width) = config.batch_size, pair(config.data.img_size)
    label = jax.ShapeDtypeStruct((rows, num_classes), jnp.float32) if num_classes else None
    return {
        "image": jax.ShapeDtypeStruct((rows, height, width, 3), jnp.uint8),
        "label": label or jax.ShapeDtypeStruct((rows,), jnp.int32),
        "index": jax.ShapeDtypeStruct((rows,), jnp.int32),
    }


def compile_for(config: Config, workdir: Path, target: Target, price: float = 0.0) -> dict[str, Any]:
    """Compiles the training step of a config for described devices, prints what it takes, and writes table and page.

    If the step does not fit, the same step is compiled with what saves memory (activations that are recomputed,
    parameters that are shared out), and with halves of the batch until one fits.

    Args:
      config: of a command that trains.
      workdir: for `compiled.csv`, `compiled.json` and `report.html`.
      target: the devices.
      price: of one chip for an hour, in any currency; 0 if it is not known.

    Returns:
      A summary: whether the step fits, and the largest batch a chip that was seen to fit with the settings asked for.

    Raises:
      UserError: the command has no step to compile, a setting is wrong, or the compiler is not installed.
    """
    if not (math.isfinite(price) and price >= 0):
        raise UserError(f"price_per_chip_hour={price:g} is not a price: give a number that is not negative.")
    compiler = Compiler.of(config, target, price)
    with accelerators.compiling_for(target):
        commands.require_usable(compiler.config, workdir)
        rows = compiler.rows
        compiled = [compiler.compile({}, rows)]
        if not compiled[0].fits:
            compiled += [compiler.compile(changes, rows) for changes in savings(config, target)]
            compiled += until_one_fits(rows // 2, lambda rows: compiler.compile({}, rows))
    print(text_of(compiled, target))
    _write(compiled, target, workdir)
    largest = max((step.rows for step in compiled if step.fits and (step.rows < rows or not step.setting)), default=0)
    return {"fits": compiled[0].fits, "batch_a_chip": largest}


def until_one_fits(rows: int, compile_step: Callable[[int], CompiledStep]) -> list[CompiledStep]:
    """Compiles a step of that many images a chip, and of halves of them until one fits; returns all of these steps."""
    compiled: list[CompiledStep] = []
    while rows and not (compiled and compiled[-1].fits):
        compiled.append(compile_step(rows))
        rows //= 2
    return compiled


def savings(config: Config, target: Target) -> list[dict[str, Any]]:
    """The settings that save memory and that a config does not have yet, {key: value}, the simplest first."""
    network = "mim" if "mim" in config else "model"
    remat = {f"{network}.remat": True} if config[network].get("remat") is False else {}
    fsdp = {"mesh": "fsdp=-1"} if target.chips > 1 and "fsdp" not in config.mesh else {}
    combination = {**remat, **fsdp} if remat and fsdp else {}
    return [changes for changes in (remat, fsdp, combination) if changes]


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Compiles the step of a config, as it stands and with changes.

    Attributes:
      config: with built-in scenes instead of its data.
      describe: `described` of its command.
      images: of an epoch.
      price: of a chip for an hour; 0 if it is not known.
    """

    config: Config
    target: Target
    describe: Callable[[Config, Length, int], DescribedStep]
    steps: Length
    num_classes: int
    images: int
    price: float

    @classmethod
    def of(cls, config: Config, target: Target, price: float) -> "Compiler":
        describe = _description(config.task)
        images = config.data.num_train if config.data.source == "scenes" else NUM_IMAGES
        config, (steps, num_classes) = _without_data(config, images)
        return cls(config, target, describe, steps, num_classes, images, price)

    @property
    def rows(self) -> int:
        """Images a chip."""
        return self.config.batch_size // self.target.chips

    def compile(self, changes: dict[str, Any], rows: int) -> CompiledStep:
        """Compiles a step of `rows` images a chip, with changes of the config, {key: value}."""
        batch_size = rows * self.target.chips
        config = ConfigDict({**self.config.to_dict(), "batch_size": batch_size})
        config.update_from_flattened_dict(changes)
        mesh = inputs.mesh(config)
        words = changes | ({"batch_size": batch_size} if rows != self.rows else {})
        setting = " ".join(f"--config.{key}={value}" for key, value in words.items())
        text = f"{batch_size} images ({rows} a chip) for {self.target}{f' with {setting}' if changes else ''}"
        _log.info("Compiling a step of %s…", text)
        sizes = ",".join(f"{name}={size}" for name, size in mesh.shape.items())
        step = CompiledStep(config.task, str(self.target), setting, sizes, config.dtype, batch_size, rows)
        try:
            described = self.describe(config, self.steps, self.num_classes)
            rules = parallel.rules_from_texts(config.shardings)
            lowered = lower(*described, mesh, rules, accumulate=config.accumulate)
            costs = accelerators.costs(lowered, self.target)
        except DoesNotFit as error:
            return dataclasses.replace(step, refused=error.num_bytes / GIB or None)
        rate = 1e3 * rows / costs.ms
        hours = self.images / rate / self.target.chips / 3600
        price = hours * self.target.chips * self.price if self.price else None
        return dataclasses.replace(step, fits=True, images_per_second=rate, hours=hours, price=price, costs=costs)


def _description(task: str) -> Callable[[Config, Length, int], DescribedStep]:
    """The `described` of a command.

    Raises:
      UserError: it has none.
    """
    tasks = {name: importlib.import_module(f"jaxprune.commands.{name}") for name in commands.names()}
    able = [name for name, module in tasks.items() if hasattr(module, "described")]
    if task not in able:
        raise UserError(f"The task {task} cannot be compiled for described devices; tasks that can: {', '.join(able)}.")
    return tasks[task].described


def _without_data(config: Config, num_images: int) -> tuple[Config, tuple[Length, int]]:
    """Returns the config with built-in scenes instead of its data, and the length and classes of the run."""
    scenes = config.data.source == "scenes"
    num_classes = Scenes.num_classes if scenes else NUM_CLASSES
    data = {**config.data.to_dict(), "source": "scenes", "path": "", "name": ""}
    per_epoch = max(num_images // config.batch_size, 1)
    total = max(total_steps(config, per_epoch), 1)
    return ConfigDict({**config.to_dict(), "data": data}), (Length(per_epoch, total), num_classes)


def _write(compiled: Sequence[CompiledStep], target: Target, workdir: Path) -> None:
    make_directory(workdir)
    Table(compiled).write_csv(workdir / "compiled.csv", jax=jax.__version__)
    record = {"jax": jax.__version__, "steps": [dataclasses.asdict(row) for row in compiled]}
    write_atomically(workdir / "compiled.json", json.dumps(record, indent=2) + "\n")
    described_page.page(compiled, target).save(workdir / "report.html")
