"""Benchmarks of plans: accuracy side by side, cost, speed, and measured against theoretical speed-up."""

from jaxprune.bench.comparison import ComparedRow, compare
from jaxprune.bench.figure import plot

__all__ = ["ComparedRow", "compare", "plot"]
