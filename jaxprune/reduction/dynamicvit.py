"""DynamicViT: a learned predictor scores the tokens at each step (Rao et al., 2021)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxprune.errors import UserError
from jaxprune.losses import ratio_loss
from jaxprune.nn import LayerNorm, Linear
from jaxprune.nn.block_cost import linear_flops
from jaxprune.ops.platform import platform
from jaxprune.ops.row_sums import sum_of_rows
from jaxprune.ops.straight_through import straight_through
from jaxprune.reduction.parts.base import LossContext, Reducer, Step, StepReport
from jaxprune.reduction.parts.clusters import needed
from jaxprune.reduction.parts.keep_rows import best, keep_rows, unchanged
from jaxprune.reduction.parts.row_maps import compose


class DynamicViT(Reducer):
    """Keeps the tokens with the highest predicted probability; in training it samples decisions and masks.

    In evaluation only the best rows enter the block, and absent ones only where too few are present. Training keeps
    every row and samples straight-through Gumbel decisions: the decision, times those of earlier steps, becomes
    `policy`, by which all blocks mask their attention.
    `aux.extra["decision"]` (b, n) is the input of `losses.ratio_loss`.
    """

    where = "before"
    drops = True
    soft_policy = True
    leaves_absent = "training"
    loss_weights: ClassVar[dict[str, float]] = {"ratio": 2.0}
    needs_teacher = True
    published = "score_predictor"
    renames: ClassVar[dict[str, str]] = {
        "in_conv.0": "norm",
        "in_conv.1": "embed",
        "out_conv.0": "fc1",
        "out_conv.2": "fc2",
        "out_conv.4": "fc3",
    }

    def __init__(self, step: Step, *, rngs: nnx.Rngs | None = None):
        super().__init__(step)
        d, rngs = step.embed_dim, needed(rngs, "dynamicvit")
        self.norm = LayerNorm(d, eps=1e-5)
        self.embed = Linear(d, d, rngs=rngs)
        self.fc1 = Linear(d, d // 2, rngs=rngs)
        self.fc2 = Linear(d // 2, d // 4, rngs=rngs)
        self.fc3 = Linear(d // 4, 2, rngs=rngs)

    def flops(self) -> int:
        # As published, where the mean is copied to every row.
        return sum(linear_flops(layer, self.step.tokens_in) for layer in (self.embed, self.fc1, self.fc2, self.fc3))

    @classmethod
    def losses(cls, context: LossContext) -> dict[str, Array]:
        return {"ratio": ratio_loss([(step.extra or {})["decision"] for step in context.steps], context.keep_rates)}

    def log_probs(self, x: Float[Array, "b n d"], policy: Float[Array, "b n"]) -> Float[Array, "b n 2"]:
        """Log-probabilities of keeping and of dropping each row; rows of policy 0 do not influence the others.

        Half of the embedded columns are averaged over the rows. Neither half is copied out of the other, nor put
        together again, for the next layer.
        """
        half, normed = self.embed.kernel.shape[1] // 2, self.norm(x)
        local = _gelu(self.embed.part(normed, columns=slice(None, half)))
        shared = _gelu(self.embed.part(normed, columns=slice(half, None)))
        # The epsilon is added after the division, as published.
        if platform() == "cpu":
            total = (shared * policy[:, :, None]).sum(1)
        else:  # in front of a sum an H100's compiler transposes each term of the error function by itself
            total = sum_of_rows(shared, policy)
        shared = (total / policy.sum(1)[:, None])[:, None] + 1e-6
        of_all = self.fc1.part(shared.astype(local.dtype), rows=slice(half, None))
        h = _gelu(self.fc1.part(local, rows=slice(None, half), use_bias=False) + of_all)
        return jax.nn.log_softmax(self.fc3(_gelu(self.fc2(h))).astype(jnp.float32), axis=-1)

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        of_patches = (jnp.arange(tokens.x.shape[1]) >= prefix).astype(jnp.float32)[None, :]
        if not train:
            if num_keep == self.step.tokens_in:
                return unchanged(tokens, prefix)
            policy = tokens.policy if self.step.has_absent else jnp.ones(tokens.x.shape[:2])
            scores = self.log_probs(tokens.x, policy * of_patches)[:, prefix:, 0]
            if self.step.has_absent:
                scores = jnp.where(policy[:, prefix:] > 0, scores, -jnp.inf)
            return keep_rows(tokens, best(scores, num_keep), prefix)
        if key is None:
            raise UserError("dynamicvit draws its decisions in training: call the network with key=jax.random.key(0).")
        policy = tokens.policy
        log_probs = self.log_probs(tokens.x, policy * of_patches)[:, prefix:]
        samples = straight_through(log_probs + gumbel_noise(key, log_probs.shape))[:, :, 0]
        decision = samples * policy[:, prefix:]
        present = decision > 0.5
        row_map = jnp.where(present, jnp.arange(present.shape[1], dtype=jnp.int32)[None, :], -1)
        reduced = tokens._replace(
            size=tokens.size.at[:, prefix:].multiply(samples),
            policy=jnp.concatenate([policy[:, :prefix], decision], axis=1),
            assign=compose(tokens.assign, row_map),
        )
        return reduced, StepReport(row_map=row_map, kept=row_map, extra={"decision": decision, "log_probs": log_probs})


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def gumbel_noise(key: Array, shape: tuple[int, ...]) -> Array:
    """Gumbel noise for the decisions."""
    return jax.random.gumbel(key, shape)
