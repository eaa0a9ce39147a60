"""Masks drawn by the attention of the framework's own encoder: AMT (Gui et al., 2022) on any framework with a ViT.

After a warm-up each patch is weighted by the CLS attention of the last block: weighted draws without replacement choose
the masked patches, then the thrown ones; the rest are visible.

Every 40 epochs, the published code computes and stores weights for the whole images of the data set, and then crops and
flips them with the images. Here a copy of the encoder is refreshed at the same interval, and each step computes the
weights of its own images. The weights therefore always match the crop, and the copy is part of the training state,
whatever the size of the data set, so a resumed run is bitwise identical. The price is a forward pass of the encoder
over all patches in each step (`flops(as_published=False).observe`).
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.mim.parts.base import MaskedOutput
from jaxprune.mim.parts.encoder_copy import EncoderCopy
from jaxprune.mim.parts.masker import Masker, Masks
from jaxprune.mim.parts.weighted_masker import WeightedMasker
from jaxprune.nn.block_cost import block_flops, block_tokens
from jaxprune.nn.params import merge, split
from jaxprune.ops.patches import patchify


class AttentionMaskedOutput(MaskedOutput):
    """What the outputs have in common: they tell thrown patches from masked ones."""

    __slots__ = ()

    @property
    def mask(self) -> Float[Array, "b p"]:
        """1 for masked patches, -1 for thrown ones, 0 for visible ones."""
        return self.masks.retained.astype(jnp.float32) - self.masks.thrown.astype(jnp.float32)


class AttentionMasking:
    """A mixin that precedes the base framework; call `drive` once the base is built.

    Attributes:
      masker: draws masks by weights.
      warmup_masker: the base's own masker, for the warm-up.
      warmup_epochs: number of warm-up epochs.
      refresh_epochs: epochs between refreshes of the copy of the encoder that weights patches.
    """

    encoder: Any
    masker: Any
    patch_size: tuple[int, int]
    num_patches: int

    def drive(self, masker: WeightedMasker, warmup_epochs: int, refresh_epochs: int) -> None:
        """Replaces the base's masker with `masker`, and keeps the former for the warm-up.

        Raises:
          UserError: the copy of the encoder would never be refreshed.
        """
        if refresh_epochs < 1 or warmup_epochs < 0:
            raise UserError(
                f"refresh_epochs={refresh_epochs} and warmup_epochs={warmup_epochs}: give at least 1 and 0."
            )
        self.warmup_masker: Masker = self.masker
        self.masker = masker
        self.warmup_epochs, self.refresh_epochs = warmup_epochs, refresh_epochs

    def keepers(self, steps_per_epoch: float | int) -> tuple[EncoderCopy]:
        """The copy of the encoder that weights patches."""
        first, period = (math.ceil(epochs * steps_per_epoch) for epochs in (self.warmup_epochs, self.refresh_epochs))
        return (EncoderCopy(first, period),)

    def phase(self, epoch: int) -> dict[str, Any]:
        """`warmup=True` in the epochs of the warm-up."""
        return {"warmup": True} if epoch < self.warmup_epochs else {}

    def draw_by_attention(
        self,
        images: Float[Array, "b H W c"],
        *,
        key: PRNGKeyArray | None = None,
        warmup: bool = False,
        snapshot: Mapping[str, Array] | None = None,
        attn_map: Float[Array, "b *sides"] | None = None,
        ids_shuffle: Int[Array, "b n"] | None = None,
        **draws: Any,
    ) -> tuple[Masks, Float[Array, "b p"] | None]:
        """Draws the masks of a batch, and returns the weights of its patches; None if masks were drawn without weights.

        Args:
          key: draws the random numbers; values in `draws` (noise) replace a draw.
          warmup: mask as the base does, and throw nothing.
          snapshot: parameters of the encoder that weights patches, by their names in this framework; None uses its own.
          attn_map: weights of all pixels, one channel, instead of those from the encoder.
          ids_shuffle: see `WeightedMasker.draw`.
        """
        if warmup:
            return self.warmup_masker.draw(len(images), key=key, **draws), None
        weights = None
        if attn_map is not None:
            weights = patch_weights(attn_map.reshape(images.shape[:3]), self.patch_size)
        elif ids_shuffle is None:
            weights = attention_weights(self._observer(snapshot), images)
        return self.masker.draw(len(images), key=key, weights=weights, ids_shuffle=ids_shuffle, **draws), weights

    def _observer(self, snapshot: Mapping[str, Array] | None) -> Any:
        if snapshot is None:
            return self.encoder
        parts = split(self.encoder)
        return merge(parts.graph, {name: snapshot[f"encoder.{name}"] for name in parts.params}, parts.rest)

    def observe_flops(self) -> int:
        """Multiply-accumulates of the weights of one image."""
        encoder = self.encoder
        tokens = encoder.num_prefix_tokens + self.num_patches
        rows, *sites, last = block_tokens(None, tokens, tokens), *encoder.sites()
        cost = encoder.block_cost(last)
        return (
            encoder.overhead().embed * self.num_patches
            + sum(block_flops(encoder.block_cost(site), rows) for site in sites)
            + tokens * (cost.project + cost.pair // 2)
        )


def attention_weights(encoder: Any, images: Float[Array, "b H W c"]) -> Float[Array, "b p"]:
    """The CLS attention of an encoder's last block to each patch, from 0 to 1, without a gradient (AMT).

    The attention of each head is rescaled to [0, 1] before averaging.
    """
    last = encoder.depth - 1
    runner = encoder.encode(encoder.embed(images), taps={last: frozenset({"cls_attn"})})
    attention = runner.output().attended[last].cls_attn[:, :, encoder.num_prefix_tokens :]
    low, high = attention.min(-1, keepdims=True), attention.max(-1, keepdims=True)
    scaled = (attention - low) / jnp.maximum(high - low, jnp.finfo(jnp.float32).tiny)
    return jax.lax.stop_gradient(scaled.mean(1))


def patch_weights(pixels: Float[Array, "b H W"], patch_size: tuple[int, int]) -> Float[Array, "b p"]:
    """Sums the weights of the pixels of each patch."""
    return patchify(pixels[..., None], patch_size).sum(-1)
