"""The pre-norm transformer block: its parts, composed around a token reducer."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn.attention import attend, key_mask_bias, merge_heads, observe
from jaxprune.nn.block_parts import ALL_PATCHES, BlockParts
from jaxprune.nn.optional_key import split_key
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.tokens import NOTHING, Attended, Tokens, take

# The fields of `Attended` that queries, keys and values do not give: scores are passed in.
_NOT_OF_HEADS = frozenset({"scores", "normed", "entered"})


class Block(BlockParts):
    """`x += attn(norm1(x)); x += mlp(norm2(x))`, each branch with optional LayerScale and DropPath.

    Families whose style has `post_norm` normalise the branches instead: `x += norm1(attn(x)); x += norm2(mlp(x))`.

    The parts are public, see `BlockParts`. A call composes them around a reducer, and `run` without one.

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
      num_prefix_tokens, num_cls_tokens, removable: see `Reducible`.
      style: the variant of the block.
      grid: the patch grid of the network, for styles with rotary or relative positions.
    """

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
        keys = split_key(key, 3)
        if self.router is not None:
            if reducer is not None or grid is None:
                raise UserError(ALL_PATCHES)
            heads = self.heads(tokens.x)
            change = self._grained(tokens.x, heads, grid, keys if train else (None, None, None))
            attended = observe(heads, None, None, (self.needs | taps) - _NOT_OF_HEADS, self.num_cls_tokens)
            return tokens._replace(x=tokens.x + change), self._with_normed(attended, tokens.x, taps), None
        # As published, the block that sees dropped rows again has no DropPath.
        drop_keys = keys[:2] if train and not self.fuses else (None, None)
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
            tokens, report = self.reduce(tokens, attended, train=train, key=keys[2])
            grid = None
        heads, bias = self.heads(tokens.x, tokens.position), self.bias(tokens, grid)
        policy = tokens.policy if self.has_absent or soft else None
        if where == "attention":
            # All keys and values, but only the rows of attention that the reducer keeps.
            bias = key_mask_bias(bias, policy)
            attended = observe(heads, bias, policy, needs, self.num_cls_tokens)
            attended = self._with_normed(attended, tokens.x, taps)
            tokens, report = self.reduce(tokens, attended, train=train, key=keys[2])
            kept = report.kept
            of_rows = lambda values: take(values.swapaxes(1, 2), kept, self.num_prefix_tokens).swapaxes(1, 2)
            queries = of_rows(heads.q)
            if bias is not None and bias.shape[2] > 1:
                bias = of_rows(jnp.broadcast_to(bias, (queries.shape[0], *bias.shape[1:])))
            gathered = merge_heads(attend(queries, heads.k, heads.v, bias))
        elif where == "ahead":
            options = {"bias": bias, "policy": policy, "soft_policy": soft, "grid": grid}
            _, attended = self.attend(heads, needs=needs, **options)
            tokens, report = self.reduce(tokens, attended, train=train, key=keys[2])
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
            tokens, report = self.reduce(tokens, attended._replace(**passed), train=train, key=keys[2])
        passed["entered"] = tokens.x if "entered" in self.needs else None
        tokens = tokens._replace(x=self.feed(tokens.x, drop_keys[1]))
        if where == "behind":
            tokens, report = self.reduce(tokens, attended._replace(**passed), train=train, key=keys[2])
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
