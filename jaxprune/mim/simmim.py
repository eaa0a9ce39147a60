"""SimMIM (Xie et al., 2022) on a ViT or a Swin transformer, and PR-MIM (Li et al., 2024) on top of it.

PR-MIM's Tab. 4 has 0.50 as the relative cost of ViT-B with 30 % of the patches thrown. This seems to be a misprint:
counted as in its other rows it is 0.70; 0.50 would require throwing half of the patches.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.mim.parts import simmim_shapes
from jaxprune.mim.parts.base import Framework, MaskedOutput
from jaxprune.mim.parts.block_masker import BlockMasker, block_of, default_mask_patch
from jaxprune.mim.parts.linear_decoder import LinearDecoder
from jaxprune.mim.parts.masker import Masks
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import PUBLISHED
from jaxprune.mim.parts.target import Pixels
from jaxprune.models.swin import SwinTransformer
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn.block_cost import block_flops, block_tokens
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import normal_02
from jaxprune.nn.patch_embed import pair
from jaxprune.nn.tensor_rules import Rule, pointwise, pointwise_back, within
from jaxprune.ops.patches import gather_tokens, unpatchify

# Relative positions of a ViT: the style with that option.
_STYLES = {"none": "eva", "shared": "beit_shared", "block": "beit"}


class _SimmimOutput(NamedTuple):
    pred: Float[Array, "b p q"]
    latent: Float[Array, "b n d"]
    masks: Masks
    mask: Bool[Array, "b h w"]
    z: Float[Array, "b h w d"]
    rec: Float[Array, "b H W c"]


class SimmimOutput(_SimmimOutput, MaskedOutput):
    """The outputs of SimMIM besides its loss; maps and images are channels-last.

    Attributes:
      pred: the pixels of every patch, in `patchify`'s order; zeros where nothing is predicted.
      latent: the encoder's output after its norm: for a ViT the CLS token and the tokens of `masks.ids_keep`, for a
        Swin the last map.
      masks: which patches were visible, masked and reconstructed; thrown ones have no mask tokens in the encoder.
      mask: True where a patch is masked.
      z: the input map of the decoder's linear layer; thrown cells are zero, or rebuilt.
      rec: `pred` as images.
    """

    __slots__ = ()

    @property
    def enc_out_kept(self) -> Float[Array, "b m d"]:
        """`latent` without the CLS token."""
        return self.latent[:, -self.masks.ids_keep.shape[1] :]


class SimmimFlops(NamedTuple):
    """The cost of SimMIM by part."""

    patch_embed: int
    encoder: int
    aggregate: int
    predict: int

    total = property(sum)  # of all parts


class SimMIM(Framework):
    """Mask tokens go through the encoder, and a linear layer predicts the pixels of its map.

    >>> from flax import nnx
    >>> from jaxprune import mim
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, mask_patch=8)
    >>> mim.create("simmim", **sizes, rngs=nnx.Rngs(0)).masker.num_masked
    10

    Args:
      encoder: "vit" or "swin"; with `mim.create` also the name of a ViT or Swin that sets the sizes.
      mask_patch: side of a masked block in pixels, or (height, width); by default 32, or the largest smaller one that
        fits small images, see `default_mask_patch`.
      mask_ratio: see `BlockMasker`.
      partial: see `Partial`; "full" reconstruction is SimMIM, the others throw 0.3 by default. Thrown patches have no
        mask tokens in the encoder; "progressive" rebuilds them on its map. A Swin needs whole maps, hence "full".
      rel_pos: relative position biases of a ViT: one table "shared" by all blocks (the default, for pre-training), one
        per "block" (as in fine-tuning), or "none". A Swin always has those of its windows.
      pos_embed: position embedding of a ViT, see `VisionTransformer`; "none" by default.
      network: further arguments of the encoder, such as `window_size` or `drop_path_rate`; for a ViT the defaults are
        `init_values=0.1` and `qkv_bias="qv"`.

    Raises:
      UserError: the ratios leave nothing to see, to reconstruct or to throw, or a block is not a whole number of
        patches.
    """

    encoder_classes: ClassVar = {"vit": VisionTransformer, "swin": SwinTransformer}
    # The style follows from `rel_pos`; an encoder without a head and with its own initialisation does not use the
    # others.
    encoder_excludes = frozenset(
        {"style", "num_classes", "global_pool", "fc_norm", "head_init_scale", "kernel_init", "patch_kernel_init"}
    )
    non_encoder_patterns = (*Framework.non_encoder_patterns, "mask_token", "agg.*", "aggregate.*")
    published_encoder = "encoder."
    weight_source = ("merging_last",)

    def __init__(
        self,
        *,
        encoder: str = "vit",
        mask_patch: int | tuple[int, int] | None = None,
        mask_ratio: float = 0.6,
        partial: Partial = FULL,
        rel_pos: str | None = None,
        pos_embed: str | None = None,
        in_chans: int = 3,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **network: Any,
    ):
        throwing = partial.throwing(default=0.3)
        common = {"in_chans": in_chans, "dtype": dtype, "rngs": rngs, **network}
        if encoder == "vit":
            net: Any = _vit("shared" if rel_pos is None else rel_pos, pos_embed or "none", **common)
            last, width, heads = net.grid, net.embed_dim, net.num_heads
        elif encoder == "swin":
            if partial.reconstruction != "full":
                raise UserError(
                    f"reconstruction={partial.reconstruction!r} throws tokens "
                    f"(throw_ratio={throwing['throw_ratio']}), but a Swin needs whole maps: use reconstruction='full', "
                    "or encoder='vit'."
                )
            if rel_pos == "shared" or pos_embed not in (None, "none"):
                raise UserError(
                    f"A Swin only has relative positions within windows: leave out rel_pos={rel_pos!r} and "
                    f"pos_embed={pos_embed!r}."
                )
            net = SwinTransformer(num_classes=0, **common)
            last, width, heads = net.grids[-1], net.widths[-1], net.heads[-1]
        else:
            raise unknown("encoder", encoder, self.encoder_classes)
        patch_size, image = net.patch_embed.patch_size, net.patch_embed.img_size
        block = default_mask_patch(image, patch_size, mask_ratio) if mask_patch is None else pair(mask_patch)
        masker = BlockMasker(net.grid, block_of(block, patch_size), float(mask_ratio), **throwing)
        if (image[0] % last[0], image[1] % last[1]) != (0, 0):
            raise UserError(
                f"Images of {image[0]}x{image[1]} pixels do not divide into the {last[0]}x{last[1]} cells of the "
                "last map: choose an img_size that all strides divide."
            )
        decoder = LinearDecoder(
            width,
            grid=last,
            stride=(image[0] // last[0], image[1] // last[1]),
            patch_size=patch_size,
            in_chans=in_chans,
            num_prefix_tokens=net.num_prefix_tokens,
            partial=partial,
            num_heads=heads,
            dtype=dtype,
            rngs=rngs,
        )
        super().__init__(encoder=net, masker=masker, decoder=decoder, target=Pixels(patch_size, in_chans))
        embed_dim = net.patch_embed.proj.kernel.shape[1]
        init = _cut_normal if encoder == "vit" else normal_02
        self.mask_token = nnx.Param(init(rngs.params(), (1, 1, embed_dim)))

    @property
    def no_decay(self) -> tuple[str, ...]:
        """Parameters without weight decay besides vectors; as published, a ViT's mask token and biases are decayed."""
        if isinstance(self.encoder, VisionTransformer):
            return "encoder.pos_embed", "encoder.cls_token"
        return "mask_token", "*.relative_position_bias_table"

    def encode(
        self, images: Float[Array, "b H W c"], masks: Masks, *, drop_key: PRNGKeyArray | None = None
    ) -> Float[Array, "b n d"]:
        """The encoder's output: for a ViT prefix tokens, then those of `masks.ids_keep`; for a Swin the last map.

        Args:
          drop_key: turns DropPath on.
        """
        net = self.encoder
        # None, meaning all patches in raster order, avoids per-image position biases in a ViT.
        ids = None if masks.ids_keep.shape == masks.masked.shape else masks.ids_keep
        x = net.patch_embed(images.astype(net.dtype or images.dtype), ids)
        hidden = masks.masked[:, :, None]
        x = jnp.where(hidden if ids is None else gather_tokens(hidden, ids), self.mask_token[...].astype(x.dtype), x)
        options = {"train": drop_key is not None, "key": drop_key}
        if isinstance(net, VisionTransformer):
            runner = net.encode(net.place(x, ids), ids, **options)
        else:
            runner = net.encode(x, **options)
        return net.final_norm(runner.tokens.x)

    def error(
        self, pred: Float[Array, "b p q"], target: Float[Array, "b p q"], learned: Bool[Array, "b p"]
    ) -> Float[Array, ""]:
        """The mean absolute error over the pixels of the patches `learned` of the whole batch, in float32."""
        pixels = learned.astype(jnp.float32) * math.prod(self.patch_size)
        errors = jnp.abs(pred.astype(jnp.float32) - target.astype(jnp.float32)).mean(-1)
        return (errors * pixels).sum() / (pixels.sum() + 1e-5)

    def __call__(
        self,
        images: Float[Array, "b H W c"],
        *,
        key: PRNGKeyArray | None = None,
        drop_key: PRNGKeyArray | None = None,
        **draws: Any,
    ) -> tuple[Float[Array, ""], SimmimOutput]:
        """Returns the loss of a batch of normalised images, and the other outputs.

        Args:
          key: draws the random numbers that are not in `draws`.
          drop_key: turns DropPath on.
          draws: mask, noise, first, retained: see `BlockMasker.draw`.

        Raises:
          UserError: the images are not a batch of floating-point arrays.
        """
        require_float(images, 4)
        return self.reconstruct(images, self.draw(images, key=key, **draws), drop_key=drop_key)

    def reconstruct(
        self, images: Float[Array, "b H W c"], masks: Masks, *, drop_key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, ""], SimmimOutput]:
        """The loss of a batch under these masks, and the other outputs.

        Args:
          drop_key: turns DropPath on.
        """
        latent = self.encode(images, masks, drop_key=drop_key)
        cells = self.decoder.cells(latent, masks)
        pred = self.decoder.patches(self.decoder.pixels(cells), masks)
        b = images.shape[0]
        output = SimmimOutput(
            pred,
            latent,
            masks,
            mask=masks.masked.reshape(b, *self.grid),
            z=cells.reshape(b, *self.decoder.grid, cells.shape[-1]),
            rec=unpatchify(pred, self.patch_size, self.grid),
        )
        return self.error(pred, self.target(images), self.learned(masks)), output

    def training_loss(self, images: Float[Array, "b H W c"], key: PRNGKeyArray, **call: Any) -> Float[Array, ""]:
        """The loss of a training step: DropPath is on."""
        mask_key, drop_key = jax.random.split(key)
        return self(images, key=mask_key, drop_key=drop_key, **call)[0]

    def flops(self, *, as_published: bool = True) -> SimmimFlops:
        """Multiply-accumulates of one image by part.

        Args:
          as_published: has no effect: SimMIM drops nothing, and there is no published code of PR-MIM on it.
        """
        net, masker = self.encoder, self.masker
        overhead, present = net.overhead(), masker.num_visible + masker.num_retained
        blocks = 0
        for site in net.sites():
            tokens = site.num_prefix_tokens + (present if site.removable else math.prod(site.grid))
            blocks += block_flops(net.block_cost(site), block_tokens(None, tokens, tokens))
        decoder = self.decoder.flops(masker.num_visible, present, as_published=as_published)
        return SimmimFlops(overhead.embed * present, blocks + overhead.between, *decoder)

    def summary(self) -> str:
        """A sentence for the report on what the framework does."""
        share = self.masker.num_masked / self.num_patches
        thrown = self.masker.num_masked - self.masker.num_retained
        return (
            f"SimMIM with {self.reconstruction} reconstruction: blocks of {share:.0%} of the patches are masked, "
            f"{thrown / self.num_patches:.0%} never enter the encoder."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of SimMIM's repository; "agg" for PR-MIM's aggregation, which has no published weights."""
        return RULES

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments, including the encoder's, from tensors under SimMIM's names, as far as possible."""
        if "decoder.0.weight" not in shapes or "mask_token" not in shapes:
            return None
        try:
            return simmim_shapes.architecture(shapes)
        except (KeyError, IndexError, ValueError, ZeroDivisionError):
            return None  # a tensor is missing or has other axes: not SimMIM's


def _vit(rel_pos: str, pos_embed: str, **options: Any) -> VisionTransformer:
    """Builds and initialises a ViT as SimMIM does."""
    if rel_pos not in _STYLES:
        raise unknown("rel_pos", rel_pos, _STYLES)
    net = VisionTransformer(
        style=_STYLES[rel_pos],
        num_classes=0,
        pos_embed=pos_embed,
        kernel_init=_cut_normal,
        patch_kernel_init=_cut_normal,
        **{"init_values": 0.1, "qkv_bias": "qv", **options},
    )
    for table in (net.cls_token, net.pos_embed):
        if isinstance(table, nnx.Param):
            table[...] = _cut_normal(options["rngs"].params(), table.shape)
    net.patch_embed.proj.bias[...] = jnp.zeros_like(net.patch_embed.proj.bias[...])
    for number, block in enumerate(net.blocks, start=1):
        for layer in (block.attn.proj, block.mlp.fc2):
            layer.kernel[...] = layer.kernel[...] / math.sqrt(2 * number)
    return net


def _cut_normal(key: Any, shape: Any, dtype: Any = jnp.float32, out_sharding: Any = None) -> Array:
    """A normal distribution of standard deviation 0.02, truncated at one standard deviation."""
    return 0.02 * jax.random.truncated_normal(key, -1.0, 1.0, shape, dtype)


# There the mask token belongs to the encoder, whose names are read with or without the prefix "encoder.".
RULES = (
    Rule("encoder.mask_token", "mask_token"),
    Rule("mask_token", "mask_token"),
    Rule("decoder.0.weight", "decoder.pred.kernel", pointwise, pointwise_back),
    Rule("decoder.0.bias", "decoder.pred.bias"),
    *within("", "decoder.", PUBLISHED),
)
