"""LocalMIM on a Swin (Wang et al., 2023): every stage reconstructs its own scale; with PR-MIM in each decoder.

The Swin sees the visible cells of 32×32 pixels only, as in GreenMIM.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune import losses
from jaxprune.errors import UserError
from jaxprune.mim.localmim import (
    LocalReconstruction,
    at_level,
    create_target,
    hog_bias_of,
    mean_colour_loss,
    of_cells,
    targets_of_levels,
)
from jaxprune.mim.parts.base import Framework, FrameworkFlops
from jaxprune.mim.parts.decoder import Decoder, TokenDecoder
from jaxprune.mim.parts.masker import Masks, SharedMasker, ascending
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import PUBLISHED, aggregation_of
from jaxprune.mim.parts.swin_shapes import architecture
from jaxprune.mim.parts.visible_swin import (
    WITHOUT_HEAD,
    VisibleCells,
    cell_of,
    ids_in_order,
    stages,
    visible_flops,
    visible_stages,
)
from jaxprune.models.swin import SwinTransformer
from jaxprune.nn import LayerNorm
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import xavier_uniform
from jaxprune.nn.params import Fixed
from jaxprune.nn.patch_embed import grid_of
from jaxprune.nn.tensor_rules import LAYERS, Rule, within


@dataclasses.dataclass(frozen=True)
class CellMasker(SharedMasker):
    """Random masks of cells, shared by all images of a batch, with as many visible cells as in LocalMIM's code.

    >>> CellMasker((7, 7), 0.75).num_visible, CellMasker((4, 4), 0.75).num_visible
    (12, 3)

    Of N cells it masks int(mask_ratio · N) + 1. Of 49 these are 37, as in MAE; of 16 they are 13, one more.
    """

    @property
    def num_visible(self) -> int:
        count = self.num_patches - int(self.mask_ratio * self.num_patches) - 1
        if not 0 <= self.mask_ratio < 1 or count < 1:
            raise UserError(
                f"mask_ratio={self.mask_ratio} leaves {max(count, 0)} of {self.num_patches} cells visible; choose a "
                "ratio in [0, 1) that leaves at least one, or larger images."
            )
        return count


def masks_on(masks: Masks, cells: VisibleCells) -> Masks:
    """The masks of the tokens of a map, from those of its cells; visible tokens are in the order of `visible_stages`.

    Args:
      masks: of the cells.
      cells: the arrangement of the map's tokens in cells.
    """
    (rows, columns), side = cells.grid, cells.side
    places = cells.coords(np.arange(rows * columns)[None])[0]
    # Of each token of the map, in raster order: its cell, and its place in the cell.
    order = np.argsort(places[:, 0] * columns * side + places[:, 1])
    cell, inside = np.divmod(order, cells.tokens)
    ids = ascending(~masks.masked, masks.ids_keep.shape[1])
    coords = cells.coords(ids)
    rank = jnp.argsort(jnp.argsort(masks.masked, axis=1, stable=True), axis=1).astype(jnp.int32)
    masked, retained = masks.masked[:, cell], masks.retained[:, cell]
    return Masks(
        ids_keep=coords[..., 0] * (columns * side) + coords[..., 1],
        ids_restore=rank[:, cell] * cells.tokens + jnp.asarray(inside, jnp.int32)[None],
        masked=masked,
        retained=retained,
        ids_present=ascending(~masked | retained, masks.ids_present.shape[1] * cells.tokens),
    )


class StageDecoders(Decoder):
    """One of MAE's decoders for each stage, on the map that the stage gives to the next.

    Args:
      in_dims, out_dims, dims: width of the encoder's tokens, size of a prediction and width of the decoder, by stage.
      maps: the cells of each stage's map.
      decoder: further arguments of `TokenDecoder`.
    """

    def __init__(
        self,
        in_dims: Sequence[int],
        out_dims: Sequence[int],
        dims: Sequence[int],
        maps: Sequence[VisibleCells],
        *,
        partial: Partial,
        rngs: nnx.Rngs,
        **decoder: Any,
    ):
        self.reconstruction, self.maps = partial.reconstruction, tuple(maps)
        self.levels = nnx.List(
            TokenDecoder(
                in_dim,
                out_dim,
                dim=dim,
                grid=(cells.grid[0] * cells.side, cells.grid[1] * cells.side),
                num_prefix_tokens=0,
                partial=partial,
                rngs=rngs,
                **decoder,
            )
            for in_dim, out_dim, dim, cells in zip(in_dims, out_dims, dims, maps, strict=True)
        )

    def __call__(self, latents: Sequence[Float[Array, "b _ _"]], masks: Masks) -> tuple[Float[Array, "b _ _"], ...]:
        """The predictions for every token of each map, from the encoder's output there."""
        levels = zip(self.levels, latents, self.maps, strict=True)
        return tuple(level(latent, masks_on(masks, cells)) for level, latent, cells in levels)

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> int:
        return sum(
            level.flops(visible * cells.tokens, present * cells.tokens, as_published=as_published).total
            for level, cells in zip(self.levels, self.maps, strict=True)
        )


class LocalMIMSwin(Framework):
    """Reconstruction by four small decoders, one for each stage of a Swin that sees visible cells only.

    A decoder reads the map that its stage gives to the next, and predicts each of its tokens: of a Swin with four
    stages they have 8, 16, 32 and 32 pixels a side. Each has its own norm before it; the last is the encoder's own. The
    first decoder has half of the others' width.

    Args:
      depths, num_heads: number of blocks and of heads of the encoder, by stage.
      mlp_ratio: MLP ratio of encoder and decoders, which also share `norm_eps`.
      decoder_embed_dim, decoder_depth, decoder_num_heads: width, number of blocks and heads of the decoders.
      target: "hog", histograms of oriented gradients, or "pixels".
      num_bins, hog_bias: see `LocalMIM`; as published for Swin, 18 orientations with random numbers.
      norm_pix_loss: whether "pixels" are normalised per token.
      mask_ratio: see `CellMasker`.
      partial: see `Partial`, for cells; "full" reconstruction is LocalMIM, the others throw 0.5 by default, the same
        cells in every decoder.
      encoder: further arguments of the Swin.

    Raises:
      UserError: the ratios leave nothing to see, to decode or to throw, the image is not a whole number of cells, or
        the decoders' width cannot be halved.

    References:
      Wang et al., 2023, "Masked image modeling with local multi-scale reconstruction".
    """

    encoder_class = SwinTransformer
    encoder_excludes = WITHOUT_HEAD
    no_decay = ("*.mask_token", "*relative_position_bias_table")
    non_encoder_patterns = ("decoder.*", "norm.[0-9].*", "hog_enc.*")
    published_encoder = "encoder."
    beside_encoder = ("norms.",)
    weight_source = ("merging_last",)

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 4,
        in_chans: int = 3,
        embed_dim: int = 128,
        depths: Sequence[int] = (2, 2, 18, 2),
        num_heads: int | Sequence[int] = (4, 8, 16, 32),
        window_size: int | tuple[int, int] = 7,
        mlp_ratio: float = 4.0,
        norm_eps: float = 1e-6,
        decoder_embed_dim: int = 128,
        decoder_depth: int = 1,
        decoder_num_heads: int = 4,
        target: str = "hog",
        num_bins: int = 18,
        hog_bias: bool = True,
        norm_pix_loss: bool = True,
        mask_ratio: float = 0.75,
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
        **encoder: Any,
    ):
        if decoder_embed_dim % 8 or decoder_embed_dim // 2 % decoder_num_heads:
            raise UserError(
                f"decoder_embed_dim={decoder_embed_dim} has no half for {decoder_num_heads} heads and positions, which "
                f"the first decoder needs: use a multiple of {math.lcm(8, 2 * decoder_num_heads)}."
            )
        cell = cell_of(img_size, patch_size, len(depths))
        common = {"mlp_ratio": mlp_ratio, "norm_eps": norm_eps, "dtype": dtype, "remat": remat, "rngs": rngs}
        swin = SwinTransformer(
            img_size=img_size,
            patch_size=patch_size,
            in_chans=in_chans,
            num_classes=0,
            embed_dim=embed_dim,
            depths=tuple(depths),
            num_heads=num_heads,
            window_size=window_size,
            kernel_init=xavier_uniform,
            patch_kernel_init=xavier_uniform,
            **common,
            **encoder,
        )
        # A stage gives tokens of the next one's size, the last its own.
        following = [min(stage + 1, len(depths) - 1) for stage in range(len(depths))]
        maps, widths = [stages(swin)[stage] for stage in following], [swin.widths[stage] for stage in following]
        of_cell = create_target(target, cell, num_bins=num_bins, norm_pix_loss=norm_pix_loss, in_chans=in_chans)
        super().__init__(
            encoder=swin,
            masker=CellMasker(grid_of(img_size, cell), float(mask_ratio), **partial.throwing()),
            decoder=StageDecoders(
                widths,
                [of_cells(of_cell, side).size for side in _sides(cell, maps)],
                [decoder_embed_dim // (1 if stage else 2) for stage in range(len(depths))],
                maps,
                depth=decoder_depth,
                num_heads=decoder_num_heads,
                partial=partial,
                **common,
            ),
            target=of_cell,
        )
        self.norms = nnx.List([LayerNorm(width, eps=norm_eps) for width in widths[:-1]])
        biased = len(depths) if target == "hog" and hog_bias else 0
        self.hog_bias = nnx.List([Fixed(hog_bias_of(rngs.params())) for _ in range(biased)])

    @property
    def patch_size(self) -> tuple[int, int]:
        """Height and width of a cell in pixels."""
        return self.target.patch_size

    def encode(self, images: Float[Array, "b H W c"], masks: Masks) -> tuple[Float[Array, "b _ _"], ...]:
        """What each stage gives to the next, after its norm: visible tokens only, cell by cell."""
        outputs = visible_stages(self.encoder, images, ids_in_order(masks))
        norms = (*self.norms, self.encoder.final_norm)
        return tuple(norm(x) for norm, x in zip(norms, outputs, strict=True))

    def targets(self, images: Float[Array, "b H W c"]) -> tuple[Float[Array, "b _ _"], ...]:
        """The target of every token of each map, in raster order."""
        biases = [bias[...] for bias in self.hog_bias] or None
        return targets_of_levels(images, self.target, _sides(self.patch_size, self.decoder.maps), biases)

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **draws: Any
    ) -> tuple[Float[Array, ""], LocalReconstruction]:
        require_float(images, 4)
        masks = self.draw(images, key=key, **draws)
        latents = self.encode(images, masks)
        preds, targets = self.decoder(latents, masks), self.targets(images)
        weights = self._weights(self.learned(masks))
        by_level = tuple(losses.masked_mse(*level) for level in zip(preds, targets, weights, strict=True))
        return sum(by_level[1:], by_level[0]), LocalReconstruction(
            latents, preds, targets, weights, by_level, masks, preds[-1]
        )

    def _weights(self, learned: Array) -> tuple[Float[Array, "b _"], ...]:
        """The weight of every token of each map in the loss, from the cells in it."""
        return tuple(at_level(learned, self.grid, int(math.log2(cells.side))) for cells in self.decoder.maps)

    def mean_colour_loss(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, ""] | None:
        """See `Framework.mean_colour_loss`; the sum over all maps."""
        sides, weights = _sides(self.patch_size, self.decoder.maps), self._weights(masks.masked)
        return mean_colour_loss(images, self.target, sides, weights)

    def flops(self, *, as_published: bool = True) -> FrameworkFlops:
        """Multiply-accumulates of one image by part; see `Framework.flops`, and for the encoder `visible_flops`."""
        swin, visible = self.encoder, self.masker.num_visible
        embedded = math.prod(swin.grid) if as_published else visible * stages(swin)[0].tokens
        return FrameworkFlops(
            patch_embed=swin.overhead().embed * embedded,
            encoder=visible_flops(swin, visible, as_published=as_published),
            decoder=self.decoder.flops(visible, visible + self.masker.num_retained, as_published=as_published),
        )

    def summary(self) -> str:
        sides = ", ".join(str(self.patch_size[0] // cells.side) for cells in self.decoder.maps)
        return (
            f"LocalMIM on a Swin with {self.reconstruction} reconstruction: its stages predict {self.target.name} of "
            f"tokens of {sides} pixels; {self.masker.mask_ratio:.0%} of the cells are masked, "
            f"{self.masker.throw_ratio:.0%} never enter a decoder."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of LocalMIM's repository; "agg" for PR-MIM's aggregation, which has no published weights."""
        return _rules(len(self.encoder.depths))

    @classmethod
    def encoder_tensors(cls, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See `Framework.encoder_tensors`; the last norm is the encoder's."""
        last = f"norm.{_count(tensors) - 1}."
        final_norm = {name.replace(last, "norm."): tensor for name, tensor in tensors.items() if name.startswith(last)}
        return {**super().encoder_tensors(tensors), **final_norm}

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments, including the encoder's, from tensors under the names of LocalMIM's repository."""
        last = _count(shapes) - 1
        positions, pred = shapes.get(f"decoder.{last}.pos_embed", ()), shapes.get(f"decoder.{last}.pred.weight", ())
        embed = shapes.get(f"decoder.{last}.embed.weight", ())
        swin = architecture(shapes, positions[1]) if (len(positions), len(pred), len(embed)) == (3, 2, 2) else None
        if swin is None:
            return None
        (height, width), channels = swin["patch_size"], swin["in_chans"]
        pixels = pred[0] == channels * height * width * 4**last
        histograms = {"num_bins": pred[0] // channels, "hog_bias": "hog_enc.0.conv.bias" in shapes}
        return {
            **swin,
            "decoder_embed_dim": embed[0],
            "decoder_depth": len({m[1] for name in shapes if (m := re.match(r"decoder\.0\.blocks\.(\d+)", name))}),
            "decoder_num_heads": 1,  # shapes do not depend on the number of heads
            **({"target": "pixels"} if pixels else histograms),
            **aggregation_of(shapes, "decoder.0."),
        }


def _sides(cell: tuple[int, int], maps: Sequence[VisibleCells]) -> list[tuple[int, int]]:
    """(height, width) in pixels of the tokens of each map."""
    return [(cell[0] // cells.side, cell[1] // cells.side) for cells in maps]


def _count(names: Mapping[str, Any]) -> int:
    """The number of a Swin's stages."""
    return len({match[1] for name in names if (match := re.match(r"layers\.(\d+)\.blocks\.", name))})


@functools.cache
def _rules(num_stages: int) -> tuple[Rule, ...]:
    last, kinds = num_stages - 1, (Rule("weight", "scale"), Rule("bias", "bias"))
    return (
        *(
            rule
            for stage in range(num_stages)
            for rules in (PUBLISHED, LAYERS)
            for rule in within(f"decoder.{stage}.", f"decoder.levels.{stage}.", rules)
        ),
        *within(f"norm.{last}.", "encoder.norm.", kinds),
        *(rule for stage in range(last) for rule in within(f"norm.{stage}.", f"norms.{stage}.", kinds)),
        *(Rule(f"hog_enc.{stage}.conv.bias", f"hog_bias.{stage}") for stage in range(num_stages)),
    )
