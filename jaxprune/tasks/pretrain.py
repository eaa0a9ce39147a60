"""Masked pre-training of a vision transformer: MAE, plain partial reconstruction or PR-MIM."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune import processes
from jaxprune.checkpoints.run import build, write_card
from jaxprune.config import Config
from jaxprune.data.augment import random_flip
from jaxprune.losses import masked_mse
from jaxprune.metrics import average
from jaxprune.nn.params import Split, merge, split
from jaxprune.ops.patches import normalize_patches, patchify, unpatchify
from jaxprune.tasks import setup
from jaxprune.train import loop
from jaxprune.train import workdir as workdirs
from jaxprune.train.evaluator import evaluate
from jaxprune.train.writer import Writer, read_metrics
from jaxprune.viz.pictures.base import GREY, to_uint8
from jaxprune.viz.pictures.reconstruction import reconstruction_rows
from jaxprune.viz.report import Report

# Held-out images are masked the same way every time, so that one evaluation can be compared with the next.
EVAL_KEY = 20_22
PICTURES = 6


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Pre-trains as the config says and leaves checkpoints, metrics, pictures and a report in `workdir`."""
    workdirs.prepare(workdir, setup.plain(config))
    if workdirs.is_complete(workdir):
        return workdirs.read_summary(workdir)
    train, held_out = setup.source(config, "train"), setup.source(config, "eval")
    arguments = {**setup.plain(config.mim)}
    model = build("mim", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    model.preprocessing = setup.preprocessing(config)
    write_card(workdir, model)
    parts = split(model)
    steps = setup.length(config, len(train))
    schedule = setup.learning_rate(config, steps)

    def loss_fn(params, batch, key):
        flip_key, mask_key = jax.random.split(key)
        images = batch["image"]
        if config.flip:
            images = random_flip(flip_key, images)
        loss, _ = merge(parts.graph, params, parts.rest)(setup.normalized(config, images), key=mask_key)
        return loss, {}

    hooks = [
        loop.Hook(config.picture_every or steps.total, _drawer(config, parts, held_out)),
        loop.Hook(config.eval_every or steps.total, _evaluator(config, parts, held_out)),
    ]
    result = setup.fit(
        config,
        workdir,
        parts,
        loss_fn,
        setup.adamw(config, schedule, parts.params),
        schedule,
        steps,
        setup.train_batches(config, train),
        hooks,
    )
    if result.stopped == "signal":
        return {"stopped": "signal", "step": result.step}
    summary = setup.outcome(workdir, result, steps, train, held_out)
    return setup.conclude(workdir, summary, lambda: describe(config, workdir, summary, train, held_out))


def mean_colour_loss(model: Any, images: jax.Array, masked: jax.Array) -> jax.Array:
    """The loss of whoever knows the mean colour of every masked patch and nothing else, in the model's own target."""
    target = model.target(images)
    b, p, q = target.shape
    pixels = target.reshape(b, p, -1, images.shape[-1])
    guess = jnp.broadcast_to(pixels.mean(2, keepdims=True), pixels.shape).reshape(b, p, q)
    return masked_mse(guess, target, masked)


def _evaluator(config: Config, parts: Split, source: Any):
    def eval_fn(params, batch):
        model = merge(parts.graph, params, parts.rest)
        images = setup.normalized(config, batch["image"])

        def one(image, index):
            key = jax.random.fold_in(jax.random.key(EVAL_KEY), index)
            loss, aux = model(image[None], key=key)
            return loss, mean_colour_loss(model, image[None], aux.masked)

        loss, colour = jax.vmap(one)(images, batch["index"])
        return {"loss": average(loss, batch["valid"]), "mean_colour_loss": average(colour, batch["valid"])}

    def hook(step: int, state: Any, writer: Writer) -> None:
        batches = setup.eval_batches(config, source)
        metrics = evaluate(eval_fn, state.params, batches, setup.mesh(config), desc="held-out")
        metrics["ratio_to_mean_colour"] = metrics["loss"] / metrics["mean_colour_loss"]
        writer.metrics(step, "eval", metrics)

    return hook


def reconstruct(parts: Split, params: dict, images: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
    """Returns normalised images with every patch as the model predicts it, and the model's aux."""
    model = merge(parts.graph, params, parts.rest)
    _, aux = model(images, key=key)
    pred = aux.pred
    if model.norm_pix_loss:
        # A model of normalised pixels says nothing of a patch's own mean and contrast: borrow them from the image.
        _, mean, std = normalize_patches(patchify(images, model.patch_size))
        pred = pred * std + mean
    return unpatchify(pred, model.patch_size, model.grid), aux


def picture(config: Any, parts: Split, params: dict, images: np.ndarray) -> np.ndarray:
    """Draws originals, what was masked, what was reconstructed and which cells were thrown."""
    pixels = setup.normalized(config, jnp.asarray(images))
    rebuilt, aux = jax.jit(lambda p, x: reconstruct(parts, p, x, jax.random.key(EVAL_KEY)))(params, pixels)
    shown = to_uint8(np.asarray(rebuilt), config.data.mean, config.data.std)
    model = merge(parts.graph, params, parts.rest)
    if model.reconstruction == "partial":
        for image, cells in zip(shown, np.asarray(aux.thrown), strict=True):
            rows, columns = model.patch_size
            whole = np.kron(cells.reshape(model.grid), np.ones((rows, columns))).astype(bool)
            image[whole] = GREY
    thrown = np.asarray(aux.thrown)
    return reconstruction_rows(images, np.asarray(aux.masked), thrown if thrown.any() else None, shown, model.grid)


def _drawer(config: Config, parts: Split, source: Any):
    images = next(iter(setup.eval_batches(config, source)))["image"][:PICTURES]

    def hook(step: int, state: Any, writer: Writer) -> None:
        params = processes.whole(state.params)
        if processes.leads():
            writer.images(step, "reconstruction", picture(config, parts, params, images))

    return hook


def describe(config: Config, workdir: Path, summary: dict[str, Any], *sources: Any, path: Path | None = None) -> None:
    """Adds the section of this run to its report, or to the one at `path`."""
    report = Report("jaxprune", f"{workdir.name}")
    section = report.section("Pre-training", slug="pretrain")
    model = config.mim
    section.text(
        f"{model.name.upper()} with {model.reconstruction} reconstruction on {summary['data']}: "
        f"{model.mask_ratio:.0%} of the patches are masked, {model.throw_ratio or 0:.0%} never enter the decoder."
    )
    if summary["steps"] < summary["planned_steps"]:
        section.note(
            f"Stopped at step {summary['steps']} of {summary['planned_steps']}: the time of max_minutes was up.",
            kind="warning",
        )
    section.metric_tiles(
        {
            "held-out loss": summary["loss"],
            "of mean colour's": (summary["ratio_to_mean_colour"], "1 = predicting each patch's mean colour"),
            "steps": summary["steps"],
            "seconds": round(summary["seconds"]),
        }
    )
    records = read_metrics(workdir)
    setup.curves(section, records, {"train/loss": "training", "eval/loss": "held-out"}, "loss on masked patches")
    pictures = sorted((workdir / "pictures").glob("reconstruction_*.png"))
    if pictures:
        section.figure(setup.read_picture(pictures[-1]), "Held-out images; thrown cells are marked.")
    setup.broken_files(section, *sources)
    section.command(setup.command())
    report.add_to(path or workdir / "report.html")
