"""GFNet: the last window that a recurrent policy chooses (Wang et al., 2020)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.nn import Linear
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.tensor_rules import Rule, linear, linear_back
from jaxprune.ops.resize import resize
from jaxprune.scoring.parts.base import Scorer
from jaxprune.scoring.parts.networks import feature_map


class Policy(nnx.Module):
    """The recurrent policy of the published `network.py`: two linear layers, a GRU cell, the position by a sigmoid.

    Args:
      features: how many values a feature map has, flattened.
      encoded: width of the first layer.
      hidden: width of the second layer and of the recurrent state.
    """

    def __init__(self, features: int, encoded: int, hidden: int, *, rngs: nnx.Rngs):
        self.encode1 = Linear(features, encoded, rngs=rngs)
        self.encode2 = Linear(encoded, hidden, rngs=rngs)
        self.gru_in = Linear(hidden, 3 * hidden, rngs=rngs)
        self.gru_state = Linear(hidden, 3 * hidden, rngs=rngs)
        self.actor = Linear(hidden, 2, rngs=rngs)

    def start(self, batch: int) -> Float[Array, "b h"]:
        """The state before the glance: zeros."""
        return jnp.zeros((batch, self.actor.kernel.shape[0]))

    def __call__(self, features: Float[Array, "b c"], state: Float[Array, "b h"]) -> tuple[Array, Array]:
        """The action, (row, column) of the next window from 0 to 1, and the new state."""
        encoded = jax.nn.relu(self.encode2(jax.nn.relu(self.encode1(features))))
        (reset, update, new), (reset_, update_, new_) = (
            jnp.split(layer(x), 3, axis=-1) for layer, x in ((self.gru_in, encoded), (self.gru_state, state))
        )
        update = jax.nn.sigmoid(update + update_)
        state = (1 - update) * jnp.tanh(new + jax.nn.sigmoid(reset + reset_) * new_) + update * state
        return jax.nn.sigmoid(self.actor(state)), state


class GFNet(Scorer):
    """1 for the patches of the last window, 0 for the others.

    From a glance, the whole image downsampled to the size of the window, a recurrent policy chooses the first window,
    and from each window the next. It takes the mean of the published policy's distribution. The policy and `focus` need
    training.

    Args:
      proposal: encodes the glance.
      focus: encodes the windows; defaults to `proposal`.
      features: how many values their last feature maps have: channels times rows times columns, for a ResNet-50 and a
        window of 128 pixels 2048 · 4 · 4.
      window: size of the window in patches, (rows, columns), or one number for both.
      steps: the glance and the windows, as the published T counts them; the policy acts once less.
      encoded, hidden: widths of the policy.
    """

    reads = "convnet"
    differentiable = False
    dims: ClassVar = (2,)
    published_networks: ClassVar = {"model_prime_state_dict.": "proposal", "model_state_dict.": "focus"}
    published_entries = ("model_prime_state_dict", "model_state_dict", "policy")
    published_rules = tuple(
        rule
        for published, path in (("state_encoder.0", "encode1"), ("state_encoder.2", "encode2"), ("actor.0", "actor"))
        for rule in (
            Rule(f"policy.{published}.weight", f"policy.{path}.kernel", linear, linear_back),
            Rule(f"policy.{published}.bias", f"policy.{path}.bias"),
        )
    ) + tuple(
        rule
        for published, path in (("ih", "gru_in"), ("hh", "gru_state"))
        for rule in (
            Rule(f"policy.gru.weight_{published}_l0", f"policy.{path}.kernel", linear, linear_back),
            Rule(f"policy.gru.bias_{published}_l0", f"policy.{path}.bias"),
        )
    )

    def __init__(
        self,
        *,
        focus: Any = None,
        features: int = 2048 * 4 * 4,
        window: int | tuple[int, int] = (8, 8),
        steps: int = 5,
        encoded: int = 2048,
        hidden: int = 1024,
        rngs: nnx.Rngs | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        window = pair(window)
        if not all(w <= side for w, side in zip(window, self.grid, strict=True)):
            raise UserError(f"window={window} is larger than the grid {self.grid}: use a smaller window.")
        if steps < 2:
            raise UserError(f"steps={steps} has no window besides the glance: use steps=2 or more.")
        self.focus = nnx.data(focus)
        self.window, self.steps = window, steps
        self.policy = Policy(features, encoded, hidden, rngs=rngs or nnx.Rngs(0))

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        encode1, encode2 = (shapes.get(f"policy.state_encoder.{layer}.weight", ()) for layer in (0, 2))
        if len(encode1) != 2 or len(encode2) != 2:
            return {}
        return {"features": encode1[1], "encoded": encode1[0], "hidden": encode2[0]}

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return self.window_scores(self.actions(images)[-1])

    def actions(self, images: Float[Array, "b H W c"]) -> list[Float[Array, "b 2"]]:
        """The positions that the policy chooses, (row, column) from 0 to 1, one for each window."""
        images = self.prepared(images)
        height, width = (s * w // g for s, w, g in zip(images.shape[1:3], self.window, self.grid, strict=True))
        size = (height, width)
        network, view = self.proposal, resize(images, size, "bicubic", align_corners=True)
        actions, state = [], self.policy.start(images.shape[0])
        for _ in range(self.steps - 1):
            if actions:
                network, view = self.focus or self.proposal, crop(images, actions[-1], size)
            action, state = self.policy(self.flattened(network, view), state)
            actions.append(action)
        return actions

    def flattened(self, network: Any, view: Float[Array, "b h w c"]) -> Float[Array, "b v"]:
        """The last feature map of a view as one vector, in the order (channel, row, column) of the published one."""
        features = feature_map(network, view).astype(jnp.float32)
        if features[0].size != (num_features := self.policy.encode1.kernel.shape[0]):
            raise UserError(
                f"GFNet's policy reads features={num_features}, but its network's last feature map has "
                f"{' × '.join(map(str, features.shape[1:]))} values for a window of {view.shape[1]}×{view.shape[2]} "
                f"pixels: pass features={features[0].size}."
            )
        return jnp.moveaxis(features, -1, 1).reshape(features.shape[0], -1)

    def window_scores(self, action: Float[Array, "b 2"]) -> Float[Array, "b p"]:
        """1 inside the window at an action's position, 0 elsewhere."""
        free = jnp.array([side - w for side, w in zip(self.grid, self.window, strict=True)])
        first = jnp.floor(action * free[None, :])
        row, column = (jnp.arange(side)[None, :] - first[:, i, None] for i, side in enumerate(self.grid))
        inside = lambda offset, size: (offset >= 0) & (offset < size)
        covered = inside(row, self.window[0])[:, :, None] & inside(column, self.window[1])[:, None, :]
        return covered.reshape(action.shape[0], self.num_patches).astype(jnp.float32)

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
