"""The vision transformer on clips, with tubelets of two frames (VideoMAE; Tong et al., 2022; Wang et al., 2023)."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.models.vit import POSITIONS, VisionTransformer
from jaxprune.models.vit_names import SIZES
from jaxprune.models.vit_styles import STYLES, VitStyle
from jaxprune.nn import Block, LayerNorm, Linear, Site
from jaxprune.nn.block_style import Style
from jaxprune.nn.linear import normal_02
from jaxprune.nn.params import Computed
from jaxprune.nn.rotary import TubeRotary
from jaxprune.nn.tensor_rules import LAYERS, Rule
from jaxprune.ops.patches import gather_tokens
from jaxprune.ops.posembed import sincos_1d
from jaxprune.preprocessing import Preprocessing

_SIZES = {name: SIZES[name] for name in ("small", "base", "large", "huge")}
OF_CLIPS = {"timm": STYLES["timm"], "vjepa2": VitStyle(Style(rotary=TubeRotary()))}


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name: constructor arguments} of VideoMAE's networks, with 400 classes, as in Kinetics."""
    named = {f"videomae_{size}_patch16_224": {**sizes, "num_classes": 400} for size, sizes in _SIZES.items()}
    return {"video_vit": {}, **named}


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how clips are prepared: every fourth frame, resized to the crop's shorter side, as published."""
    frames, height, width = _sides(arguments.get("img_size", 224), arguments.get("num_frames", 16))
    return Preprocessing((height, width), crop_pct=1.0, interpolation="bilinear", num_frames=frames, frame_stride=4)


def _sides(img_size: int | Sequence[int], num_frames: int) -> tuple[int, int, int]:
    """Returns (frames, height, width); an int means square frames, two are (height, width)."""
    sides = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
    return (num_frames, *sides) if len(sides) == 2 else (sides[0], sides[1], sides[2])


def tubelet_grid(sides: Sequence[int], size: Sequence[int]) -> tuple[int, int, int]:
    """Returns the grid of tubelets of a clip, (frames, rows, columns).

    Raises:
      UserError: the clip is not a whole number of them.
    """
    if len(sides) != 3 or any(side % cut or side < cut for side, cut in zip(sides, size, strict=True)):
        raise UserError(
            f"A clip of {tuple(sides)} (frames, height, width) is not a whole number of tubelets of {tuple(size)}: "
            "crop it."
        )
    return sides[0] // size[0], sides[1] // size[1], sides[2] // size[2]


class TubeletEmbed(nnx.Module):
    """Cuts clips into tubelets and projects each one linearly: the published 3-D convolution as a matrix.

    Args:
      sides: (frames, height, width) of the clips.
      size: (frames, height, width) of a tubelet.
    """

    def __init__(
        self, sides: tuple[int, int, int], size: tuple[int, int, int], in_chans: int, dim: int, *, dtype=None, rngs
    ):
        self.sides, self.tubelet, self.in_chans = sides, size, in_chans
        self.grid, self.patch_size, self.img_size = tubelet_grid(sides, size), size[1:], sides[1:]
        self.proj = Linear(math.prod(size) * in_chans, dim, kernel_init=normal_02, dtype=dtype, rngs=rngs)

    def __call__(
        self, clips: Float[Array, "b t H W c"], ids_keep: Int[Array, "b k"] | None = None
    ) -> Float[Array, "b k d"]:
        """Embeds the tubelets `ids_keep` (in that order), or all of them, frames first."""
        if clips.shape[1:] != (*self.sides, self.in_chans):
            raise UserError(
                f"Clips of shape {clips.shape[1:]} do not fit a model for {(*self.sides, self.in_chans)} (frames, "
                "height, width, channels): cut and resize them, or create the model with their num_frames and img_size."
            )
        b, (t, h, w), (dt, dh, dw) = clips.shape[0], self.grid, self.tubelet
        # Columns and channels of a tubelet as one axis, as in `patchify`.
        strips = clips.reshape(b, t, dt, h, dh, w, dw * self.in_chans)
        cells = strips.transpose(0, 1, 3, 5, 2, 4, 6).reshape(b, t * h * w, -1)
        return self.proj(cells if ids_keep is None else gather_tokens(cells, ids_keep))


def _tubelets(tensor: np.ndarray) -> np.ndarray:
    """Reshapes (out, channel, frame, row, column) to a matrix over (frame, row, column, channel)."""
    return tensor.transpose(2, 3, 4, 1, 0).reshape(-1, tensor.shape[0])


class VideoTransformer(VisionTransformer):
    """A ViT on the tubelets of clips (b, frames, height, width, c), without a CLS token.

    Args:
      img_size: (height, width) of a frame; an int means a square.
      num_frames: frames of a clip.
      patch_size: spatial size of a tubelet, in pixels.
      tubelet_size: temporal size of a tubelet, in frames.
      num_classes: 0 leaves out the head.
      qkv_bias: see `nn.attention.Attention`; VideoMAE's keys have no bias.
      pos_embed: "sincos" for the published fixed table, "learn", or "none".
      style: "timm", or "vjepa2" with rotary positions on three axes.
      global_pool: only "avg".
    """

    def __init__(
        self,
        *,
        img_size: int | tuple[int, int] = 224,
        num_frames: int = 16,
        patch_size: int = 16,
        tubelet_size: int = 2,
        in_chans: int = 3,
        num_classes: int = 400,
        global_pool: str = "avg",
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool | str = "qv",
        norm_eps: float = 1e-6,
        fc_norm: bool = True,
        pos_embed: str = "sincos",
        style: str = "timm",
        drop_path_rate: float = 0.0,
        head_init_scale: float = 1.0,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        super(VisionTransformer, self).__init__()
        if global_pool != "avg" or pos_embed not in POSITIONS or style not in OF_CLIPS:
            raise UserError(
                f"global_pool={global_pool!r}, pos_embed={pos_embed!r}, style={style!r}: a video transformer takes "
                f"'avg', one of {', '.join(POSITIONS)}, and one of {', '.join(OF_CLIPS)}."
            )
        sides, size = _sides(img_size, num_frames), (tubelet_size, patch_size, patch_size)
        self.patch_embed: Any = TubeletEmbed(sides, size, in_chans, embed_dim, dtype=dtype, rngs=rngs)
        self.style, self.global_pool, self.no_embed_class = OF_CLIPS[style], global_pool, True
        self.grid: Any = self.patch_embed.grid
        self.num_patches, self.num_prefix_tokens = math.prod(self.grid), 0
        self.embed_dim, self.num_heads, self.depth = embed_dim, num_heads, depth
        self.num_classes, self.dtype, self.remat = num_classes, dtype, remat
        self.cls_token = self.dist_token = self.reg_token = self.cls_token_mlp = nnx.data(None)
        if pos_embed == "sincos":
            self.pos_embed = Computed(jnp.asarray(sincos_1d(embed_dim, self.num_patches))[None])
        elif pos_embed == "none":
            self.pos_embed = nnx.data(None)
        else:
            self.pos_embed = nnx.Param(normal_02(rngs.params(), (1, self.num_patches, embed_dim)))
        self.norm_pre = self.attn_pool = self.head_dist = nnx.data(None)
        rates = np.linspace(0, drop_path_rate, depth).tolist()
        common: Any = {"qkv_bias": qkv_bias, "norm_eps": norm_eps, "mlp_ratio": mlp_ratio, "dtype": dtype, "rngs": rngs}
        common |= {"style": self.style.block, "grid": self.grid}
        self.blocks = nnx.List(
            [Block(embed_dim, num_heads, drop_path=rate, num_prefix_tokens=0, **common) for rate in rates]
        )
        self.norm = nnx.data(None if fc_norm else LayerNorm(embed_dim, eps=norm_eps))
        self.fc_norm = nnx.data(LayerNorm(embed_dim, eps=norm_eps) if fc_norm else None)
        init: Any = lambda key, shape, dtype=jnp.float32: head_init_scale * normal_02(key, shape, dtype)
        self.head = nnx.data(Linear(embed_dim, num_classes, kernel_init=init, rngs=rngs) if num_classes else None)

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """How VideoMAE names and lays out the weights."""
        size, channels = self.patch_embed.tubelet, self.patch_embed.in_chans

        def back(tensor: np.ndarray, _: tuple[int, int]) -> np.ndarray:
            return tensor.reshape(*size, channels, -1).transpose(4, 3, 0, 1, 2)

        return (Rule("patch_embed.proj.weight", "patch_embed.proj.kernel", _tubelets, back), *LAYERS)

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks, all of one shape; `img_size` is (frames, height, width)."""
        sides = self.patch_embed.sides if img_size is None else _sides(img_size, self.patch_embed.sides[0])
        grid = tubelet_grid(sides, self.patch_embed.tubelet)
        return tuple(
            Site(layer, f"blocks.{layer}", grid, 0, self.embed_dim, self.num_heads) for layer in range(self.depth)
        )


NETWORK = VideoTransformer
