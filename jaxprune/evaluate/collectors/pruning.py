"""A dense classifier pruned by patch scorers: predictions and confidences by number of patches."""

import dataclasses
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
from jaxprune.measures.intervals import Interval, share
from jaxprune.nn.params import Fixed, merge, split
from jaxprune.reduction import DENSE
from jaxprune.reduction.parts.keep_rows import best
from jaxprune.report.table import Table, column
from jaxprune.scoring import Scorer

DRAWN = 6  # images whose scores are drawn


class ScoredImage(NamedTuple):
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
      examples: some images to draw.
      scores: patch scores by scorer, (n, p).
      proposal: the proposal network's probability of the true class, (n,); None if its classes differ.
    """

    index: np.ndarray
    labels: np.ndarray
    predictions: Values
    confidences: Values
    removed: Values
    examples: list[ScoredImage]
    scores: dict[str, np.ndarray]
    proposal: np.ndarray | None = None

    def example(self, place: int, image: np.ndarray) -> ScoredImage:
        """An image of the pass, to draw."""
        return ScoredImage(place, image, {name: values[place] for name, values in self.scores.items()})


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
            "point-wise layers, by the scores resampled to that map."
        )
    units = "mask units" if patches < first.num_patches else "patches, where n includes the class token"
    return f"At keep rate z all scorers keep `int(n·z)` of {patches} {units}, before the first block."


def measure(
    model: Any,
    scorers: Mapping[str, Scorer],
    batches: Iterable[Batch],
    mesh: Mesh,
    *,
    keep: Iterable[int],
    curve: Iterable[int] = (),
    seed: int = 0,
    picture_indices: Iterable[int] = (),
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
      picture_indices: `index` of the images to draw.
    """
    curve = set(curve) - {num_scored(model)}
    forward = (_forward if model.sites()[0].removable else _forward_by_plan)(
        model, scorers, sorted(curve | set(keep)), sorted(curve), seed
    )
    collectors = (Stacked("pruned", ("index", "label")), _Images(picture_indices))
    (outputs, columns), images = run_over(batches, {"pruned": forward}, collectors, mesh, desc="prune")
    scores = {name: outputs["scores"][name] for name in scorers}  # a jitted program returns them sorted by name
    pruned = Pruned(
        index=columns["index"],
        labels=columns["label"],
        predictions=outputs["predictions"],
        confidences=outputs["confidences"],
        removed=outputs["removed"],
        examples=[],
        scores=scores,
        proposal=outputs.get("proposal"),
    )
    return pruned._replace(examples=[pruned.example(place, image) for place, image in images.items()])


def _forward(
    model: Any, scorers: Mapping[str, Scorer], keep: Sequence[int], curve: Sequence[int], seed: int
) -> Forward:
    """Scores an image once; the programs take patch ids, so there is one program per number of patches."""
    parts, patches, record = split(model), num_scored(model), model.preprocessing
    scoring = patch_scores(scorers, record, seed=seed)
    scores_of = jax.jit(scoring.call)
    proposal = proposals.confidence(scorers, model.num_classes) if len(model.grid) == 2 else None
    proposed = proposal and jax.jit(proposal.call)

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
        outputs = _outputs({name: one_view(values, batch["image"]) for name, values in scores.items()}, kept, removed)
        if proposed is not None:
            images = pixels(batch["image"], record)
            outputs["proposal"] = proposed(arrays["proposal"], {"image": images, "label": batch["label"]})
        return outputs

    arrays = {"model": {**parts.params, **parts.rest}, "scorers": scoring.arrays}
    if proposal is not None:
        arrays["proposal"] = proposal.arrays
    return Forward(call, arrays, compiled=False)


class _Precomputed(Scorer):
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
        images, key = pixels(images, record), jax.random.fold_in(jax.random.key(seed), number)
        picture_scores, plan_scores = {}, {}
        for name, scorer in zip(scorers, merge(opened.graph, arrays, {}), strict=True):
            picture_scores[name] = scorer(images, key=key)
            plan_scores[name], grids[name] = scorer.native_scores(images, key=key)
        return picture_scores, plan_scores

    @functools.partial(jax.jit, static_argnames=("grid", "count"))
    def predict(arrays: Any, images: Array, labels: Array, scores: Any, grid: Any, count: int) -> tuple[Array, Array]:
        network = merge(parts.graph, arrays, {})
        if count < patches:
            plan = reduction.Plan("from_scores", num_keep=(count,))
            network = reduction.apply(network, plan, scorer=_Precomputed(scores, grid), img_size=images.shape[1:3])
        probabilities = jax.nn.softmax(network(pixels(images, record))[0])
        return jnp.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0], probabilities.argmax(-1)

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        images, labels = batch["image"], batch["label"]
        picture_scores, plan_scores = scores_of(arrays["scorers"], images, batch["number"][0])
        kept, removed = {(DENSE, patches): predict(arrays["model"], images, labels, None, None, patches)}, {}
        for name, scores in plan_scores.items():
            answer = lambda scores, count, name=name: predict(
                arrays["model"], images, labels, scores, grids[name], count
            )
            kept |= {(name, count): answer(scores, count) for count in keep}
            removed |= {(name, count): answer(-scores, count)[0] for count in curve}
        return _outputs(picture_scores, kept, removed)

    return Forward(
        call, {"model": {**parts.params, **parts.rest}, "scorers": {**opened.params, **opened.rest}}, compiled=False
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


@dataclasses.dataclass(frozen=True)
class PrunedRow:
    """A classifier pruned by a scorer at a keep rate.

    Attributes:
      scorer: its name, or `DENSE`.
      patches: the number that is kept.
      agreement: share of images with the dense network's prediction.
      confidence: mean probability of the true class.
      surer: share of images for which that is higher than the dense network's.
      gflops: of the network and the scorer.
    """

    scorer: str = column("scorer")
    keep_rate: float = column("keep rate", format=".3g")
    patches: int = column("patches")
    accuracy: Interval = column("accuracy", format=".3g", ends=("low", "high"))
    agreement: float = column("agreement", format=".3g")
    confidence: float = column("confidence", format=".3g")
    surer: float = column("surer", format=".3g")
    gflops: float = column("GFLOPs", format=".3g")


def accuracies(
    model: Any, scorers: Mapping[str, Scorer], size: tuple[int, ...], pruned: Pruned, keep_rates: Sequence[float]
) -> Table[PrunedRow]:
    """Returns a row for the dense network, then one for each scorer and keep rate.

    Args:
      model: the dense classifier.
      scorers: by name.
      size: (height, width) of the images, or (frames, height, width) of clips.
      pruned: what `measure` returned.
      keep_rates: the keep rates to list.
    """
    patches = num_scored(model)
    rows = [_row(pruned, DENSE, 1.0, patches, patches, flops.of_model(model).total)]
    for name, scorer in scorers.items():
        of_scorer = scorer_flops(scorer, size)
        for rate in keep_rates:
            count = num_kept(model, rate)
            plan = reduction.Plan("from_scores", num_keep=(count,))
            cost = flops.of_model(model, plan, scorer=scorer).total + of_scorer
            rows.append(_row(pruned, name, rate, count, patches, cost))
    return Table(rows)


def _row(pruned: Pruned, scorer: str, rate: float, count: int, patches: int, cost: float) -> PrunedRow:
    key, dense = (scorer, count), (DENSE, patches)
    right = pruned.predictions[key] == pruned.labels
    return PrunedRow(
        scorer,
        rate,
        count,
        share(int(right.sum()), len(right)),
        float((pruned.predictions[key] == pruned.predictions[dense]).mean()),
        float(pruned.confidences[key].mean()),
        float((pruned.confidences[key] > pruned.confidences[dense]).mean()),
        cost / 1e9,
    )
