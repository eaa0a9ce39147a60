"""Patterns of the patches that a plan keeps or merges over many images, and their overlap.

"Which Tokens to Use?" (Haurum et al., 2023), Sec. 5.1 to 5.4. Means are over images; "std" is that of the population.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxprune.evaluate.collectors.token_counts import distinct_tokens
from jaxprune.measures import heat_maps
from jaxprune.measures.clusterings import clustering_agreement
from jaxprune.measures.intervals import Spread
from jaxprune.measures.overlap import as_masks, intersection_over_area, intersection_over_union


class Patterns(NamedTuple):
    """The patterns of each step of a plan for n images with p patches.

    Attributes:
      masks: for each step, True on kept patches, or on the centres of clusters, (n, p).
      assign: for each step the row that holds each patch, (n, p); -1 = dropped.
      layers: the block of each step, from 0; -1 = before the first.
      num_layers: blocks of the network.
    """

    masks: tuple[Bool[np.ndarray, "n p"], ...]
    assign: tuple[Int[np.ndarray, "n p"], ...]
    layers: tuple[int, ...]
    num_layers: int

    @classmethod
    def of(
        cls,
        kept: Sequence[Int[np.ndarray, "n k"]],
        assign: Sequence[Int[np.ndarray, "n p"]],
        layers: Sequence[int],
        num_layers: int,
    ) -> "Patterns":
        """Makes patterns from a network's reports: the original patch of each row (-1 = none), and `assign`."""
        masks = [as_masks(ids, np.shape(rows)[1]) for ids, rows in zip(kept, assign, strict=True)]
        return cls(tuple(masks), tuple(map(np.asarray, assign)), tuple(layers), num_layers)

    def rates(self) -> list[Spread]:
        """The number of rows that hold patches at each step, as a share of the patches."""
        return rates(self.assign, np.shape(self.assign[0])[1])

    def depths(self) -> Int[np.ndarray, "n p"]:
        """The number of blocks that each patch passes; see `heat_maps.depths`."""
        return heat_maps.depths(self.masks, self.layers, self.num_layers)


def rates(steps: Sequence[Int[np.ndarray, "n _"]], num_patches: int) -> list[Spread]:
    """Returns the number of rows that hold patches after each step, as a share of the patches.

    Args:
      steps: for each patch, or for each input row of the step, the row that holds it afterwards; -1 = dropped.
      num_patches: of the image.
    """
    return [Spread.of(distinct_tokens(rows) / num_patches) for rows in steps]


def overlaps(higher: Bool[np.ndarray, "n p"], lower: Bool[np.ndarray, "n p"]) -> dict[str, Spread]:
    """Returns IoA and IoU of the kept patches after a step at two keep rates, the lower one second."""
    return {
        "IoA": Spread.of(intersection_over_area(higher, lower)),
        "IoU": Spread.of(intersection_over_union(higher, lower)),
    }


def clusters_alike(classes: Int[np.ndarray, "n p"], clusters: Int[np.ndarray, "n p"]) -> dict[str, Spread]:
    """Returns homogeneity, completeness and NMI of the clusters after a step.

    Args:
      classes: clusters at the lower of two keep rates, or of the first of two networks.
      clusters: clusters of the other.
    """
    agreement = clustering_agreement(classes, clusters)
    return {
        "homogeneity": Spread.of(agreement.homogeneity),
        "completeness": Spread.of(agreement.completeness),
        "NMI": Spread.of(agreement.nmi),
    }
