"""LTRP's pseudo labels: how much a masked autoencoder's reconstruction changes when it loses a visible patch.

A frozen autoencoder sees a tenth of an image's patches. Its decoder runs once with all of them (the anchor) and once
without each of them; a patch's label is the mean absolute difference of the two reconstructions. That is `n` decoder
passes an image, nearly all that training a ranker costs, so they are batched as far as memory allows (`budget`), what
they share of the first block is computed once (`shared_attention`), and the last block and the prediction run for the
rows that are compared (`removals`).

All of that is exact. What is not is `throw_ratio`: with PR-MIM's furthest sampling only a part of the masked patches
enters the decoder. Each of them then stands for the masked patches that it is nearest to: it weighs as much in the
mean, and in attention by the log of it, as a merged token does (ToMe). So the others see as many mask tokens as the
decoder was trained with, and where patches lie dense they do not count double: on small photographs, with three fifths
of the patches thrown, Kendall's tau to the exact labels is .86 with it and .71 without.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.errors import unknown
from jaxprune.mim import Framework, RandomMasker
from jaxprune.ranking.budget import fit_memory, in_chunks
from jaxprune.ranking.masks import LabelMasks, label_masks
from jaxprune.ranking.removals import REMOVALS, Deleted, token_decoder

OVER = ("masked", "all")


class Labels(NamedTuple):
    """What a ranker learns from.

    Attributes:
      relevance: how much the reconstruction needs each visible patch; only its order means anything.
      ids_keep: the visible patches, ascending.
      masked: True where the autoencoder did not see the patch.
    """

    relevance: Float[Array, "b k"]
    ids_keep: Int[Array, "b k"]
    masked: Bool[Array, "b p"]


class Reconstructions(NamedTuple):
    """Pixels of every patch, in `patchify`'s order, with and without each visible patch.

    Attributes:
      anchor: with all visible patches.
      removed: without the i-th visible patch.
    """

    anchor: Float[Array, "b p q"]
    removed: Float[Array, "b k p q"]


def pseudo_labels(
    framework: Framework,
    images: Float[Array, "b H W c"],
    *,
    key: PRNGKeyArray | None = None,
    noise: Float[Array, "b p"] | None = None,
    first: Int[Array, "b"] | None = None,
    mask_ratio: float = 0.9,
    throw_ratio: float = 0.0,
    removal: str = "delete",
    over: str = "masked",
    memory: int | None = None,
    shards: int = 1,
) -> Labels:
    """Measures how much each visible patch matters to the reconstruction of the masked ones (LTRP, Alg. 1).

    Args:
      framework: a masked autoencoder, whose decoder is a `TokenDecoder`. Its own masks do not matter here.
      images: normalised as it was trained on.
      key, noise, first, mask_ratio, throw_ratio: see `RandomMasker`: `int(p · (1 - mask_ratio))` patches are visible,
        19 of 196. With a `throw_ratio` labels are made from the patches that enter the decoder, each in the place of
        those around it: cheaper, and no longer exact.
      removal: how a visible patch is taken away, a key of `REMOVALS`. "delete" leaves its token out of the decoder's
        sequence (the published code); "mask_token" puts the mask token in its place; "attention" hides it from all
        others' attention, and its own output of attention is 0; "encoder" does so in the encoder, runs it again and
        decodes what comes out.
      over: the patches whose change is averaged: "masked" ones, or "all" that both reconstructions have.
      memory: bytes that the computation may take on a device beside weights and images, by estimate; None does all
        removals at once.
      shards: devices that share the batch.

    Raises:
      UserError: `memory` does not suffice for one removal from one image; a name or ratio makes no sense; or the
        framework's decoder cannot leave out tokens.
    """
    if removal not in REMOVALS:
        raise unknown("way to remove a patch", removal, REMOVALS)
    if over not in OVER:
        raise unknown("set of patches to compare", over, OVER)
    masker = RandomMasker(framework.grid, mask_ratio, throw_ratio)
    masks = label_masks(masker.draw(images.shape[0], key=key, noise=noise, first=first), framework.grid)
    visible, decoded = masks.ids_keep.shape[1], masks.ids_decode.shape[1]
    decoder = token_decoder(framework)
    parts, at_once = fit_memory(decoder, images.shape[0], visible, decoded, memory=memory, shards=shards)

    def relevance_of(images: Array, masks: LabelMasks) -> Array:
        removals = REMOVALS[removal](framework, images, masks, over=over)
        return in_chunks(removals.change, visible, at_once)

    if parts == 1:
        relevance = relevance_of(images, masks)
    else:
        # Every part takes images from all over the batch, so that each stays spread over all devices.
        deal = lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)
        relevance = jax.lax.map(lambda part: relevance_of(*part), jax.tree.map(deal, (images, masks)))
        relevance = relevance.swapaxes(0, 1).reshape(-1, visible)
    return Labels(jax.lax.stop_gradient(relevance), masks.ids_keep, masks.masked)


def reconstructions(framework: Framework, images: Float[Array, "b H W c"], masks: LabelMasks) -> Reconstructions:
    """Returns what the labels compare, for pictures; visible and thrown patches are zeros."""
    removals = Deleted(framework, images, masks, over="masked")
    numbers = jnp.arange(masks.ids_keep.shape[1])
    rows = jnp.broadcast_to(masks.ids_decode[:, None], (len(images), len(numbers), masks.ids_decode.shape[1]))

    def place(pred, ids):
        return jnp.zeros((framework.num_patches, pred.shape[1]), pred.dtype).at[ids].set(pred)

    return Reconstructions(
        jax.vmap(place)(removals.anchor, masks.ids_decode), jax.vmap(jax.vmap(place))(removals.without(numbers), rows)
    )
