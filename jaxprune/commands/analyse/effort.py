"""Estimates the time of an analysis's comparisons, from one of each kind on this machine."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxprune.evaluate.members import Member
from jaxprune.evaluate.reduction_patterns import clusters_alike
from jaxprune.measures import alignment, heat_maps
from jaxprune.measures.overlap import intersection_over_area, intersection_over_union
from jaxprune.reduction import DENSE

_SECTIONS = 12.0  # seconds for the figures of a report
_SMALL = 1000  # number of images in the measurement


def compared(found: Sequence[Member]) -> int:
    """Returns the number of pattern comparisons: steps of pairs of members."""
    count = 0
    for a, b in itertools.combinations((each for each in found if each.layers), 2):
        inside = a.network == b.network and a.layers == b.layers and (a.method == b.method or a.wanted == b.wanted)
        across = a.network != b.network and (a.method, a.layers, a.wanted) == (b.method, b.layers, b.wanted)
        count += len(a.layers) * (inside or across)
    return count


def seconds(found: Sequence[Member], num_images: int, anchors: Sequence[str], num_layers: int) -> float:
    """Estimates the seconds for comparing members and drawing the report.

    Args:
      found: all members.
      num_images: number of images observed.
      anchors: the anchor methods.
      num_layers: number of layers whose features are compared.
    """
    rng, images = np.random.default_rng(0), min(num_images, _SMALL)
    reduced = [member for member in found if member.layers]
    if not reduced:
        return _SECTIONS
    grid = max((member.grids[0] for member in reduced), key=np.prod)
    patches, width = int(np.prod(grid)), max(member.model.embed_dim for member in found)
    one, other = (rng.integers(0, max(patches // 2, 1), (images, patches)).astype(np.int16) for _ in range(2))
    masks = one < np.median(one), other < np.median(other)
    values = [rng.normal(size=(images, width)).astype(np.float32) for _ in range(2)]
    prepared: list[Any] = [alignment.features(each) for each in values]
    pattern = _timed(lambda: clusters_alike(one, other)) + _timed(
        lambda: (intersection_over_area(*masks), intersection_over_union(*masks))
    )
    features = _timed(lambda: alignment.features(values[0]))
    apart = _timed(lambda: alignment.distances(*prepared))
    maps = _timed(lambda: heat_maps.measures(*(rng.random((patches, 1)) + 4 for _ in range(2))))
    beside = sum(
        len([member for member in reduced if anchor.method == DENSE or member.wanted == anchor.wanted])
        for anchor in found
        if anchor.method in anchors
    )
    growth = num_images / images
    each = compared(found)
    steps = max(len(member.layers) for member in reduced)
    # Half of the methods merge and half keep; reading and multiplying features is linear in the images.
    parts = (growth * pattern * each / 2, (features * len(found) + apart * beside) * num_layers, maps * each / steps)
    return sum(parts) + _SECTIONS


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
