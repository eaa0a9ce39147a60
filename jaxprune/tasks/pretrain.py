"""Masked pre-training of a vision transformer by any framework of `jaxprune.mim`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import parallel, processes
from jaxprune.checkpoints.run import build, write_card
from jaxprune.config import Config
from jaxprune.data.augment import random_flip
from jaxprune.metrics import average
from jaxprune.mim.base import STORED
from jaxprune.nn.params import Split, jitted, merge, split
from jaxprune.tasks.setup import inputs, reporting, training
from jaxprune.train import loop
from jaxprune.train import workdir as workdirs
from jaxprune.train.evaluator import evaluate
from jaxprune.train.step import GIVEN
from jaxprune.train.writer import Writer, read_metrics
from jaxprune.viz.pictures.base import GREY, to_uint8
from jaxprune.viz.pictures.reconstruction import reconstruction_rows
from jaxprune.viz.report import Report

# Held-out images are masked the same way every time, so that one evaluation can be compared with the next.
EVAL_KEY = 20_22
PICTURES = 6


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Pre-trains as configured and leaves checkpoints, metrics, pictures and a report in `workdir`."""
    workdirs.prepare(workdir, config.to_dict())
    if workdirs.is_complete(workdir):
        return workdirs.read_summary(workdir)
    train, held_out = inputs.source(config, "train"), inputs.source(config, "eval")
    arguments = {**config.mim.to_dict()}
    model = build("mim", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    parts = split(model)
    stored = {name: array for name, array in parts.rest.items() if name.startswith(STORED)}
    model.preprocessing = inputs.preprocessing(config)
    write_card(workdir, model, fixed=stored)
    # Arguments of every step, and not constants in it: a teacher is large.
    fixed = parallel.replicate(inputs.mesh(config), parts.rest)
    steps = training.length(config, len(train))
    schedule = training.learning_rate(config, steps)

    def loss_fn(params, batch, key):
        flip_key, mask_key = jax.random.split(key)
        images = batch["image"]
        if config.flip:
            images = random_flip(flip_key, images)
        loss, _ = merge(parts.graph, params, batch.get(GIVEN, {}))(inputs.normalized(config, images), key=mask_key)
        return loss, {}

    hooks = [
        loop.Hook(config.picture_every or steps.total, _drawer(config, parts, held_out)),
        loop.Hook(config.eval_every or steps.total, _evaluator(config, parts, fixed, held_out)),
    ]
    result = training.fit(
        config,
        workdir,
        parts,
        loss_fn,
        training.adamw(config, schedule, parts.params),
        schedule,
        steps,
        inputs.train_batches(config, train),
        hooks,
        given=fixed,
    )
    if result.stopped == "signal":
        return {"stopped": "signal", "step": result.step}
    summary = training.outcome(workdir, result, steps, train, held_out)
    return training.conclude(workdir, summary, lambda: describe(config, workdir, summary, train, held_out))


def _evaluator(config: Config, parts: Split, fixed: dict[str, jax.Array], source: Any):
    def eval_fn(arrays, batch):
        model = merge(parts.graph, arrays["params"], arrays["fixed"])
        images = inputs.normalized(config, batch["image"])

        def one(image, index):
            loss, aux = model(image[None], key=jax.random.fold_in(jax.random.key(EVAL_KEY), index))
            colour = model.mean_colour_loss(image[None], aux.masks)
            return {"loss": loss} | ({} if colour is None else {"mean_colour_loss": colour})

        found = jax.vmap(one)(images, batch["index"])
        return {name: average(values, batch["valid"]) for name, values in found.items()}

    def hook(step: int, state: Any, writer: Writer) -> None:
        arrays, batches = {"params": state.params, "fixed": fixed}, inputs.eval_batches(config, source)
        metrics = evaluate(eval_fn, arrays, batches, inputs.mesh(config), desc="held-out")
        if "mean_colour_loss" in metrics:
            metrics["ratio_to_mean_colour"] = metrics["loss"] / metrics["mean_colour_loss"]
        writer.metrics(step, "eval", metrics)

    return hook


def picture(config: Any, parts: Split, params: dict, images: np.ndarray) -> np.ndarray:
    """Draws originals, what was masked, what was reconstructed and which cells were thrown."""
    pixels = inputs.normalized(config, jnp.asarray(images))
    model = merge(parts.graph, params, parts.rest)
    found = jitted(model, lambda model, pixels: model.picture(pixels, jax.random.key(EVAL_KEY)))(pixels)
    shown = to_uint8(np.asarray(found.images), config.data.mean, config.data.std)
    for image, cells in zip(shown, np.asarray(found.predicted), strict=True):
        image[np.kron(~cells.reshape(model.grid), np.ones(model.patch_size, bool))] = GREY
    thrown = np.asarray(found.thrown)
    return reconstruction_rows(images, np.asarray(found.masked), thrown if thrown.any() else None, shown, model.grid)


def _drawer(config: Config, parts: Split, source: Any):
    images = next(iter(inputs.eval_batches(config, source)))["image"][:PICTURES]

    def hook(step: int, state: Any, writer: Writer) -> None:
        params = processes.whole(state.params)
        if processes.leads():
            writer.images(step, "reconstruction", picture(config, parts, params, images))

    return hook


def describe(config: Config, workdir: Path, summary: dict[str, Any], *sources: Any, path: Path | None = None) -> None:
    """Adds the section of this run to its report, or to the one at `path`."""
    report = Report("jaxprune", f"{workdir.name}")
    section = report.section("Pre-training", slug="pretrain")
    model = nnx.eval_shape(lambda: build("mim", config.mim.to_dict(), rngs=nnx.Rngs(0)))
    section.text(f"{model.summary()} It is trained on {summary['data']}.")
    if summary["steps"] < summary["planned_steps"]:
        section.note(
            f"Stopped at step {summary['steps']} of {summary['planned_steps']}: the time of max_minutes was up.",
            kind="warning",
        )
    tiles = {"held-out loss": summary["loss"], "steps": summary["steps"], "seconds": round(summary["seconds"])}
    if "ratio_to_mean_colour" in summary:
        tiles["of mean colour's"] = (summary["ratio_to_mean_colour"], "1 = predicting each patch's mean colour")
    section.metric_tiles(tiles)
    records = read_metrics(workdir)
    reporting.curves(section, records, {"train/loss": "training", "eval/loss": "held-out"}, "loss on masked patches")
    pictures = sorted((workdir / "pictures").glob("reconstruction_*.png"))
    if pictures:
        section.figure(reporting.read_picture(pictures[-1]), "Held-out images; thrown cells are marked.")
    reporting.broken_files(section, *sources)
    section.command(reporting.command())
    report.add_to(path or workdir / "report.html")
