"""Which patches the encoder sees and which the decoder reconstructs: the Masker protocol, and random masks."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.ops.sampling import furthest_retained, num_thrown, num_visible, random_masking, random_retained

RETAIN = ("furthest", "random")


class Masks(NamedTuple):
    """The patches of each image that are visible, masked and reconstructed.

    Attributes:
      ids_keep: visible patches, in the order in which the encoder gets them.
      ids_restore: each patch's place in that order over all patches, the visible ones first.
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


class Masker:
    """Draws masks. A subclass is a frozen dataclass of Python values, or an `nnx.Module` where it has arrays.

    Attributes:
      grid: patches down and across.
      num_visible: patches of an image that the encoder sees.
      num_retained: masked patches that the decoder reconstructs.
    """

    grid: tuple[int, int]
    num_visible: int
    num_retained: int

    @property
    def num_patches(self) -> int:
        """Patches of the grid."""
        return math.prod(self.grid)

    @property
    def num_masked(self) -> int:
        """Patches of an image that the encoder does not see."""
        return self.num_patches - self.num_visible

    def draw(self, batch: int, *, key: PRNGKeyArray | None = None, **drawn: Any) -> Masks:
        """Draws the masks of `batch` images.

        Args:
          key: source of everything random that `drawn` does not hold.
          drawn: random numbers (noise, first, …), so that masks can be repeated or compared with a reference.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class RandomMasker(Masker):
    """Random visible patches (MAE), and of the masked ones all or a part for the decoder (PR-MIM).

    >>> RandomMasker((14, 14), mask_ratio=0.75, throw_ratio=0.5).num_retained
    49

    Args:
      grid: patches down and across.
      mask_ratio: fraction of the patches that the encoder does not see.
      throw_ratio: fraction of the patches, below `mask_ratio`, that never enters the decoder.
      retain: how the patches for the decoder are chosen: "furthest" sampling (PR-MIM, Alg. 1) or uniformly at "random".

    Raises:
      UserError: the ratios leave nothing to see or to decode.
    """

    grid: tuple[int, int]
    mask_ratio: float = 0.75
    throw_ratio: float = 0.0
    retain: str = "furthest"

    def __post_init__(self):
        if self.retain not in RETAIN:
            raise unknown("way to retain tokens", self.retain, RETAIN)
        masked, thrown = self.num_masked, num_thrown(self.num_patches, self.throw_ratio)
        if thrown and (self.throw_ratio >= self.mask_ratio or thrown >= masked):
            raise UserError(
                f"throw_ratio {self.throw_ratio} would throw {thrown} of the {masked} patches that mask_ratio "
                f"{self.mask_ratio} masks: it must be below mask_ratio, and leave at least one patch to decode."
            )

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
    ) -> Masks:
        """Draws the masks of `batch` images.

        Args:
          key: draws `noise` and `first` where they are not passed.
          noise: one number a patch; the least are visible.
          first: where furthest sampling starts, as an index into each image's list of masked patches.

        Raises:
          UserError: there is nothing to draw from.
        """
        throws = self.num_retained < self.num_masked
        if key is None and (noise is None or (throws and (first is None or self.retain == "random"))):
            raise UserError("Masking is random: pass key=, or noise= (and first= where furthest sampling starts).")
        keys: Any = (None, None) if key is None else jax.random.split(key)
        if noise is None:
            noise = jax.random.uniform(keys[0], (batch, self.num_patches))
        ids_keep, ids_restore, masked = random_masking(noise, self.num_visible)
        if not throws:
            everything = jnp.arange(self.num_patches, dtype=jnp.int32)[None]
            return Masks(ids_keep, ids_restore, masked, masked, jnp.broadcast_to(everything, masked.shape))
        if self.retain == "random":
            choice = jax.random.uniform(keys[1], masked.shape)
            retained = jax.vmap(lambda n, m: random_retained(n, m, self.num_retained))(choice, masked)
        else:
            if first is None:
                first = jax.random.randint(keys[1], (batch,), 0, self.num_masked)
            retained = jax.vmap(lambda m, f: furthest_retained(m, f, self.num_retained, self.grid)[0])(masked, first)
        ids_present = ascending(~masked | retained, self.num_visible + self.num_retained)
        return Masks(ids_keep, ids_restore, masked, retained, ids_present)


def ascending(chosen: Bool[Array, "b p"], count: int) -> Int[Array, "b {count}"]:
    """The numbers of the `count` patches that are chosen in each image, in the order of the grid."""
    return jnp.argsort(~chosen, axis=1, stable=True)[:, :count].astype(jnp.int32)
