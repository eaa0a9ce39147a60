"""A report with every kind of element."""

import numpy as np
import pytest

from jaxprune.report import Report, plots


@pytest.fixture(scope="module")
def full() -> Report:
    """A report with every kind of element; tests must not change it."""
    rng = np.random.default_rng(0)
    report = Report("A <run> & more", "with `code`")
    first = report.section("Pre-training", "One **strong** `a<b` word.\n\n- item\n- *other*\n\n```\nx = 1 < 2\n```")
    first.metric_tiles({"accuracy": 0.5, "loss": (1.25, "chance is 2.3"), "state": "done"})
    first.command("python -m jaxprune.main --config=c.py --config.name='<x>'")
    first.note("careful", "warning")
    plot = plots.line_plot({"a": ([1, 2], [1, 2]), "b": ([1, 2], [2, 1])}, title="loss", bands={"a": ([0, 1], [2, 3])})
    first.figure(plot, "loss").figure(plot, "again")
    first.figure(rng.random((32, 32, 3)), "noise", alt='thirty-two "pixels"')
    inner = first.section("Details")
    inner.gallery([rng.random((8, 8)), plot, np.zeros((8, 8, 1), np.uint8)], ["a", "b", "c"])
    first.section("Details").table([{"x": 1}])
    rows = [{"method": "a & b", "top": (71.25, 0.4), "n": 1200}, {"method": "<c>", "top": 80, "n": None}]
    report.section("Table").table(
        rows, caption="all of it", highlight={"top": "max", "n": "min"}, formats={"top": ".1f"}
    )
    report.section("Raw").html('<p><input type="range" aria-label="keep rate"></p>')
    return report
