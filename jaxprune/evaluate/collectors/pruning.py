"""A dense classifier pruned by patch scorers: predictions and confidences by number of patches."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array

from jaxprune import flops, reduction
from jaxprune.data import clips
from jaxprune.evaluate import Batch, Forward, Stacked, run_over
from jaxprune.evaluate.collectors import proposals
from jaxprune.evaluate.forwards import one_view, over_views, patch_scores, pixels
from jaxprune.flops.scorers import scorer_flops
from jaxprune.measures.insertion_deletion import Values
from jaxprune.metrics import wilson_interval
from jaxprune.nn.params import Fixed, merge, split
from jaxprune.reduction import DENSE
from jaxprune.reduction.parts.keep_rows import best
from jaxprune.scoring import Scorer

SHOWN = 6  # images whose scores are drawn


class Shown(NamedTuple):
    """An image or a clip to draw: its position in the pass, its pixels, and its scores by scorer."""

    place: int
    image: np.ndarray
    scores: dict[str, np.ndarray]


class Pruned(NamedTuple):
    """The predictions of a classifier, dense and pruned, for n held-out images.

    Attributes:
      index: which images they are, (n,): those that cannot be read are left out.
      labels: the true classes, (n,).
      predictions: the predicted classes; the dense network is the scorer `DENSE`.
      confidences: probability of the true class.
      removed: the same with the best patches removed, by the number of remaining patches.
      shown: some images to draw.
      scores: patch scores by scorer, (n, p).
      proposal: the proposal network's probability of the true class, (n,); None if its classes differ.
    """

    index: np.ndarray
    labels: np.ndarray
    predictions: Values
    confidences: Values
    removed: Values
    shown: list[Shown]
    scores: dict[str, np.ndarray]
    proposal: np.ndarray | None = None

    def example(self, place: int, image: np.ndarray) -> Shown:
        """An image of the pass, to draw."""
        return Shown(place, image, {name: own[place] for name, own in self.scores.items()})


def num_scored(model: Any) -> int:
    """Returns the number of units of an image that a scorer selects from: patches, or Hiera's mask units."""
    return model.entrance().num_patches


def num_kept(model: Any, keep_rate: float) -> int:
    """Returns how many of these a keep rate z keeps by PaPr's count, `int(n·z)`, where n includes the prefix tokens.

    All scorers are compared at this count.
    """
    patches = num_scored(model)
    return min(max(int((patches + model.num_prefix_tokens) * keep_rate), 1), patches)


def about(model: Any) -> str:
    """Returns sentences for a report on how scorers prune a network."""
    first, patches = model.sites()[0], num_scored(model)
    if not model.prunes_input:
        return (
            "Its maps stay whole: at keep rate z, `int(n·z)` of the n positions of each block's map pass the "
            "point-wise "
            "layers, by the scores resampled to that map."
        )
    what = "mask units" if patches < first.num_patches else "patches, where n includes the class token"
    return f"At keep rate z all scorers keep `int(n·z)` of {patches} {what}, before the first block."


def measure(
    model: Any,
    scorers: Mapping[str, Scorer],
    batches: Iterable[Batch],
    mesh: Mesh,
    *,
    keep: Iterable[int],
    curve: Iterable[int] = (),
    seed: int = 0,
    shown: Iterable[int] = (),
) -> Pruned:
    """Runs a classifier on whole images, with the patches that each scorer keeps, and without these patches.

    Args:
      model: the dense classifier.
      scorers: by name, each for the model's patch grid.
      batches: with `image`, `label` and `index`.
      mesh: the devices to run on.
      keep: the numbers of patches to keep.
      curve: the numbers of patches to keep for insertion, and to leave for deletion.
      seed: seed of random scorers.
      shown: `index` of the images to draw.
    """
    curve = set(curve) - {num_scored(model)}
    forward = (_forward if model.sites()[0].leaves else _forward_by_plan)(
        model, scorers, sorted(curve | set(keep)), sorted(curve), seed
    )
    collectors = (Stacked("pruned", ("index", "label")), _Images(shown))
    (found, columns), images = run_over(batches, {"pruned": forward}, collectors, mesh, desc="prune")
    values = (columns["index"], columns["label"], found["predictions"], found["confidences"], found["removed"])
    scores = {name: found["scores"][name] for name in scorers}  # a jitted program returns them sorted by name
    pruned = Pruned(*values, [], scores, found.get("proposal"))
    return pruned._replace(shown=[pruned.example(place, image) for place, image in images.items()])


def _forward(
    model: Any,
    scorers: Mapping[str, Scorer],
    keep: Sequence[int],
    curve: Sequence[int],
    seed: int,
) -> Forward:
    """Scores an image once; the programs take patch ids, so there is one program per number of patches."""
    parts, patches, record = split(model), num_scored(model), model.preprocessing
    scoring = patch_scores(scorers, record, seed=seed)
    scores_of = jax.jit(scoring.call)
    asked = proposals.confidence(scorers, model.num_classes) if len(model.grid) == 2 else None
    proposed = asked and jax.jit(asked.call)

    @jax.jit
    def predict(arrays: dict[str, Array], images: Array, labels: Array, ids: Array | None) -> tuple[Array, Array]:
        network = merge(parts.graph, arrays, {})
        tokens = network.encode(network.embed(pixels(images, record), ids), ids).tokens
        logits = network.forward_head(tokens._replace(x=network.final_norm(tokens.x)))[0]
        probabilities = over_views(jax.nn.softmax(logits), images)
        return jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0], probabilities.argmax(-1)

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        scores = scores_of(arrays["scorers"], batch)
        answer = lambda ids: predict(arrays["model"], batch["image"], batch["label"], ids)
        kept, removed = {(DENSE, patches): answer(None)}, {}
        for name, scorer in scorers.items():
            order = best(scores[name], patches)
            kept |= {(name, count): answer(scorer.select(scores[name], count)) for count in keep}
            removed |= {(name, count): answer(order[:, patches - count :])[0] for count in curve}
        found = _outputs({name: one_view(values, batch["image"]) for name, values in scores.items()}, kept, removed)
        if proposed is not None:
            seen = pixels(batch["image"], record)
            found["proposal"] = proposed(arrays["proposal"], {"image": seen, "label": batch["label"]})
        return found

    arrays = {"model": {**parts.params, **parts.rest}, "scorers": scoring.arrays}
    if asked is not None:
        arrays["proposal"] = asked.arrays
    return Forward(call, arrays, compiled=False)


class _Given(Scorer):
    """A scorer with precomputed scores."""

    def __init__(self, scores: Array, grid: tuple[int, ...]):
        super().__init__(grid=grid)
        self.scores = Fixed(scores)

    def __call__(self, images, *, key=None):
        return self.scores[...]


def _forward_by_plan(
    model: Any, scorers: Mapping[str, Scorer], keep: Sequence[int], curve: Sequence[int], seed: int
) -> Forward:
    """The same for a network that cannot remove single patches: each count is a separate plan.

    Removing the best patches is keeping the best by the negated scores.
    """
    parts, patches, record = split(model), num_scored(model), model.preprocessing
    opened = split(nnx.List(list(scorers.values())))
    grids: dict[str, tuple[int, ...]] = {}

    @jax.jit
    def scores_of(arrays: Any, images: Array, number: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """The scores to draw, on the scorer's grid, and the scores for the plan."""
        shown, key = pixels(images, record), jax.random.fold_in(jax.random.key(seed), number)
        drawn, read = {}, {}
        for name, scorer in zip(scorers, merge(opened.graph, arrays, {}), strict=True):
            drawn[name] = scorer(shown, key=key)
            read[name], grids[name] = scorer.native_scores(shown, key=key)
        return drawn, read

    @functools.partial(jax.jit, static_argnames=("grid", "count"))
    def predict(arrays: Any, images: Array, labels: Array, scores: Any, grid: Any, count: int) -> tuple[Array, Array]:
        network = merge(parts.graph, arrays, {})
        if count < patches:
            plan = reduction.Plan("from_scores", num_keep=(count,))
            network = reduction.apply(network, plan, scorer=_Given(scores, grid), img_size=images.shape[1:3])
        probabilities = jax.nn.softmax(network(pixels(images, record))[0])
        return jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0], probabilities.argmax(-1)

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        images, labels = batch["image"], batch["label"]
        drawn, read = scores_of(arrays["scorers"], images, batch["number"][0])
        kept, removed = {(DENSE, patches): predict(arrays["model"], images, labels, None, None, patches)}, {}
        for name, scores in read.items():
            answer = lambda scores, count, name=name: predict(
                arrays["model"], images, labels, scores, grids[name], count
            )
            kept |= {(name, count): answer(scores, count) for count in keep}
            removed |= {(name, count): answer(-scores, count)[0] for count in curve}
        return _outputs(drawn, kept, removed)

    return Forward(
        call,
        {"model": {**parts.params, **parts.rest}, "scorers": {**opened.params, **opened.rest}},
        compiled=False,
    )


def _outputs(scores: dict[str, Array], kept: dict[Any, tuple[Array, Array]], removed: dict[Any, Array]) -> dict:
    confidences = {key: confidence for key, (confidence, _) in kept.items()}
    predictions = {key: prediction for key, (_, prediction) in kept.items()}
    return {"scores": scores, "confidences": confidences, "predictions": predictions, "removed": removed}


class _Images:
    """Collects {place in the pass: image} of the images with one of `indices`."""

    def __init__(self, indices: Iterable[int]):
        self._indices, self._images, self._seen = set(indices), {}, 0

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        for row, (index, image) in enumerate(zip(batch["index"], batch["image"], strict=False)):
            if int(index) in self._indices:
                self._images[self._seen + row] = clips.one_view(image)
        self._seen += len(batch["index"])

    def result(self) -> dict[int, np.ndarray]:
        return self._images


def accuracies(
    model: Any,
    scorers: Mapping[str, Scorer],
    size: tuple[int, ...],
    found: Pruned,
    keep_rates: Sequence[float],
) -> list[dict[str, Any]]:
    """Returns a row for the dense network, then one for each scorer and keep rate.

    "agreement" is the share of images with the dense network's prediction; "confidence" the mean probability of the
    true class; "surer" the share of images for which it is higher than the dense network's. GFLOPs include the scorer.

    Args:
      model: the dense classifier.
      scorers: by name.
      size: (height, width) of the images, or (frames, height, width) of clips.
      found: what `measure` returned.
      keep_rates: the keep rates to list.
    """
    whole = (DENSE, num_scored(model))
    rows = [{"scorer": DENSE, "keep rate": 1.0, **_row(found, whole, whole), "GFLOPs": flops.host(model).total / 1e9}]
    for name, scorer in scorers.items():
        own = scorer_flops(scorer, size)
        for rate in keep_rates:
            count = num_kept(model, rate)
            plan = reduction.Plan("from_scores", num_keep=(count,))
            cost = flops.host(model, plan, scorer=scorer).total + own
            rows.append({"scorer": name, "keep rate": rate, **_row(found, (name, count), whole), "GFLOPs": cost / 1e9})
    return rows


def _row(found: Pruned, key: tuple[str, int], whole: tuple[str, int]) -> dict[str, Any]:
    right = found.predictions[key] == found.labels
    low, high = wilson_interval(int(right.sum()), len(right))
    return {
        "patches": key[1],
        "accuracy": float(right.mean()),
        "low": low,
        "high": high,
        "agreement": float((found.predictions[key] == found.predictions[whole]).mean()),
        "confidence": float(found.confidences[key].mean()),
        "surer": float((found.confidences[key] > found.confidences[whole]).mean()),
    }
