"""ToMe on a map that is cut into windows: rows merge with rows of their own window, as many in each of them."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxprune.nn.tokens import Tokens
from jaxprune.nn.windows import Windows
from jaxprune.reduction.base import StepReport
from jaxprune.reduction.rows import compose


def together(windows: Windows) -> Bool[np.ndarray, "w m m"] | None:
    """Which rows of a window are neighbours on the map; None where all are: a shift joins the ends of the map."""
    apart = windows.apart()
    return None if apart is None else apart == 0


def most_pairs(windows: Windows) -> int:
    """The pairs that can merge in every window: rows of even places that have a neighbour of an odd place."""
    found = together(windows)
    if found is None:
        return math.prod(windows.size) // 2
    return int(found[:, ::2, 1::2].any(-1).sum(-1).min())


def cut(tokens: Tokens, windows: Windows) -> Tokens:
    """The tokens of every window, as if it were an image."""
    on = lambda x: windows.cut(x.reshape(*x.shape[:2], -1)[:, None])[:, 0]
    x, size, policy, position = (on(field) for field in (tokens.x, tokens.size, tokens.policy, tokens.position))
    rows = jnp.arange(math.prod(windows.size), dtype=jnp.int32)
    own = jnp.broadcast_to(rows[None], x.shape[:2])
    return Tokens(x, size[..., 0], policy[..., 0], own, position)


def join(reduced: Tokens, report: StepReport, tokens: Tokens, windows: Windows) -> tuple[Tokens, StepReport]:
    """What each window was reduced to, window by window, and where the rows of the map are in it.

    Args:
      reduced, report: of the windows, see `cut`.
      tokens: of the map.
    """
    b, count, k = tokens.x.shape[0], math.prod(windows.counts), reduced.x.shape[1]
    numbers = jnp.arange(count, dtype=jnp.int32)[None, :, None]
    of_image = lambda x: x.reshape(b, count, *x.shape[1:])
    # A row is in the k rows of its window.
    places = of_image(report.row_map) + numbers * k
    row_map = windows.join(places.reshape(b * count, 1, -1, 1))[:, 0, :, 0]
    assert report.kept is not None
    on_map = windows.cut(jnp.arange(tokens.x.shape[1], dtype=jnp.int32)[None, None, :, None])[:, 0, :, 0]
    kept = jnp.take_along_axis(jnp.broadcast_to(on_map[None], places.shape), of_image(report.kept), axis=2)
    flat = lambda x: x.reshape(b, count * k, *x.shape[2:])
    whole = Tokens(
        flat(reduced.x),
        flat(reduced.size),
        flat(reduced.policy),
        compose(tokens.assign, row_map),
        flat(reduced.position),
    )
    return whole, StepReport(row_map=row_map, kept=kept.reshape(b, count * k))


def metric_of(metric: Float[Array, "b n e"], windows: Windows) -> Float[Array, "w m e"]:
    """What rows are compared by, window by window."""
    return windows.cut(metric[:, None])[:, 0]
