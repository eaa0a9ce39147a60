"""LTRP's pseudo labels: the change of a masked autoencoder's reconstruction when a visible patch is removed.

A frozen autoencoder sees a tenth of an image's patches. Its decoder runs once with all of them (the anchor) and once
without each of them; a patch's label is the mean absolute difference of the two reconstructions. These are `n` decoder
passes per image, nearly the whole cost of training a ranker, so they are batched as far as memory allows (`budget`),
the shared part of the first block is computed once (`shared_attention`), and the last block and the prediction only run
for the compared rows (`removals`).

All of this is exact, but `throw_ratio` is an approximation: with PR-MIM's furthest point sampling, only some of the
masked patches enter the decoder. Each of them represents the masked patches that it is nearest to: their number is its
weight in the mean, and its log is added to the attention logits, as for a merged token (ToMe). So the decoder sees
effectively as many mask tokens as in training, and densely lying patches do not count double: on small photographs,
with three fifths of the patches thrown, Kendall's tau with the exact labels is 0.86 with these weights and 0.71
without.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.mim import Framework, RandomMasker
from jaxprune.ops import num_visible
from jaxprune.ranking import image_metrics
from jaxprune.ranking.budget import fit_memory, in_chunks
from jaxprune.ranking.masks import LabelMasks, label_masks
from jaxprune.ranking.removals import REMOVALS, Deleted, token_decoder

OVER = ("masked", "all")
METRICS = ("l1", *image_metrics.METRICS)


class Labels(NamedTuple):
    """The training labels of a ranker.

    Attributes:
      relevance: the change of the reconstruction without each visible patch; only its order is meaningful.
      ids_keep: the visible patches, ascending.
      masked: True where the autoencoder did not see the patch.
    """

    relevance: Float[Array, "b k"]
    ids_keep: Int[Array, "b k"]
    masked: Bool[Array, "b p"]


class Reconstructions(NamedTuple):
    """Pixels of every patch, in `patchify`'s order, with and without each visible patch.

    Attributes:
      anchor: reconstruction with all visible patches.
      removed: reconstructions without the i-th visible patch.
      change: its mean absolute change.
    """

    anchor: Float[Array, "b p q"]
    removed: Float[Array, "b k p q"]
    change: Float[Array, "b k"]


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
    metric: str = "l1",
    memory: int | None = None,
    shards: int = 1,
) -> Labels:
    """Measures how much each visible patch matters to the reconstruction of the masked ones (LTRP, Alg. 1).

    Args:
      framework: a masked autoencoder with a `TokenDecoder`. Its own masker is not used.
      images: images, normalised as in its training.
      key, noise, first, mask_ratio, throw_ratio: see `RandomMasker`: `int(p · (1 - mask_ratio))` patches are visible,
        19 of 196. With a `throw_ratio`, labels are made from the patches that enter the decoder, each representing
        those around it: cheaper, but no longer exact.
      removal: how a visible patch is removed, a key of `REMOVALS`. "delete" leaves its token out of the decoder's
        sequence (the published code); "mask_token" replaces it with the mask token; "attention" masks it in the
        attention of all others and sets its own attention output to 0; "encoder" does so in the encoder, which is run
        again and decoded.
      over: the patches to average the change over: "masked" ones, or "all" that both reconstructions have.
      metric: how reconstructions are compared: "l1", their mean absolute difference; or, as in the repository of LTRP,
        whole images by "ssim" or "psnr", whatever `over` is. The repository rescales those from 0 to 1 within a batch,
        which is left out, as it does not change the order.
      memory: limit in bytes per device besides weights and images, by estimate; None does all removals at once.
      shards: devices that share the batch.

    Raises:
      UserError: `memory` is too small for one removal from one image; a name or ratio is invalid; or the framework's
        decoder cannot leave out tokens.
    """
    if removal not in REMOVALS:
        raise unknown("way to remove a patch", removal, REMOVALS)
    if over not in OVER:
        raise unknown("set of patches to compare", over, OVER)
    if metric not in METRICS:
        raise unknown("metric of reconstructions", metric, METRICS)
    if metric != "l1" and (removal == "delete" or throw_ratio):
        raise UserError(
            f"metric={metric!r} compares whole images, but removal={removal!r} and throw_ratio={throw_ratio} leave out "
            "patches: use removal='attention' and throw_ratio=0."
        )
    masker = RandomMasker(framework.grid, mask_ratio, throw_ratio)
    masks = label_masks(masker.draw(images.shape[0], key=key, noise=noise, first=first), framework.grid)
    visible, decoded = masks.ids_keep.shape[1], masks.ids_decode.shape[1]
    decoder = token_decoder(framework)
    parts, at_once = fit_memory(decoder, images.shape[0], visible, decoded, memory=memory, shards=shards)

    def relevance_of(images: Array, masks: LabelMasks) -> Array:
        removals = REMOVALS[removal](framework, images, masks, over=over if metric == "l1" else "all")
        change = removals.change if metric == "l1" else functools.partial(removals.change_of_image, metric)
        return in_chunks(change, visible, at_once)

    if parts == 1:
        relevance = relevance_of(images, masks)
    else:
        # Every part takes strided images of the batch, so that it stays sharded over all devices.
        deal = lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)
        relevance = jax.lax.map(lambda part: relevance_of(*part), jax.tree.map(deal, (images, masks)))
        relevance = relevance.swapaxes(0, 1).reshape(-1, visible)
    return Labels(jax.lax.stop_gradient(relevance), masks.ids_keep, masks.masked)


def require_order(num_patches: int, mask_ratio: float) -> None:
    """Checks that there is an order among the patches that the autoencoder sees.

    Raises:
      UserError: it sees none, or a single one.
    """
    if num_visible(num_patches, mask_ratio) == 1:
        ratios = (number / 1000 for number in range(1000))
        most = max((ratio for ratio in ratios if int(num_patches * (1 - ratio)) > 1), default=0.0)
        raise UserError(
            f"mask_ratio={mask_ratio} leaves 1 of {num_patches} patches visible, and one patch has no order: use "
            f"{most} or less."
        )


def reconstructions(framework: Framework, images: Float[Array, "b H W c"], masks: LabelMasks) -> Reconstructions:
    """Returns the reconstructions that labels with the default options compare, for pictures.

    Visible and thrown patches are zeros.
    """
    removals = Deleted(framework, images, masks, over="masked")
    numbers = jnp.arange(masks.ids_keep.shape[1])
    rows = jnp.broadcast_to(masks.ids_decode[:, None], (len(images), len(numbers), masks.ids_decode.shape[1]))

    def place(pred, ids):
        return jnp.zeros((framework.num_patches, pred.shape[1]), pred.dtype).at[ids].set(pred)

    return Reconstructions(
        jax.vmap(place)(removals.anchor, masks.ids_decode),
        jax.vmap(jax.vmap(place))(removals.without(numbers), rows),
        removals.change(numbers),
    )
