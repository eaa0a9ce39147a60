"""What a segmentation network with exits costs on the images of a test: by the tokens that really went on."""

from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from jaxprune.dense import ExitSegmenter
from jaxprune.evaluate.contestants import gflops
from jaxprune.flops.segmenters import of_exits, of_segmenter
from jaxprune.nn.params import jitted


def gflops_of(network: ExitSegmenter, rows: Sequence[np.ndarray]) -> float:
    """Returns the mean cost of an image, or of a window, in 10⁹ multiply-accumulates, including a scorer's.

    Args:
      rows: of each image, the tokens that reach each head, (windows, heads).
    """
    shares: Counter[tuple[int, ...]] = Counter()
    for windows in rows:
        for counts in windows.tolist():
            shares[tuple(counts)] += 1 / (len(windows) * len(rows))  # type: ignore[assignment]
    scorer = gflops(network) - of_segmenter(network).total / 1e9
    return scorer + sum(share * of_exits(network, counts).total for counts, share in shares.items()) / 1e9


def gflops_on(network: ExitSegmenter, images: jax.Array) -> float:
    """Returns the mean cost of these normalised images; see `gflops_of`."""
    _, rows = jitted(network, lambda network, images: network.counted(images))(images)
    return gflops_of(network, np.asarray(rows)[:, None])


def stayed(rows: Sequence[np.ndarray]) -> list[float]:
    """Returns the mean number of tokens that reach each head, over the windows of an image and over images."""
    return np.mean([windows.mean(0) for windows in rows], axis=0).tolist()
