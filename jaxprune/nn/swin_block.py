"""Swin's block: attention inside windows, whose every second block shifts them (Liu et al., 2021; V2: 2022)."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.nn.attention import Attention, Heads, self_attention
from jaxprune.nn.block import Block
from jaxprune.nn.block_cost import BlockCost
from jaxprune.nn.block_style import Style
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.tokens import Attended, Tokens, log_sizes
from jaxprune.nn.window_cells import Cells
from jaxprune.nn.windows import Windows

EPS = 1e-5  # of Swin's norms


def _bias_network(num_heads: int, *, rngs: nnx.Rngs) -> Any:
    """V2's MLP for the position bias; published as a sequence whose element 1 is the activation."""
    return nnx.List([Linear(2, 512, rngs=rngs), None, Linear(512, num_heads, use_bias=False, rngs=rngs)])


def _bias_table(network: Any, windows: Windows, trained: tuple[int, int]) -> Float[Array, "r h"]:
    """V2's bias of each head for each offset in a window, computed from log-spaced coordinates.

    Args:
      trained: the window size of pre-training, by which offsets are scaled; zeros mean the current one.
    """
    (height, width), scale = windows.size, trained if trained[0] > 0 else windows.size
    rows = np.arange(1 - height, height) / max(scale[0] - 1, 1)
    columns = np.arange(1 - width, width) / max(scale[1] - 1, 1)
    offsets = 8 * np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    logs = np.sign(offsets) * np.log2(np.abs(offsets) + 1) / 3
    hidden = jax.nn.relu(network[0](jnp.asarray(logs, jnp.float32)))
    return 16 * jax.nn.sigmoid(network[2](hidden))


class CosineAttention(Attention):
    """V2's attention: cosine similarity with a learned scale, and position biases from an MLP."""

    def __init__(self, dim: int, num_heads: int, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(dim, num_heads, rngs=rngs, **options)
        self.cpb_mlp = _bias_network(num_heads, rngs=rngs)
        self.logit_scale = nnx.Param(jnp.full((num_heads, 1, 1), math.log(10.0)))

    def project(self, x: Float[Array, "b n d"]) -> Heads:
        """Normalises the keys, and scales the queries so that `attention_logits` gives scaled cosines."""
        heads = super().project(x)
        unit = lambda x: x / jnp.maximum(jnp.linalg.norm(x.astype(jnp.float32), axis=-1, keepdims=True), 1e-12)
        scale = jnp.exp(jnp.minimum(self.logit_scale[...], math.log(100.0)))[None]
        q = unit(heads.q) * scale * heads.q.shape[-1] ** 0.5
        return Heads(q.astype(heads.v.dtype), unit(heads.k).astype(heads.v.dtype), heads.v)


class SwinBlock(Block):
    """A block with window attention; its reports are laid out on the map.

    Args:
      windows: the windows of this block.
      cells: the cells of its stage, inside which rows can merge; None = they cannot.
      version: 1, or 2 for cosine attention, position biases from an MLP and norms after each branch.
      trained: see `_bias_table`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        windows: Windows,
        cells: Cells | None = None,
        version: int = 1,
        trained: tuple[int, int] = (0, 0),
        qkv_bias: bool = True,
        norm_eps: float = EPS,
        dtype: Any = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        bias = "qv" if version == 2 and qkv_bias else qkv_bias
        super().__init__(
            dim,
            num_heads,
            num_prefix_tokens=0,
            removable=False,
            norm_eps=norm_eps,
            qkv_bias=bias,
            style=Style(post_norm=version == 2),
            dtype=dtype,
            rngs=rngs,
            **options,
        )
        self.windows, self.version, self.trained = windows, version, trained
        self.cells, self.shifted = cells, any(windows.shift)
        rows = (2 * windows.size[0] - 1) * (2 * windows.size[1] - 1)
        if version == 1:
            self.attn.relative_position_bias_table = nnx.data(nnx.Param(normal_02(rngs.params(), (rows, num_heads))))
        else:
            self.attn = CosineAttention(
                dim, num_heads, qkv_bias=bias, kernel_init=options.get("kernel_init", normal_02), dtype=dtype, rngs=rngs
            )

    def bias(self, tokens: Tokens, grid: tuple[int, ...] | None = None) -> Float[Array, "w h k k"] | None:
        """The attention bias of merged rows, by window; None before any merge.

        It is the relative-position bias of the rows' positions, each rounded to the nearest place of the map, plus the
        log of the key's size where attention is proportional.
        """
        b, n, _ = tokens.x.shape
        if (cells := self._merged(n)) is None:
            return None
        places = cells.places(tokens.position, shifted=self.shifted)
        bias = jnp.moveaxis(self.bias_table()[self.windows.offsets_between(places)], -1, 1)
        if self.proportional:
            sizes = cells.cut(tokens.size[:, None, :, None], shifted=self.shifted)
            bias = bias + log_sizes(sizes).swapaxes(2, 3)
        mask = cells.shift_mask(cells.tokens_of_window(n)) if self.shifted else None
        if mask is None:
            return bias
        masked_bias = bias.reshape(b, -1, *bias.shape[1:]) + jnp.asarray(mask)[None, :, None]
        return masked_bias.reshape(bias.shape)

    def _merged(self, tokens: int) -> Cells | None:
        """The cells of the stage if, by their number, tokens have merged; None otherwise."""
        return None if self.cells is None or self.cells.is_whole(tokens) else self.cells

    def attend(
        self,
        heads: Heads,
        *,
        bias=None,
        policy=None,
        soft_policy: bool = False,
        needs: frozenset[str] = frozenset(),
        grid: tuple[int, ...] | None = None,
    ) -> tuple[Float[Array, "b n d"], Attended]:
        """Window attention.

        Args:
          bias: of merged rows, see the method `bias`; besides it, only `needs` is read.
        """
        b, _, n, e = heads.q.shape
        if (cells := self._merged(n)) is not None:
            inside = Heads(*(cells.cut(part, shifted=self.shifted) for part in heads))
            join: Any = functools.partial(cells.uncut, shifted=self.shifted)
        else:
            beyond = self._beyond(heads)
            inside = Heads(*(self.windows.cut(part, fill) for part, fill in zip(heads, beyond, strict=True)))
            bias, join = self._bias(b), self.windows.join
        gathered, attended = self_attention(inside, bias=bias, needs=needs, num_prefix_tokens=0)
        maps = join(gathered.reshape(*gathered.shape[:2], -1, e).transpose(0, 2, 1, 3))
        fields = {}
        for name in needs:
            field = getattr(attended, name)
            per_token = field.ndim == 3  # one number per token: attention, not keys and values
            laid_out = join(field[..., None] if per_token else field)
            fields[name] = laid_out[..., 0] if per_token else laid_out
        return maps.transpose(0, 2, 1, 3).reshape(b, -1, heads.q.shape[1] * e), Attended(**fields)

    def _beyond(self, heads: Heads) -> tuple[Array | None, ...]:
        """Queries, keys and values of the zeros that pad a map to whole windows."""
        down, across = self.windows.counts
        if (down * self.windows.size[0], across * self.windows.size[1]) == self.windows.grid:
            return None, None, None
        zeros = jnp.zeros((1, 1, self.attn.proj.kernel.shape[0]), heads.v.dtype)
        return tuple(part[0, :, 0] for part in self.attn.project(zeros))

    def bias_table(self) -> Float[Array, "r h"]:
        """The bias of the logit of two rows of a window, by their offset; see `Windows.offsets`."""
        if isinstance(self.attn, CosineAttention):
            return _bias_table(self.attn.cpb_mlp, self.windows, self.trained)
        learned: Any = self.attn.relative_position_bias_table
        return learned[...].astype(jnp.float32)

    def _bias(self, b: Any) -> Float[Array, "#w h m m"]:
        bias = jnp.moveaxis(self.bias_table()[self.windows.offsets()], -1, 0)[None]
        mask = self.windows.shift_mask()
        if mask is None:
            return bias
        masked_bias = bias + jnp.asarray(mask)[:, None]
        return jnp.broadcast_to(masked_bias[None], (b, *masked_bias.shape)).reshape(-1, *masked_bias.shape[1:])

    def cost(self, grid: tuple[int, ...] | None = None) -> BlockCost:
        return super().cost(grid)._replace(keys=math.prod(self.windows.size))
