"""Maps side by side share one scale."""

import numpy as np
from draw_plot import draw

from jaxprune.report import plots


def test_all_maps_have_the_scale_of_all():
    figure = plots.map_grid({name: np.full((2, 3), value) for value, name in enumerate("abcde")}, "blocks")
    images = [image for axes in figure.axes for image in axes.images]
    assert len(images) == 5 and all(image.get_clim() == (0, 4) for image in images)
    assert [axes.get_title() for axes in figure.axes[:5]] == list("abcde")
    assert draw(figure)
    limited = plots.map_grid({"a": np.ones((2, 2))}, limits=(0, 12))
    assert limited.axes[0].images[0].get_clim() == (0, 12)
