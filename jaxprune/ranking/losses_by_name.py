"""The losses that a ranker can be trained with, by name: ListMLE (LTRP), ListNet, RankNet, focused rank, point-wise.

The functions are in `jaxprune.losses.ranking`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from jaxprune.errors import require_options, unknown
from jaxprune.losses import ranking

LOSSES = {
    "list_mle": ranking.list_mle_loss,
    "list_net": ranking.list_net_loss,
    "rank_net": ranking.rank_net_loss,
    "focused_rank": ranking.focused_rank_loss,
    "point_wise": ranking.point_wise_loss,
}


def ranking_loss(name: str, **options: Any) -> Callable[[Float[Array, "b n"], Float[Array, "b n"]], Float[Array, "b"]]:
    """Returns a loss, (scores, relevance) -> one value for each image.

    >>> import jax.numpy as jnp
    >>> loss = ranking_loss("list_mle", top_k=1)
    >>> [round(float(value), 2) for value in loss(jnp.asarray([[2.0, 0.0]]), jnp.asarray([[1.0, 0.5]]))]
    [0.13]

    Args:
      name: "list_mle" (LTRP), "list_net", "rank_net", "focused_rank" or "point_wise".
      options: options of the function of that name in `jaxprune.losses.ranking`.

    Raises:
      UserError: the loss or an option is unknown.
    """
    if name not in LOSSES:
        raise unknown("ranking loss", name, LOSSES)
    function = LOSSES[name]
    names = [name for name in inspect.signature(function).parameters if name not in ("scores", "relevance", "where")]
    require_options(f"The loss {name!r}", options, names)
    return functools.partial(function, **options)
