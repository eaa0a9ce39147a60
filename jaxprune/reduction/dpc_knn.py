"""DPC-KNN: merge tokens around density peaks (Zeng et al., 2022, Sec. 3.2; Du et al., 2016)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import Linear
from jaxprune.nn.block_cost import linear_flops
from jaxprune.reduction.parts import clusters
from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.keep_rows import best, unchanged


def mean_of_smallest(values: Float[Array, "b m n"], k: int) -> Float[Array, "b m"]:
    """Mean of the k smallest values along the last axis.

    Takes one distinct value after the other, with its multiplicity: a sort costs twenty times as much on CPU, and
    `lax.top_k` gathers a sharded batch.
    """
    total = jnp.zeros(values.shape[:-1], values.dtype)
    left = jnp.full(values.shape[:-1], k)
    level = jnp.full(values.shape[:-1], -jnp.inf)
    for _ in range(k):
        level = jnp.where(values > level[:, :, None], values, jnp.inf).min(-1)
        count = jnp.minimum((values == level[:, :, None]).sum(-1), left)
        # Once all k are found the level may be infinite, and inf · 0 is NaN.
        total = total + jnp.where(count > 0, level * count, 0)
        left = left - count
    return total / k


def dpc_knn(
    x: Float[Array, "b n d"],
    num_clusters: int,
    *,
    k: int = 5,
    noise: Float[Array, "b n"] | None = None,
    present: Bool[Array, "b n"] | None = None,
) -> tuple[Int[Array, "b k"], Int[Array, "b n"]]:
    """Clusters the tokens of each image around tokens of high density far from denser ones; without gradient.

    Args:
      k: neighbours that define the density, including the token itself.
      noise: uniform in [0, 1); 1e-6 of it is added to the densities to break ties.
      present: False for tokens that must be neither a neighbour nor a centre; they are assigned to cluster 0.

    Returns:
      (centres, assign): the index of each cluster's centre token, best first, and the cluster of each token.
    """
    distance = clusters.Distances(x, scale=x.shape[2] ** 0.5)
    furthest = distance.by_rows(lambda rows: rows.max(2)).max(1)[:, None, None]
    to_present = lambda rows: rows
    if present is not None:
        # Any distance above all others will do; the published code takes the batch's maximum, ours the image's.
        beyond = furthest + 1
        furthest = jnp.where(present.all(1)[:, None, None], furthest, beyond)
        to_present = lambda rows: jnp.where(present[:, None, :], rows, beyond)
    # Logarithms of density and score: the densities of far-apart tokens would all underflow to 0 in float32.
    density = -distance.by_rows(lambda rows: mean_of_smallest(jnp.square(to_present(rows)), k))
    if noise is not None:
        density = jnp.log(jnp.exp(density) + 1e-6 * noise)
    if present is not None:
        density = jnp.where(present, density, -jnp.inf)

    def to_denser(rows, of_row):
        return jnp.where(density[:, None, :] > of_row[:, :, None], to_present(rows), furthest).min(2)

    separation = distance.by_rows(to_denser, density)
    centres = best(jnp.log(separation) + density, num_clusters)
    assign = distance.nearest(centres)
    if present is not None:
        assign = jnp.where(present, assign, 0)
    numbers = jnp.arange(num_clusters, dtype=assign.dtype)
    return centres, jax.vmap(lambda a, c: a.at[c].set(numbers))(assign, centres)


def shares(
    weights: Float[Array, "b n"], assign: Int[Array, "b n"], num_clusters: int
) -> Float[Array, "b {num_clusters} n"]:
    """The share of each token in its cluster's mean: its weight over the sum of the cluster's weights (+ 1e-6)."""
    return _shares(weights, clusters.members(assign, num_clusters))


def _shares(weights: Float[Array, "b n"], inside: Bool[Array, "b k n"]) -> Float[Array, "b k n"]:
    share = jnp.where(inside, weights[:, None, :], 0)
    return share / (share.sum(2, keepdims=True) + 1e-6)


class DpcKnn(Reducer):
    """Merges each cluster into its mean: a plain one, or weighted by a learned score, exp(w·x + b).

    Args:
      k: neighbours that define a token's density, including itself.
      equal_weights: plain means, without parameters. False is the trained form, whose score is drawn at random until
        it is trained or loaded; published weights with a score bring it (`checkpoints.load_pretrained`).
      density_noise: break ties of density at random if there is a key (training); the published code always does, even
        in evaluation.
    """

    where = "before"
    drops = False
    published = "cluster_layers"
    off_the_shelf = "equal_weights"

    def __init__(
        self,
        step,
        *,
        k: int = 5,
        equal_weights: bool = True,
        density_noise: bool = False,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(step)
        if k < 1:
            raise UserError(f"k={k}: dpc_knn needs at least 1 neighbour.")
        if step.tokens_in < k:
            raise UserError(
                f"dpc_knn needs {k} neighbours, but only {step.tokens_in} tokens arrive at block {step.layer}: "
                f"raise the keep rate or use k={step.tokens_in}."
            )
        self.k, self.density_noise, self.equal_weights = k, density_noise, equal_weights
        if equal_weights:
            self.score = nnx.data(None)
        else:
            self.score = nnx.data(Linear(step.embed_dim, 1, rngs=clusters.needed(rngs, "dpc_knn")))

    def flops(self) -> int:
        """n²·d for the distances between the n incoming rows, n·d for their scores, k·n·d for the means of k rows.

        In blocks (`nn.attention_kernels`) the distances are recomputed at each use, which is not counted.
        """
        n, k, d = self.step.tokens_in, self.step.num_keep, self.step.embed_dim
        scores = 0 if self.score is None else linear_flops(self.score, n)
        return n * n * d + scores + k * n * d

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        if num_keep >= self.step.tokens_in:
            return unchanged(tokens, prefix)
        x = tokens.x[:, prefix:]
        noise = jax.random.uniform(key, x.shape[:2]) if self.density_noise and key is not None else None
        present = tokens.policy[:, prefix:] > 0 if self.step.has_absent else None
        centres, assign = dpc_knn(x, num_keep, k=self.k, noise=noise, present=present)
        if self.score is None:
            weights = jnp.ones(x.shape[:2], jnp.float32)
        else:
            weights = jnp.exp(self.score(x)[:, :, 0].astype(jnp.float32))
        if present is not None:
            weights = jnp.where(present, weights, 0)
        mean = lambda inside: _shares(weights, inside).astype(x.dtype) @ x
        rows = clusters.by_cluster(mean, assign, num_keep)
        return clusters.clustered(tokens, rows, assign, centres, self.step)
