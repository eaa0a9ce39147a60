"""Weights and training states: reading published weights, saving and loading our own."""

from jaxprune.checkpoints.classifier import Classifier, open_classifier
from jaxprune.checkpoints.run import load_card, load_model, save_model
from jaxprune.weights.read import load_pretrained, read_tensors
from jaxprune.weights.write import save_pretrained

__all__ = [
    "Classifier",
    "load_card",
    "load_model",
    "load_pretrained",
    "open_classifier",
    "read_tensors",
    "save_model",
    "save_pretrained",
]
