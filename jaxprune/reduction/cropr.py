"""Token Cropr: learned queries, trained by auxiliary heads, choose the rows to keep (Bergner et al., 2025, Sec. 3).

The published code has the MIT licence; this is written anew. Last-layer fusion is an option of plans, `restore="fuse"`.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.nn import LayerNorm, Linear
from jaxprune.nn.attention import attend, key_mask_bias, merge_heads, split_heads
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.mlp import Mlp
from jaxprune.reduction.parts.base import LossContext, Reducer, Step
from jaxprune.reduction.parts.clusters import needed
from jaxprune.reduction.parts.keep_rows import best, keep_rows, unchanged


class Cropr(Reducer):
    """Keeps the rows with the largest sum of products with learned queries, without softmax or scale; best first.

    In training the same queries also gather all rows by attention, and a head predicts the classes from what they
    gather. `aux.extra["aux_logits"]` (b, q, classes) enters the loss `aux`, the sum over the steps of the cross-entropy
    with the targets of the image. The queries learn from it alone, and it has no gradient to the network. Rows leave in
    training too.

    Published plans remove 8 rows in front of every block but the first, and one more in the first step: `r=(0, 9, 8,
    8, …)`.

    Args:
      num_queries: learned queries; their products are added.
      num_heads: heads of the attention by which they gather.
      pre_attn_norm: whether rows are normalised first.
      q_proj, k_proj, v_proj: whether queries, keys and values are projected.
      mlp: whether an MLP follows the attention.
      mlp_ratio: its hidden width relative to that of a row.

    Raises:
      UserError: the width is not divisible by `num_heads`, or there is no query.

    >>> from flax import nnx; from jaxprune.reduction import Step
    >>> step = Step(0, 1, (4, 4), 1, 16, 8, 0.5, 32, 2, num_classes=5)
    >>> Cropr(step, rngs=nnx.Rngs(0)).flops()
    512
    """

    where = "before"
    drops = True
    loss_weights: ClassVar[dict[str, float]] = {"aux": 1.0}
    published = "cropr"
    renames: ClassVar[dict[str, str]] = {
        **{f"cross_attn.{name}": name for name in ("queries", "attn_norm", "q", "k", "v", "proj", "mlp_norm", "mlp")},
        "head.norm": "head_norm",
        "head.head": "head",
    }

    def __init__(
        self,
        step: Step,
        *,
        num_queries: int = 1,
        num_heads: int = 1,
        pre_attn_norm: bool = False,
        q_proj: bool = False,
        k_proj: bool = False,
        v_proj: bool = False,
        mlp: bool = True,
        mlp_ratio: float | int = 4.0,
        rngs: nnx.Rngs | None = None,
    ):
        super().__init__(step)
        d, rngs = step.embed_dim, needed(rngs, "cropr")
        if num_heads < 1 or d % num_heads:
            raise UserError(f"num_heads={num_heads} does not divide the width {d}: use 1, as published.")
        if num_queries < 1:
            raise UserError(f"num_queries={num_queries}: cropr needs at least 1.")
        self.num_heads = num_heads
        queries = jax.random.truncated_normal(rngs.params(), -2, 2, (1, num_queries, d), jnp.float32)
        self.queries = nnx.Param(queries * d**-0.5)
        projection = lambda is_used, bias=False: nnx.data(Linear(d, d, use_bias=bias, rngs=rngs) if is_used else None)
        norm = lambda is_used, eps=1e-6: nnx.data(LayerNorm(d, eps=eps) if is_used else None)
        self.attn_norm = norm(pre_attn_norm)
        self.q, self.k, self.v = projection(q_proj), projection(k_proj), projection(v_proj)
        # What follows is used in training only.
        self.proj = projection(num_heads > 1, bias=True)
        self.mlp_norm = norm(mlp)
        self.mlp = nnx.data(Mlp(d, int(d * mlp_ratio), rngs=rngs) if mlp else None)
        self.head_norm = norm(step.num_classes > 0, eps=1e-5)
        self.head = nnx.data(Linear(d, step.num_classes, rngs=rngs) if step.num_classes else None)

    def flops(self) -> int:
        """n·d: a product for each of n incoming rows, and their projection to keys, if any; without the training."""
        rows = self.step.tokens_in
        projected = 0 if self.k is None else linear_flops(self.k, rows)
        return rows * self.step.embed_dim + projected

    @classmethod
    def losses(cls, context: LossContext) -> dict[str, Array]:
        logits = [report.extra["aux_logits"] for report in context.steps if report.extra]
        if not logits:
            return {}
        entropy = lambda logits: -(context.targets[:, None, :] * jax.nn.log_softmax(logits, axis=-1)).sum(-1).mean()
        return {"aux": sum(map(entropy, logits), start=jnp.float32(0))}

    def scores(self, x: Float[Array, "b n d"]) -> Float[Array, "b n"]:
        """The sum of the products of each row with all queries, over all heads, in float32."""
        total = self._queries(x.dtype).sum(1)
        keys = self._keys(x if self.attn_norm is None else self.attn_norm(x))
        return (keys.astype(jnp.float32) * total[:, None, :].astype(jnp.float32)).sum(-1)

    def aggregate(self, x: Float[Array, "b n d"], policy: Float[Array, "b n"] | None = None) -> Float[Array, "b q d"]:
        """What the queries gather from the rows by attention.

        Args:
          policy: 0 for rows that nothing is gathered from.
        """
        x = x if self.attn_norm is None else self.attn_norm(x)
        queries = jnp.broadcast_to(self._queries(x.dtype), (x.shape[0], *self.queries.shape[1:]))
        values = x if self.v is None else self.v(x)
        q, k, v = (split_heads(rows, self.num_heads) for rows in (queries, self._keys(x), values))
        gathered = merge_heads(attend(q, k, v, key_mask_bias(None, policy)))
        gathered = gathered if self.proj is None else self.proj(gathered)
        return gathered if self.mlp is None else gathered + self.mlp(self.mlp_norm(gathered))

    def _queries(self, dtype: jnp.dtype) -> Float[Array, "1 q d"]:
        queries = self.queries[...].astype(dtype)
        return queries if self.q is None else self.q(queries)

    def _keys(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        return x if self.k is None else self.k(x)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        x = jax.lax.stop_gradient(tokens.x)
        extra, policy = None, tokens.policy if self.step.has_absent else None
        if train and self.head is not None:
            gathered = self.head_norm(self.aggregate(x, policy))
            extra = {"aux_logits": self.head(gathered).astype(jnp.float32)}
        if num_keep >= self.step.tokens_in:
            reduced, report = unchanged(tokens, prefix)
        else:
            scores = self.scores(x[:, prefix:])
            scores = scores if policy is None else jnp.where(policy[:, prefix:] > 0, scores, -jnp.inf)
            reduced, report = keep_rows(tokens, best(scores, num_keep), prefix)
        return reduced, report._replace(extra=extra)
