"""The same network on smaller images: the rival that a plan has to beat."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from jaxprune.errors import UserError
from jaxprune.recover.rivals import rival
from jaxprune.tune.candidates import Candidate
from jaxprune.tune.cost_table import Cost

METHOD = "img_size"


def sides(model: Any, kept: Iterable[float]) -> tuple[int, ...]:
    """Returns sides of square images with about these fractions of the patches, in pixels, the largest first.

    >>> import jaxprune; from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=4, embed_dim=16, depth=2, num_heads=2)
    >>> sides(jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0)), (0.5, 0.8, 0.9))
    (28, 24)

    Args:
      model: the dense network; one that does not read square images has none.
      kept: fractions of the patches.
    """
    full = model.preprocessing.sides
    if len(full) != 2 or full[0] != full[1]:
        return ()
    rows = model.grid[0]
    fewer = {min(max(round(rows * share**0.5), 1), rows) for share in kept} - {rows}
    return tuple(full[0] // rows * count for count in sorted(fewer, reverse=True))


def candidates(model: Any, kept: Iterable[float], predict: Callable[[Any], Cost]) -> list[Candidate]:
    """Returns a network on smaller images, as far as it can read them.

    Args:
      model: the dense network.
      kept: fractions of the patches.
      predict: predicts the cost of a network.
    """
    found = []
    for side in sides(model, kept):
        change = f"{METHOD}={side}"
        try:
            network = rival(model, change)
        except UserError:  # such as windows that do not fit
            continue
        share = network.grid[0] * network.grid[1] / (model.grid[0] * model.grid[1])
        found.append(Candidate(change, METHOD, (), share, network, predict(network)))
    return found


def can_show(images: Any) -> bool:
    """Whether a function that gives images by index also prepares them for a network on smaller ones."""
    return not callable(images) or "record" in inspect.signature(images).parameters
