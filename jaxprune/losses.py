"""Losses that optax lacks; for cross-entropy use optax."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Shaped

from jaxprune.errors import unknown


def masked_mse(
    pred: Float[Array, "b p q"], target: Float[Array, "b p q"], masked: Shaped[Array, "b p"]
) -> Float[Array, ""]:
    """Averages the squared error over the masked patches of the whole batch (MAE).

    The error is averaged over each patch, then weighted by `masked` (bool, or weights) and divided by the sum of the
    weights; computed in float32.
    """
    weight = masked.astype(jnp.float32)
    error = jnp.square(pred.astype(jnp.float32) - target.astype(jnp.float32)).mean(-1)
    return (error * weight).sum() / weight.sum()


def asymmetric_loss(
    logits: Float[Array, "b c"],
    labels: Float[Array, "b c"],
    *,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    clip: float = 0.05,
    eps: float = 1e-8,
) -> Float[Array, "b"]:
    """Multi-label cross-entropy that down-weights easy negatives (ASL, Ridnik et al., 2021), one value per image.

    Classes are summed. The published recipe also sums over the batch; its gradient passes through the focusing weight.

    Args:
      labels: 1 for classes present in the image, else 0.
      clip: added to the probability of absence, which is capped at 1.
    """
    present = jax.nn.sigmoid(logits.astype(jnp.float32))
    absent = jnp.minimum(1.0 - present + clip, 1.0)
    log = labels * jnp.log(jnp.maximum(present, eps)) + (1 - labels) * jnp.log(jnp.maximum(absent, eps))
    right = labels * present + (1 - labels) * absent
    focus = (1.0 - right) ** (labels * gamma_positive + (1 - labels) * gamma_negative)
    return -(focus * log).sum(-1)


def kl_distillation(
    student: Float[Array, "b c"], teacher: Float[Array, "b c"], temperature: float = 1.0
) -> Float[Array, ""]:
    """KL divergence between the teacher's and the student's softmax, averaged over the batch."""
    return _kl(student, teacher, temperature).mean()


def _kl(
    student: Float[Array, "*lead c"], teacher: Float[Array, "*lead c"], temperature: float
) -> Float[Array, "*lead"]:
    ours = jax.nn.log_softmax(student.astype(jnp.float32) / temperature, axis=-1)
    theirs = jax.nn.log_softmax(teacher.astype(jnp.float32) / temperature, axis=-1)
    return (jnp.exp(theirs) * (theirs - ours)).sum(-1)


def ratio_loss(decisions: Sequence[Float[Array, "b n"]], keep_rates: Sequence[float]) -> Float[Array, ""]:
    """Squared distance of each image's share of kept tokens from the keep rate, averaged over images and stages.

    DynamicViT, Rao et al., 2021, eq. 13.

    Args:
      decisions: one array per stage, 1 = kept; a patch dropped at one stage stays dropped in later ones.
      keep_rates: one per stage, relative to all patches.
    """
    pairs = zip(decisions, keep_rates, strict=True)
    return jnp.stack([jnp.square(decision.mean(1) - rate).mean() for decision, rate in pairs]).mean()


def token_distillation(
    student: Float[Array, "b n d"],
    teacher: Float[Array, "b n d"],
    kept: Shaped[Array, "b n"],
    *,
    kind: str = "mse",
) -> Float[Array, ""]:
    """Distance of the kept tokens from the teacher's, averaged over them; 0 if none is kept (DynamicViT).

    Args:
      student, teacher: patch tokens after the final norm.
      kept: the last decision; above one half = kept. It gets no gradient.
      kind: "mse", averaged over the channels too, or "kl", between the softmaxes over the channels.
    """
    if kind == "mse":
        error = jnp.square(student.astype(jnp.float32) - teacher.astype(jnp.float32)).mean(-1)
    elif kind == "kl":
        error = _kl(student, teacher, 1.0)
    else:
        raise unknown("kind of token distillation", kind, ("mse", "kl"))
    there = (kept > 0.5).astype(jnp.float32)
    return (error * there).sum() / jnp.maximum(there.sum(), 1)


# Learning to rank. The signatures follow optax's ranking loss: `where` marks the items of each list, and there is one
# value per list unless `reduce_fn` reduces them.

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
    wanted = jax.nn.softmax(relevance, axis=-1, where=where)
    log_probs = jax.nn.log_softmax(_wide(scores), axis=-1, where=where)
    return _reduced(_mean_over(-wanted * jnp.where(where, log_probs, 0), where), reduce_fn)


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
    others = _everywhere(scores, where) & ~first
    among = list_mle_loss(scores, relevance, where=first)
    between = _pairwise(scores, relevance, first[..., :, None] & others[..., None, :], threshold, sigma)
    return _reduced(among + between, reduce_fn)


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
