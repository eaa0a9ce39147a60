"""What scorers read of a network: maps of features, a classifier's row, the attention of one block."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxprune.nn import Attended, Host, Tokens
from jaxprune.reduction.rows import present
from jaxprune.scoring.base import is_host


def feature_map(network: Any, images: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """The last features at every place: a ConvNet's map, or the tokens of a transformer laid out on its grid."""
    if not is_host(network):
        return network.forward_features(images)
    return network.forward_intermediates(images, 1, norm=True, intermediates_only=True)[0]


def predicted(logits: Float[Array, "b classes"]) -> Int[Array, "b"]:
    """The class that a network names."""
    return jnp.argmax(logits, axis=-1)


def class_rows(network: Any, features: Float[Array, "b ... c"]) -> Float[Array, "b c"]:
    """The classifier's weights for the class that a ConvNet names from its features."""
    return network.classifier.kernel[...].T[predicted(network.forward_head(features))]


def logit_of(logits: Float[Array, "b classes"], target: Int[Array, "b"]) -> Float[Array, "b"]:
    """Each image's logit of its own class."""
    return jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]


def tokens_before(host: Host, images: Float[Array, "b *sides c"], layer: int) -> Tokens:
    """The tokens that enter a block; negative `layer` counts from the last."""
    return host.walk(images, stop=range(len(host.sites()))[layer] + 1).entered[-1]


def attended(host: Host, images: Float[Array, "b *sides c"], needs: frozenset[str], layer: int = -1) -> Attended:
    """What the attention of one block saw; the blocks behind it are not run."""
    layer = range(len(host.sites()))[layer]
    return host.walk(images, taps={layer: needs}, stop=layer + 1).forward().attended[layer]


def run_masked(
    block: Any, x: Float[Array, "b n d"], normed: Float[Array, "b n d"], policy: Float[Array, "b n"]
) -> Float[Array, "b n d"]:
    """A block in evaluation, composed of its parts, in which some tokens take part and the others stay as they are.

    Args:
      x: the block's input.
      normed: `block.norm1(x)`.
      policy: 0 hides a token as a key and keeps it as it is.
    """
    takes_part = policy[:, :, None] > 0
    gathered, _ = block.attend(block.project(normed), policy=policy)
    x = jnp.where(takes_part, block.mix(x, gathered), x)
    return jnp.where(takes_part, block.feed(x), x)


def cls_attention(host: Host, images: Float[Array, "b *sides c"], layer: int = -1) -> Float[Array, "b h p"]:
    """Attention of the CLS token to each patch in one block, every head by itself."""
    seen = attended(host, images, frozenset({"cls_attn"}), layer)
    return present(seen.cls_attn)[:, :, host.num_prefix_tokens :]


def survival(kept: tuple[Int[Array, "b _"], ...], num_patches: int) -> Float[Array, "b p"]:
    """Ranks patches by the steps of a reducing network that keep them, and within the last of those by their place.

    A patch scores the number of steps that keep it, and a fraction that falls from 1 along the order in which the last
    of them lists it. The patches that the last step keeps, in its order, lead the ranking; those of no step score 0.

    Args:
      kept: per step the original patches, best first; -1 is no patch.
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
