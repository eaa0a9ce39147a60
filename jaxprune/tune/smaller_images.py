"""The same network on smaller images, the rival that a plan has to beat; and under plans on them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxprune.evaluate.contestants import contestant, on_smaller_images
from jaxprune.nn.around_host import AroundHost, host_of
from jaxprune.open import rivals
from jaxprune.reduction import DENSE
from jaxprune.tune import candidates as plans
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cost_table import Cost

METHOD = rivals.IMG_SIZE
UNDER_PLANS = "plans on smaller images"  # the family in a plot


def candidates(model: Any, images: Any, kept: Iterable[float], predict: Callable[[Any], Cost]) -> list[Candidate]:
    """Returns a network on smaller images of all sizes between the largest and the smallest of `kept`.

    There are none where the images cannot be had smaller, or the network cannot read them.

    Args:
      model: the dense network.
      images: an array, or a function that gives them by index: see `can_show`.
      kept: fractions of the patches; of a network with a head around it, which stays as it is, of its FLOPs.
      predict: predicts the cost of a network.
    """
    if not can_show(images):
        return []
    return sized(model, kept if isinstance(model, AroundHost) else _every_size(model, kept), predict)


def sized(model: Any, kept: Iterable[float], predict: Callable[[Any], Cost]) -> list[Candidate]:
    """Returns a network on smaller images, as far as it can read them; see `candidates`."""
    if isinstance(model, AroundHost):
        smaller = on_smaller_images({DENSE: contestant(model)}, tuple(kept))
        networks = {name: candidate.model for name, candidate in smaller.items()}
    else:
        networks = rivals.smaller_images(model, kept)
    patches = lambda network: host_of(network).grid[0] * host_of(network).grid[1]
    return [
        Candidate(name, METHOD, (), patches(network) / patches(model), network, predict(network))
        for name, network in networks.items()
    ]


def _every_size(model: Any, kept: Iterable[float]) -> list[float]:
    """The shares of the patches of all squares from the smallest to the largest of `kept`, which lie far apart."""
    rows = host_of(model).grid[0]
    sides = [round(rows * share**0.5) for share in kept]
    return [(count / rows) ** 2 for count in range(max(min(sides, default=rows), 1), max(sides, default=0) + 1)]


def under_plans(
    sizes: Iterable[Candidate],
    method: str,
    places: tuple[int, ...],
    kept: Sequence[float],
    predict: Callable[[Any], Cost],
) -> list[Candidate]:
    """Returns networks on smaller images under plans.

    Args:
      sizes: the networks on smaller images.
      method: of token reduction; two that are mixed are joined by "+".
      places: the blocks that reduce.
      kept: fractions of the patches left in the end.
      predict: predicts the cost of a network.
    """
    return [
        plan._replace(name=f"{size.name}/{plan.name}", method=f"{size.name}/{plan.method}", kept=size.kept * plan.kept)
        for size in sizes
        for plan in plans.candidates(size.model, method.split("+"), [places], kept, predict)
    ]


def can_show(images: Any) -> bool:
    """Whether a function that gives images by index also prepares them for a network on smaller ones."""
    return not callable(images) or "record" in inspect.signature(images).parameters
