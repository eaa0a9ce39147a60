"""Scorers that wrap another scorer; they cannot be created by name."""

from jaxprune.scoring.parts.wrappers.enlarged import Enlarged

__all__ = ["Enlarged"]
