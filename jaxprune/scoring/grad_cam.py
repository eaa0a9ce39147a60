"""Grad-CAM: feature maps weighted by the gradient of the predicted class's logit (Selvaraju et al., 2017)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn import Host
from jaxprune.scoring.parts.base import Scorer, is_host
from jaxprune.scoring.parts.maps import activation
from jaxprune.scoring.parts.networks import logit_of, predicted, tokens_before


class GradCAM(Scorer):
    """`ReLU(Σ_c w_c A_c)`, where w is the spatial mean of the gradient of the predicted class's logit with
    respect to A, a ConvNet's last feature map or a ViT's patch tokens as the attention of its last block reads them:
    after the block's first norm, unless it normalises its branches instead.

    Args:
      via_input_size: upsamples the map to the size of the image first, as published code does to visualise it.

    Raises:
      UserError: the last block of the network has no attention to read.
    """

    reads = "any"
    needs_classes = True

    def __init__(self, *, via_input_size: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        host = self.proposal
        if is_host(host) and not hasattr(host.block(host.sites()[-1]), "normed"):
            raise UserError(
                f"{type(self).__name__} reads the tokens before the attention of the last block, and that of a "
                f"{type(host).__name__} has none: use papr or norm, which read the maps of any network."
            )
        self.via_input_size = via_input_size

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        raw = self.raw(self.prepared(images))
        return activation(raw, self.grid, images.shape[1:-1] if self.via_input_size else None)

    def raw(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *map"]:
        """The weighted sum before the ReLU."""
        maps, gradient = (self._vit_maps if is_host(self.proposal) else self._convnet_maps)(images)
        return jnp.einsum("b...c,bc->b...", maps, self.weights(maps, gradient))

    def weights(self, maps: Float[Array, "b *map c"], gradient: Float[Array, "b *map c"]) -> Float[Array, "b c"]:
        """The weight of each channel of A."""
        return gradient.mean(tuple(range(1, gradient.ndim - 1)))

    def _convnet_maps(self, images: Array) -> tuple[Array, Array]:
        features = self.proposal.forward_features(images).astype(jnp.float32)
        return features, _gradient(self.proposal.forward_head, features)

    def _vit_maps(self, images: Array) -> tuple[Array, Array]:
        host: Host = self.proposal
        site = host.sites()[-1]
        tokens, block = tokens_before(host, images, -1), host.block(site)

        def head(normed: Float[Array, "b n d"]) -> Float[Array, "b classes"]:
            last = block.run(tokens.x, position=tokens.position, normed=normed, grid=site.grid)
            return host.forward_head(tokens._replace(x=host.final_norm(last)))[0]

        normed = block.normed(tokens.x).astype(jnp.float32)
        on_grid = lambda x: x[:, site.num_prefix_tokens :].reshape(x.shape[0], *site.grid, -1)
        return on_grid(normed), on_grid(_gradient(head, normed))


def _gradient(head, features: Array) -> Array:
    """The gradient of each image's predicted logit; images are independent, so one backward pass serves the batch."""

    def logits_sum(features):
        logits = head(features)
        return logit_of(logits, predicted(logits)).sum()

    return jax.grad(logits_sum)(features)
