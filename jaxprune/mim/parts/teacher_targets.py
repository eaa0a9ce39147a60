"""Targets from a frozen vision transformer on whole images: features and attention (TEC, Gao et al., 2022)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.errors import UserError
from jaxprune.models.vit import VisionTransformer
from jaxprune.nn.attention import attention_logits
from jaxprune.nn.block_cost import block_flops, block_tokens, linear_flops
from jaxprune.nn.images import renormalized_for
from jaxprune.ops.resize import resize
from jaxprune.preprocessing import Normalisation


class TeacherTargets(NamedTuple):
    """The targets of a batch.

    Attributes:
      feature: features of every patch, not normalised.
      attention: attention logits of the CLS token and the patches `topk_idx` as queries over all patches as keys.
      topk_idx: the patches that the CLS token attends to most, in falling order.
    """

    feature: Float[Array, "b p d"]
    attention: Float[Array, "b 1 m h p"]
    topk_idx: Int[Array, "b 1 k"]


def feature_target(last: Float[Array, "b p d"], second_last: Float[Array, "b p d"]) -> Float[Array, "b p d"]:
    """The mean of the outputs of the last two blocks, in float32."""
    return (last.astype(jnp.float32) + second_last.astype(jnp.float32)) / 2


def normalize_over_tokens(x: Float[Array, "b p d"], eps: float = 1e-6) -> Float[Array, "b p d"]:
    """Normalises every channel to mean 0 and (unbiased) variance 1 over the patches of an image."""
    return (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True, ddof=1) + eps)


def attention_target(
    logits_of: Callable[[Int[Array, "b m"]], Float[Array, "b h m n"]], num_queries: int, num_prefix_tokens: int = 1
) -> tuple[Float[Array, "b 1 m h p"], Int[Array, "b 1 k"]]:
    """Selects the queries of an attention layer, and returns their logits.

    Args:
      logits_of: computes the layer's logits for query tokens, whose indices count the prefix; token 0 is CLS.
      num_queries: number of patches that are queries besides the CLS token: those with the largest logits, averaged
        over the heads, for CLS as the query.

    Returns:
      (logits without the prefix keys, ids of the query patches); see `TeacherTargets`.
    """
    of_cls = logits_of(jnp.zeros((1, 1), jnp.int32))[:, :, 0, num_prefix_tokens:]
    ids = jnp.argsort(-of_cls.mean(1), axis=1, stable=True)[:, :num_queries].astype(jnp.int32)
    queries = jnp.pad(ids + num_prefix_tokens, ((0, 0), (1, 0)))
    logits = logits_of(queries)[:, :, :, num_prefix_tokens:]
    return logits.transpose(0, 2, 1, 3)[:, None], ids[:, None]


def require_teacher(teacher: Any, grid: tuple[int, int], num_queries: int) -> None:
    """Checks that a network can be the teacher of one with a given grid of patches.

    Raises:
      UserError: it is not a dense vision transformer with a CLS token and the same number of patches.
    """
    if not isinstance(teacher, VisionTransformer) or teacher.plan is not None or teacher.cls_token is None:
        raise UserError(
            f"The teacher is a {type(teacher).__name__}, but must be a vision transformer with a CLS token and "
            "without a plan: give another teacher."
        )
    if teacher.grid != grid:
        height, width = (cells * side for cells, side in zip(grid, teacher.patch_embed.patch_size, strict=True))
        raise UserError(
            f"The teacher has {teacher.grid[0]}×{teacher.grid[1]} patches and the student {grid[0]}×{grid[1]}: build "
            f"or open the teacher with img_size=({height}, {width})."
        )
    if teacher.depth < 2:
        raise UserError("The teacher has one block, but the targets use its last two: give a deeper one.")
    if not 1 <= num_queries <= teacher.num_patches:
        raise UserError(f"num_queries={num_queries} is outside [1, {teacher.num_patches}], the number of patches.")


def prepared(
    teacher: Any, images: Float[Array, "b *sides c"], normalised: Normalisation | None
) -> Float[Array, "b *resized c"]:
    """Converts images to the normalisation of a teacher's training and, if it has a size, resizes them to it.

    Args:
      normalised: the (mean, std) that the images were normalised with; None for those of the teacher.
    """
    images = renormalized_for(teacher, images, normalised)
    size = image_size(teacher)
    return images if size in (None, images.shape[-3:-1]) else resize(images, size, antialias=True)


def image_size(teacher: Any) -> Any:
    """The (height, width) of the images that a network is built for; None if it takes any."""
    return getattr(getattr(teacher, "patch_embed", None), "img_size", None)


def see(
    teacher: Any,
    images: Float[Array, "b H W c"],
    num_queries: int,
    *,
    normalised: Normalisation | None = None,
) -> TeacherTargets:
    """Returns the targets of normalised images, without a gradient.

    Images are resized (bicubic, antialiased) so that the teacher has as many patches as the student, and normalised as
    in the teacher's training.

    Args:
      teacher: a vision transformer that passes `require_teacher`.
      num_queries: see `attention_target`.
      normalised: the (mean, std) that the images were normalised with; None for those of the teacher.
    """
    images = prepared(teacher, images, normalised)
    runner, prefix = teacher.encode(teacher.embed(images), stop=teacher.depth - 1), teacher.num_prefix_tokens
    before, block = runner.tokens, teacher.blocks[-1]
    heads, bias = block.heads(before.x, before.position), block.bias(before, teacher.grid)

    def logits_of(ids: Int[Array, "#b m"]) -> Float[Array, "b h m n"]:
        rows = lambda values: jnp.take_along_axis(values, ids[:, None, :, None], axis=2)
        return attention_logits(rows(heads.q), heads.k, bias if bias is None else rows(bias))

    attention, ids = attention_target(logits_of, num_queries, prefix)
    runner.run(block, teacher.grid)
    feature = feature_target(runner.tokens.x[:, prefix:], before.x[:, prefix:])
    return jax.lax.stop_gradient(TeacherTargets(feature, attention, ids))


def flops(teacher: Any, num_queries: int) -> int:
    """Multiply-accumulates of `see` on one image."""
    tokens = teacher.num_prefix_tokens + teacher.num_patches
    rows = block_tokens(None, tokens, tokens)
    blocks = sum(block_flops(teacher.block_cost(site), rows) for site in teacher.sites())
    queries = (2 + num_queries) * tokens * teacher.embed_dim
    return linear_flops(teacher.patch_embed.proj, teacher.num_patches) + blocks + queries
