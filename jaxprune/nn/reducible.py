"""The base of blocks that a plan can reduce: a slot for a reducer, and work that rows can skip."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.nn.restore import set_aside
from jaxprune.nn.tokens import Attended, Tokens
from jaxprune.ops.row_layout import end_to_end
from jaxprune.ops.unmerge import unmerge


class Reducible(nnx.Module):
    """A block with a slot for a token reducer, set by `jaxprune.reduction.apply`.

    A block is called as `block(tokens, attended, grid=…, taps=…, train=…, key=…)` and returns (tokens, attended,
    report), see `Block`; without attention, `attended` is `NOTHING`. A block whose tokens cannot be removed
    (`removable=False`: windows, convolutions) runs its per-token work, such as its MLP, through `skip`.

    Args:
      num_prefix_tokens: CLS, distillation and register tokens in front.
      num_cls_tokens: class tokens among them, the first of which ranks the patches, see `Attended.cls_attn`; None means
        that all of them are.
      removable: whether rows can be removed here; otherwise they only skip work.

    Attributes:
      reducer: the reducer of the plan, or None.
      needs: the fields of `Attended` that reducers read of this block.
      proportional: whether attention weights keys by their size (ToMe).
      has_absent: whether incoming tokens may be absent, so that attention must mask them.
      soft_policy: whether training masks them in the policy softmax (DynamicViT).
      fuses: whether dropped rows join the others again before this block, see `reduction.Plan`.
      pooled: number of incoming rows that are pooled into one before the reducer acts.
    """

    def __init__(self, *, num_prefix_tokens: int, num_cls_tokens: int | None = None, removable: bool = True):
        self.num_prefix_tokens, self.removable = num_prefix_tokens, removable
        self.num_cls_tokens = num_prefix_tokens if num_cls_tokens is None else num_cls_tokens
        self.reducer: Any = nnx.data(None)
        self.needs: frozenset[str] = frozenset()
        self.proportional = self.has_absent = self.soft_policy = self.fuses = False
        self.pooled = 1

    def reduces_where(self) -> str | None:
        """Where the reducer acts, see `reduction.Reducer`; "skip" if rows cannot be removed, None without a reducer."""
        if self.reducer is None:
            return None
        return self.reducer.where if self.removable or self.reducer.merged_in_place else "skip"

    def reduce(
        self, tokens: Tokens, attended: Attended, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Tokens, Any]:
        """Calls the reducer; its report has the rows that it dropped if the plan brings them back."""
        reducer: Any = self.reducer
        reduced, report = reducer.reduced(tokens, attended, train=train, key=key)
        if not train:  # in front of the blocks of a training step of MAE it cost cycles
            reduced = reduced._replace(x=end_to_end(reduced.x))
        if reducer.step.restore == "zero" or reducer.drops is False:
            return reduced, report
        arriving = tokens.x.shape[1] - self.num_prefix_tokens
        as_planned = arriving == reducer.step.tokens_in and not (train and reducer.leaves_absent != "never")
        count = reducer.num_dropped() if as_planned else arriving
        if not count:
            return reduced, report
        return reduced, report._replace(dropped=set_aside(tokens, report.row_map, count, self.num_prefix_tokens))

    def skip(
        self,
        tokens: Tokens,
        attended: Attended,
        work: Callable[[Float[Array, "b k d"]], Float[Array, "b k d"]],
        *,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "b n d"], Any]:
        """Computes `work` only on the rows that the reducer keeps.

        Dropped rows get zeros, and merged rows get the result of their common row.

        Args:
          attended: the input of the reducer.
          work: the residual branch of tokens, row by row.

        Returns:
          (the residual branch of every token, the reducer's report; None without a reducer).
        """
        if self.reducer is None:
            return work(tokens.x), None
        reduced, report = self.reducer.reduced(tokens, attended, train=train, key=key)
        out, prefix = work(reduced.x), self.num_prefix_tokens
        if train and self.reducer.soft_policy:
            # Rows stay in place and the policy masks them, which also gives dropped rows a gradient.
            return out * reduced.policy[:, :, None].astype(out.dtype), report
        rows = unmerge(out[:, prefix:], report.row_map)
        return jnp.concatenate([out[:, :prefix], rows], axis=1), report
