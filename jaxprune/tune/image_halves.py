"""The halves of the images: one to estimate risks with, one to test with."""

from typing import NamedTuple

import numpy as np

from jaxprune.errors import UserError
from jaxprune.ops.host_random import host_generator
from jaxprune.tune import pareto_testing
from jaxprune.tune.requirement import Bound
from jaxprune.tune.tuned import Settings


class Halves(NamedTuple):
    """Indices of the estimation images and of the test images."""

    first: np.ndarray
    second: np.ndarray


def require_enough(count: int, bound: Bound, settings: Settings, copies: str = "", *, graded: bool = False) -> None:
    """Checks that half of that many images can show the bound.

    Args:
      copies: what to say of images that do not count.
      graded: see `pareto_testing`.

    Raises:
      UserError: they are too few.
    """
    fewest = 4 if bound.risk == 1 else max(4, pareto_testing.fewest_images(bound.risk, settings.delta, graded=graded))
    if count // 2 < fewest:
        raise UserError(
            f"{count} images are too few{copies}: half of them test, and to show a risk of at most {bound.risk:.3g} "
            f"with confidence {1 - settings.delta:.3g} takes {fewest} without "
            f"{'a loss' if graded else 'an error'}. Give {2 * fewest} or more."
        )


def halved(
    distinct: np.ndarray, count: int, bound: Bound, settings: Settings, healing_note: str = "", *, graded: bool = False
) -> Halves:
    """Splits images at random; of copies only the first counts, or they would be on both sides.

    Args:
      distinct: indices of the images that count, of `count`.
      healing_note: what to say of those that do not because they taught a healed network.
      graded: see `pareto_testing`.
    """
    if len(distinct) < count:
        copies = f"{count - len(distinct)} of {count} are copies of others"
        why = f" ({copies}{' or ' if healing_note else ''}{healing_note})"
        require_enough(len(distinct), bound, settings, why, graded=graded)
    order = host_generator(settings.seed).permutation(len(distinct))
    return Halves(*np.split(distinct[order], [len(order) - len(order) // 2]))
