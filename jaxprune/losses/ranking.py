"""Losses of learning to rank: ListMLE, ListNet, RankNet, focused rank, and point-wise.

The signatures follow optax's ranking loss: `where` marks the items of each list, and there is one value per list unless
`reduce_fn` reduces them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Shaped

ReduceFn = Callable[[Array], Array]


def list_mle_loss(
    scores: Float[Array, "*lists n"],
    relevance: Shaped[Array, "*lists n"],
    *,
    where: Bool[Array, "*lists n"] | None = None,
    top_k: int | None = None,
    eps: float | None = None,
    reduce_fn: ReduceFn | None = None,
) -> Float[Array, "..."]:
    r"""Negative log-likelihood of the order by relevance under the scores' Plackett-Luce model (ListMLE).

    With :math:`\pi` the items by falling relevance and :math:`\hat y_j` the score of item :math:`\pi(j)`,

    .. math::
      \ell = \sum_j \Big[ \log \sum_{l \ge j} \exp \hat y_l - \hat y_j \Big]

    which is finite and exact at any magnitude of the scores, and invariant to adding a constant to all of them.

    Args:
      scores: what a model predicts for the items; float64 stays float64, everything else is computed in float32.
      relevance: the ground truth; among equally relevant items the first counts as more relevant.
      where: False for items that do not belong to the list, which get no gradient.
      top_k: sums over the first `top_k` positions only (top-k ListMLE, Xia et al., 2009).
      eps: LTRP's published form: `eps` (1e-10) is added to the plain sum of exponentials before the logarithm.
        Overflows at scores above 88 and ignores scores below -20.
      reduce_fn: a reduction such as `jnp.mean`; None returns one value per list.

    References:
      Xia et al., 2008, "Listwise approach to learning to rank"; LTRP, eq. 3.
    """
    order, belongs = _by_relevance(relevance, where)
    ordered = jnp.take_along_axis(_wide(scores), order, axis=-1)
    if eps is None:
        # Subtract the largest score, so that float precision is spent on the differences.
        largest = jnp.where(belongs, ordered, -jnp.inf).max(-1, keepdims=True)
        ordered = ordered - jax.lax.stop_gradient(jnp.where(belongs.any(-1, keepdims=True), largest, 0))
        # Absent items get half the lowest float: its exponential is 0, and no difference overflows.
        ordered = jnp.where(belongs, ordered, jnp.finfo(ordered.dtype).min / 2)
        log_sums = jax.lax.cumlogsumexp(ordered, axis=ordered.ndim - 1, reverse=True)
    else:
        exponentials = jnp.where(belongs, jnp.exp(jnp.where(belongs, ordered, 0)), 0)
        log_sums = jnp.log(jax.lax.cumsum(exponentials, axis=ordered.ndim - 1, reverse=True) + eps)
    counted = belongs if top_k is None else belongs & _first(belongs, top_k)
    return _reduced(jnp.where(counted, log_sums - ordered, 0).sum(-1), reduce_fn)


def list_net_loss(
    scores: Float[Array, "*lists n"],
    relevance: Shaped[Array, "*lists n"],
    *,
    where: Bool[Array, "*lists n"] | None = None,
    temperature: float | None = None,
    reduce_fn: ReduceFn | None = None,
) -> Float[Array, "..."]:
    r"""Cross-entropy between the softmaxes of relevance and scores (ListNet, Cao et al., 2007), averaged over items.

    .. math::
      \ell = -\frac1n \sum_j \mathrm{softmax}(s)_j \, \log \mathrm{softmax}(y)_j

    Args:
      temperature: if set, each list's relevance is first standardised and divided by it, so that its scale does not
        matter; a small temperature weighs only the most relevant items. None uses relevance unchanged; LTRP's labels
        are so small that their softmax is then nearly uniform.

    Other args and result: as for `list_mle_loss`.
    """
    where, relevance = _everywhere(scores, where), _wide(relevance)
    if temperature is not None:
        centred = relevance - _mean_over(relevance, where)[..., None]
        spread = jnp.sqrt(_mean_over(jnp.square(centred), where))[..., None]
        relevance = centred / (temperature * jnp.where(spread > 0, spread, 1))
    shares = jax.nn.softmax(relevance, axis=-1, where=where)
    log_probs = jax.nn.log_softmax(_wide(scores), axis=-1, where=where)
    return _reduced(_mean_over(-shares * jnp.where(where, log_probs, 0), where), reduce_fn)


def point_wise_loss(
    scores: Float[Array, "*lists n"],
    relevance: Shaped[Array, "*lists n"],
    *,
    where: Bool[Array, "*lists n"] | None = None,
    reduce_fn: ReduceFn | None = None,
) -> Float[Array, "..."]:
    """Squared difference between score and relevance, averaged over the items of a list.

    Args and result: as for `list_mle_loss`.
    """
    where = _everywhere(scores, where)
    return _reduced(_mean_over(jnp.square(_wide(scores) - _wide(relevance)), where), reduce_fn)


def rank_net_loss(
    scores: Float[Array, "*lists n"],
    relevance: Shaped[Array, "*lists n"],
    *,
    where: Bool[Array, "*lists n"] | None = None,
    threshold: float = 1e-3,
    sigma: float = 1.0,
    reduce_fn: ReduceFn | None = None,
) -> Float[Array, "..."]:
    r"""Pairwise cross-entropy over all pairs of a list (RankNet, Burges et al., 2005), halved.

    With :math:`p_{ij} = \mathrm{sigmoid}(\sigma (y_i - y_j))` and :math:`t_{ij}` 1 where :math:`s_i - s_j` is at least
    `threshold`, 0 where it is at most `-threshold` and ½ between,

    .. math::
      \ell = -\frac1{2 n^2} \sum_{ij} t_{ij} \log p_{ij} + (1 - t_{ij}) \log (1 - p_{ij})

    which counts every pair in both orders, and each item with itself.

    Args and result: as for `list_mle_loss`.
    """
    where = _everywhere(scores, where)
    pairs = where[..., :, None] & where[..., None, :]
    return _reduced(_pairwise(scores, relevance, pairs, threshold, sigma), reduce_fn)


def focused_rank_loss(
    scores: Float[Array, "*lists n"],
    relevance: Shaped[Array, "*lists n"],
    *,
    where: Bool[Array, "*lists n"] | None = None,
    top_k: int = 10,
    threshold: float = 1e-3,
    sigma: float = 1.0,
    reduce_fn: ReduceFn | None = None,
) -> Float[Array, "..."]:
    """ListMLE among the `top_k` most relevant items, plus RankNet between those and the others (LTRP's code).

    Args:
      top_k: number of top items; the others are only compared with these.

    Other args and result: as for `rank_net_loss`.
    """
    order, belongs = _by_relevance(relevance, where)
    places = jnp.argsort(order, axis=-1)
    first = jnp.take_along_axis(belongs & _first(belongs, top_k), places, axis=-1)
    rest = _everywhere(scores, where) & ~first
    top_loss = list_mle_loss(scores, relevance, where=first)
    pair_loss = _pairwise(scores, relevance, first[..., :, None] & rest[..., None, :], threshold, sigma)
    return _reduced(top_loss + pair_loss, reduce_fn)


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _reduced(values: Array, reduce_fn: ReduceFn | None) -> Array:
    return values if reduce_fn is None else reduce_fn(values)


def _everywhere(items: Array, where: Array | None) -> Array:
    return jnp.ones(items.shape, bool) if where is None else where


def _mean_over(values: Array, where: Array, axes: tuple[int, ...] = (-1,)) -> Array:
    return jnp.where(where, values, 0).sum(axes) / jnp.maximum(where.sum(axes), 1)


def _by_relevance(relevance: Array, where: Array | None) -> tuple[Array, Array]:
    """Returns the items by falling relevance, masked ones last, and whether the item at each position is unmasked."""
    where = _everywhere(relevance, where)
    order = jnp.argsort(jnp.where(where, -_wide(relevance), jnp.inf), axis=-1, stable=True)
    return order, jnp.take_along_axis(where, order, axis=-1)


def _first(ordered: Array, count: int) -> Array:
    return jnp.broadcast_to(jnp.arange(ordered.shape[-1]) < count, ordered.shape)


def _pairwise(scores: Array, relevance: Array, pairs: Array, threshold: float, sigma: float) -> Array:
    """RankNet's cross-entropy, averaged over the ordered pairs of each list, and halved."""
    scores, relevance = _wide(scores), _wide(relevance)
    ahead = relevance[..., :, None] - relevance[..., None, :]
    wins = jnp.where(ahead >= threshold, 1.0, jnp.where(ahead <= -threshold, 0.0, 0.5))
    logits = sigma * (scores[..., :, None] - scores[..., None, :])
    entropy = wins * jax.nn.softplus(-logits) + (1 - wins) * jax.nn.softplus(logits)
    return _mean_over(entropy, pairs, (-2, -1)) / 2
