"""ATS: sample tokens by their cumulative share of the CLS token's attention (Fayyaz et al., 2022)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.nn import attention_kernels
from jaxprune.nn.tokens import Tokens, take
from jaxprune.ops.blocks import by_rows
from jaxprune.ops.platform import platform
from jaxprune.reduction.parts.base import Reducer, Step, StepReport
from jaxprune.reduction.parts.clusters import first_min
from jaxprune.reduction.parts.keep_rows import present
from jaxprune.reduction.parts.row_maps import compose


class ATS(Reducer):
    """Chooses the rows of attention by inverse-transform sampling on a fixed grid; the number of rows varies by image.

    The plan's count is an upper bound: rows that an image does not use are padding, with `policy` and `size` 0 and -1
    in `kept`. Keep rate 1 is not the dense model: even with as many samples as tokens, heavy tokens are drawn several
    times.

    Args:
      official: use the scores and the grid of the ATS authors' code instead of the benchmark's: attention summed over
        the heads times the norm of the whole value, tokens sorted by score before the cumulative sum, sums rescaled to
        [0, 1], and samples from the first positive sum on.
    """

    where = "attention"
    needs = frozenset({"cls_attn", "values"})
    identity_at_one = False
    leaves_absent = "always"

    def __init__(self, step: Step, *, official: bool = False, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        self.official = official

    def num_tokens(self) -> int:
        return min(len(sample_steps(self.step.num_keep)), self.step.tokens_in)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix = self.step.num_prefix_tokens
        n = tokens.x.shape[1]
        policy = tokens.policy
        steps = sample_steps(self.step.num_keep)
        sample = official_sample if self.official else published_sample
        fields = present(attended.cls_attn), squared_lengths(present(attended.values)), policy
        picked = sample(*jax.lax.stop_gradient([field[..., prefix:] for field in fields]), steps)
        ids, valid = distinct(picked, n - prefix, self.num_tokens())

        kept = jnp.where(valid, ids, -1)
        places = jnp.where(valid, jnp.arange(ids.shape[1], dtype=jnp.int32)[None, :], -1)
        row_map = jax.vmap(lambda i, p: jnp.full((n - prefix,), -1, jnp.int32).at[i].set(p))(ids, places)
        used = jnp.concatenate([policy[:, :prefix], valid.astype(policy.dtype)], axis=1)
        reduced = Tokens(
            x=take(tokens.x, kept, prefix),
            size=take(tokens.size, kept, prefix) * used,
            policy=used,
            assign=compose(tokens.assign, row_map),
            position=take(tokens.position, kept, prefix),
        )
        return reduced, StepReport(row_map=row_map, kept=kept)


def sample_steps(num_keep: int) -> np.ndarray:
    """The grid of `num_keep` points at which the sums are sampled; rounding can add one point, as published."""
    count = num_keep + 1
    return np.arange(1 / (2 * count), (2 * count - 1) / (2 * count), 1 / count).astype(np.float32)


def squared_lengths(values: Float[Array, "b h n e"]) -> Float[Array, "b h n"]:
    """The squared norm of each value, in float32."""
    squares = jnp.square(values.astype(jnp.float32))
    if platform() != "tpu":
        return squares.sum(-1)
    # By a product, which leaves them in the order in which they are computed: by the compiler's estimate for a TPU v5e
    # half the cycles.
    b, h, n, e = squares.shape
    of_heads = jnp.repeat(jnp.eye(h), e, axis=0)
    rows = squares.swapaxes(1, 2).reshape(b * n, h * e)
    return jnp.matmul(rows, of_heads, precision=jax.lax.Precision.HIGHEST).reshape(b, n, h).swapaxes(1, 2)


def significance(
    cls_attn: Float[Array, "b h n"], values: Float[Array, "b h n e"], eps: float = 1e-6
) -> Float[Array, "b n"]:
    """CLS attention times the norm of the value, summed over the heads and normalised to sum to one."""
    return _significance(cls_attn, squared_lengths(values), eps)


def _significance(
    cls_attn: Float[Array, "b h n"], squares: Float[Array, "b h n"], eps: float = 1e-6
) -> Float[Array, "b n"]:
    score = (cls_attn * jnp.sqrt(squares)).sum(1)
    return score / (score.sum(1, keepdims=True) + eps)


def cumulative(scores: Float[Array, "b n"], policy: Float[Array, "b n"]) -> Float[Array, "b n"]:
    """Cumulative sums in token order; an absent token has .1 more than the last, which is nearest to no step."""
    sums = jnp.cumsum(scores, axis=1)
    return jnp.where(policy > 0, sums, sums[:, -1:] + 0.1)


def published_sample(
    cls_attn: Float[Array, "b h n"], squares: Float[Array, "b h n"], policy: Float[Array, "b n"], steps: np.ndarray
) -> Int[Array, "b s"]:
    """The token whose cumulative share is nearest to each step; ties go to the first.

    Args:
      squares: see `squared_lengths`.
    """
    cdf = cumulative(_significance(cls_attn, squares), policy)
    return _nearest(jnp.broadcast_to(jnp.asarray(steps)[None, :], (cdf.shape[0], len(steps))), cdf)


def official_sample(
    cls_attn: Float[Array, "b h n"], squares: Float[Array, "b h n"], policy: Float[Array, "b n"], steps: np.ndarray
) -> Int[Array, "b s"]:
    """As `published_sample`, with the scores, the order and the grid of the ATS authors' code."""
    score = jnp.where(policy > 0, cls_attn.sum(1) * jnp.sqrt(squares.sum(1)), 0.0)
    order = jnp.argsort(score, axis=1, stable=True)
    cdf = jnp.cumsum(jax.vmap(lambda s, o: s[o])(score, order), axis=1)
    low, high = cdf[:, :1], cdf[:, -1:]
    cdf = (cdf - low) / jnp.maximum(high - low, jnp.finfo(jnp.float32).tiny)
    start = jnp.where(cdf > 0, cdf, jnp.inf).min(1, keepdims=True)
    grid = start + (1 - start) * jnp.linspace(0.0, 1.0, len(steps))[None, :]
    return jax.vmap(lambda o, p: o[p])(order, _nearest(grid, cdf))


def _nearest(points: Float[Array, "b s"], cdf: Float[Array, "b n"]) -> Int[Array, "b s"]:
    """The index of the nearest sum for each point; ties go to the first."""
    of_points = lambda points: first_min(jnp.abs(points[:, :, None] - cdf[:, None, :]), axis=2)
    return by_rows(of_points, points, size=attention_kernels.row_block())


def distinct(picked: Int[Array, "b s"], num_tokens: int, num_rows: int) -> tuple[Int[Array, "b k"], Array]:
    """The distinct ids in rising order, padded with other ids, and a mask that is False on padding."""

    def one(picked):
        is_picked = jnp.zeros((num_tokens,), bool).at[picked].set(True)
        ids = jnp.argsort(~is_picked, stable=True)[:num_rows].astype(jnp.int32)
        return ids, is_picked[ids]

    return jax.vmap(one)(picked)
