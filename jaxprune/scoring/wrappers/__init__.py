"""Scorers around another scorer; they are no methods of the family by themselves."""

from jaxprune.scoring.wrappers.enlarged import Enlarged

__all__ = ["Enlarged"]
