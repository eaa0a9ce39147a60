"""Values are formatted for display."""

import numpy as np

from jaxprune.report.formatting import format_value


def test_format_value():
    values = (1234567, 0.123456, 12345.6, 1e-5, None, True, float("nan"), "x", np.float32(0.5))
    texts = ["1,234,567", "0.1235", "12,346", "1.00e-05", "–", "yes", "–", "x", "0.5"]
    assert [format_value(value) for value in values] == texts
    assert format_value((0.5, 0.25), ".2f") == "0.50 ± 0.25"
    assert format_value((2.0, 1.5, 2.25), ".2f") == "2.00 (1.50–2.25)"
    assert format_value((0.5, -0.5, 1.25), ".2f") == "0.50 (-0.50 to 1.25)"
    assert [format_value((0.5, *[float("nan")] * n), ".2f") for n in (1, 2)] == ["0.50", "0.50"]
    assert format_value(("", "", "")) == ""
