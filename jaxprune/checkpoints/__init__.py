"""Weights and training states: reading what people already have, keeping what we make."""

from jaxprune.checkpoints.read import load_pretrained, read_tensors

__all__ = ["load_pretrained", "read_tensors"]
