"""Ways to remove a visible patch from a masked autoencoder: one class for each interpretation of LTRP.

The order of tokens is irrelevant to a transformer, so the decoder's sequence is `[masked | prefix | visible]`: tokens
that a removal does not affect come first, and the rows to read are a slice.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxprune.errors import UserError
from jaxprune.mim import Framework, TokenDecoder
from jaxprune.models.vit import VisionTransformer
from jaxprune.ops.patches import unpatchify
from jaxprune.ranking.image_metrics import METRICS
from jaxprune.ranking.masks import LabelMasks
from jaxprune.ranking.shared_attention import SharedAttention


def token_decoder(framework: Framework) -> TokenDecoder:
    """The decoder of a framework whose reconstructions can be compared with and without a patch.

    Raises:
      UserError: it cannot leave out tokens.
    """
    if not isinstance(framework.decoder, TokenDecoder):
        raise UserError(
            f"{type(framework).__name__} reconstructs with a {type(framework.decoder).__name__}, which cannot "
            f"leave out "
            "a patch: make labels with a framework whose decoder is a TokenDecoder, a masked autoencoder."
        )
    if not isinstance(framework.encoder, VisionTransformer):
        raise UserError(
            f"The {type(framework.encoder).__name__} of {type(framework).__name__} has no patches that can be left out "
            "one by one: make labels with a framework whose encoder is a VisionTransformer."
        )
    return framework.decoder


class Removal:
    """One batch: the reconstruction with all visible patches (`anchor`), and those without each of them.

    Args:
      framework: a framework with a `TokenDecoder`.
      images: normalised images.
      over: the patches to compare: "masked" ones, or "all" that both reconstructions have.
    """

    def __init__(self, framework: Framework, images: Float[Array, "b H W c"], masks: LabelMasks, *, over: str):
        self.encoder: Any = framework.encoder
        self.decoder, self.masks = token_decoder(framework), masks
        self.prefix, self.decoded = self.decoder.num_prefix_tokens, masks.ids_decode.shape[1]
        # The visible tokens follow those that no removal affects.
        self.staying = self.decoded + self.prefix
        # The last block and the prediction run only for the first `rows` rows; None means all.
        self.rows = self.decoded if over == "masked" else None
        encoded = self.encoder.encode(self.encoder.embed(images, masks.ids_keep), masks.ids_keep)
        self.embedded = encoded.block_inputs[0]
        self.latent = framework.latent
        self.x = self.sequence(self.latent([tokens.x for tokens in encoded.block_outputs]))
        self.anchor = self.decode(self.x)

    def predict(self, numbers: Int[Array, "c"]) -> Float[Array, "bc rows q"]:
        """Reconstructions without each of the visible patches `numbers`, consecutive for an image."""
        raise NotImplementedError

    def left(self, numbers: Int[Array, "c"]) -> Int[Array, "c rows"] | None:
        """The rows of the whole sequence in each reconstruction without a patch; None means all."""
        return None

    def without(self, numbers: Int[Array, "c"]) -> Float[Array, "b c rows q"]:
        """Reconstructions without each of the visible patches `numbers`."""
        pred = self.predict(numbers)
        return pred.reshape(-1, len(numbers), *pred.shape[1:])

    def change(self, numbers: Int[Array, "c"]) -> Float[Array, "b c"]:
        """Mean absolute change of the reconstruction by each of the removals `numbers`."""
        pred, anchor = self.without(numbers), self.anchor[:, None]
        if self.rows is None:
            left = self.left(numbers)
            anchor = anchor if left is None else self.anchor[:, left]
            # Prefix tokens predict no patch.
            pred, anchor = (jnp.delete(p, np.arange(self.decoded, self.staying), axis=2) for p in (pred, anchor))
        change, sizes = jnp.abs(pred - anchor).mean(3), self.masks.sizes
        if sizes is None:
            return change.mean(2)
        visible_sizes = jnp.ones((sizes.shape[0], change.shape[2] - self.decoded))
        weights = jnp.concatenate([sizes, visible_sizes], axis=1)[:, None]
        return (change * weights).sum(2) / weights.sum(2)

    def change_of_image(self, metric: str, numbers: Int[Array, "c"]) -> Float[Array, "b c"]:
        """How much the whole image changes by each of the removals, by `image_metrics.METRICS`.

        The reconstructions must have all patches, see `left`.
        """
        pred = self.without(numbers)
        order = jnp.argsort(jnp.concatenate([self.masks.ids_decode, self.masks.ids_keep], axis=1))

        def images(rows: Float[Array, "b n q"]) -> Float[Array, "b H W c"]:
            patches = jnp.delete(rows, np.arange(self.decoded, self.staying), axis=1)
            patches = jnp.take_along_axis(patches, order[:, :, None], axis=1).astype(jnp.float32)
            return unpatchify(patches, self.encoder.patch_embed.patch_size, self.encoder.grid)

        compare, anchor = METRICS[metric], images(self.anchor)
        return jax.vmap(lambda rows: compare(anchor, images(rows)), in_axes=1, out_axes=1)(pred)

    def sequence(self, latent: Float[Array, "bc n d"]) -> Float[Array, "bc m e"]:
        """The decoder's input for the encoder's output; an image may have several outputs."""
        x = self.decoder.embed(latent)
        repeat = lambda rows: jnp.repeat(rows, x.shape[0] // self.masks.ids_keep.shape[0], axis=0)
        of_prefix, of_patches = self.decoder.positions(x.dtype)
        visible = x[:, self.prefix :] + repeat(of_patches[self.masks.ids_keep])
        masked = repeat(self.decoder.mask_tokens(self.masks.ids_decode, x.dtype))
        return jnp.concatenate([masked, x[:, : self.prefix] + of_prefix[None], visible], axis=1)

    def decode(
        self, x: Float[Array, "bc n e"], hidden: Bool[Array, "bc n"] | None = None, *, blocks: Any = None
    ) -> Float[Array, "bc rows q"]:
        """Runs decoder blocks (all by default) and predicts the compared rows."""
        blocks = self.decoder.blocks if blocks is None else blocks
        bias = self.bias(x)
        for index, block in enumerate(blocks):
            x = block.run(x, bias=bias, hidden=hidden, rows=self.rows if index == len(blocks) - 1 else None)
        return self.decoder.head(x)

    def bias(self, x: Float[Array, "bc n e"]) -> Float[Array, "bc 1 1 n"] | None:
        """The bias of each key of the sequences `x`: the log of the number of patches that it represents."""
        sizes = self.masks.sizes
        if sizes is None:
            return None
        logs = jnp.repeat(jnp.log(sizes), x.shape[0] // sizes.shape[0], axis=0)
        return jnp.pad(logs, ((0, 0), (0, x.shape[1] - self.decoded)))[:, None, None, :]


class Deleted(Removal):
    """The token is left out of the decoder's sequence, as in the published code.

    In the first block only the removed token differs: queries, keys, values and the attention to the remaining tokens
    are computed once.
    """

    def __init__(self, framework: Framework, images: Float[Array, "b H W c"], masks: LabelMasks, *, over: str):
        super().__init__(framework, images, masks, over=over)
        self.shared = SharedAttention(self.decoder.blocks[0], self.x, self.staying, self.bias(self.x))

    def left(self, numbers: Int[Array, "c"]) -> Int[Array, "c rows"]:
        places = jnp.arange(self.x.shape[1] - 1)[None, :]
        return places + (places >= self.staying + numbers[:, None])

    def predict(self, numbers: Int[Array, "c"]) -> Float[Array, "bc rows q"]:
        first, *blocks = self.decoder.blocks
        left = self.left(numbers)
        gathered = jnp.take_along_axis(self.shared.without(numbers), left[None, :, :, None], axis=2)
        x, gathered = _merge(self.x[:, left]), _merge(gathered)
        if not blocks:
            x, gathered = x[:, : self.rows], gathered[:, : self.rows]
        return self.decode(first.run(x, gathered=gathered), blocks=blocks)


class MaskToken(Removal):
    """The token is replaced with the mask token."""

    def predict(self, numbers: Int[Array, "c"]) -> Float[Array, "bc rows q"]:
        removed = jnp.arange(self.x.shape[1])[None, :] == self.staying + numbers[:, None]
        masked = self.decoder.mask_tokens(self.masks.ids_keep, self.x.dtype)
        tokens = jnp.concatenate([self.x[:, : self.staying], masked], axis=1)
        return self.decode(_merge(jnp.where(removed[None, :, :, None], tokens[:, None], self.x[:, None])))


class HiddenInDecoder(Removal):
    """The token is masked in the attention of all others in the decoder, and its own attention output is zero."""

    def predict(self, numbers: Int[Array, "c"]) -> Float[Array, "bc rows q"]:
        hidden = jnp.arange(self.x.shape[1])[None, :] == self.staying + numbers[:, None]
        return self.decode(_repeated(self.x, len(numbers)), _of_each_image(hidden, len(self.x)))


class HiddenInEncoder(Removal):
    """The token is masked in the encoder, which is run again before decoding."""

    def predict(self, numbers: Int[Array, "c"]) -> Float[Array, "bc rows q"]:
        x, position = (_repeated(part, len(numbers)) for part in (self.embedded.x, self.embedded.position))
        hidden = jnp.arange(x.shape[1])[None, :] == self.prefix + numbers[:, None]
        hidden = _of_each_image(hidden, len(self.embedded.x))
        features = []
        for block in self.encoder.blocks:
            features.append(x := block.run(x, position=position, hidden=hidden))
        return self.decode(self.sequence(self.latent(features)))


REMOVALS: dict[str, type[Removal]] = {
    "delete": Deleted,
    "mask_token": MaskToken,
    "attention": HiddenInDecoder,
    "encoder": HiddenInEncoder,
}


def _repeated(values: Float[Array, "b n d"], count: int) -> Float[Array, "bc n d"]:
    """Repeats what each image has for `count` removals."""
    b, n, d = values.shape
    return _merge(jnp.broadcast_to(values[:, None], (b, count, n, d)))


def _of_each_image(hidden: Bool[Array, "c n"], b: int) -> Bool[Array, "bc n"]:
    """Repeats the mask of each removal for `b` images."""
    return _merge(jnp.broadcast_to(hidden[None], (b, *hidden.shape)))


def _merge(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])
