"""A self-contained HTML report: each task adds its sections, and later runs extend the same file."""

from jaxprune.report.page import Report
from jaxprune.report.plan_picture import plan
from jaxprune.report.section import Section

__all__ = ["Report", "Section", "plan"]
