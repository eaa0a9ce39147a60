"""A self-contained HTML report: each task adds its sections, and later runs extend the same file."""

from jaxprune.viz.report.page import Report
from jaxprune.viz.report.section import Section

__all__ = ["Report", "Section"]
