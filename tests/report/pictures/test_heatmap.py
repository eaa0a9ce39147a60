"""Higher scores have lighter colours."""

import numpy as np
from example_picture import GRID, IMAGE, patches

from jaxprune.report.pictures.heatmap import heatmap


def test_heatmap_orders_by_lightness():
    scores = np.arange(6.0).reshape(GRID)
    drawn = patches(heatmap(np.zeros_like(IMAGE), scores, opacity=1.0)).astype(float)
    assert (np.ptp(drawn, axis=(1, 2)) == 0).all()
    lightness = drawn[:, 0, 0] @ np.array([0.21, 0.72, 0.07])
    assert (np.diff(lightness) > 0).all()
    assert (np.ptp(heatmap(np.zeros_like(IMAGE), np.ones(GRID)), axis=(0, 1)) == 0).all()
