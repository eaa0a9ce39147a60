"""The parts of a transformer block: project, attend, mix, feed. Whoever needs one of them calls it."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn import grained_queries
from jaxprune.nn.attention import Attention, Heads, attend, merge_heads, self_attention
from jaxprune.nn.block_cost import BlockCost, linear_flops
from jaxprune.nn.block_style import PLAIN, LayerScale, Style
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.mlp import Mlp, SwiGLU
from jaxprune.nn.norm import make_norm
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.relative_bias import relative_bias
from jaxprune.nn.rotary import Rotary
from jaxprune.nn.tokens import Attended, Tokens, coordinates, log_sizes

ALL_PATCHES = (
    "DGE's blocks choose their own queries and need every patch, so patches cannot be left out or masked here."
)


class BlockParts(Reducible):
    """The parts of a pre-norm transformer block; `Block` composes them around a reducer, and `run` without one.

        heads = block.heads(x, position)                      # queries, keys, values of `block.normed(x)`
        gathered, attended = block.attend(heads, bias=bias)   # attention output, heads concatenated
        x = block.mix(x, gathered)                            # output projection and residual
        x = block.feed(x)                                     # MLP and residual

    The arguments are those of `Block`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool | str = True,
        norm_eps: float = 1e-6,
        init_values: float | None = None,
        drop_path: float = 0.0,
        num_prefix_tokens: int = 1,
        num_cls_tokens: int | None = None,
        removable: bool = True,
        style: Style = PLAIN,
        grid: tuple[int, ...] | None = None,
        kernel_init=normal_02,
        dtype=None,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_prefix_tokens=num_prefix_tokens, num_cls_tokens=num_cls_tokens, removable=removable)
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        if grid is None and (style.rotary is not None or style.relative_bias):
            raise UserError("A block with rotary or relative positions needs the grid of the network's patches.")
        self.style = style
        self.grid: Any = grid
        norm = lambda width: make_norm(style.norm, width, norm_eps)
        self.norm1 = norm(dim)
        self.attn = Attention(
            dim,
            num_heads,
            qkv_bias=qkv_bias,
            proj_bias=style.proj_bias,
            qk_norm=norm if style.qk_norm else None,
            norm=norm if style.attn_norm else None,
            relative_grid=self.grid if style.relative_bias else None,
            **common,
        )
        rotary = style.rotary
        scale = lambda: None if init_values is None or style.post_norm else LayerScale(dim, init_values)
        # A separate name: learned frequencies belong to a block, those of the style to all blocks.
        self.rope_freqs = nnx.data(None)
        if isinstance(rotary, Rotary) and rotary.frequencies == "mixed":
            self.rope_freqs = nnx.Param(rotary.initial(rngs.params(), num_heads, dim // num_heads))
        self.ls1 = nnx.data(scale())
        self.norm2 = norm(dim)
        self.mlp: Any = _mlp(style, dim, int(dim * mlp_ratio), norm, **common)
        self.ls2 = nnx.data(scale() if style.mlp_scale else None)
        if style.post_norm and init_values is not None:
            for norm_of_branch in (self.norm1, self.norm2):
                norm_of_branch.scale[...] = jnp.full((dim,), init_values)
        self.drop_path = DropPath(drop_path)
        self.router = nnx.data(Linear(dim, len(style.grained), rngs=rngs) if style.grained else None)

    def run(
        self,
        x: Float[Array, "b n d"],
        *,
        position: Float[Array, "b n c"] | None = None,
        bias: Float[Array, "#b #h #n n"] | None = None,
        policy: Float[Array, "b n"] | None = None,
        hidden: Bool[Array, "b n"] | None = None,
        rows: int | None = None,
        normed: Float[Array, "b n d"] | None = None,
        grid: tuple[int, ...] | None = None,
        gathered: Float[Array, "b m d"] | None = None,
    ) -> Float[Array, "b m d"]:
        """The output of the block in evaluation mode and without its reducer.

        Args:
          position, bias, policy, hidden, rows, normed, grid: see `gather`.
          gathered: the attention output of the rows, if it is computed elsewhere.

        Raises:
          UserError: tokens are left out or masked in a block that chooses its own queries (DGE).
        """
        if self.router is not None and all(part is None for part in (bias, policy, hidden, rows, gathered)):
            return x + self._grained(x, self.project(self.normed(x) if normed is None else normed), self.grid)
        if gathered is None:
            gathered = self.gather(
                x, position=position, bias=bias, policy=policy, hidden=hidden, rows=rows, normed=normed, grid=grid
            )
        return self.feed(self.mix(x[:, :rows], gathered))

    def gather(
        self,
        x: Float[Array, "b n d"],
        *,
        position: Float[Array, "b n c"] | None = None,
        bias: Float[Array, "#b #h #n n"] | None = None,
        policy: Float[Array, "b n"] | None = None,
        hidden: Bool[Array, "b n"] | None = None,
        rows: int | None = None,
        normed: Float[Array, "b n d"] | None = None,
        grid: tuple[int, ...] | None = None,
    ) -> Float[Array, "b m d"]:
        """The attention output of tokens, heads concatenated, with the positions and the position bias of the block.

        Args:
          position: see `project` and `position_bias`.
          bias: added to the logits besides the position bias.
          policy: 0 masks a token as a key.
          hidden: tokens that are masked as keys, and that gather nothing themselves.
          rows: the number of first rows to compute; None means all. Only for global attention.
          normed: replaces `normed(x)`, for gradients with respect to it.
          grid: see `attend`.

        Raises:
          UserError: the block chooses its own queries (DGE).
        """
        if self.router is not None:
            raise UserError(ALL_PATCHES)
        q, k, v = self.project(self.normed(x) if normed is None else normed, position)
        bias = _summed(self.position_bias(position), bias)
        if rows is not None and bias is not None and bias.shape[2] > 1:
            bias = bias[:, :, :rows]
        if hidden is not None:
            present = jnp.where(hidden, 0.0, 1.0)
            policy = present if policy is None else policy * present
        gathered, _ = self.attend(Heads(q[:, :, :rows], k, v), bias=bias, policy=policy, grid=grid)
        return gathered if hidden is None else jnp.where(hidden[:, :rows, None], 0, gathered)

    def heads(self, x: Float[Array, "b n d"], position: Float[Array, "b n c"] | None = None) -> Heads:
        """Queries, keys and values of tokens that are not normalised yet; see `project`."""
        return self.project(self.normed(x), position)

    def project(self, normed: Float[Array, "b n d"], position: Float[Array, "b n c"] | None = None) -> Heads:
        """Queries, keys and values of normalised tokens.

        Args:
          position: (row, column) of each token in patches, or (frame, row, column) in tubes, for rotary embeddings;
            None if all patches are present, in raster order. A plain block ignores it.
        """
        heads, rotary, grid = self.attn.project(normed), self.style.rotary, self.grid
        if rotary is None or grid is None:
            return heads
        if position is None:
            position = jnp.pad(jnp.asarray(coordinates(grid)), ((self.num_prefix_tokens, 0), (0, 0)))[None]
        if isinstance(rotary, Rotary) and self.rope_freqs is not None:
            angles = rotary.mixed(position, self.rope_freqs[...], self.num_prefix_tokens)
        else:
            angles = rotary.angles(position, grid, heads.q.shape[-1], self.num_prefix_tokens)[:, None]
        return Heads(rotary.turn(heads.q, angles), rotary.turn(heads.k, angles), heads.v)

    def attend(
        self,
        heads: Heads,
        *,
        bias: Float[Array, "#b #h #m n"] | None = None,
        policy: Float[Array, "b n"] | None = None,
        soft_policy: bool = False,
        needs: frozenset[str] = frozenset(),
        grid: tuple[int, ...] | None = None,
    ) -> tuple[Float[Array, "b m d"], Attended]:
        """The attention output, heads concatenated, and the fields of `Attended` named in `needs`.

        Args:
          bias, policy, soft_policy: see `nn.attention.self_attention`.
          grid: token grid, for blocks with window attention; a plain block ignores it.
        """
        return self_attention(
            heads,
            bias=bias,
            policy=policy,
            soft_policy=soft_policy,
            needs=needs,
            num_prefix_tokens=self.num_cls_tokens,
        )

    def mix(
        self, x: Float[Array, "b m d"], gathered: Float[Array, "b m d"], key: PRNGKeyArray | None = None
    ) -> Float[Array, "b m d"]:
        """Adds the projected attention output to the tokens. With a key, DropPath is on."""
        out = self.attn.output(gathered)
        return x + self._branch(self.norm1(out) if self.style.post_norm else out, self.ls1, key)

    def feed(
        self,
        x: Float[Array, "b m d"],
        key: PRNGKeyArray | None = None,
        *,
        channels: Float[Array, "b #m d"] | None = None,
    ) -> Float[Array, "b m d"]:
        """Adds the MLP's output to tokens. With a key, DropPath is on.

        Args:
          channels: see `perceive`.
        """
        return x + self._branch(self.perceive(x, channels), self.ls2, key)

    def normed(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        """The normalised tokens, as input of attention."""
        return x if self.style.post_norm else self.norm1(x)

    def perceive(
        self, x: Float[Array, "b m d"], channels: Float[Array, "b #m d"] | None = None
    ) -> Float[Array, "b m d"]:
        """The output of the MLP branch.

        Args:
          channels: factors of the MLP's input (AdaViT).
        """
        inner = x if self.style.post_norm else self.norm2(x)
        out = self.mlp(inner if channels is None else inner * channels)
        return self.norm2(out) if self.style.post_norm else out

    def size_bias(self, tokens: Tokens) -> Float[Array, "b 1 1 n"] | None:
        """The bias of proportional attention, the log of each key's size; None without it."""
        if not self.proportional:
            return None
        return log_sizes(tokens.size)[:, None, None, :]

    def position_bias(self, position: Float[Array, "b n c"] | None = None) -> Float[Array, "#b h n n"] | None:
        """The relative position bias; None for a block without one.

        Args:
          position: positions of the tokens; None if all patches are present, in raster order.
        """
        table = self.attn.relative_position_bias_table
        return None if table is None or self.grid is None else relative_bias(table[...], position, self.grid)

    def bias(self, tokens: Tokens, grid: tuple[int, ...] | None = None) -> Float[Array, "#b #h #n n"] | None:
        """The sum of `position_bias` and `size_bias`; None without both.

        Args:
          grid: token grid if all patches are present, in raster order; else None.
        """
        return _summed(self.position_bias(tokens.position if grid is None else None), self.size_bias(tokens))

    def cost(self, grid: tuple[int, ...] | None = None) -> BlockCost:
        """The cost of the block, from shapes only.

        Args:
          grid: token grid, for blocks whose cost depends on it.
        """
        width = self.attn.proj.kernel.shape[0]
        return BlockCost(
            project=linear_flops(self.attn.qkv, 1),
            pair=2 * width,
            mix=linear_flops(self.attn.proj, 1),
            feed=linear_flops(self.mlp.fc1, 1) + linear_flops(self.mlp.fc2, 1),
        )

    def _grained(
        self,
        x: Float[Array, "b n d"],
        heads: Heads,
        grid: tuple[int, ...],
        keys: Any = (None, None, None),
    ) -> Float[Array, "b n d"]:
        """The change of the tokens `x` by queries at all granularities; keys and values are those of every token."""
        router: Any = self.router
        prefix, splits, sides = self.num_prefix_tokens, self.style.grained, (grid[0], grid[1])
        rows = grained_queries.queries(x, sides, splits, prefix)
        queries = self.heads(rows).q
        mixed = self.mix(rows, merge_heads(attend(queries, heads.k, heads.v)), keys[0])
        map_ = x[:, prefix:].reshape(-1, *sides, rows.shape[-1])
        gate = grained_queries.chosen(router(grained_queries.pooled(map_, max(splits))).astype(jnp.float32), keys[2])
        return grained_queries.spread(self.feed(mixed, keys[1]) - rows, gate, sides, splits, prefix)

    def _branch(self, out: Array, scale: LayerScale | None, key: PRNGKeyArray | None) -> Array:
        return self.drop_path(out if scale is None else scale(out), key)


def _summed(first: Array | None, second: Array | None) -> Array | None:
    """The sum of two biases, either of which may be missing."""
    return second if first is None else first if second is None else first + second


def _mlp(style: Style, dim: int, hidden: int, norm: Callable[[int], Any], **common: Any) -> Mlp | SwiGLU:
    """The MLP of a block, see `Style.mlp`."""
    if style.mlp != "plain":
        hidden = hidden // 2 if style.mlp == "swiglu_packed" else hidden
        hidden += -hidden % style.align
    inner = norm(hidden) if style.mlp_norm else None
    if style.mlp == "plain":
        return Mlp(dim, hidden, activation=style.activation, norm=inner, use_bias=style.proj_bias, **common)
    return SwiGLU(dim, hidden, norm=inner, use_bias=style.proj_bias, **common)
