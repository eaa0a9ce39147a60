"""A reduction method in a package of its own: jaxprune finds it through the entry point in `pyproject.toml`."""

import jax.numpy as jnp

from jaxprune.reduction import Reducer, keep_rows


class Alternate(Reducer):
    """Keeps rows at even intervals, independently of the image: every second row of a full map at keep rate 0.5."""

    def __call__(self, tokens, attended, *, train=False, key=None):
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        rows = tokens.x.shape[1] - prefix
        ids = jnp.arange(num_keep, dtype=jnp.int32) * rows // num_keep
        return keep_rows(tokens, jnp.broadcast_to(ids[None, :], (tokens.x.shape[0], num_keep)), prefix)
