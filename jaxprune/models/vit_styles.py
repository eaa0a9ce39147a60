"""The variants of the vision transformer: how families of networks differ, besides their sizes."""

import dataclasses
from typing import Literal

from jaxprune.errors import UserError, unknown
from jaxprune.nn.block_style import PLAIN, Style
from jaxprune.nn.mlp import ACTIVATIONS
from jaxprune.nn.rotary import Rotary


@dataclasses.dataclass(frozen=True)
class VitStyle:
    """The features of a variant outside its blocks; plain values.

    Attributes:
      block: see `nn.block_style.Style`.
      pre_norm: whether tokens are normalised before the first block; patches are then projected without a bias.
      embed_norm: whether embedded patches are normalised.
      final_norm: whether there is a norm after the last block, or after pooling (`fc_norm`).
      map_prefix: whether attention pooling reads the prefix tokens too.
      shared_bias: whether all blocks share one table of relative positions (BEiT's and SimMIM's pre-training).
      pool_heads: heads of attention pooling, with an MLP ratio of 4; None uses the heads and MLP ratio of the blocks.
      antialias: whether a position table is resampled with antialiasing, as in timm; otherwise as in MAE.
      interpolation: method of resampling a position table, see `ops.resize`.
      keeps_aspect, align_corners: how it is resampled, see `ops.posembed.Resampling`.
      plain_fc_norm: whether the norm after pooling has neither scale nor shift.
      cut: whether images need not be a whole number of patches; the remainder at the right and bottom is ignored.
      names: naming of its published weights, see `weights.sources.timm`.
    """

    block: Style = PLAIN
    pre_norm: bool = False
    embed_norm: bool = False
    final_norm: bool = True
    map_prefix: bool = False
    shared_bias: bool = False
    pool_heads: int | None = None
    antialias: bool = True
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    keeps_aspect: bool = False
    align_corners: bool = False
    plain_fc_norm: bool = False
    cut: bool = False
    names: tuple[str, ...] = ()

    def with_activation(self, activation: str) -> "VitStyle":
        """Returns the variant with another activation of its MLPs, one of `nn.mlp.ACTIVATIONS`.

        Raises:
          UserError: there is no such activation, or the MLPs are SwiGLU's.
        """
        if activation not in ACTIVATIONS:
            raise unknown("act_layer", activation, ACTIVATIONS)
        if self.block.mlp != "plain":
            raise UserError(f"act_layer={activation!r} has no place in a network with SwiGLU: leave act_layer out.")
        return dataclasses.replace(self, block=dataclasses.replace(self.block, activation=activation))

    def with_norms(self, pre_norm: bool | None, final_norm: bool | None, qk_norm: bool | None) -> "VitStyle":
        """Returns the variant with or without these norms; None leaves them as they are."""
        block = self.block if qk_norm is None else dataclasses.replace(self.block, qk_norm=qk_norm)
        outside = {"pre_norm": pre_norm, "final_norm": final_norm}
        changes = {name: value for name, value in outside.items() if value is not None}
        return dataclasses.replace(self, block=block, **changes)


# Names that differ in timm's class `Eva` and in BEiT: LayerScale, and layers stored as separate tensors.
_GAMMA = ("gamma",)
_DINOV3 = Rotary("dinov3", temperature=100.0, halves=True)
_EVA02 = Rotary(reference=(16, 16))
_SWIGLU = Style(mlp="swiglu_packed", activation="silu")


def _dinov3(**block) -> VitStyle:
    names = (*_GAMMA, "split_mlp") if block else _GAMMA
    return VitStyle(Style(rotary=_DINOV3, **block), names=names)


def _radio(*, align_corners: bool = False) -> VitStyle:
    rule = {"interpolation": "bilinear", "antialias": False, "align_corners": align_corners}
    return VitStyle(final_norm=False, keeps_aspect=True, **rule, names=("naflex",))


def _perception(reference: int, *, offset: float = 1.0, **options) -> VitStyle:
    rotary = Rotary(reference=(reference, reference), offset=offset, columns_first=True)
    return VitStyle(Style(rotary=rotary), pre_norm=True, names=_GAMMA, **options)


_CORE = {"map_prefix": True, "pool_heads": 8}

STYLES: dict[str, VitStyle] = {
    "vit": VitStyle(antialias=False),
    "timm": VitStyle(),
    "no_norm": VitStyle(final_norm=False),
    "gelu_tanh": VitStyle(Style(activation="gelu_tanh")),
    "naflex": VitStyle(names=("naflex",)),
    "naflex_tanh": VitStyle(Style(activation="gelu_tanh"), interpolation="bilinear", names=("naflex",)),
    "naflex_aspect": VitStyle(keeps_aspect=True, names=("naflex",)),
    "naflex_radio": _radio(),
    "naflex_radio_corners": _radio(align_corners=True),
    "qwen3": VitStyle(
        Style(activation="gelu_tanh", rotary=Rotary(halves=True)),
        antialias=False,
        interpolation="bilinear",
        align_corners=True,
        plain_fc_norm=True,
        names=("encoder",),
    ),
    "vit5": VitStyle(Style(norm="rms", qk_norm=True, rotary=Rotary(registers=100.0)), antialias=False, names=_GAMMA),
    "map_prefix": VitStyle(map_prefix=True),
    "rms": VitStyle(Style(norm="rms")),
    "post_norm": VitStyle(Style(post_norm=True)),
    "cut": VitStyle(cut=True),
    "clip": VitStyle(pre_norm=True),
    "clip_quickgelu": VitStyle(Style(activation="quick_gelu"), pre_norm=True),
    "dinov2_swiglu": VitStyle(_SWIGLU),
    "dinov3": _dinov3(),
    "dinov3_swiglu": _dinov3(mlp="swiglu", align=8),
    "dinov3_swiglu64": _dinov3(mlp="swiglu", align=64),
    "sapiens2": VitStyle(
        Style(norm="rms", mlp="swiglu", qk_norm=True, mlp_scale=False, rotary=_DINOV3), names=(*_GAMMA, "split_qkv")
    ),
    "eva": VitStyle(names=_GAMMA),
    "eva_post_norm": VitStyle(Style(post_norm=True), names=_GAMMA),
    "eva02": VitStyle(Style(mlp="swiglu", rotary=_EVA02), names=_GAMMA),
    "eva02_norm": VitStyle(
        Style(mlp="swiglu", mlp_norm=True, rotary=_EVA02), names=(*_GAMMA, "split_mlp", "split_qkv")
    ),
    "eva02_clip": VitStyle(
        Style(mlp="swiglu", mlp_norm=True, attn_norm=True, rotary=_EVA02), names=(*_GAMMA, "split_mlp", "split_qkv")
    ),
    "rope": VitStyle(Style(rotary=_EVA02), names=_GAMMA),
    "rope_axial": VitStyle(Style(rotary=Rotary(temperature=100.0, columns_first=True)), names=_GAMMA),
    "rope_mixed": VitStyle(
        Style(rotary=Rotary("mixed", temperature=10.0, columns_first=True)), names=(*_GAMMA, "mixed_rope")
    ),
    "pe_core_14": _perception(14, **_CORE),
    "pe_core_24": _perception(24, **_CORE),
    "pe_core_32": _perception(32, offset=0.0, **_CORE),
    "pe_32": _perception(32, final_norm=False),
    "pe_32_gigantic": _perception(32, offset=0.0, final_norm=False),
    "aimv2": VitStyle(Style(norm="rms", mlp="swiglu", proj_bias=False), embed_norm=True, names=("split_mlp",)),
    "dge": VitStyle(Style(grained=(4, 2, 1)), names=("dge",)),
    "beit": VitStyle(Style(relative_bias=True), names=_GAMMA),
    "beit_shared": VitStyle(Style(relative_bias=True), shared_bias=True, names=(*_GAMMA, "shared_bias")),
    "beit3": VitStyle(Style(mlp_norm=True, attn_norm=True)),
}
