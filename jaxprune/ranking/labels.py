"""LTRP's pseudo labels: how much a masked autoencoder's reconstruction changes when it loses a visible patch.

A frozen MAE sees a tenth of an image's patches. Its decoder runs once with all of them (the anchor) and once without
each of them; a patch's label is the mean absolute difference of the two reconstructions. That is `n` decoder passes an
image, nearly all that training a ranker costs, so they are batched as far as memory allows, and what they share is
computed once:

* the order of tokens means nothing to a transformer, so the sequence is laid out as `[masked | CLS | visible]`: what a
  removal leaves alone comes first, and what is read in the end is a slice;
* in the first block only the removed token differs: queries, keys, values and the attention to masked tokens and CLS
  are computed once, and joined to the attention to the visible tokens that each removal leaves;
* the last block and the prediction are computed for the rows that are compared.

All of that is exact. What is not is `throw_ratio`: with PR-MIM's furthest sampling only a part of the masked patches
enters the decoder. Each of them then stands for the masked patches that it is nearest to: it weighs as much in the
mean, and in attention by the log of it, as a merged token does (ToMe). So the others see as many mask tokens as the
decoder was trained with, and where patches lie dense they do not count double: on small photographs, with three fifths
of the patches thrown, Kendall's tau to the exact labels is .86 with it and .71 without.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.nn import Block
from jaxprune.nn.attention import attend, attention_logits
from jaxprune.ops.sampling import furthest_retained, num_thrown, num_visible, random_masking

REMOVALS = ("delete", "mask_token", "attention", "encoder")
OVER = ("masked", "all")


class Labels(NamedTuple):
    """What a ranker learns from.

    Attributes:
      relevance: how much the reconstruction needs each visible patch; only its order means anything.
      ids_keep: the visible patches, ascending.
      masked: True where the MAE did not see the patch.
    """

    relevance: Float[Array, "b k"]
    ids_keep: Int[Array, "b k"]
    masked: Bool[Array, "b p"]


class Masks(NamedTuple):
    """What the encoder sees and what the decoder is to reconstruct, each ascending.

    Attributes:
      ids_keep: visible patches.
      ids_decode: masked patches that enter the decoder.
      sizes: the masked patches that each of these stands for, as it is the nearest to them; None where all are decoded.
      masked: True where a patch is not visible.
    """

    ids_keep: Int[Array, "b k"]
    ids_decode: Int[Array, "b r"]
    sizes: Float[Array, "b r"] | None
    masked: Bool[Array, "b p"]


def draw_masks(
    num_patches: int,
    batch: int,
    *,
    grid: tuple[int, int],
    key: PRNGKeyArray | None = None,
    noise: Float[Array, "b p"] | None = None,
    first: Int[Array, "b"] | None = None,
    mask_ratio: float = 0.9,
    throw_ratio: float = 0.0,
) -> Masks:
    """Draws masks as LTRP does: `int(p · (1 - mask_ratio))` visible patches an image, 19 of 196.

    Args:
      key: draws `noise` and `first` where they are not given.
      noise: one number a patch; the least are visible.
      first: where furthest sampling starts, as an index into each image's list of masked patches.
      throw_ratio: fraction of the patches that never enters the decoder.

    Raises:
      UserError: the ratios leave nothing to see or to decode, or nothing to draw from is given.
    """
    visible = num_visible(num_patches, mask_ratio)
    decoded = num_patches - visible - num_thrown(num_patches, throw_ratio)
    if decoded < 1:
        raise UserError(
            f"throw_ratio {throw_ratio} leaves none of the {num_patches - visible} masked patches to the decoder: "
            f"use one below mask_ratio {mask_ratio}."
        )
    throws = decoded < num_patches - visible
    if key is None and (noise is None or (throws and first is None)):
        raise UserError("Masks are random: give key=, or noise= (and first= where throw_ratio is above 0).")
    keys: Any = (None, None) if key is None else jax.random.split(key)
    if noise is None:
        noise = jax.random.uniform(keys[0], (batch, num_patches))
    _, _, masked = random_masking(noise, visible)
    retained = masked
    if throws:
        if first is None:
            first = jax.random.randint(keys[1], (batch,), 0, num_patches - visible)
        retained = jax.vmap(lambda m, f: furthest_retained(m, f, decoded, grid)[0])(masked, first)
    ids = lambda chosen, count: jnp.argsort(~chosen, axis=1, stable=True)[:, :count].astype(jnp.int32)
    ids_decode = ids(retained, decoded)
    sizes = jax.vmap(lambda m, i: _stand_for(m, i, grid))(masked, ids_decode) if throws else None
    return Masks(ids(~masked, visible), ids_decode, sizes, masked)


def _stand_for(masked: Bool[Array, "p"], ids_decode: Int[Array, "r"], grid: tuple[int, int]) -> Float[Array, "r"]:
    """Counts the masked patches that each decoded one is nearest to; between several, a patch counts in equal parts."""
    place = jnp.stack(jnp.divmod(jnp.arange(masked.size), grid[1]), axis=1)
    distance = jnp.square(place[:, None] - place[ids_decode][None, :]).sum(2)
    nearest = distance == distance.min(1, keepdims=True)
    share = nearest / nearest.sum(1, keepdims=True)
    return jnp.where(masked[:, None], share, 0).sum(0)


def pseudo_labels(
    mae: Any,
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
      mae: a masked autoencoder with a full decoder. Its own ratios do not matter here.
      images: normalised as the MAE was trained on.
      key, noise, first, mask_ratio, throw_ratio: see `draw_masks`. With a `throw_ratio` labels are made from the
        patches that enter the decoder, each in the place of those around it: cheaper, and no longer exact.
      removal: how a visible patch is taken away. "delete" leaves its token out of the decoder's sequence (the
        published code); "mask_token" puts the mask token in its place; "attention" hides it from all others' attention,
        and its own output of attention is 0; "encoder" does so in the encoder, runs it again and decodes what comes
        out.
      over: the patches whose change is averaged: "masked" ones, or "all" that both reconstructions have.
      memory: bytes that the computation may take on a device beside weights and images, by estimate; None does all
        removals at once.
      shards: devices that share the batch.

    Raises:
      UserError: `memory` does not suffice for one removal from one image; a name or ratio makes no sense.
    """
    if removal not in REMOVALS:
        raise unknown("way to remove a patch", removal, REMOVALS)
    if over not in OVER:
        raise unknown("set of patches to compare", over, OVER)
    masks = draw_masks(
        mae.num_patches,
        images.shape[0],
        grid=mae.grid,
        key=key,
        noise=noise,
        first=first,
        mask_ratio=mask_ratio,
        throw_ratio=throw_ratio,
    )
    visible, decoded = masks.ids_keep.shape[1], masks.ids_decode.shape[1]
    parts, at_once = schedule(mae, images.shape[0], visible, decoded, memory=memory, shards=shards)

    def some(images, ids_keep, ids_decode, sizes):
        removed = _Removals(mae, images, ids_keep, ids_decode, sizes, removal=removal, over=over)
        return _in_chunks(removed.change, visible, at_once)

    given = (images, masks.ids_keep, masks.ids_decode, masks.sizes)
    if parts == 1:
        relevance = some(*given)
    else:
        # Every part takes images from all over the batch, so that each stays spread over all devices.
        deal = lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)
        relevance = jax.lax.map(lambda part: some(*part), jax.tree.map(deal, given))
        relevance = relevance.swapaxes(0, 1).reshape(-1, visible)
    return Labels(jax.lax.stop_gradient(relevance), masks.ids_keep, masks.masked)


def schedule(
    mae: Any, batch: int, visible: int, decoded: int, *, memory: int | None = None, shards: int = 1
) -> tuple[int, int]:
    """Returns in how many parts a batch is worked through, and how many removals are done at once in each part.

    Args:
      memory, shards: as for `pseudo_labels`.

    Raises:
      UserError: one removal from one image takes more.
    """
    own = batch // shards
    if memory is None:
        return 1, visible
    for parts in (count for count in range(1, own + 1) if own % count == 0):
        images = own // parts
        for chunks in range(1, visible + 1):
            at_once = math.ceil(visible / chunks)
            if estimated_bytes(mae, images, at_once, visible, decoded) <= memory:
                return parts, at_once
    least = estimated_bytes(mae, 1, 1, visible, decoded)
    raise UserError(
        f"Pseudo labels take about {least / 2**20:.3g} MiB for one removal from one image, and the line is at "
        f"{memory / 2**20:.3g} MiB: raise it, or raise throw_ratio."
    )


def estimated_bytes(mae: Any, images: int, at_once: int, visible: int, decoded: int) -> int:
    """Estimates from above the bytes that `at_once` removals from each of `images` take at the same time."""
    block = mae.decoder_blocks[0]
    width, heads = block.attn.proj.kernel.shape[0], block.attn.num_heads
    hidden, pixels = block.mlp.fc1.kernel.shape[1], mae.decoder_pred.kernel.shape[1]
    rows = decoded + visible + 1
    # Of a row: in attention its scores before and after the exponential beside queries, keys and values as they come
    # and as the product wants them; or the MLP's hidden layer before and after GELU.
    row = 2 * width + max(2 * heads * rows + 7 * width, 2 * hidden + width, 2 * pixels)
    # Of an image: its patches as they are cut, the anchor, and what the removals share of the first block.
    image = 3 * mae.num_patches * pixels + rows * (pixels + 6 * width + 2 * heads * rows)
    return 4 * images * (image + at_once * rows * row)


def _in_chunks(change: Callable[[Array], Array], count: int, at_once: int) -> Array:
    """Concatenates `change` of the numbers 0 … count - 1, so many of them at once."""
    numbers, whole = jnp.arange(count), count // at_once * at_once
    if whole == at_once:
        parts = [change(numbers[:whole])]
    else:
        chunks = jax.lax.map(change, numbers[:whole].reshape(-1, at_once))
        parts = [chunks.swapaxes(0, 1).reshape(-1, whole)]
    if whole < count:
        parts.append(change(numbers[whole:]))
    return jnp.concatenate(parts, axis=1)


class Reconstructions(NamedTuple):
    """Pixels of every patch, in `patchify`'s order, with and without each visible patch.

    Attributes:
      anchor: with all visible patches.
      removed: without the i-th visible patch.
    """

    anchor: Float[Array, "b p q"]
    removed: Float[Array, "b k p q"]


def reconstructions(mae: Any, images: Float[Array, "b H W c"], masks: Masks) -> Reconstructions:
    """Returns what the labels compare, for pictures; visible and thrown patches are zeros."""
    given = (masks.ids_keep, masks.ids_decode, masks.sizes)
    removals = _Removals(mae, images, *given, removal="delete", over="masked")
    numbers = jnp.arange(masks.ids_keep.shape[1])
    rows = jnp.broadcast_to(masks.ids_decode[:, None], (len(images), len(numbers), masks.ids_decode.shape[1]))

    def place(pred, ids):
        return jnp.zeros((mae.num_patches, pred.shape[1]), pred.dtype).at[ids].set(pred)

    return Reconstructions(
        jax.vmap(place)(removals.anchor, masks.ids_decode), jax.vmap(jax.vmap(place))(removals.without(numbers), rows)
    )


class _Removals:
    """One batch: the reconstruction with all visible patches, and functions of the removals' numbers.

    Tokens stand as `[masked | CLS | visible]`.
    """

    def __init__(
        self,
        mae: Any,
        images: Array,
        ids_keep: Array,
        ids_decode: Array,
        sizes: Array | None,
        *,
        removal: str,
        over: str,
    ):
        self.mae, self.removal, self.over = mae, removal, over
        self.ids_keep, self.ids_decode, self.sizes = ids_keep, ids_decode, sizes
        self.visible, self.decoded = ids_keep.shape[1], ids_decode.shape[1]
        self.rest = self.decoded + 1
        # The last block and the prediction run for the first `rows` rows only; None is all.
        self.rows = self.decoded if over == "masked" else None
        self.embedded = mae.encoder.embed(images, ids_keep)
        self.x = self._sequence(_encode(mae, self.embedded))
        self.anchor = self._decode(self.x)
        if removal == "delete":
            self.shared = _shared(mae.decoder_blocks[0], self.x, self.rest, self._bias(self.x))

    def change(self, numbers: Int[Array, "c"]) -> Float[Array, "b c"]:
        """Mean absolute change of the reconstruction by each of the removals `numbers`."""
        pred, anchor = self.without(numbers), self.anchor[:, None]
        if self.over == "all":
            anchor = self.anchor[:, self._left(numbers)] if self.removal == "delete" else anchor
            # The CLS token predicts no patch.
            pred, anchor = (jnp.delete(p, self.decoded, axis=2) for p in (pred, anchor))
        change = jnp.abs(pred - anchor).mean(3)
        if self.sizes is None:
            return change.mean(2)
        others = jnp.ones((self.sizes.shape[0], change.shape[2] - self.decoded))
        weights = jnp.concatenate([self.sizes, others], axis=1)[:, None]
        return (change * weights).sum(2) / weights.sum(2)

    def without(self, numbers: Int[Array, "c"]) -> Float[Array, "b c rows q"]:
        """Reconstructions without each of the visible patches `numbers`."""
        if self.removal == "delete":
            pred = self._deleted(numbers)
        elif self.removal == "mask_token":
            hidden = jnp.arange(self.x.shape[1])[None, :] == self.rest + numbers[:, None]
            tokens = jnp.concatenate([self.x[:, : self.rest], self._mask_tokens(self.ids_keep)], axis=1)
            pred = self._decode(_merge(jnp.where(hidden[None, :, :, None], tokens[:, None], self.x[:, None])))
        elif self.removal == "attention":
            hidden = jnp.arange(self.x.shape[1])[None, :] == self.rest + numbers[:, None]
            pred = self._decode(*_repeated(self.x, hidden))
        else:
            hidden = jnp.arange(self.embedded.shape[1])[None, :] == 1 + numbers[:, None]
            pred = self._decode(self._sequence(_encode(self.mae, *_repeated(self.embedded, hidden))))
        return pred.reshape(-1, len(numbers), *pred.shape[1:])

    def _deleted(self, numbers: Array) -> Array:
        """Without the tokens at all: sequences that are one shorter."""
        first, *blocks = self.mae.decoder_blocks
        left = self._left(numbers)
        x, out = self.x[:, left], self.shared(numbers)
        out = jnp.take_along_axis(out, left[None, :, :, None], axis=2)
        x, out = _merge(x), _merge(out)
        if not blocks:
            x, out = x[:, : self.rows], out[:, : self.rows]
        return self._decode(_after_attention(first, x, out), blocks=blocks)

    def _left(self, numbers: Array) -> Int[Array, "c rows"]:
        """The rows that each removal leaves."""
        places = jnp.arange(self.rest + self.visible - 1)[None, :]
        return places + (places >= self.rest + numbers[:, None])

    def _mask_tokens(self, ids: Array) -> Array:
        token = self.mae.mask_token[...].astype(self.embedded.dtype)
        return token + self._positions(ids)

    def _positions(self, ids: Array) -> Array:
        return self.mae.decoder_pos_embed[...][0, 1:].astype(self.embedded.dtype)[ids]

    def _sequence(self, latent: Array) -> Array:
        """The decoder's input `[masked | CLS | visible]` of an encoder's output; one image may have several of them."""
        x = self.mae.decoder_embed(latent)
        times = x.shape[0] // self.ids_keep.shape[0]
        repeat = lambda rows: jnp.repeat(rows, times, axis=0)
        cls = x[:, :1] + self.mae.decoder_pos_embed[...][:, :1].astype(x.dtype)
        seen = x[:, 1:] + repeat(self._positions(self.ids_keep)).astype(x.dtype)
        return jnp.concatenate([repeat(self._mask_tokens(self.ids_decode)).astype(x.dtype), cls, seen], axis=1)

    def _decode(self, x: Array, hidden: Array | None = None, *, blocks: Any = None) -> Array:
        """Runs decoder blocks and the prediction, in float32, of the rows that are compared."""
        blocks = self.mae.decoder_blocks if blocks is None else blocks
        bias = self._bias(x)
        for index, block in enumerate(blocks):
            x = _run(block, x, hidden, self.rows if index == len(blocks) - 1 else None, bias)
        return self.mae.decoder_pred(self.mae.decoder_norm(x)).astype(jnp.float32)

    def _bias(self, x: Array) -> Array | None:
        """What is added to the logits of each key of the sequences `x`: the log of what a patch stands for."""
        if self.sizes is None:
            return None
        logs = jnp.repeat(jnp.log(self.sizes), x.shape[0] // self.sizes.shape[0], axis=0)
        return jnp.pad(logs, ((0, 0), (0, x.shape[1] - self.decoded)))[:, None, None, :]


def _encode(mae: Any, embedded: Array, hidden: Array | None = None) -> Array:
    x = embedded
    for block in mae.encoder.blocks:
        x = _run(block, x, hidden)
    return mae.encoder.norm(x)


def _run(
    block: Block, x: Array, hidden: Array | None = None, rows: int | None = None, bias: Array | None = None
) -> Array:
    """A dense block, its output for the first `rows` rows only; `hidden` rows neither attend nor are attended to."""
    q, k, v = block.attn.project(block.norm1(x))
    if hidden is not None:
        bias = jnp.where(hidden[:, None, None, :], jnp.finfo(jnp.float32).min, 0 if bias is None else bias)
    out = attend(q[:, :, :rows], k, v, bias)
    if hidden is not None:
        out = jnp.where(hidden[:, None, :rows, None], 0, out)
    return _after_attention(block, x[:, :rows], _beside(out))


def _after_attention(block: Block, x: Array, out: Array) -> Array:
    """The rest of a block; `out` is what attention gathered, heads side by side."""
    x = x + block.attn.proj(out)
    return x + block.mlp(block.norm2(x))


def _beside(out: Float[Array, "b h n e"]) -> Float[Array, "b n d"]:
    b, h, n, e = out.shape
    return out.transpose(0, 2, 1, 3).reshape(b, n, h * e)


def _shared(block: Block, x: Array, rest: int, bias: Array | None) -> Callable[[Array], Array]:
    """Returns the attention of a block without each of some visible tokens, as a function of their numbers.

    Softmax sums over the `rest` rows that no removal touches are computed once; joined to them are those over the
    visible rows that a removal leaves. Nothing is subtracted, so nothing is lost to rounding.
    """
    q, k, v = block.attn.project(block.norm1(x))
    b, h, n, e = q.shape
    logits = attention_logits(q, k, bias)
    staying, visible = logits[..., :rest], logits[..., rest:]
    highest = staying.max(-1, keepdims=True)
    weights = jnp.exp(staying - highest)
    total = weights.sum(-1)
    flat = lambda t: t.reshape(b * h, *t.shape[2:])
    summed = (flat(weights).astype(v.dtype) @ flat(v[:, :, :rest])).reshape(b, h, n, e)

    def without(numbers: Array) -> Array:
        count = len(numbers)
        gone = jnp.arange(visible.shape[-1])[None, :] == numbers[:, None]
        left = jnp.where(gone[None, None, None], -jnp.inf, visible[:, :, :, None])
        top = jnp.maximum(left.max(-1), highest)
        weights = jnp.exp(left - top[..., None])
        fade = jnp.exp(highest - top)
        more = flat(weights).reshape(b * h, n * count, -1).astype(v.dtype) @ flat(v[:, :, rest:])
        out = summed[:, :, :, None] * fade[..., None] + more.reshape(b, h, n, count, e)
        out = out / (total[..., None] * fade + weights.sum(-1))[..., None]
        return out.astype(v.dtype).transpose(0, 3, 2, 1, 4).reshape(b, count, n, h * e)

    return without


def _repeated(x: Array, hidden: Bool[Array, "c n"]) -> tuple[Array, Array]:
    """Each image once for every removal, and what that removal hides."""
    b, n, d = x.shape
    count = len(hidden)
    x = jnp.broadcast_to(x[:, None], (b, count, n, d))
    return _merge(x), _merge(jnp.broadcast_to(hidden[None], (b, count, n)))


def _merge(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])
