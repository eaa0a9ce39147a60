"""Titles are converted to ids."""

from jaxprune.report.ids import slugify


def test_slugify():
    assert [slugify(t) for t in ("Pre-training", "  Was ist das? ", "***")] == [
        "pre-training",
        "was-ist-das",
        "section",
    ]
