"""DTEM: ToMe with a metric that is learned by soft merging (Lee et al., 2024, Sec. 3).

Written from the paper and from facts about the published code, which has no licence; nothing of it is copied.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import Linear, attention_kernels
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import Tokens, take
from jaxprune.ops.blocks import by_rows
from jaxprune.reduction.parts.base import Step, StepReport
from jaxprune.reduction.parts.clusters import needed
from jaxprune.reduction.parts.keep_rows import absent_rows, best, present, unchanged
from jaxprune.reduction.parts.row_maps import compose, places
from jaxprune.reduction.tome import ToMe


class DTEM(ToMe):
    """Merges as ToMe does, by the cosine of a learned projection of the block's normalised input.

    Training merges softly, and no row leaves: the rows of A give shares of their size to their most similar rows of B,
    and all are sorted by falling size, so that the next step works on the largest. Attention weighs keys by these
    sizes. The projection sees the tokens without gradient; it is meant to learn alone, with all other parameters
    frozen.

    Args:
      width: of the projection; None: that of a head, or twice that in networks of 1024 channels or more.
      neighbours: number of rows of B that a row of A gives shares to.
      score_temperature, share_temperature: of the similarities, and of the softmax by which shares are drawn.

    Raises:
      UserError: an argument is not positive.

    >>> from flax import nnx
    >>> DTEM(Step(0, 1, (4, 4), 1, 16, 12, 0.75, 32, 2), rngs=nnx.Rngs(0)).num_merged()
    4
    """

    needs = frozenset({"normed"})
    published = "metric.{layer}"
    also_published = ("blocks.{layer}.attn.qkv.metric_layer",)
    renames: ClassVar[dict[str, str]] = {"": "metric"}

    @classmethod
    def rounds_of(cls, options: Mapping[str, Any]) -> None:
        return None

    @classmethod
    def check_site(cls, site: Site) -> None:
        if site.windows is not None:
            raise UserError(
                f"dtem sorts the rows of a block in training, and those of block {site.layer} are in windows: use tome."
            )

    def __init__(
        self,
        step: Step,
        *,
        width: int | None = None,
        neighbours: int = 3,
        score_temperature: float | int = 0.1,
        share_temperature: float | int = 0.1,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(step)
        of_head = step.embed_dim // max(step.num_heads, 1)
        values = {"width": width, "neighbours": neighbours}
        values |= {"score_temperature": score_temperature, "share_temperature": share_temperature}
        for name, value in values.items():
            if value is not None and not value > 0:
                raise UserError(f"{name}={value}: dtem needs a positive number.")
        self.width = width or (of_head if step.embed_dim < 1024 else 2 * of_head)
        self.neighbours = neighbours
        self.temperatures = (float(score_temperature), float(share_temperature))
        self.metric = Linear(step.embed_dim, self.width, rngs=needed(rngs, "dtem"))

    def flops(self) -> int:
        # ToMe's similarities and sums, the former of another width.
        d, of_head = self.step.embed_dim, self.step.embed_dim // self.step.num_heads
        return linear_flops(self.metric, self.step.tokens_in) + super().flops() * (self.width + d) // (of_head + d)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        if self.num_merged() == 0:
            return unchanged(tokens, prefix)
        metric = self.metric(jax.lax.stop_gradient(present(attended.normed))).astype(jnp.float32)
        if not train:
            return super().__call__(tokens, attended._replace(keys=metric[:, None]), train=train, key=key)
        active = metric[:, prefix : prefix + self.step.tokens_in]
        return soft_merge(
            tokens,
            active,
            self.num_merged(),
            prefix,
            neighbours=self.neighbours,
            temperatures=self.temperatures,
            position=self.step.position,
            absent=absent_rows(tokens, self.step),
        )


def soft_merge(
    tokens: Tokens,
    metric: Float[Array, "b a e"],
    num_merged: int,
    num_prefix_tokens: int,
    *,
    neighbours: int = 3,
    temperatures: tuple[float, float] = (0.1, 0.1),
    position: str = "mean",
    absent: Bool[Array, "b n"] | None = None,
) -> tuple[Tokens, StepReport]:
    """Lets every second row give shares of its size to rows in between, and sorts the rows by falling size.

    Args:
      metric: the vectors by which rows are compared, of the rows that take part: the first ones after the prefix. A is
        the first of them, the third, and so on.
      num_merged: number of rows whose worth of shares is given away.
      neighbours, temperatures: see `DTEM`.
      position: the positions of rows of B: the "mean" by size, or their own ("kept").
      absent: True for rows that hold nothing, to which none gives a share while there are `neighbours` others.

    Returns:
      (all rows, those that took part sorted; a report in which every row still holds its own patches).
    """
    prefix, count = num_prefix_tokens, metric.shape[1]
    unit = metric / jnp.maximum(jnp.linalg.norm(metric, axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    first, second = unit[:, ::2], unit[:, 1::2]

    def nearest_of(rows):
        scores = jnp.einsum("bae,bke->bak", rows, second)
        if absent is not None:
            scores = jnp.where(absent[:, None, 1:count:2], -2.0, scores)  # below every cosine
        return nearest(scores, neighbours)

    scores, ids = by_rows(nearest_of, first, size=attention_kernels.row_block())
    shares = soft_shares(scores, num_merged, *temperatures)
    size = tokens.size[:, prefix : prefix + count]
    x, place = (values[:, prefix : prefix + count] for values in (tokens.x, tokens.position))
    x_a, x_b, size_a, size_b = x[:, ::2], x[:, 1::2], size[:, ::2], size[:, 1::2]
    moved = shares * size_a[:, :, None]
    grown = size_b + _received(moved, ids, jnp.ones_like(size_a)[:, :, None], size_b.shape[1])[:, :, 0]
    mean = lambda of_a, of_b: (
        (size_b[:, :, None] * of_b + _received(moved, ids, of_a, size_b.shape[1]))
        / jnp.maximum(grown, jnp.finfo(jnp.float32).tiny)[:, :, None]
    )
    x_b = mean(x_a.astype(jnp.float32), x_b.astype(jnp.float32)).astype(x.dtype)
    place_b = mean(place[:, ::2], place[:, 1::2]) if position == "mean" else place[:, 1::2]
    left = 1 - shares.sum(2)
    # The gradient of what is left goes through the bounds.
    size_a = size_a * (left + jax.lax.stop_gradient(jnp.clip(left, 0, 1) - left))
    sizes = jnp.concatenate([size_a, grown], axis=1)
    order = best(jax.lax.stop_gradient(sizes), count)
    # A row's place among A and B together, in incoming order, and back.
    incoming = jnp.concatenate([jnp.arange(0, count, 2), jnp.arange(1, count, 2)]).astype(jnp.int32)
    kept = jnp.concatenate([incoming[order], _rest(tokens, prefix + count, count)], axis=1)
    row_map = places(kept, kept.shape[1])

    def behind(values, of_a, of_b):
        ordered = take(jnp.concatenate([of_a, of_b], axis=1), order, 0)
        return jnp.concatenate([values[:, :prefix], ordered, values[:, prefix + count :]], axis=1)

    merged = Tokens(
        x=behind(tokens.x, x_a, x_b),
        size=behind(tokens.size, size_a, grown),
        policy=take(tokens.policy, kept, prefix),
        assign=compose(tokens.assign, row_map),
        position=behind(tokens.position, place[:, ::2], place_b),
    )
    return merged, StepReport(row_map=row_map, kept=kept)


def nearest(scores: Float[Array, "b a k"], count: int) -> tuple[Float[Array, "b a _"], Int[Array, "b a _"]]:
    """The largest scores of each row, falling, and their places."""
    ids = jnp.argsort(-jax.lax.stop_gradient(scores), axis=-1, stable=True)[:, :, :count].astype(jnp.int32)
    return jnp.take_along_axis(scores, ids, axis=-1), ids


def soft_shares(
    scores: Float[Array, "b a k"], num_merged: int, score_temperature: float, share_temperature: float
) -> Float[Array, "b a k"]:
    """The share of itself that each row gives to each neighbour, in all worth `num_merged` rows or less.

    In each of `num_merged` rounds a softmax over all pairs gives one share; what a row gives makes it less likely to be
    drawn again. No row gives more than itself.
    """
    least = jnp.finfo(jnp.float32).eps
    # Compilers turn division by constants into one product. Logits may be near 100 and shares near 1, so that the
    # difference in rounding shows in the gradient.
    of_score, of_share = jax.lax.optimization_barrier((jnp.float32(score_temperature), jnp.float32(share_temperature)))

    def draw(state, _):
        logits, total = state
        probs = jax.nn.softmax(logits.reshape(len(logits), -1) / of_share, axis=-1).reshape(logits.shape)
        left = jnp.maximum(1 - probs.sum(-1, keepdims=True), least)
        return (logits + jnp.log(left), total + probs), None

    logits = scores.astype(jnp.float32) / of_score
    (_, total), _ = jax.lax.scan(draw, (logits, jnp.zeros_like(logits)), length=num_merged)
    return total / jnp.maximum(jax.lax.stop_gradient(total.sum(-1, keepdims=True)), 1)


def _received(
    moved: Float[Array, "b a k"], ids: Int[Array, "b a k"], values: Float[Array, "b a d"], count: int
) -> Float[Array, "b {count} d"]:
    """What `count` rows receive: the sums of `moved` times the values, over the rows that give to them."""

    def one(moved, ids, values):
        total = jnp.zeros((count, values.shape[1]), jnp.float32)
        for neighbour in range(ids.shape[1]):
            total = total.at[ids[:, neighbour]].add(moved[:, neighbour, None] * values)
        return total

    return jax.vmap(one)(moved, ids, values)


def _rest(tokens: Tokens, start: int, count: int) -> Int[Array, "b _"]:
    """The rows behind those that take part, which stay where they are."""
    rows = count + jnp.arange(tokens.x.shape[1] - start, dtype=jnp.int32)
    return jnp.broadcast_to(rows[None, :], (tokens.x.shape[0], rows.shape[0]))
