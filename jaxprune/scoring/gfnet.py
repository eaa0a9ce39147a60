"""GFNet: the last window that a recurrent policy chooses (Wang et al., 2020)."""

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

    From a glance, the whole image downsampled to the size of the window, a recurrent policy chooses the first window,
    and from each window the next. It takes the mean of the published policy's distribution. The policy and `focus` need
    training.

    Args:
      proposal: encodes the glance.
      focus: encodes the windows; defaults to `proposal`.
      features: channels of their last feature maps.
      window: size of the window in patches, (rows, columns).
      steps: how many inputs are encoded: the glance, and the windows but for the last.
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
            raise UserError(f"window={window} is larger than the grid {self.grid}: use a smaller window.")
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
        view = resize(images, size, "bicubic", align_corners=True)
        network, state = self.proposal, jnp.zeros((images.shape[0], self.encode2.kernel.shape[1]))
        for step in range(self.steps):
            features = feature_map(network, view).astype(jnp.float32).mean((1, 2))
            action, state = self.act(features, state)
            if step + 1 < self.steps:
                view, network = crop(images, action, size), self.focus or self.proposal
        return self.window_scores(action)

    def act(self, features: Float[Array, "b c"], state: Float[Array, "b h"]) -> tuple[Array, Array]:
        """The policy's action, (row, column) of the next window from 0 to 1, and its new state."""
        encoded = jax.nn.relu(self.encode2(jax.nn.relu(self.encode1(features))))
        (reset, update, new), (reset_, update_, new_) = (
            jnp.split(layer(x), 3, axis=-1) for layer, x in ((self.gru_in, encoded), (self.gru_state, state))
        )
        update = jax.nn.sigmoid(update + update_)
        state = (1 - update) * jnp.tanh(new + jax.nn.sigmoid(reset + reset_) * new_) + update * state
        return jax.nn.sigmoid(self.actor(state)), state

    def window_scores(self, action: Float[Array, "b 2"]) -> Float[Array, "b p"]:
        """1 inside the window at an action's position, 0 elsewhere."""
        free = jnp.array([side - w for side, w in zip(self.grid, self.window, strict=True)])
        first = jnp.floor(action * free[None, :])
        row, column = (jnp.arange(side)[None, :] - first[:, i, None] for i, side in enumerate(self.grid))
        inside = lambda offset, size: (offset >= 0) & (offset < size)
        both = inside(row, self.window[0])[:, :, None] & inside(column, self.window[1])[:, None, :]
        return both.reshape(action.shape[0], self.num_patches).astype(jnp.float32)

    def select(self, scores: Float[Array, "b p"], num_keep: int) -> Int[Array, "b k"]:
        """The window's last patches in raster order, as published; if it has too few, patches outside precede them."""
        return jnp.argsort(scores, axis=-1, stable=True)[:, -num_keep:].astype(jnp.int32)


def crop(
    images: Float[Array, "b H W c"], action: Float[Array, "b 2"], size: tuple[int, int]
) -> Float[Array, "b h w c"]:
    """Crops each image's window; an action from 0 to 1 interpolates between its first and last valid position."""

    def one(image: Array, action: Array) -> Array:
        free = jnp.array([side - s for side, s in zip(image.shape[:2], size, strict=True)])
        top, left = jnp.floor(action * free).astype(jnp.int32)
        return jax.lax.dynamic_slice(image, (top, left, 0), (*size, image.shape[2]))

    return jax.vmap(one)(images, action)
