"""A command's training step compiled for devices that are described (`--compile_for`): no data, no device."""

import dataclasses
import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxprune import accelerators, commands
from jaxprune.accelerators import Costs, Fitted, Target
from jaxprune.commands.shared import inputs
from jaxprune.commands.shared.training import Length
from jaxprune.config import Config
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.files import make_directory, write_atomically
from jaxprune.nn.patch_embed import pair
from jaxprune.report.table import Table, as_text, column
from jaxprune.train.lowered import Step, lower

# Of data that are not read: those of ImageNet-1k.
NUM_CLASSES, NUM_IMAGES = 1000, 1_281_167

_log = logging.getLogger(__name__)


class DescribedStep(NamedTuple):
    """A training step and the columns of its batch, as shapes."""

    step: Step
    batch: dict[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A row of the table: a training step on one topology."""

    task: str = column("task")
    target: str = column("compiled for")
    mesh: str = column("mesh")
    dtype: str = column("dtype")
    batch: int = column("batch")
    rows: int = column("batch a chip")
    fits: bool = column("fits")
    costs: Costs | None = None


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


def compile_for(config: Config, workdir: Path, target: Target) -> dict[str, Any]:
    """Compiles the training step of a config for described devices, prints what it takes, and writes it as a table.

    Returns:
      A summary: whether the step fits, and its row of the table.

    Raises:
      UserError: the command has no step to compile, a setting is wrong, or the compiler is not installed.
    """
    describe = _description(config.task)
    config, (steps, num_classes) = _without_data(config)
    with accelerators.compiling_for(target):
        commands.require_usable(config, workdir)
        mesh = inputs.mesh(config)

        def attempt(rows: int) -> Costs:
            batch_size = rows * target.chips
            _log.info("Compiling a step of %d images (%d a chip) for %s…", batch_size, rows, target)
            step, batch = describe(ConfigDict({**config.to_dict(), "batch_size": batch_size}), steps, num_classes)
            return accelerators.costs(lower(step, batch, mesh, accumulate=config.accumulate), target)

        fitted = accelerators.fit_by_halves(config.batch_size // target.chips, attempt)
    row = CompiledStep(
        config.task,
        str(target),
        ",".join(f"{name}={size}" for name, size in mesh.shape.items()),
        config.dtype,
        config.batch_size,
        fitted.rows,
        fitted.refused is None,
        fitted.costs,
    )
    print(text_of(row, fitted, target))
    _write(row, workdir)
    return {"fits": row.fits, "batch_a_chip": fitted.rows}


def text_of(row: CompiledStep, fitted: Fitted, target: Target) -> str:
    """The result for a terminal: whether the step fits in one line, then memory, work and communication."""
    title, costs = f"{row.task} on {target} ({target.chips} x {target.chip.title}), {row.dtype}, {row.mesh}", row.costs
    verdict = f"a step of {row.batch} images, {row.batch // target.chips} a chip,"
    if fitted.refused is None:
        lines = [f"{title}: {verdict} fits."]
    else:
        largest = f"the largest that fits, by halves, is {fitted.rows} a chip" if fitted.rows else "no batch fits"
        lines = [f"{title}: {verdict} does not fit ({fitted.refused}); {largest}."]
    if costs is None:
        return lines[0]
    parts = ("arguments", "outputs", "temporaries", "code", "total")
    memory = [{"memory a chip": name, "GiB": getattr(costs, name)} for name in parts]
    of_cycles = f"{costs.mcycles:.4g} million cycles of the compiler's estimate at {target.chip.hertz / 1e9:g} GHz"
    source = of_cycles if costs.cycles else "roofline of each kernel, as this compiler estimates no cycles"
    lines += [
        "",
        as_text(memory),
        f"of {costs.available:.2f} GiB",
        "",
        f"matrix products   {costs.tflop:.4g} TFLOP a chip",
        f"moved by kernels  {costs.moved:.4g} GiB a chip",
        f"estimated time    {costs.ms:.4g} ms a step, {1e3 * fitted.rows / costs.ms:,.0f} images a second a chip",
        f"                  ({source};",
        "                  without communication; nothing ran on a device)",
        f"share of peak     {costs.share:.1%} of {target.chip.flops / 1e12:g} TFLOP/s",
        "",
    ]
    sent = [
        {"communication a chip": kind, "count": count, "MiB": size / 2**20}
        for kind, (count, size) in costs.collectives.items()
    ]
    return "\n".join([*lines, as_text(sent) if sent else "no communication between chips"])


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


def _without_data(config: Config) -> tuple[Config, tuple[Length, int]]:
    """Returns the config with built-in scenes instead of its data, and the length and classes of the run."""
    scenes = config.data.source == "scenes"
    num_images = config.data.num_train if scenes else NUM_IMAGES
    num_classes = Scenes.num_classes if scenes else NUM_CLASSES
    data = {**config.data.to_dict(), "source": "scenes", "path": "", "name": ""}
    per_epoch = max(num_images // config.batch_size, 1)
    total = config.steps or max(int(per_epoch * config.epochs), 1)
    return ConfigDict({**config.to_dict(), "data": data}), (Length(per_epoch, total), num_classes)


def _write(row: CompiledStep, workdir: Path) -> None:
    make_directory(workdir)
    Table([row]).write_csv(workdir / "compiled.csv", jax=jax.__version__)
    record = {**dataclasses.asdict(row), "jax": jax.__version__}
    write_atomically(workdir / "compiled.json", json.dumps(record, indent=2) + "\n")
