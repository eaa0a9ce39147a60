"""Random: keep patches by chance, the baseline that every method has to beat."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxprune.ops.host_random import host_generator
from jaxprune.reduction.parts.base import Reducer, Step
from jaxprune.reduction.parts.keep_rows import best, keep_rows


class Random(Reducer):
    """Keeps rows drawn uniformly, in their order, at the same point of the block as Top-K.

    Without a key the draw is the same for every image and every call, so that an image's logits do not depend on its
    batch; with a key each image has its own draw. Absent rows are the last to be kept.

    Args:
      seed: seed of the draw without a key; the steps of a plan draw independently.
    """

    where = "after"
    drops = True

    def __init__(self, step: Step, *, seed: int = 0, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        self.seed = seed

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        b, n = tokens.x.shape[:2]
        permutation = host_generator(self.seed, self.step.index).permutation(n - prefix)
        if key is None and not self.step.has_absent:
            ids = jnp.broadcast_to(jnp.asarray(np.sort(permutation[:num_keep]), jnp.int32)[None, :], (b, num_keep))
            return keep_rows(tokens, ids, prefix)
        if key is None:
            scores = jnp.broadcast_to(-jnp.asarray(np.argsort(permutation), jnp.float32)[None, :], (b, n - prefix))
        else:
            scores = jax.random.uniform(key, (b, n - prefix))
        if self.step.has_absent:
            scores = jnp.where(tokens.policy[:, prefix:] > 0, scores, -jnp.inf)
        return keep_rows(tokens, jnp.sort(best(scores, num_keep), axis=1), prefix)
