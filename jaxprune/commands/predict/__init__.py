"""Classifies one image or video: its class, the confidence and a picture."""

from jaxprune.commands.predict.run import missing, run

__all__ = ["missing", "run"]
