"""Masks drawn by the data workers, as PR-MIM describes its furthest point sampling (Sec. 3.2)."""

import dataclasses

import numpy as np

from jaxprune.ops.patch_sampling import furthest_sampling_host


@dataclasses.dataclass(frozen=True)
class HostMasks:
    """Draws what `RandomMasker.draw` takes for one image, in NumPy: `noise` (p,), and `retained` (p,).

    >>> masks = HostMasks((4, 4), num_visible=4, num_retained=6)(np.random.default_rng(0))
    >>> sorted(masks), int(masks["retained"].sum())
    (['noise', 'retained'], 6)

    Args:
      grid: patches down and across.
      num_visible: patches that the encoder sees.
      num_retained: masked patches that the decoder gets; fewer than are masked.
    """

    grid: tuple[int, int]
    num_visible: int
    num_retained: int

    def __call__(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        noise = rng.random(self.grid[0] * self.grid[1], np.float32)
        masked = np.ones(noise.shape, bool)
        masked[np.argsort(noise, kind="stable")[: self.num_visible]] = False
        places = np.flatnonzero(masked)
        first = rng.integers(len(places))
        retained = np.zeros(noise.shape, bool)
        retained[places[furthest_sampling_host(masked, first, self.num_retained, self.grid)]] = True
        return {"noise": noise, "retained": retained}
