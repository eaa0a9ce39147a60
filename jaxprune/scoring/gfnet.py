"""GFNet: a policy moves a window over the image; where it stops is where to look (Wang et al., 2020)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import Linear
from jaxprune.ops.resize import resize
from jaxprune.scoring.base import Scorer
from jaxprune.scoring.networks import feature_map


class GFNet(Scorer):
    """1 for the patches of the last window, 0 for the others.

    A glance at the whole image, made as small as the window, tells a recurrent policy where to look first, and each
    window where to look next. The policy is the mean of the published one; it and the window's network are trained.

    Args:
      proposal: reads the glance.
      focus: reads the windows; by default the same network.
      features: channels of their last maps.
      window: patches of the window, (rows, columns).
      steps: the glance and the windows that are read.
      hidden: width of the policy.
    """

    reads = "convnet"

    def __init__(
        self,
        *,
        focus: Any = None,
        features: int = 2048,
        window: tuple[int, int] = (8, 8),
        steps: int = 5,
        hidden: int = 1024,
        rngs: nnx.Rngs | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not all(w <= side for w, side in zip(window, self.grid, strict=True)):
            raise UserError(f"gfnet's window {window} is larger than the grid {self.grid}: give a smaller window.")
        rngs = rngs or nnx.Rngs(0)
        self.focus = nnx.data(focus)
        self.window, self.steps = (int(window[0]), int(window[1])), steps
        self.encode1 = Linear(features, 2 * hidden, rngs=rngs)
        self.encode2 = Linear(2 * hidden, hidden, rngs=rngs)
        self.gru_in = Linear(hidden, 3 * hidden, rngs=rngs)
        self.gru_state = Linear(hidden, 3 * hidden, rngs=rngs)
        self.actor = Linear(hidden, 2, rngs=rngs)

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        images = self.prepared(images)
        height, width = (s * w // g for s, w, g in zip(images.shape[1:3], self.window, self.grid, strict=True))
        size = (height, width)
        seen = resize(images, size, "bicubic", align_corners=True)
        network, state = self.proposal, jnp.zeros((images.shape[0], self.encode2.kernel.shape[1]))
        for step in range(self.steps):
            features = feature_map(network, seen).astype(jnp.float32).mean((1, 2))
            action, state = self.act(features, state)
            if step + 1 < self.steps:
                seen, network = crop(images, action, size), self.focus or self.proposal
        return self.window_scores(action)

    def act(self, features: Float[Array, "b c"], state: Float[Array, "b h"]) -> tuple[Array, Array]:
        """Where to look next, (row, column) of the window from 0 to 1, and the new state."""
        encoded = jax.nn.relu(self.encode2(jax.nn.relu(self.encode1(features))))
        (reset, update, new), (reset_, update_, new_) = (
            jnp.split(layer(x), 3, axis=-1) for layer, x in ((self.gru_in, encoded), (self.gru_state, state))
        )
        update = jax.nn.sigmoid(update + update_)
        state = (1 - update) * jnp.tanh(new + jax.nn.sigmoid(reset + reset_) * new_) + update * state
        return jax.nn.sigmoid(self.actor(state)), state

    def window_scores(self, action: Float[Array, "b 2"]) -> Float[Array, "b p"]:
        """1 inside the window that an action stands for."""
        free = jnp.array([side - w for side, w in zip(self.grid, self.window, strict=True)])
        first = jnp.floor(action * free[None, :])
        row, column = (jnp.arange(side)[None, :] - first[:, i, None] for i, side in enumerate(self.grid))
        inside = lambda offset, size: (offset >= 0) & (offset < size)
        both = inside(row, self.window[0])[:, :, None] & inside(column, self.window[1])[:, None, :]
        return both.reshape(action.shape[0], self.num_patches).astype(jnp.float32)

    def select(self, scores: Float[Array, "b p"], num_keep: int) -> Int[Array, "b k"]:
        """The last patches of the window in raster order, as published; where it is too small, others before them."""
        return jnp.argsort(scores, axis=-1, stable=True)[:, -num_keep:].astype(jnp.int32)


def crop(
    images: Float[Array, "b H W c"], action: Float[Array, "b 2"], size: tuple[int, int]
) -> Float[Array, "b h w c"]:
    """Cuts each image's window out; `action`, from 0 to 1, places it between the first and the last possible place."""

    def one(image: Array, action: Array) -> Array:
        free = jnp.array([side - s for side, s in zip(image.shape[:2], size, strict=True)])
        top, left = jnp.floor(action * free).astype(jnp.int32)
        return jax.lax.dynamic_slice(image, (top, left, 0), (*size, image.shape[2]))

    return jax.vmap(one)(images, action)
