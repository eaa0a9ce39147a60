"""What scorers read from a network: feature maps, rows of the classifier, the attention of one block."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn import Attended, Host, Tokens
from jaxprune.reduction.parts.keep_rows import present
from jaxprune.scoring.parts.base import is_host


def feature_map(network: Any, images: Float[Array, "b ..."]) -> Float[Array, "b ..."]:
    """The last spatial features: a ConvNet's map, or a transformer's tokens laid out on its grid."""
    if not is_host(network):
        return network.forward_features(images)
    return network.forward_intermediates(images, 1, norm=True, intermediates_only=True)[0]


def predicted(logits: Float[Array, "b classes"]) -> Int[Array, "b"]:
    """The predicted class."""
    return jnp.argmax(logits, axis=-1)


def class_rows(network: Any, features: Float[Array, "b ... c"]) -> Float[Array, "b c"]:
    """The classifier's weights for the class that a ConvNet predicts from its features.

    Raises:
      UserError: the classifier does not read the mean of the features, as in X3D.
    """
    read, channels = network.classifier.kernel.shape[0], features.shape[-1]
    if read != channels:
        raise UserError(
            f"The classifier of {type(network).__name__} reads {read} values, not the {channels} channels of its last "
            "map, so it has no weight for each: use a scorer that does without, such as papr."
        )
    return network.classifier.kernel[...].T[predicted(network.forward_head(features))]


def logit_of(logits: Float[Array, "b classes"], target: Int[Array, "b"]) -> Float[Array, "b"]:
    """Each image's logit for its target class."""
    return jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]


def tokens_before(host: Host, images: Float[Array, "b *sides c"], layer: int) -> Tokens:
    """The tokens that enter a block; a negative `layer` counts from the end.

    Raises:
      UserError: the plan of the network has removed some by then.
    """
    tokens = host.run_blocks(images, stop=range(len(host.sites()))[layer] + 1).block_inputs[-1]
    require_every_patch(host, tokens.x.shape[1], layer)
    return tokens


def require_every_patch(host: Host, rows: int, layer: int) -> None:
    """Checks that a block of a network under a plan has a row for every patch.

    Args:
      rows: rows of the block, prefix included.

    Raises:
      UserError: the plan has removed some by then.
    """
    site = host.sites()[layer]
    if host.plan is not None and (patches := rows - site.num_prefix_tokens) != site.num_patches:
        raise UserError(
            f"A score for every patch is read from block {site.layer} of a {type(host).__name__}, where {host.plan!r} "
            f"leaves {patches} rows of {site.num_patches}: score by the dense network, "
            "reduction.apply(network, Plan(steps=()))."
        )


def attended(
    host: Host,
    images: Float[Array, "b *sides c"],
    needs: frozenset[str],
    layer: int = -1,
    *,
    train_key: PRNGKeyArray | None = None,
) -> Attended:
    """The fields `needs` of one block's attention; later blocks are not run.

    Args:
      train_key: runs the network as in training, with its random numbers from this key.
    """
    layer = range(len(host.sites()))[layer]
    how = {"train": train_key is not None, "key": train_key}
    return host.run_blocks(images, taps={layer: needs}, stop=layer + 1, **how).output().attended[layer]


def cls_attention(host: Host, images: Float[Array, "b *sides c"], layer: int = -1) -> Float[Array, "b h p"]:
    """Attention of the CLS token to each patch in one block, per head.

    Raises:
      UserError: the plan of the network has removed some by then.
    """
    attention = present(attended(host, images, frozenset({"cls_attn"}), layer).cls_attn)
    require_every_patch(host, attention.shape[2], layer)
    return attention[:, :, host.num_prefix_tokens :]


def survival(kept: tuple[Int[Array, "b _"], ...], num_patches: int) -> Float[Array, "b p"]:
    """Ranks patches by how many steps of a reducing network keep them, then by their order in the last of those.

    A patch that step s, from 0, is the last to keep scores s plus a fraction that falls from 1 in the order of that
    step. Patches that no step keeps score 0.

    Args:
      kept: per step the indices of the original patches, best first; -1 marks a row that is not a single patch.
    """

    def one(scores, ids, stage):
        k = ids.shape[0]
        fractions = stage + 1.0 - jnp.arange(k) / k
        # An index of -1 is moved out of range, so that the update is dropped.
        return scores.at[jnp.where(ids < 0, num_patches, ids)].set(fractions, mode="drop")

    scores = jnp.zeros((kept[0].shape[0], num_patches))
    for stage, ids in enumerate(kept):
        scores = jax.vmap(one, in_axes=(0, 0, None))(scores, ids, float(stage))
    return scores
