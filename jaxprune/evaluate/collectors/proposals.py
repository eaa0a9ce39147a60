"""The agreement of proposal networks, and images for which either the proposal or the classifier is unsure.

PaPr (Mahmud et al., 2024), appendix A (Fig. 1 to 3): patches that different proposals keep; B (Fig. 4 to 9): the
confidence in the true class under each scorer, for images that the proposal is unsure of, and vice versa.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxprune.evaluate import Forward
from jaxprune.measures.intervals import Spread
from jaxprune.measures.overlap import as_masks, chance_iou, intersection_over_union
from jaxprune.models.convnet import ConvNet
from jaxprune.report.table import Table, column
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.resized_inputs import ResizedInputs

OVERLAP_RATES, CONTRAST_RATE = (0.5, 0.3), 0.4
UNSURE, SURE = "proposal unsure, network sure", "proposal sure, network unsure"


def confidence(scorers: Mapping[str, Scorer], num_classes: int) -> Forward | None:
    """Returns the forward function of the true class's probability, (b,), by the first ConvNet that scorers read.

    None if no scorer reads a ConvNet with as many classes as the classifier.

    Args:
      scorers: by name.
      num_classes: number of classes of the classifier, which `image` of a batch is normalised for.
    """
    for scorer in scorers.values():
        inner = scorer.scorer if isinstance(scorer, ResizedInputs) else scorer
        if isinstance(inner.proposal, ConvNet) and getattr(inner.proposal, "num_classes", 0) == num_classes:
            return _confidence_by(scorer)
    return None


def _confidence_by(scorer: Scorer) -> Forward:

    def call(opened: Any, batch: Mapping[str, Array]) -> Float[Array, "b"]:
        images = batch["image"]
        if isinstance(opened, ResizedInputs):
            images, opened = opened.resized(images), opened.scorer
        logits = opened.proposal(opened.prepared(images))[0]
        probabilities = jax.nn.softmax(logits.astype(jnp.float32))
        return jnp.take_along_axis(probabilities, batch["label"][:, None], axis=1)[:, 0]

    return Forward.of(scorer, call)


@dataclasses.dataclass(frozen=True)
class OverlapRow:
    """The IoU of the patches that two scorers keep, and its value for random patches."""

    keep_rate: float = column("keep rate", format=".2f")
    scorer: str = column("scorer")
    other_scorer: str = column("other scorer")
    iou: Spread = column("IoU", format=".2f")
    chance: float = column("IoU chance", format=".2f", header="by chance")
    images: int = column("images")


@dataclasses.dataclass(frozen=True)
class ContrastRow:
    """The mean probability of the true class on one kind of image, and its change from the dense network.

    Attributes:
      kind: `UNSURE` or `SURE`.
      patches_by: the scorer, `DENSE`, or "proposal".
      confidence: the probability.
      change: of its mean from the dense network's.
      surer: share of images for which it is higher than the dense network's.
    """

    kind: str = column("images are")
    patches_by: str = column("patches by")
    confidence: Spread = column("confidence")
    change: float = column("change", format=".3f")
    surer: float = column("surer", format=".3f")
    images: int = column("images")


def overlap_rows(
    scores: Mapping[str, Float[np.ndarray, "n p"]], scorers: Mapping[str, Scorer], counts: Mapping[float, int]
) -> Table[OverlapRow]:
    """Returns a row for each keep rate and pair of scorers.

    Args:
      scores: scores of each image, by scorer.
      scorers: by name.
      counts: number of kept patches, by keep rate.
    """
    rows = []
    for rate, count in counts.items():
        ids = {name: np.asarray(scorers[name].select(jnp.asarray(values), count)) for name, values in scores.items()}
        masks = {name: as_masks(kept, scores[name].shape[1]) for name, kept in ids.items()}
        for first, second in itertools.combinations(masks, 2):
            iou = Spread.of(intersection_over_union(masks[first], masks[second]))
            chance = chance_iou(count, count, masks[first].shape[1])
            rows.append(OverlapRow(rate, first, second, iou, chance, len(masks[first])))
    return Table(rows)


def contrasts(
    proposal: Float[np.ndarray, "n"], network: Float[np.ndarray, "n"], *, low: float = 0.3, high: float = 0.7
) -> dict[str, np.ndarray]:
    """Returns the images that one network is unsure of and the other sure, by falling difference.

    >>> contrasts(np.array([0.1, 0.9, 0.2]), np.array([0.8, 0.2, 0.95]))[UNSURE]
    array([2, 0])

    Args:
      proposal, network: their probabilities of the true class.
      low, high: unsure means below `low`, sure above `high`.
    """
    images = {}
    for kind, unsure, sure in ((UNSURE, proposal, network), (SURE, network, proposal)):
        places = np.flatnonzero((unsure < low) & (sure > high))
        images[kind] = places[np.argsort(-(sure - unsure)[places], kind="stable")]
    return images


def contrast_rows(
    groups: Mapping[str, Sequence[int] | np.ndarray],
    proposal: Float[np.ndarray, "n"],
    confidences: Mapping[str, Float[np.ndarray, "n"]],
) -> Table[ContrastRow]:
    """Returns a row for each kind of image and network.

    Args:
      groups: images by kind; see `contrasts`.
      proposal: its probability of the true class.
      confidences: the classifier's by scorer, the dense one first.
    """
    rows, dense = [], next(iter(confidences.values()))
    for kind, images in groups.items():
        places = np.asarray(images, int)
        if not len(places):
            continue
        for name, values in {"proposal": proposal, **confidences}.items():
            change, surer = float((values - dense)[places].mean()), float((values > dense)[places].mean())
            rows.append(ContrastRow(kind, name, Spread.of(values[places]), change, surer, len(places)))
    return Table(rows)
