"""A trained classifier, dense and under plans, on held-out images with the corruptions of ImageNet-C."""

from jaxprune.commands.robustness.run import check, run

__all__ = ["check", "run"]
