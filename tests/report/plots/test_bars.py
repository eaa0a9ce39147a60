"""Bar plots draw names and values."""

from draw_plot import draw

from jaxprune.report import plots


def test_bar_plot():
    figure = plots.bar_plot(
        {"x": 2.0, "y": 0.1, "z": float("nan")}, errors={"x": 0.5}, reference={"dense": 3.0}, spec=".2f"
    )
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y", "z"]
    assert [text.get_text() for text in axes.texts] == ["2.00", "0.10"]
    assert draw(figure)


def test_reference_lines_never_cross_a_value():
    figure = plots.bar_plot({"x": 0.5, "y": 0.52}, errors={"x": 0.3}, reference={"chance": 0.5}, limits=(0.0, 1.0))
    draw(figure)
    (axes,) = figure.axes
    values, frame = [text.get_window_extent() for text in axes.texts], axes.get_window_extent()
    assert all(box.x0 > frame.x1 and box.x1 < figure.bbox.x1 for box in values)
