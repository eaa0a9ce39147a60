"""Training of a patch ranker without labels (LTRP), on what a masked autoencoder's reconstructions need."""

import functools
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from jaxprune import losses, metrics, parallel
from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.read import load_pretrained
from jaxprune.checkpoints.run import build, load_model, write_card
from jaxprune.config import Config
from jaxprune.data.augment import normalize, random_flip
from jaxprune.errors import UserError, unknown
from jaxprune.mim import Pixels, RandomMasker
from jaxprune.nn import BatchNorm
from jaxprune.nn.params import Split, jitted, merge, split, variables
from jaxprune.ops.patches import patchify, unpatchify
from jaxprune.ranking import ConvRanker, label_masks, pseudo_labels
from jaxprune.ranking.labels import reconstructions
from jaxprune.ranking.removals import token_decoder
from jaxprune.tasks import pretrain
from jaxprune.tasks.setup import inputs, reporting, training
from jaxprune.train import loop
from jaxprune.train import workdir as workdirs
from jaxprune.train.evaluator import evaluate
from jaxprune.train.state import RUNNING
from jaxprune.train.step import GIVEN, OBSERVED
from jaxprune.train.writer import Writer, read_metrics
from jaxprune.viz.pictures.base import to_uint8
from jaxprune.viz.pictures.heatmap import heatmap
from jaxprune.viz.pictures.layout import tile, upscale
from jaxprune.viz.pictures.marks import outline_patches
from jaxprune.viz.pictures.text import label
from jaxprune.viz.report import Report

LOSSES = {
    "list_mle": losses.list_mle_loss,
    "list_net": losses.list_net_loss,
    "rank_net": losses.rank_net_loss,
    "focused_rank": losses.focused_rank_loss,
    "point_wise": losses.point_wise_loss,
}
PRETRAIN = "pretrain"  # the directory, inside of the run's, of the autoencoder that it pre-trains
KEPT = 0.3  # of the patches, where recall of object masks is measured while training
SCORE_MAPS, REMOVED = 8, 4  # pictures
_RED = (214, 39, 40)

_log = logging.getLogger(__name__)


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Trains a ranker as configured and leaves checkpoints, metrics, pictures and a report in `workdir`."""
    workdirs.prepare(workdir, config.to_dict())
    if workdirs.is_complete(workdir):
        return workdirs.read_summary(workdir)
    ranking_loss = ranking_loss_of(config)
    if not config.label_model:
        stopped = _pretrain(config, workdir / PRETRAIN)
        if stopped:
            return stopped
    source = label_source(config, workdir)
    train, held_out = inputs.source(config, "train"), inputs.source(config, "eval")
    arguments = config.ranker.to_dict()
    ranker = build("ranker", arguments, dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    _check(config, ranker, source)
    if config.warm_start:
        begin_as_encoder(ranker, source)
    ranker.preprocessing = inputs.preprocessing(config)
    write_card(workdir, ranker)
    parts = split(ranker)
    mesh = inputs.mesh(config)
    steps = training.length(config, len(train))
    schedule = training.learning_rate(config, steps)
    frozen = parallel.replicate(mesh, {**source.params, **source.rest})
    # A ViT's tables stay as they are; a ConvNet's statistics follow the batches.
    running = parts.rest if isinstance(ranker, ConvRanker) else {}

    def loss_fn(params, batch, key):
        flip_key, mask_key = jax.random.split(key)
        images = batch["image"]
        if config.flip:
            images = random_flip(flip_key, images)
        images = inputs.normalized(config, images)
        relevance, ids_keep, _ = pseudo_labels(
            merge(source.graph, batch[GIVEN], {}),
            images,
            key=mask_key,
            shards=mesh.size,
            **label_options(config.labels),
        )
        ranker = merge(parts.graph, params, parts.rest)
        scores = ranker.scores(images, ids_keep if config.sparse else None, train=True)
        seen = jnp.take_along_axis(scores, ids_keep, axis=1)
        reported: dict[str, Any] = {"tau": metrics.kendall_tau(seen, relevance).mean()}
        if running:
            reported[OBSERVED] = observed(split(ranker).rest, running)
        return ranking_loss(seen, relevance).mean(), reported

    tx = training.adamw(config, schedule, parts.params)
    hook = loop.Hook(config.eval_every or steps.total, _evaluator(config, parts, source, frozen, held_out))
    batches = inputs.train_batches(config, train)
    fixed = {"given": frozen, "running": running or None}
    result = training.fit(config, workdir, parts, loss_fn, tx, schedule, steps, batches, [hook], **fixed)
    if result.stopped == "signal":
        return {"stopped": "signal", "step": result.step}
    summary = training.outcome(workdir, result, steps, train, held_out)
    return training.conclude(workdir, summary, lambda: describe(config, workdir, summary, train, held_out))


def _pretrain(config: Config, workdir: Path) -> dict[str, Any] | None:
    """Pre-trains the autoencoder if need be; returns the summary if that was interrupted."""
    if "pretrain" not in config:
        raise UserError(
            "Nothing makes the labels: give --config.label_model=RUN, a pre-training run of ours or a weights file of "
            "the network config.mim."
        )
    settings = ConfigDict(config.pretrain.to_dict())
    settings.seed = config.seed
    summary = pretrain.run(settings, workdir)
    return {"phase": PRETRAIN, **summary} if summary.get("stopped") else None


def label_source(config: Config, workdir: Path) -> Split:
    """Returns the frozen autoencoder that makes the labels, and warns if it is not of the published kind.

    Raises:
      UserError: it is no masked autoencoder, or it was trained on pixels normalised in another way.
    """
    origin = Path(config.label_model or workdir / PRETRAIN)
    if origin.is_dir():
        card = Card.read(origin).require("mim", origin)
        for name in ("mean", "std"):
            own = getattr(card.preprocessing, name)
            if own != tuple(config.data[name]):
                raise UserError(
                    f"{origin} was trained on pixels with {name} {own}, and config.data.{name} is "
                    f"{tuple(config.data[name])}: give the same."
                )
        arguments, loaded = card.arguments, split(load_model(origin))
    else:
        arguments = config.mim.to_dict()
        framework = build("mim", arguments, rngs=nnx.Rngs(0))
        # A checkpoint of LTRP's training holds the ranker beside the autoencoder.
        loaded = split(load_pretrained(framework, origin, ignored=("score_net.*",)))
    # The same weights, computed with in this run's precision.
    graph = split(nnx.eval_shape(lambda: build("mim", arguments, dtype=config.dtype, rngs=nnx.Rngs(0)))).graph
    framework = nnx.eval_shape(lambda: merge(graph, loaded.params, loaded.rest))
    token_decoder(framework)  # refuses a decoder that labels cannot be made with
    if framework.target.name != Pixels.name:
        _log.warning(
            "%s was trained on %s; LTRP makes its labels from raw pixels (norm_pix_loss=False).",
            origin,
            framework.target.name,
        )
    if framework.reconstruction != config.expects:
        _log.warning(
            "%s was trained with %s reconstruction, and %s was expected; LTRP's labels come from a decoder that was "
            "trained on all patches.",
            origin,
            framework.reconstruction,
            config.expects,
        )
    return Split(graph, loaded.params, loaded.rest)


def ranking_loss_of(config: Config) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns the loss that the config names, (scores, relevance) -> one value per image.

    Raises:
      UserError: there is no such loss, or it has no such option.
    """
    if config.loss not in LOSSES:
        raise unknown("ranking loss", config.loss, LOSSES)
    function, options = LOSSES[config.loss], config.loss_options.to_dict()
    known = [name for name in inspect.signature(function).parameters if name not in ("scores", "relevance", "where")]
    for name in options:
        if name not in known:
            raise UserError(f"The loss {config.loss!r} has no option {name!r}. It has: {', '.join(known)}.")
    return functools.partial(function, **options)


def label_options(settings: Config) -> dict[str, Any]:
    """Returns the arguments of `pseudo_labels` that `config.labels` stands for."""
    options = settings.to_dict()
    options["memory"] = int(options.pop("memory_mib") * 2**20)
    return options


def _check(config: Config, ranker: Any, source: Split) -> None:
    theirs = nnx.eval_shape(lambda: merge(source.graph, source.params, source.rest)).encoder.patch_embed
    if (theirs.img_size, theirs.grid) != (ranker.img_size, ranker.grid):
        raise UserError(
            f"The ranker reads {ranker.img_size} pixels in {ranker.grid} patches, the autoencoder {theirs.img_size} in "
            f"{theirs.grid}: give config.ranker the autoencoder's img_size and patch_size."
        )
    if config.sparse and isinstance(ranker, ConvRanker):
        raise UserError("A ConvNet sees whole images: a ranker made of one needs config.sparse=False.")


def observed(written: dict[str, jax.Array], before: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns a batch's own statistics, of which `BatchNorm` has mixed its share into those there were `before`."""
    share = BatchNorm(1).momentum
    return {name: jax.lax.stop_gradient((written[name] - (1 - share) * before[name]) / share) for name in before}


def begin_as_encoder(ranker: Any, source: Split) -> None:
    """Copies the autoencoder's encoder into a ranker of its sizes; the head stays as it is.

    Raises:
      UserError: the sizes differ.
    """
    encoder = {**source.params, **source.rest}
    for name, variable in variables(ranker).items():
        if name.startswith("head"):
            continue
        value = encoder.get(f"encoder.{name}")
        if value is None or value.shape != variable.shape:
            theirs = "absent" if value is None else value.shape
            raise UserError(
                f"The ranker cannot begin as the autoencoder's encoder: {name} is {variable.shape} here and {theirs} "
                "there. Give config.ranker the encoder's sizes, or warm_start=False."
            )
        variable[...] = value


def _evaluator(config: Config, parts: Split, source: Split, frozen: dict[str, jax.Array], held_out: Any):
    # Exact labels, whatever training makes do with, so that runs can be compared.
    options, ranking_loss = {**label_options(config.labels), "throw_ratio": 0.0}, ranking_loss_of(config)

    def eval_fn(params, batch):
        images, valid = inputs.normalized(config, batch["image"]), batch["valid"]
        framework = merge(source.graph, params["frozen"], {})
        ranker = merge(parts.graph, params["ranker"], {**parts.rest, **params["running"]})

        def draw(index):
            key = jax.random.fold_in(jax.random.key(pretrain.EVAL_KEY), index)
            return jax.random.uniform(key, (framework.num_patches,))

        noise = jax.vmap(draw)(batch["index"])
        shards = inputs.mesh(config).size
        relevance, ids_keep, _ = pseudo_labels(framework, images, noise=noise, shards=shards, **options)
        of_visible = lambda scores: jnp.take_along_axis(scores, ids_keep, axis=1)
        whole = ranker.scores(images)
        seen = of_visible(ranker.scores(images, ids_keep) if config.sparse else whole)
        found = {
            "loss": metrics.average(ranking_loss(seen, relevance), valid),
            "tau": metrics.average(metrics.kendall_tau(seen, relevance), valid),
            "tau_whole_image": metrics.average(metrics.kendall_tau(of_visible(whole), relevance), valid),
        }
        if "mask" in batch:
            found["recall"] = object_recall(whole, batch["mask"], ranker, valid)
        return found

    def hook(step: int, state: Any, writer: Writer) -> None:
        params = {"ranker": state.params, "frozen": frozen, "running": state.extra.get(RUNNING, {})}
        batches = inputs.eval_batches(config, held_out)
        writer.metrics(step, "eval", evaluate(eval_fn, params, batches, inputs.mesh(config), desc="held-out"))

    return hook


def object_recall(scores: jax.Array, mask: jax.Array, ranker: Any, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (patches of objects among the best `KEPT` of all, patches of objects) of a batch with object masks."""
    positive = patchify(mask[..., None], ranker.patch_size).any(-1) & valid[:, None]
    ranks = jnp.argsort(jnp.argsort(-scores, axis=1, stable=True), axis=1)
    hits, total = metrics.patch_recall(ranks, positive, (int(KEPT * ranker.num_patches),))
    return hits.sum(), total.sum()


def score_maps(parts: Split, images: np.ndarray, mean: Any, std: Any) -> list[np.ndarray]:
    """Draws what a ranker makes of whole images: each above its scores, dark to bright."""
    ranker = merge(parts.graph, parts.params, parts.rest)
    scores = jitted(ranker, lambda ranker, x: ranker.scores(normalize(x, mean, std)))(jnp.asarray(images))
    scores = np.asarray(scores).reshape(-1, *ranker.grid)
    pairs = zip(images, scores, strict=True)
    return [np.concatenate([shown, heatmap(shown, map_)]) for image, map_ in pairs for shown in [upscale(image)]]


def removal_pictures(config: Config, source: Split, images: np.ndarray) -> np.ndarray:
    """Draws for each image what the labels compare (LTRP, Fig. 13).

    From left to right: the image, its reconstruction from the visible patches, the two reconstructions that change most
    when a visible patch (red) goes, and the one that changes least.
    """
    framework = merge(source.graph, source.params, source.rest)
    pixels = inputs.normalized(config, jnp.asarray(images))
    key = jax.random.key(pretrain.EVAL_KEY)

    def compared(framework, pixels):
        masker = RandomMasker(framework.grid, config.labels.mask_ratio)
        masks = label_masks(masker.draw(len(pixels), key=key), framework.grid)
        found = reconstructions(framework, pixels, masks)
        change = jnp.abs(found.removed - found.anchor[:, None]).mean(3).sum(2) / masks.masked.sum(1)[:, None]
        order = jnp.argsort(-change, axis=1, stable=True)
        # With two visible patches the second is also the last.
        chosen = jnp.concatenate([order[:, :2], order[:, -1:]], axis=1)
        removed = jnp.take_along_axis(found.removed, chosen[:, :, None, None], axis=1)
        shown = jnp.concatenate([found.anchor[:, None], removed], axis=1)
        # Visible patches as they are.
        shown = jnp.where(masks.masked[:, None, :, None], shown, patchify(pixels, framework.patch_size)[:, None])
        of_chosen = lambda values: jnp.take_along_axis(values, chosen, axis=1)
        return shown, of_chosen(masks.ids_keep), of_chosen(change)

    cells = []
    for image, shown, patches, change in zip(
        images, *jax.tree.map(np.asarray, jitted(framework, compared)(pixels)), strict=True
    ):
        restored = np.asarray(unpatchify(jnp.asarray(shown), framework.patch_size, framework.grid))
        restored = [upscale(picture) for picture in to_uint8(restored, config.data.mean, config.data.std)]
        cells += [label(upscale(image), "image"), label(restored[0], "from what is seen")]
        for picture, patch, amount in zip(restored[1:], patches, change, strict=True):
            gone = np.arange(framework.num_patches) == patch
            cells.append(label(outline_patches(picture, gone, framework.grid, _RED), f"changed by {amount:.3f}"))
    return tile(cells, 5)


def describe(config: Config, workdir: Path, summary: dict[str, Any], *sources: Any, path: Path | None = None) -> None:
    """Adds the section of this run to its report, or to the one at `path`."""
    report = Report("jaxprune", workdir.name)
    section = report.section("Ranking patches", slug="train_ranker")
    labels = config.labels
    section.text(
        f"A ranker learns on {summary['data']} which patches matter, without labels: a frozen masked autoencoder sees "
        f"{1 - labels.mask_ratio:.0%} of them, and a patch matters as much as the reconstruction changes without it."
    )
    if summary["steps"] < summary["planned_steps"]:
        section.note(
            f"Stopped at step {summary['steps']} of {summary['planned_steps']}: the time of max_minutes was up.",
            kind="warning",
        )
    tiles = {
        "Kendall's tau": (summary["tau"], "with held-out labels; 1 = the same order"),
        "on whole images": (summary["tau_whole_image"], "the same, all patches seen"),
        "steps": summary["steps"],
        "seconds": round(summary["seconds"]),
    }
    if "recall" in summary:
        tiles["object patches found"] = (f"{summary['recall']:.1%}", f"among the best {KEPT:.0%} of the patches")
    section.metric_tiles(tiles)
    records = read_metrics(workdir)
    reporting.curves(section, records, {"train/tau": "training", "eval/tau": "held-out"}, "Kendall's tau")
    reporting.curves(section, records, {"train/loss": "training", "eval/loss": "held-out"}, f"{config.loss} loss")
    batch = next(iter(inputs.eval_batches(config, sources[-1] if sources else inputs.source(config, "eval"))))
    images = batch["image"][:SCORE_MAPS]
    maps = score_maps(split(load_model(workdir)), images, config.data.mean, config.data.std)
    section.figure(tile(maps, SCORE_MAPS), "Held-out images, and what the ranker makes of them: bright matters.")
    source = label_source(config, workdir)
    section.figure(
        removal_pictures(config, source, images[:REMOVED]),
        "What the labels come from: without the patch in red, the reconstruction changes or it does not.",
    )
    reporting.broken_files(section, *sources)
    section.command(reporting.command())
    path = path or workdir / "report.html"
    if not config.label_model:
        Report("jaxprune", workdir.name).add_to(path)  # the page is this run's, though the autoencoder comes first
        settings = ConfigDict(config.pretrain.to_dict())
        pretrain.describe(settings, workdir / PRETRAIN, workdirs.read_summary(workdir / PRETRAIN), path=path)
    report.add_to(path)
