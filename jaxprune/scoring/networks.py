"""What scorers read of a network: maps of features, a classifier's row, the attention of one block."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn.tokens import Attended, Tokens, all_present
from jaxprune.scoring.base import is_vit


def feature_map(network: Any, images: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """The last features at every place: a ConvNet's map, or the patch tokens of a ViT laid out on its grid."""
    if not is_vit(network):
        return network.forward_features(images)
    tokens, _ = network.forward_features(images)
    return tokens.x[:, network.num_prefix_tokens :].reshape(images.shape[0], *network.grid, -1)


def predicted(logits: Float[Array, "b classes"]) -> Int[Array, "b"]:
    """The class that a network names."""
    return jnp.argmax(logits, axis=-1)


def class_rows(network: Any, features: Float[Array, "b ... c"]) -> Float[Array, "b c"]:
    """The classifier's weights for the class that a ConvNet names from its features."""
    return network.classifier.kernel[...].T[predicted(network.forward_head(features))]


def logit_of(logits: Float[Array, "b classes"], target: Int[Array, "b"]) -> Float[Array, "b"]:
    """Each image's logit of its own class."""
    return jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]


def tokens_before(vit: Any, images: Float[Array, "b H W c"], layer: int) -> Tokens:
    """The tokens of all patches that enter a block; negative `layer` counts from the last."""
    tokens = all_present(vit.embed(images), vit.num_prefix_tokens)
    for block in vit.blocks[: range(len(vit.blocks))[layer]]:
        tokens, _, _ = block(tokens)
    return tokens


def from_norm1(
    block: Any,
    x: Float[Array, "b n d"],
    normed: Float[Array, "b n d"],
    num_prefix_tokens: int,
    *,
    policy: Float[Array, "b n"] | None = None,
    gate: Float[Array, "b n"] | None = None,
) -> Float[Array, "b n d"]:
    """A block in evaluation, from the output of its first norm on.

    Args:
      x: the block's input.
      normed: `block.norm1(x)`, or what stands in its place.
      policy: 0 hides a token as a key.
      gate: 0 keeps a token as it is.
    """

    def branch(out: Array, scale: Any) -> Array:
        out = out if scale is None else scale(out)
        return out if gate is None else out * gate[:, :, None]

    out, _ = block.attn(normed, policy=policy, num_prefix_tokens=num_prefix_tokens)
    x = x + branch(out, block.ls1)
    return x + branch(block.mlp(block.norm2(x)), block.ls2)


def attended(vit: Any, images: Float[Array, "b H W c"], needs: frozenset[str], layer: int = -1) -> Attended:
    """What the attention of one block saw, with all patches there."""
    tokens = tokens_before(vit, images, layer)
    block = vit.blocks[layer]
    _, seen = block.attn(block.norm1(tokens.x), needs=needs, num_prefix_tokens=vit.num_prefix_tokens)
    return seen


def cls_attention(vit: Any, images: Float[Array, "b H W c"], layer: int = -1) -> Float[Array, "b h p"]:
    """Attention of the CLS token to each patch in one block, every head by itself."""
    seen = attended(vit, images, frozenset({"cls_attn"}), layer)
    return seen.cls_attn[:, :, vit.num_prefix_tokens :]


def survival(kept: tuple[Int[Array, "b _"], ...], num_patches: int) -> Float[Array, "b p"]:
    """Ranks patches by the stages of a reducing network that keep them, and within the last of those by their place.

    A patch scores the number of stages that keep it, and a fraction that falls from 1 along the order in which the last
    of them lists it. The patches that the last stage keeps, in its order, lead the ranking; those of no stage score 0.

    Args:
      kept: per stage the original patches, best first; -1 is no patch.
    """

    def one(scores, ids, stage):
        k = ids.shape[0]
        fractions = stage + 1.0 - jnp.arange(k) / k
        # An id of -1 goes past the end, where it is dropped.
        return scores.at[jnp.where(ids < 0, num_patches, ids)].set(fractions, mode="drop")

    scores = jnp.zeros((kept[0].shape[0], num_patches))
    for stage, ids in enumerate(kept):
        scores = jax.vmap(one, in_axes=(0, 0, None))(scores, ids, float(stage))
    return scores
