"""Renders plots in tests."""

import io


def draw(figure) -> bytes:
    """Returns a figure as a small PNG."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=50)
    return data.getvalue()
