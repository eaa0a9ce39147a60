"""The pre-norm transformer block, composed of public parts, with a slot for a token reducer."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.nn import grained
from jaxprune.nn.attention import Attention, Heads, attend, key_mask_bias, merge_heads, observe, self_attention
from jaxprune.nn.block_cost import BlockCost, linear_flops
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.linear import Linear, normal_02
from jaxprune.nn.mlp import Mlp, SwiGLU
from jaxprune.nn.norm import make_norm
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.relative_bias import relative_bias
from jaxprune.nn.rotary import Rotary, TubeRotary
from jaxprune.nn.tokens import NOTHING, Attended, Tokens, coordinates, take


class LayerScale(nnx.Module):
    """A learned scale per channel on a residual branch (Touvron et al., 2021)."""

    def __init__(self, dim: int, init_values: float):
        self.gamma = nnx.Param(jnp.full((dim,), init_values, jnp.float32))

    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return x * self.gamma[...].astype(x.dtype)[None, None, :]


@dataclasses.dataclass(frozen=True)
class Style:
    """The variant of a family's blocks, besides sizes; plain values.

    >>> Style(norm="rms", mlp="swiglu").proj_bias
    True

    Attributes:
      norm: "layer" or "rms".
      activation: activation of a plain MLP, see `nn.mlp.ACTIVATIONS`.
      mlp: "plain"; "swiglu", whose gate and value are each `mlp_ratio` times as wide as a token; or "swiglu_packed",
        where this is their combined width.
      align: round the hidden width of a SwiGLU up to a multiple of this.
      mlp_norm: whether the MLP normalises its hidden layer.
      attn_norm: whether there is a norm before attention's output projection.
      qk_norm: whether queries and keys are normalised per head.
      post_norm: whether the outputs of attention and MLP are normalised instead of their inputs; the norms' scales are
        then initialised with `init_values`, if set, and there is no LayerScale.
      mlp_scale: whether the MLP's branch has a LayerScale too, if there is one.
      proj_bias: whether output projection and MLP have biases.
      relative_bias: whether attention has learned biases by relative position (BEiT).
      rotary: rotary position embedding of queries and keys, or None.
      grained: the granularities, in queries per side, from which each region chooses one (DGE); () has one query per
        token.
    """

    norm: str = "layer"
    activation: str = "gelu"
    mlp: str = "plain"
    align: int = 1
    mlp_norm: bool = False
    attn_norm: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    mlp_scale: bool = True
    proj_bias: bool = True
    relative_bias: bool = False
    rotary: Rotary | TubeRotary | None = None
    grained: tuple[int, ...] = ()

    def __post_init__(self):
        if self.mlp not in MLPS:
            raise unknown("mlp", self.mlp, MLPS)


_ALL_PATCHES = (
    "DGE's blocks choose their own queries and need every patch, so patches cannot be left out or masked here."
)
# The fields of `Attended` that queries, keys and values do not give: scores are passed in.
_NOT_OF_HEADS = frozenset({"scores", "normed", "entered"})
MLPS = ("plain", "swiglu", "swiglu_packed")
PLAIN = Style()


class Block(Reducible):
    """`x += attn(norm1(x)); x += mlp(norm2(x))`, each branch with optional LayerScale and DropPath.

    Families whose style has `post_norm` normalise the branches instead: `x += norm1(attn(x)); x += norm2(mlp(x))`.

    The parts are public. A call composes them around a reducer, and `run` without one:

        heads = block.heads(x, position)                      # queries, keys, values of `block.normed(x)`
        gathered, attended = block.attend(heads, bias=bias)   # attention output, heads concatenated
        x = block.mix(x, gathered)                            # output projection and residual
        x = block.feed(x)                                     # MLP and residual

    A block calls its `reducer` at the reducer's `where`: "before" the block (reading the attention of the previous
    block), "attention" (choosing the rows that attention is computed for), "after" (between attention and MLP),
    "behind" the MLP, or before the block but reading its attention ("ahead", "anew"), see `reduction.Reducer`. With
    `removable=False` it is always called between attention and MLP, and dropped rows only skip the MLP.

    Args:
      dim: width of a token.
      num_heads: attention heads.
      norm_eps: epsilon of the layer norms.
      init_values: LayerScale's initial value; None leaves it out.
      drop_path: probability of dropping a branch in training.
      num_prefix_tokens, removable: see `Reducible`.
      style: the variant of the block.
      grid: the patch grid of the network, for styles with rotary or relative positions.
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
        removable: bool = True,
        style: Style = PLAIN,
        grid: tuple[int, ...] | None = None,
        kernel_init=normal_02,
        dtype=None,
        rngs: nnx.Rngs,
    ):
        super().__init__(num_prefix_tokens=num_prefix_tokens, removable=removable)
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
            raise UserError(_ALL_PATCHES)
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
            num_prefix_tokens=self.num_prefix_tokens,
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
        # An absent token has size 0; it is masked anyway, and log(0) has no finite gradient.
        return jnp.log(jnp.maximum(tokens.size, jnp.finfo(jnp.float32).tiny))[:, None, None, :]

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

    def __call__(
        self,
        tokens: Tokens,
        attended: Attended = NOTHING,
        *,
        grid: tuple[int, ...] | None = None,
        taps: frozenset[str] = frozenset(),
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Tokens, Attended, Any]:
        """Runs the block.

        Args:
          attended: the attention of the previous block, for a reducer that runs before this block.
          grid: token grid at this block, see `attend`; None if rows have been removed.
          taps: fields of `Attended` to report besides those that reducers need.
          key: randomness of DropPath and of the reducer; needed only in training.

        Returns:
          The new tokens, the reported fields of this block's attention, and the reducer's report (None without one).
        """
        reducer: Any = self.reducer
        keys: Any = (None, None, None) if key is None else jax.random.split(key, 3)
        if self.router is not None:
            if reducer is not None or grid is None:
                raise UserError(_ALL_PATCHES)
            heads = self.heads(tokens.x)
            change = self._grained(tokens.x, heads, grid, keys if train else (None, None, None))
            attended = observe(heads, None, None, (self.needs | taps) - _NOT_OF_HEADS, self.num_prefix_tokens)
            return tokens._replace(x=tokens.x + change), self._with_normed(attended, tokens.x, taps), None
        drop_keys = keys[:2] if train else (None, None)
        where = self.reduces_where()
        soft = self.soft_policy and train
        if self.has_absent and not soft:
            # What absent rows hold must reach no other row, not even as zero times infinity.
            tokens = tokens._replace(x=jnp.where(tokens.policy[:, :, None] > 0, tokens.x, 0))
        needs = (self.needs | taps) - _NOT_OF_HEADS
        passed, report = {"scores": attended.scores, "entered": attended.entered}, None

        if where == "anew":
            attended = self._observed(tokens, soft, needs, grid)
        if where in ("before", "anew"):
            tokens, report = reducer(tokens, attended, train=train, key=keys[2])
            grid = None
        heads, bias = self.heads(tokens.x, tokens.position), self.bias(tokens, grid)
        policy = tokens.policy if self.has_absent or soft else None
        if where == "attention":
            # All keys and values, but only the rows of attention that the reducer keeps.
            bias = key_mask_bias(bias, policy)
            attended = observe(heads, bias, policy, needs, self.num_prefix_tokens)
            attended = self._with_normed(attended, tokens.x, taps)
            tokens, report = reducer(tokens, attended, train=train, key=keys[2])
            kept = report.kept
            of_rows = lambda values: take(values.swapaxes(1, 2), kept, self.num_prefix_tokens).swapaxes(1, 2)
            queries = of_rows(heads.q)
            if bias is not None and bias.shape[2] > 1:
                bias = of_rows(jnp.broadcast_to(bias, (queries.shape[0], *bias.shape[1:])))
            gathered = merge_heads(attend(queries, heads.k, heads.v, bias))
        elif where == "ahead":
            options = {"bias": bias, "policy": policy, "soft_policy": soft, "grid": grid}
            _, attended = self.attend(heads, needs=needs, **options)
            tokens, report = reducer(tokens, attended, train=train, key=keys[2])
            # Merged rows share their value, and average what they gather.
            gathered, _ = self.attend(heads._replace(v=self._spread_values(tokens.x, report.row_map)), **options)
            gathered = reducer.average(gathered, report)
        else:
            gathered, attended = self.attend(heads, bias=bias, policy=policy, soft_policy=soft, needs=needs, grid=grid)
            attended = self._with_normed(attended, tokens.x, taps)
        tokens = tokens._replace(x=self.mix(tokens.x, gathered, drop_keys[0]))
        if where == "skip":
            work = lambda x: self._branch(self.perceive(x), self.ls2, None)
            readable = attended._replace(**passed)
            branch, report = self.skip(tokens, readable, work, train=train, key=keys[2])
            return tokens._replace(x=tokens.x + self.drop_path(branch, drop_keys[1])), attended, report
        if where == "after":
            tokens, report = reducer(tokens, attended._replace(**passed), train=train, key=keys[2])
        tokens = tokens._replace(x=self.feed(tokens.x, drop_keys[1]))
        if where == "behind":
            tokens, report = reducer(tokens, attended, train=train, key=keys[2])
        return tokens, attended, report

    def _observed(self, tokens: Tokens, soft: bool, needs: frozenset[str], grid: tuple[int, ...] | None) -> Attended:
        """The reports of the attention between all incoming tokens."""
        heads, bias = self.heads(tokens.x, tokens.position), self.bias(tokens, grid)
        policy = tokens.policy if self.has_absent or soft else None
        return self.attend(heads, bias=bias, policy=policy, soft_policy=soft, needs=needs, grid=grid)[1]

    def _spread_values(self, x: Float[Array, "b m d"], row_map: Int[Array, "b n"]) -> Float[Array, "b h t e"]:
        """The values of merged tokens, for each of the tokens that merged into them."""
        prefix = jnp.arange(self.num_prefix_tokens, dtype=jnp.int32)
        values = self.attn.values(self.normed(x))
        spread = lambda values, rows: values[:, jnp.concatenate([prefix, prefix.size + rows])]
        return jax.vmap(spread)(values, row_map)

    def _with_normed(self, attended: Attended, x: Float[Array, "b n d"], taps: frozenset[str]) -> Attended:
        """Adds the normalised tokens that enter the block, if they are asked for."""
        return attended._replace(normed=self.normed(x)) if "normed" in self.needs | taps else attended

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
        rows = grained.queries(x, sides, splits, prefix)
        queries = self.heads(rows).q
        mixed = self.mix(rows, merge_heads(attend(queries, heads.k, heads.v)), keys[0])
        map_ = x[:, prefix:].reshape(-1, *sides, rows.shape[-1])
        gate = grained.chosen(router(grained.pooled(map_, max(splits))).astype(jnp.float32), keys[2])
        return grained.spread(self.feed(mixed, keys[1]) - rows, gate, sides, splits, prefix)

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


def run_block(
    block: Reducible,
    tokens: Tokens,
    attended: Attended = NOTHING,
    *,
    grid: tuple[int, ...] | None = None,
    taps: frozenset[str] = frozenset(),
    train: bool = False,
    key: PRNGKeyArray | None = None,
    remat: bool = False,
) -> tuple[Tokens, Attended, Any]:
    """Calls a block; with `remat` its activations are recomputed in the backward pass."""
    if not remat:
        return block(tokens, attended, grid=grid, taps=taps, train=train, key=key)
    graph, state = nnx.split(block)

    def pure(state, tokens, attended, key):
        return nnx.merge(graph, state)(tokens, attended, grid=grid, taps=taps, train=train, key=key)

    return jax.checkpoint(pure)(state, tokens, attended, key)
