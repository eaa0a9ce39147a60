"""Classifies one image or video: its class, the confidence and a picture."""

from jaxprune.commands.predict.run import run
from jaxprune.commands.predict.settings import Settings

__all__ = ["Settings", "defaults", "run"]

defaults = Settings.defaults
