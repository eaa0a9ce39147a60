"""LocalMIM: blocks of several depths reconstruct several scales (Wang et al., 2023); with PR-MIM in each decoder."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxprune import losses
from jaxprune.errors import UserError, unknown
from jaxprune.mim.mae import MAE
from jaxprune.mim.parts.base import Framework, MaskedOutput
from jaxprune.mim.parts.decoder import Decoder, TokenDecoder
from jaxprune.mim.parts.hog import HOG, hog_levels
from jaxprune.mim.parts.masker import Masks, RandomMasker
from jaxprune.mim.parts.partial_reconstruction import FULL, Partial
from jaxprune.mim.parts.rebuild_thrown import PUBLISHED, aggregation_of, fill_grid
from jaxprune.mim.parts.target import NormalizedPixels, Pixels
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn import LayerNorm, Linear
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import torch_uniform, xavier_uniform
from jaxprune.nn.params import Fixed, frozen
from jaxprune.nn.tensor_rules import Rule, Tensor, pointwise, pointwise_back, within
from jaxprune.ops.patches import normalize_patches, patchify, unpatchify

# Number of upsamplings by 2 of each level's map: cells of 1/4, 1/2, 1 and 2 times the side of a patch.
DOUBLINGS = (2, 1, 0, -1)
# The level with one prediction per patch.
PATCHES = DOUBLINGS.index(0)
TARGETS = ("hog", "pixels")


def default_indices(depth: int) -> tuple[int, ...]:
    """The default supervised blocks: 1, 3, depth - 3 and depth - 1, as published.

    In an encoder of fewer than eight blocks they may repeat, be out of order or not exist, see `LocalMIM`.

    >>> default_indices(12), default_indices(5)
    ((1, 3, 9, 11), (1, 3, 2, 4))
    """
    return 1, 3, depth - 3, depth - 1


class UpConv(nnx.Module):
    """A transposed 2×2 convolution with stride 2: each cell becomes four, each by its own linear layer."""

    def __init__(self, in_features: int, out_features: int, *, dtype: Any = None, rngs: nnx.Rngs):
        init = torch_uniform(4 * out_features)  # as published; PyTorch counts its outputs
        self.kernel = nnx.Param(init(rngs.params(), (in_features, 4 * out_features)))
        self.bias = nnx.Param(init(rngs.params(), (out_features,)))
        self.dtype = dtype

    def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b H W o"]:
        b, height, width, dim = x.shape
        dtype = self.dtype or x.dtype
        quarters = x.reshape(b * height * width, dim).astype(dtype) @ self.kernel[...].astype(dtype)
        grown = unpatchify(quarters.reshape(b, height * width, -1), 2, (height, width))
        return grown + self.bias[...].astype(dtype)[None, None, None, :]


class LevelDecoder(TokenDecoder):
    """The decoder of one level: MAE's decoder with one or two narrow blocks, whose map is then up- or downsampled.

    Under "progressive", thrown tokens are rebuilt before the norm, at the decoder's width.

    Args:
      doublings: see `DOUBLINGS`.
      in_dim, out_dim, dim, dtype, decoder: see `TokenDecoder`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        doublings: int,
        dim: int,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **decoder: Any,
    ):
        super().__init__(in_dim, out_dim, dim=dim, dtype=dtype, rngs=rngs, **decoder)
        self.doublings = doublings
        widths = [dim >> i for i in range(max(doublings, 0) + 1)]
        pairs = itertools.pairwise(widths)
        self.up = nnx.List([UpConv(wide, narrow, dtype=dtype, rngs=rngs) for wide, narrow in pairs])
        self.up_norms = nnx.List([LayerNorm(width) for width in widths[1:-1]])
        init = torch_uniform(widths[-1])
        self.pred = Linear(widths[-1], out_dim, kernel_init=init, dtype=dtype, rngs=rngs)
        self.pred.bias[...] = init(rngs.params(), (out_dim,))

    def normed(self, decoded: Float[Array, "b m e"], masks: Masks) -> Float[Array, "b p e"]:
        """Normalised decoded tokens on the full grid; thrown ones are rebuilt, or zero under "partial"."""
        x, partial = decoded[:, self.num_prefix_tokens :], masks.ids_present.shape != masks.masked.shape
        if self.aggregate is None:
            return fill_grid(self.norm(x), masks.present) if partial else self.norm(x)
        grid = fill_grid(x, masks.present) if partial else x
        return self.norm(self.aggregate(grid, ~masks.present, self.grid))

    def predict(self, decoded: Float[Array, "b m e"], masks: Masks) -> Float[Array, "b q o"]:
        """Maps decoded tokens to predictions for the cells of the level, in raster order; zeros where there is none."""
        tokens = self.normed(decoded, masks)
        x = tokens.reshape(tokens.shape[0], *self.grid, tokens.shape[2])
        # Under "partial" the mean of four patches is over the decoded ones.
        left_out = self.aggregate is None and masks.ids_present.shape != masks.masked.shape
        share = at_level(masks.present, self.grid, self.doublings) if left_out else None
        if self.doublings < 0:
            x = _halved(x)
            if share is not None:
                x = x / jnp.maximum(share, 0.25).astype(x.dtype).reshape(*x.shape[:3], 1)
        for index, layer in enumerate(self.up):
            x = layer(x)
            if index < len(self.up_norms):
                x = jax.nn.gelu(self.up_norms[index](x), approximate=False)
        pred = self.pred(x).astype(jnp.float32).reshape(x.shape[0], -1, self.pred.kernel.shape[1])
        return pred if share is None else jnp.where(share[:, :, None] > 0, pred, 0)

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> Any:
        cells = self.grid[0] * self.grid[1]
        grown = sum(linear_flops(layer, cells * 4**index) for index, layer in enumerate(self.up))
        head = linear_flops(self.pred, int(cells * 4.0**self.doublings))
        return super().flops(visible, present, as_published=as_published)._replace(predict=grown + head)


class LevelDecoders(Decoder):
    """One decoder per level; they share only the masks.

    Args:
      num_levels: number of levels, from small cells to large ones; the decoders of the others exist, as published, but
        are not trained.
      out_dims: number of values to predict per cell, by level.
      in_dim, decoder: see `LevelDecoder`.
    """

    def __init__(
        self,
        in_dim: int,
        out_dims: Sequence[int],
        *,
        num_levels: int = len(DOUBLINGS),
        partial: Partial,
        rngs: nnx.Rngs,
        **decoder: Any,
    ):
        self.reconstruction, self.num_levels = partial.reconstruction, num_levels
        common = {"partial": partial, "rngs": rngs, **decoder}
        of_levels = zip(out_dims, DOUBLINGS, strict=True)
        levels = [LevelDecoder(in_dim, out_dim, doublings=doublings, **common) for out_dim, doublings in of_levels]
        self.levels = nnx.List([*levels[:num_levels], *map(frozen, levels[num_levels:])])

    @property
    def used(self) -> list[LevelDecoder]:
        """The decoders of the levels."""
        return list(self.levels)[: self.num_levels]

    def __call__(self, latents: Sequence[Float[Array, "b n d"]], masks: Masks) -> tuple[Float[Array, "b _ _"], ...]:
        """The predictions of every level, from the encoder's output at that level."""
        return tuple(level(latent, masks) for level, latent in zip(self.used, latents, strict=True))

    def flops(self, visible: int, present: int, *, as_published: bool = True) -> int:
        return sum(level.flops(visible, present, as_published=as_published).total for level in self.used)


def _halved(x: Float[Array, "b h w d"]) -> Float[Array, "b H W d"]:
    b, height, width, dim = x.shape
    return x.reshape(b, height // 2, 2, width // 2, 2, dim).mean((2, 4))


def at_level(mask: Bool[Array, "b p"], grid: tuple[int, int], doublings: int) -> Float[Array, "b q"]:
    """The fraction of each cell of a level that lies in the patches of a mask; 0 or 1 except for large cells."""
    x = mask.astype(jnp.float32).reshape(-1, *grid, 1)
    x = _halved(x) if doublings < 0 else x.repeat(2**doublings, axis=1).repeat(2**doublings, axis=2)
    return x.reshape(x.shape[0], -1)


def of_patches(preds: Sequence[Float[Array, "b _ o"]], grid: tuple[int, int]) -> Float[Array, "b p o"]:
    """The prediction for every patch; without a level of one cell per patch, the mean over the smaller cells."""
    level = min(PATCHES, len(preds) - 1)
    x = preds[level].reshape(-1, *(side << DOUBLINGS[level] for side in grid), preds[level].shape[2])
    for _ in range(DOUBLINGS[level]):
        x = _halved(x)
    return x.reshape(x.shape[0], -1, x.shape[3])


def create_target(
    name: str, patch_size: tuple[int, int], *, num_bins: int, norm_pix_loss: bool, in_chans: int
) -> HOG | Pixels:
    """The target of every patch: "hog" of `num_bins`, or "pixels", normalised per cell or not.

    Raises:
      UserError: there is no such target.
    """
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    if name == "hog":
        return HOG(patch_size, num_bins=num_bins, in_chans=in_chans)
    return (NormalizedPixels if norm_pix_loss else Pixels)(patch_size, in_chans)


def of_cells(target: Any, cell: tuple[int, int]) -> Any:
    """The same target for cells of another (height, width)."""
    return dataclasses.replace(target, patch_size=cell)


def targets_of_levels(
    images: Float[Array, "b H W c"], target: Any, cells: Sequence[tuple[int, int]], biases: Sequence[Array] | None
) -> tuple[Float[Array, "b _ _"], ...]:
    """The target of every cell of each level.

    Args:
      cells: (height, width) of a level's cells.
      biases: of HOG, see `hog_levels`.
    """
    if isinstance(target, HOG):
        return hog_levels(images, cells, target.num_bins, biases)
    return tuple(of_cells(target, cell)(images) for cell in cells)


def mean_colour_loss(
    images: Float[Array, "b H W c"], target: Any, cells: Sequence[tuple[int, int]], weights: Sequence[Array]
) -> Float[Array, ""] | None:
    """The sum over levels of the loss of predicting each cell's mean colour; None if that predicts no target.

    Args:
      cells: see `targets_of_levels`.
      weights: of every cell in the loss, by level.
    """
    levels = [of_cells(target, cell) for cell in cells]
    guesses = [level.mean_colour(images) for level in levels]
    if any(guess is None for guess in guesses):
        return None
    parts = zip(guesses, levels, weights, strict=True)
    by_level = [losses.masked_mse(guess, level(images), weight) for guess, level, weight in parts]
    return sum(by_level[1:], by_level[0])


class _LocalReconstruction(NamedTuple):
    latents: tuple[Float[Array, "b k d"], ...]
    preds: tuple[Float[Array, "b _ _"], ...]
    targets: tuple[Float[Array, "b _ _"], ...]
    masks_by_level: tuple[Float[Array, "b cells_of_level"], ...]
    losses: tuple[Float[Array, ""], ...]
    masks: Masks
    pred: Float[Array, "b p o"]


class LocalReconstruction(_LocalReconstruction, MaskedOutput):
    """The outputs of LocalMIM besides its loss; tuples have one entry per level, from small cells to large ones.

    Attributes:
      latents: the encoder's output after the level's block and norm, prefix tokens first.
      preds: the prediction for each cell, in raster order; zeros where nothing is predicted.
      targets: the target of each cell.
      masks_by_level: the weight of each cell in the loss: its masked fraction (under "partial": retained fraction).
      losses: the loss of each level; their sum is the loss.
      masks: see `Reconstruction`.
      pred: the prediction for every patch, in the space of the target; see `of_patches`.

    Single levels are also available by their names in the published code: `latent0`, `pred0`, `target0`, `mask0`,
    `loss0`, ….
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Array:
        of_levels = {"latent": 0, "pred": 1, "target": 2, "mask": 3, "loss": 4}
        match = re.fullmatch(r"([a-z]+)([0-3])", name)
        if match and match[1] in of_levels and int(match[2]) < len(self.preds):
            return self[of_levels[match[1]]][int(match[2])]
        raise AttributeError(f"{type(self).__name__} has no {name!r}.")

    @property
    def latent(self) -> Float[Array, "b k d"]:
        """The encoder's output, from its last block."""
        return self.latents[-1]


class LocalMIM(Framework):
    """Reconstruction by four small decoders: early blocks predict fine cells, late blocks coarse ones.

    The decoders predict cells of 1/4, 1/2, 1 and 2 times the side of a patch. Each has its own norm after the encoder's
    block; that of the last block is the encoder's final norm.

    As published, each block in `indices` supplies one level, in the order of the blocks, whatever the order of
    `indices`; its norm is the one at its first place in `indices`. Repeated blocks therefore leave fewer than four
    levels: the finest ones. The other norms and decoders exist, so that all published tensors have their place, but
    they are neither used nor trained.

    Args:
      indices: the four supervised blocks, from 0, the last block among them; by default 1, 3, depth - 3 and depth - 1,
        of which shallow encoders have some twice or not at all.
      target: "hog", histograms of oriented gradients, or "pixels".
      num_bins: orientations of the histograms.
      hog_bias: adds fixed random numbers to the gradients, other ones at each level, as published for ViT-L and H.
      norm_pix_loss: whether "pixels" are normalised per cell.
      mlp_ratio: MLP ratio of encoder and decoders, which also share `qkv_bias`, `norm_eps` and `init_values`.
      decoder_embed_dim, decoder_depth, decoder_num_heads: width, number of blocks and heads of each decoder.
      mask_ratio: see `RandomMasker`.
      partial: see `Partial`; "full" reconstruction is LocalMIM, the others throw 0.5 by default, the same patches in
        every decoder. Each decoder has its own aggregation; under "partial" the loss of a level weights cells by their
        retained fraction.
      encoder: the arguments of the ViT, such as `img_size`, `patch_size`, `embed_dim`, `depth` and `num_heads`.

    Raises:
      UserError: `indices` are invalid, the patches cannot be divided into cells, or the ratios leave nothing to see, to
        decode or to throw.

    References:
      Wang et al., 2023, "Masked image modeling with local multi-scale reconstruction".
    """

    encoder_class = VisionTransformer
    encoder_excludes = MAE.encoder_excludes | {"drop_path_rate"}
    non_encoder_patterns = ("decoder.*", "norm.[0-9].*", "hog_enc.*")

    def __init__(
        self,
        *,
        indices: Sequence[int] | None = None,
        target: str = "hog",
        num_bins: int = 9,
        hog_bias: bool = False,
        norm_pix_loss: bool = True,
        mlp_ratio: float = 4.0,
        decoder_embed_dim: int = 256,
        decoder_depth: int = 1,
        decoder_num_heads: int = 8,
        mask_ratio: float = 0.75,
        partial: Partial = FULL,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
        **encoder: Any,
    ):
        common = {"mlp_ratio": mlp_ratio, "dtype": dtype, "remat": remat, "rngs": rngs}
        vit = VisionTransformer(
            num_classes=0,
            kernel_init=xavier_uniform,
            patch_kernel_init=xavier_uniform,
            **{"pos_embed": "sincos", **encoder},
            **common,
        )
        default = indices is None
        indices = default_indices(vit.depth) if indices is None else tuple(int(i) for i in indices)
        _check(indices, vit, decoder_embed_dim, default=default)
        blocks = sorted(set(indices) & set(range(vit.depth)))
        of_patch = create_target(
            target,
            vit.patch_embed.patch_size,
            num_bins=num_bins,
            norm_pix_loss=norm_pix_loss,
            in_chans=vit.patch_embed.in_chans,
        )
        super().__init__(
            encoder=vit,
            masker=RandomMasker(vit.grid, float(mask_ratio), **partial.throwing()),
            decoder=LevelDecoders(
                vit.embed_dim,
                [of_cells(of_patch, cell).size for cell in _cells(vit.patch_embed.patch_size)],
                num_levels=len(blocks),
                grid=vit.grid,
                num_prefix_tokens=vit.num_prefix_tokens,
                dim=decoder_embed_dim,
                depth=decoder_depth,
                num_heads=decoder_num_heads,
                partial=partial,
                **{name: encoder[name] for name in ("qkv_bias", "norm_eps", "init_values") if name in encoder},
                **common,
            ),
            target=of_patch,
        )
        self.indices, self.supervised = indices, tuple(blocks)
        self.last = indices.index(vit.depth - 1)
        eps = encoder.get("norm_eps", 1e-6)
        norms = [LayerNorm(vit.embed_dim, eps=eps) for _ in indices]
        used = {indices.index(block) for block in blocks}
        places = [place for place in range(len(indices)) if place != self.last]
        self.norms = nnx.List([norms[place] if place in used else frozen(norms[place]) for place in places])
        biased = hog_bias and target == "hog"
        self.hog_bias = nnx.List([Fixed(hog_bias_of(rngs.params())) for _ in indices] if biased else [])

    def encode(self, images: Float[Array, "b H W c"], masks: Masks) -> tuple[Float[Array, "b n d"], ...]:
        """The encoder's output at each level: prefix tokens, then the visible patches only."""
        left = self.encoder.encode(self.encoder.embed(images, masks.ids_keep), masks.ids_keep).block_outputs
        norms: list[Any] = list(self.norms)
        norms.insert(self.last, self.encoder.final_norm)
        return tuple(norms[self.indices.index(block)](left[block].x) for block in self.supervised)

    def targets(self, images: Float[Array, "b H W c"]) -> tuple[Float[Array, "b _ _"], ...]:
        """The target of every cell of each level."""
        biases = [bias[...] for bias in self.hog_bias] or None
        cells = _cells(self.patch_size)
        if isinstance(self.target, HOG):  # with all biases, which belong to the levels in their order
            return targets_of_levels(images, self.target, cells, biases)[: len(self.supervised)]
        return targets_of_levels(images, self.target, cells[: len(self.supervised)], biases)

    def mean_colour_loss(self, images: Float[Array, "b H W c"], masks: Masks) -> Float[Array, ""] | None:
        """See `Framework.mean_colour_loss`; the sum over all levels."""
        used = len(self.supervised)
        weights = [at_level(masks.masked, self.grid, doublings) for doublings in DOUBLINGS[:used]]
        return mean_colour_loss(images, self.target, _cells(self.patch_size)[:used], weights)

    def _of_patches(
        self, preds: Sequence[Float[Array, "b _ _"]], images: Float[Array, "b H W c"]
    ) -> Float[Array, "b p q"]:
        """The prediction for every patch; pixels of smaller cells are put together, each with its mean and contrast."""
        level = min(PATCHES, len(preds) - 1)
        if level == PATCHES:
            return preds[PATCHES]
        if isinstance(self.target, HOG):
            return of_patches(preds, self.grid)
        cell, doublings = _cells(self.patch_size)[level], DOUBLINGS[level]
        pixels = of_cells(self.target, cell).to_pixels(preds[level], images)
        predicted = unpatchify(pixels, cell, (self.grid[0] << doublings, self.grid[1] << doublings))
        patches = patchify(predicted, self.patch_size)
        if not isinstance(self.target, NormalizedPixels):
            return patches
        _, mean, std = normalize_patches(patchify(images.astype(jnp.float32), self.patch_size))
        return (patches - mean) / std

    def __call__(
        self, images: Float[Array, "b H W c"], *, key: PRNGKeyArray | None = None, **draws: Any
    ) -> tuple[Float[Array, ""], LocalReconstruction]:
        require_float(images, 4)
        masks = self.draw(images, key=key, **draws)
        latents = self.encode(images, masks)
        preds, targets = self.decoder(latents, masks), self.targets(images)
        learned = self.learned(masks)
        weights = tuple(at_level(learned, self.grid, doublings) for doublings in DOUBLINGS[: len(preds)])
        by_level = tuple(losses.masked_mse(*level) for level in zip(preds, targets, weights, strict=True))
        pred = self._of_patches(preds, images)
        aux = LocalReconstruction(latents, preds, targets, weights, by_level, masks, pred)
        return sum(by_level[1:], by_level[0]), aux

    def summary(self) -> str:
        blocks, levels = ", ".join(map(str, self.supervised)), len(self.supervised)
        scales = "one scale" if levels == 1 else f"{levels} scales"
        stroke_note = ", drawn as strokes along the edges" if isinstance(self.target, HOG) else ""
        return (
            f"LocalMIM with {self.reconstruction} reconstruction: encoder blocks {blocks} (from 0) predict "
            f"{self.target.name} at {scales}{stroke_note}; "
            f"{self.masker.mask_ratio:.0%} of the patches are masked, {self.masker.throw_ratio:.0%} never enter a "
            "decoder."
        )

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of LocalMIM's repository; "agg" for PR-MIM's aggregation, which has no published weights."""
        return _rules(self.last)

    @classmethod
    def encoder_tensors(cls, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """See `Framework.encoder_tensors`; the norm of the last of the default blocks is the encoder's."""
        depth = len({match[1] for name in tensors if (match := re.match(r"blocks\.(\d+)\.", name))})
        last = f"norm.{default_indices(depth).index(depth - 1)}."
        final_norm = {name.replace(last, "norm."): tensor for name, tensor in tensors.items() if name.startswith(last)}
        return {**super().encoder_tensors(tensors), **final_norm}

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any] | None:
        """Infers the arguments, except `indices`, from tensors under the names of LocalMIM's repository."""
        if not {"decoder.3.pred.1.weight", "norm.3.weight", "patch_embed.proj.weight"} <= shapes.keys():
            return None
        _, channels, height, width = shapes["patch_embed.proj.weight"]
        size = shapes["decoder.3.pred.1.weight"][0]
        pixels = size == 4 * channels * height * width
        return {
            "decoder_embed_dim": shapes["decoder.0.embed.weight"][0],
            "decoder_depth": len(
                {match[1] for name in shapes if (match := re.match(r"decoder\.0\.blocks\.(\d+)", name))}
            ),
            "decoder_num_heads": 1,  # shapes do not depend on the number of heads
            **({"target": "pixels"} if pixels else {"num_bins": size // channels}),
            **({"hog_bias": True} if "hog_enc.0.conv.bias" in shapes else {}),
            **aggregation_of(shapes, "decoder.0."),
        }


def _cells(patch_size: tuple[int, int]) -> list[tuple[int, int]]:
    """(height, width) of the cells of each level."""
    height, width = patch_size
    return [(int(height / 2.0**doublings), int(width / 2.0**doublings)) for doublings in DOUBLINGS]


def hog_bias_of(key: PRNGKeyArray) -> Float[Array, "2"]:
    """Draws the numbers of a level's `hog_bias`: PyTorch's initial bias of a 3×3 convolution of one channel."""
    return jax.random.uniform(key, (2,), jnp.float32, -1 / 3, 1 / 3)


def _check(indices: tuple[int, ...], vit: VisionTransformer, decoder_embed_dim: int, *, default: bool) -> None:
    last = vit.depth - 1
    exist = default or all(0 <= index <= last for index in indices)
    if len(indices) != len(DOUBLINGS) or last not in indices or not exist:
        raise UserError(
            f"indices={indices} must be {len(DOUBLINGS)} blocks from 0 to {last}, {last} among them (later blocks "
            f"would get no gradient): leave out indices for {default_indices(vit.depth)}, the published ones."
        )
    height, width = vit.patch_embed.patch_size
    if height % 4 or width % 4:
        raise UserError(
            f"Patches of {height}x{width} pixels cannot be divided into cells of 1/4 of their side: use a patch_size "
            "that is a multiple of 4."
        )
    if vit.grid[0] % 2 or vit.grid[1] % 2:
        raise UserError(
            f"A grid of {vit.grid[0]}x{vit.grid[1]} patches cannot be halved: use an img_size of an even number of "
            "patches."
        )
    if decoder_embed_dim % 4:
        raise UserError(f"decoder_embed_dim={decoder_embed_dim} cannot be halved twice: use a multiple of 4.")


def _up(tensor: Tensor) -> Tensor:
    """Reshapes (in, out, row, column) to (in, row · column · out)."""
    return tensor.transpose(0, 2, 3, 1).reshape(tensor.shape[0], -1)


def _up_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    return tensor.reshape(tensor.shape[0], 2, 2, -1).transpose(0, 3, 1, 2)


def _level(published: str, prefix: str, doublings: int) -> tuple[Rule, ...]:
    # `pred` numbers its layers: transposed convolutions with norm and GELU between, or pooling, then a 1×1 convolution.
    places = {2: ("0", "3", "4"), 1: ("0", "1"), 0: ("0",), -1: ("1",)}[doublings]
    *grown, head = (f"{published}pred.{place}." for place in places)
    rules = [Rule(f"{head}weight", f"{prefix}pred.kernel", pointwise, pointwise_back)]
    rules += [Rule(f"{head}bias", f"{prefix}pred.bias")]
    for index, place in enumerate(grown):
        rules += [Rule(f"{place}weight", f"{prefix}up.{index}.kernel", _up, _up_back)]
        rules += [Rule(f"{place}bias", f"{prefix}up.{index}.bias")]
    if len(grown) == 2:
        rules += [Rule(f"{published}pred.1.weight", f"{prefix}up_norms.0.scale")]
        rules += [Rule(f"{published}pred.1.bias", f"{prefix}up_norms.0.bias")]
    return (*rules, *within(published, prefix, PUBLISHED), *within(published, prefix))


@functools.cache
def _rules(last: int) -> tuple[Rule, ...]:
    """The rules of a framework whose published norm number `last` is the encoder's own."""
    places = [place for place in range(len(DOUBLINGS)) if place != last]
    norms = {last: "encoder.norm.", **{place: f"norms.{index}." for index, place in enumerate(places)}}
    kinds = (Rule("weight", "scale"), Rule("bias", "bias"))
    return (
        *(
            rule
            for index, doublings in enumerate(DOUBLINGS)
            for rule in _level(f"decoder.{index}.", f"decoder.levels.{index}.", doublings)
        ),
        *(rule for place, path in norms.items() for rule in within(f"norm.{place}.", path, kinds)),
        *(Rule(f"hog_enc.{index}.conv.bias", f"hog_bias.{index}") for index in range(len(DOUBLINGS))),
    )
