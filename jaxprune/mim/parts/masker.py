"""Masks, which divide patches between encoder and decoder: the Masker protocol, and random masks."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from jaxprune.errors import UserError, unknown
from jaxprune.mim.parts.host_masks import HostMasks
from jaxprune.nn.optional_key import split_key
from jaxprune.ops.patch_sampling import (
    checked_first,
    furthest_retained,
    num_thrown,
    num_visible,
    random_masking,
    random_retained,
)
from jaxprune.ops.tracing import on_host

RETAIN = ("furthest", "random")


class Masks(NamedTuple):
    """The patches of each image that are visible, masked and reconstructed.

    Attributes:
      ids_keep: patches that enter the encoder, in that order: the visible ones and, where mask tokens go through the
        encoder (SimMIM), the retained ones.
      ids_restore: the rank of each patch in the order of all patches, those of `ids_keep` first.
      masked: True where the encoder does not see the patch.
      retained: masked patches that the decoder reconstructs.
      ids_present: patches that enter the decoder, visible and retained, ascending.
    """

    ids_keep: Int[Array, "b k"]
    ids_restore: Int[Array, "b p"]
    masked: Bool[Array, "b p"]
    retained: Bool[Array, "b p"]
    ids_present: Int[Array, "b m"]

    @property
    def thrown(self) -> Bool[Array, "b p"]:
        """Masked patches that never enter the decoder."""
        return self.masked & ~self.retained

    @property
    def present(self) -> Bool[Array, "b p"]:
        """Patches that enter the decoder."""
        return ~self.masked | self.retained


class SharedMasks(Masks):
    """Masks with the same visible patches in every image of the batch."""

    @property
    def shared_ids(self) -> Int[Array | np.ndarray, "1 k"]:
        """The patches `ids_keep` of any image; as NumPy where they are known before the program is compiled."""
        ids = on_host(self.ids_keep)
        return self.ids_keep[:1] if ids is None else ids[:1]


class Masker:
    """Draws masks. A subclass is a frozen dataclass of Python values, or an `nnx.Module` if it has arrays.

    Attributes:
      grid: patches down and across.
      num_visible: number of patches per image that the encoder sees.
      num_retained: number of masked patches that the decoder reconstructs.
    """

    grid: tuple[int, int]
    num_visible: int
    num_retained: int

    @property
    def num_patches(self) -> int:
        """Number of patches of the grid."""
        return math.prod(self.grid)

    @property
    def num_masked(self) -> int:
        """Number of patches per image that the encoder does not see."""
        return self.num_patches - self.num_visible

    def draw(self, batch: int, *, key: PRNGKeyArray | None = None, **draws: Any) -> Masks:
        """Draws the masks of `batch` images.

        Args:
          key: draws the random numbers that are not in `draws`.
          draws: random numbers (noise, first, …) to use, so that masks can be reproduced or compared with a reference.
        """
        raise NotImplementedError

    def on_host(self) -> HostMasks | None:
        """Draws for data workers what `draw` takes; None if its masks cannot be drawn image by image."""
        return None


@dataclasses.dataclass(frozen=True)
class RandomMasker(Masker):
    """Random visible patches (MAE); the decoder gets all or some of the masked ones (PR-MIM).

    >>> RandomMasker((14, 14), mask_ratio=0.75, throw_ratio=0.5).num_retained
    49

    Args:
      grid: patches down and across.
      mask_ratio: fraction of the patches that the encoder does not see.
      throw_ratio: fraction of the patches, below `mask_ratio`, that never enter the decoder.
      retain: how the patches for the decoder are chosen: "furthest" point sampling (PR-MIM, Alg. 1) or "random".

    Raises:
      UserError: the ratios leave nothing to see, to mask or to decode.
    """

    grid: tuple[int, int]
    mask_ratio: float = 0.75
    throw_ratio: float = 0.0
    retain: str = "furthest"

    def __post_init__(self):
        if self.num_masked < 1:
            raise UserError(
                f"mask_ratio={self.mask_ratio} masks none of {self.num_patches} patches, so there is nothing to "
                "reconstruct: choose a higher ratio, below 1."
            )
        thrown = num_thrown(self.num_patches, self.throw_ratio)
        check_retained(self.num_masked, thrown, self.mask_ratio, self.throw_ratio, self.retain)

    @property
    def num_visible(self) -> int:
        return num_visible(self.num_patches, self.mask_ratio)

    @property
    def num_retained(self) -> int:
        return self.num_masked - num_thrown(self.num_patches, self.throw_ratio)

    def draw(
        self,
        batch: int,
        *,
        key: PRNGKeyArray | None = None,
        noise: Float[Array, "b p"] | None = None,
        first: Int[Array, "b"] | None = None,
        retained: Bool[Array | np.ndarray, "b ..."] | None = None,
    ) -> Masks:
        """Draws the masks of `batch` images.

        Args:
          key: draws `noise` and `first` where they are not passed.
          noise: one number per patch; the patches with the smallest ones are visible.
          first: start of furthest point sampling, as an index into each image's list of masked patches.
          retained: the patches to retain, `num_retained` of the masked ones, in place of those that are chosen.

        Raises:
          UserError: there are neither random numbers nor a key, `first` is out of range, or `retained` does not fit.
        """
        throws = self.num_retained < self.num_masked
        if retained is not None and not throws:
            raise UserError("retained= has no effect if nothing is thrown: leave it out, or set throw_ratio.")
        if key is None and (noise is None or (throws and retained is None and self._needs_key(first))):
            raise UserError("Masking is random: pass key=, or noise= (and first= where furthest sampling starts).")
        keys = split_key(key)
        if noise is None:
            noise = jax.random.uniform(keys[0], (batch, self.num_patches))
        if noise.shape != (batch, self.num_patches):
            raise UserError(
                f"noise of shape {tuple(noise.shape)} is not one number for each of the {self.num_patches} patches of "
                f"{batch} images: give ({batch}, {self.num_patches})."
            )
        ids_keep, ids_restore, masked = random_masking(noise, self.num_visible)
        if not throws:
            everything = jnp.arange(self.num_patches, dtype=jnp.int32)[None]
            return Masks(ids_keep, ids_restore, masked, masked, jnp.broadcast_to(everything, masked.shape))
        if first is not None:
            first = checked_first(first, self.num_masked)
        if retained is None:
            retained = self._retained(masked, ids_restore, key=keys[1], first=first)
        else:
            retained = self._given(retained, masked)
        ids_present = ascending(~masked | retained, self.num_visible + self.num_retained)
        return Masks(ids_keep, ids_restore, masked, retained, ids_present)

    def on_host(self) -> HostMasks | None:
        """See `Masker`; None too where the patches are not retained by furthest point sampling."""
        furthest = self.retain == "furthest" and self.num_retained < self.num_masked
        if type(self) is not RandomMasker or not furthest:
            return None
        return HostMasks(self.grid, self.num_visible, self.num_retained)

    def _given(self, retained: Bool[Array | np.ndarray, "b ..."], masked: Bool[Array, "b p"]) -> Bool[Array, "b p"]:
        """Checks the patches that a caller retains, as far as they are known while a program is traced."""
        if np.shape(retained) != masked.shape:
            raise UserError(
                f"retained has shape {np.shape(retained)} instead of {masked.shape}: pass True or False for each patch."
            )
        masked_ones = (jnp.asarray(retained) > 0) & masked
        if (count := count_of_each("retained", masked_ones, self.num_retained)) != self.num_retained:
            raise UserError(
                f"retained has {count} masked patches per image instead of {self.num_retained}: see throw_ratio."
            )
        return masked_ones

    def _needs_key(self, first: Any) -> bool:
        """Whether the choice of the retained patches draws random numbers."""
        return first is None or self.retain == "random"

    def _retained(
        self, masked: Bool[Array, "b p"], ids_restore: Int[Array, "b p"], *, key: Any, first: Any
    ) -> Bool[Array, "b p"]:
        """The retained patches, where some are thrown."""
        return choose_retained(masked, self.num_retained, self.grid, self.retain, key=key, first=first)


def choose_retained(
    masked: Bool[Array, "b p"],
    num_retained: int,
    grid: tuple[int, int],
    retain: str = "furthest",
    *,
    key: Any = None,
    first: Int[Array, "b"] | None = None,
) -> Bool[Array, "b p"]:
    """Chooses the masked patches to reconstruct, `num_retained` per image.

    Args:
      retain, first: see `RandomMasker`.
      key: draws the random numbers that are not passed.
    """
    if retain == "random":
        choice = jax.random.uniform(key, masked.shape)
        return jax.vmap(lambda n, m: random_retained(n, m, num_retained))(choice, masked)
    if first is None:
        first = jax.random.randint(key, masked.shape[:1], 0, masked.sum(1))
    return jax.vmap(lambda m, f: furthest_retained(m, f, num_retained, grid)[0])(masked, first)


def count_of_each(name: str, cells: Shaped[Array | np.ndarray, "b ..."] | None, usual: int) -> int:
    """The number of True cells per image, which must be the same for all; `usual` if `cells` is traced or None."""
    values = None if cells is None else on_host(cells)
    if values is None:
        return usual
    counts = (values > 0).reshape(len(values), -1).sum(1)
    if counts.min() != counts.max():
        raise UserError(
            f"{name} has between {counts.min()} and {counts.max()} patches per image, but where patches are thrown the "
            "number must be the same. Use reconstruction='full', or masks of equal size."
        )
    return int(counts[0])


def through_encoder(masked: Bool[Array, "b p"], retained: Bool[Array, "b p"], count: int) -> Masks:
    """The masks of a framework whose encoder sees mask tokens: all patches except thrown ones, in grid order.

    Args:
      count: number of patches that are visible or retained.
    """
    order = ascending(~masked | retained, masked.shape[1])
    ids = order[:, :count]
    return Masks(ids, jnp.argsort(order, axis=1).astype(jnp.int32), masked, retained, ids)


def check_retained(masked: int, thrown: int, mask_ratio: float, throw_ratio: float, retain: str) -> None:
    """Checks that fewer patches are thrown than masked, and that `retain` is known.

    Args:
      masked, thrown: numbers of patches per image.
    """
    if retain not in RETAIN:
        raise unknown("way to retain tokens", retain, RETAIN)
    if thrown and (throw_ratio >= mask_ratio or thrown >= masked):
        raise UserError(
            f"throw_ratio {throw_ratio} would throw {thrown} of the {masked} patches that mask_ratio "
            f"{mask_ratio} masks: it must be below mask_ratio, and leave at least one patch to decode."
        )


@dataclasses.dataclass(frozen=True)
class SharedMasker(RandomMasker):
    """Random masks shared by all images of a batch (GreenMIM), drawn or passed as one row."""

    def draw(
        self,
        batch: int,
        *,
        key: PRNGKeyArray | None = None,
        noise: Float[Array, "r p"] | None = None,
        first: Int[Array, "s"] | None = None,
        retained: Bool[Array | np.ndarray, "t ..."] | None = None,
    ) -> Masks:
        """Draws the masks of `batch` images; see `RandomMasker.draw`.

        Args:
          noise: one row for all images, or one for each, in which case nothing is shared.
          first, retained: one row for all images, or one for each.

        Raises:
          UserError: there are neither random numbers nor a key, or the number of rows is neither 1 nor the batch size.
        """
        passed = {"noise": noise, "first": first, "retained": retained}
        lengths = {name: len(x) for name, x in passed.items() if x is not None}
        if wrong := {name: length for name, length in lengths.items() if length not in (1, batch)}:
            raise UserError(f"There are {wrong} rows for a batch of {batch} images: pass one for all, or one for each.")
        rows = max(lengths.values(), default=1)
        if noise is None and key is not None:
            noise = jax.random.uniform(jax.random.split(key)[0], (1, self.num_patches))
        shared = noise is not None and len(noise) == 1
        spread: Any = lambda x, count: None if x is None else jnp.broadcast_to(x, (count, *x.shape[1:]))
        spread_out = {name: spread(x, rows) for name, x in {**passed, "noise": noise}.items()}
        masks = super().draw(rows, key=key, **spread_out)
        of_batch = jax.tree.map(lambda x: spread(x, batch), masks)
        return SharedMasks(*of_batch) if shared else of_batch


def ascending(mask: Bool[Array, "b p"], count: int) -> Int[Array, "b {count}"]:
    """The indices of the `count` patches of each image's mask, in grid order."""
    return jnp.argsort(~mask, axis=1, stable=True)[:, :count].astype(jnp.int32)
