"""Scores of patches as colours over a picture."""

import numpy as np
from jaxtyping import Float

from jaxprune.report.pictures.base import Picture
from jaxprune.report.pictures.drawing import blend, patch_ids

# Control points of the colour map, from black through violet and orange to pale yellow, with increasing lightness.
_COLOURS = np.array([(8, 6, 38), (72, 18, 107), (150, 38, 103), (218, 70, 70), (249, 142, 28), (248, 223, 120)], float)


def heatmap(image: Picture, scores: Float[np.ndarray, "gh gw"], opacity: float = 0.6) -> Picture:
    """Blends one colour per patch into the picture, dark for its lowest score and pale yellow for its highest.

    Scores are scaled to their own range; if all are equal, all patches are dark.
    """
    scores = np.asarray(scores, float)
    span = np.ptp(scores)
    level = (scores - scores.min()) / (span if span > 0 else 1.0) * (len(_COLOURS) - 1)
    colours = np.stack([np.interp(level, np.arange(len(_COLOURS)), channel) for channel in _COLOURS.T], axis=-1)
    ids = patch_ids(image.shape, scores.shape)
    return blend(image, np.ones(ids.shape, bool), colours.reshape(-1, 3)[ids], opacity)
