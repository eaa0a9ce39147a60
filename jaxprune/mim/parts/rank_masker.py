"""Random masks in which one order of the patches chooses both the visible and the decoded ones (CrossMAE)."""

import dataclasses
from typing import Any

from jaxtyping import Array, Bool, Int

from jaxprune.errors import UserError
from jaxprune.mim.parts.masker import RandomMasker


@dataclasses.dataclass(frozen=True)
class RankMasker(RandomMasker):
    """The patches of the smallest noise are visible, those of the largest are decoded, and those between are thrown.

    >>> masker = RankMasker((8, 8), mask_ratio=0.7, kept_mask_ratio=0.4)
    >>> masker.num_visible, masker.num_masked - masker.num_retained, masker.num_retained
    (19, 19, 26)

    Args:
      grid, mask_ratio: see `RandomMasker`.
      throw_ratio: see `RandomMasker`; it must be 0 beside `kept_mask_ratio`.
      retain: "random" for the order of the noise; "furthest" for PR-MIM's sampling of the masked patches.
      kept_mask_ratio: fraction of the patches, at most `mask_ratio`, that are masked and decoded: of p patches,
        int(p · (mask_ratio - kept_mask_ratio)) are thrown, in double precision. None means that `throw_ratio` decides.

    Raises:
      UserError: the ratios contradict each other, or leave nothing to see, to mask or to decode.
    """

    retain: str = "random"
    kept_mask_ratio: float | None = None

    def __post_init__(self):
        if self.kept_mask_ratio is not None and not 0 < self.kept_mask_ratio <= self.mask_ratio:
            raise UserError(
                f"kept_mask_ratio={self.kept_mask_ratio} is a fraction of all patches: choose one above 0 and at most "
                f"mask_ratio={self.mask_ratio}, which decodes every masked patch."
            )
        if self.kept_mask_ratio is not None and self.throw_ratio:
            raise UserError(
                f"kept_mask_ratio={self.kept_mask_ratio} and throw_ratio={self.throw_ratio} both say how many masked "
                f"patches are decoded: leave out throw_ratio, or kept_mask_ratio."
            )
        super().__post_init__()

    @property
    def num_retained(self) -> int:
        if self.kept_mask_ratio is None:
            return super().num_retained
        return self.num_masked - int(self.num_patches * (self.mask_ratio - self.kept_mask_ratio))

    def _needs_key(self, first: Any) -> bool:
        return first is None and self.retain == "furthest"

    def _retained(
        self, masked: Bool[Array, "b p"], ids_restore: Int[Array, "b p"], *, key: Any, first: Any
    ) -> Bool[Array, "b p"]:
        if self.retain == "random":
            return ids_restore >= self.num_patches - self.num_retained
        return super()._retained(masked, ids_restore, key=key, first=first)
