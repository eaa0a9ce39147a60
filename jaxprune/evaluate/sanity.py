"""Sanity checks: whether scores depend on the network's learned weights, and on the image.

Adebayo et al., 2018, "Sanity Checks for Saliency Maps": weights are randomised part by part from the top, and scores
that do not change do not depend on them. A scorer that ignores the image scores all images alike.
"""

import itertools
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Real

from jaxprune.errors import UserError
from jaxprune.measures import correlation
from jaxprune.nn.host import Host
from jaxprune.nn.params import merge, split
from jaxprune.ops.host_random import host_generator
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.resized_inputs import ResizedInputs


class Randomised(NamedTuple):
    """Scores after some parts of a network were randomised.

    Attributes:
      part: the last randomised part, from the top; "" before the first.
      spearman: rank correlation with the original scores, for each image; NaN if all its patches have equal scores.
    """

    part: str
    spearman: Float[np.ndarray, "n"]


def cascade(scorer: Scorer, images: Float[Array, "b *sides c"], *, seed: int = 0) -> list[Randomised]:
    """Randomises the parts of a scorer's network one after the other, from the classifier down to the first layer.

    Every array is redrawn with its own mean and standard deviation, which preserves scales; constant arrays, such as
    the biases of an untrained network, do not change.

    Args:
      scorer: one that reads a network.
      images: normalised as for the scorer.
      seed: seed of the draws.

    Raises:
      UserError: the scorer reads no network.
    """
    if network_of(scorer)[1] is None:
        raise UserError(f"{type(scorer).__name__} reads no network, so there are no weights to randomise.")
    graph, params, rest = split(scorer)
    call = jax.jit(lambda params, images: merge(graph, params, rest)(images))
    before, rng = np.asarray(call(params, images)), host_generator(seed)
    stages = [Randomised("", correlations(before, before))]
    for part, names in parts_from_top(scorer):
        params = {**params, **{name: _drawn(params[name], rng) for name in names}}
        stages.append(Randomised(part, correlations(before, np.asarray(call(params, images)))))
    return stages


def parts_from_top(scorer: Scorer) -> list[tuple[str, tuple[str, ...]]]:
    """Returns the parts of a scorer's network from the top, each with the dotted names of its parameters.

    Blocks of a transformer and children of other lists are separate parts.
    """
    prefix, network = network_of(scorer)
    paths = [site.path for site in network.sites()] if isinstance(network, Host) else []
    groups: dict[str, list[str]] = {}
    for name in split(scorer).params:
        if name.startswith(prefix):
            inside = name.removeprefix(prefix)
            block = next((path for path in paths if inside.startswith(f"{path}.")), None)
            groups.setdefault(block or _part(inside), []).append(name)
    # Parts without a number (norm, classifier) come after the blocks; the embedding comes first.
    order = sorted(groups, key=lambda part: (_place(part, paths), _numbers(part)), reverse=True)
    return [(part, tuple(groups[part])) for part in order]


def network_of(scorer: Scorer) -> tuple[str, Any]:
    """Returns the prefix of the parameters of the network that a scorer reads, and the network; None if it reads none.

    >>> from jaxprune import scoring
    >>> network_of(scoring.create("centre", grid=(4, 4)))
    ('proposal.', None)
    """
    if isinstance(scorer, ResizedInputs):
        prefix, network = network_of(scorer.scorer)
        return f"scorer.{prefix}", network
    return "proposal.", scorer.proposal


def correlations(scores: Real[np.ndarray, "n p"], reference: Real[np.ndarray, "n p"]) -> Float[np.ndarray, "n"]:
    """Returns Spearman's rank correlation of two scorings of each image.

    >>> correlations(np.array([[1, 2, 3], [1, 2, 3]]), np.array([[2, 4, 9], [3, 2, 1]])).round(6)
    array([ 1., -1.])
    """
    return correlation.spearman(scores, reference)


def across_images(scores: Real[np.ndarray, "n p"]) -> float:
    """Returns the mean rank correlation between the scores of different images: 1 for a scorer that ignores the image.

    Images whose patches all have equal scores are left out; NaN if there are no others.

    >>> round(across_images(np.array([[1, 2, 3], [1, 2, 3], [2, 3, 4]])), 6)
    1.0

    Raises:
      UserError: there is only one image.
    """
    if len(scores) < 2:
        raise UserError("The scores of a single image cannot be compared: give 2 or more images.")
    units = correlation.unit_ranks(scores)
    units = units[np.isfinite(units).all(1)]
    if len(units) < 2:
        return float("nan")
    # The sum over all pairs without forming them: |Σ u|² = Σ |u|² + 2 Σ u·v, where every |u| is 1.
    return float((np.square(units.sum(0)).sum() - len(units)) / (len(units) * (len(units) - 1)))


# Order of the parts without a number: before or after the blocks.
_FRONT = ("patch_embed", "embed", "pos_embed", "cls_token", "reg_token", "norm_pre", "stem", "conv1", "bn1")


def _place(part: str, paths: list[str]) -> int:
    if part in paths or any(letter.isdigit() for letter in part.partition(".")[2]):
        return 1
    return 0 if part.split(".")[0].startswith(_FRONT) else 2


def _part(name: str) -> str:
    """The part of a parameter: a numbered child of a list, or the network's own."""
    first, *children = name.split(".")
    numbers = list(itertools.takewhile(str.isdigit, children))
    return ".".join([first, *numbers])


def _numbers(part: str) -> tuple[Any, ...]:
    """The sort key of a network's parts: by name and number ("layer2.10" after "layer2.9")."""
    return tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in part.split("."))


def _drawn(values: Array, rng: np.random.Generator) -> np.ndarray:
    array = np.asarray(values)
    return rng.normal(array.mean(), array.std(), array.shape).astype(array.dtype)
