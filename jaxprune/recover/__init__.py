"""A network healed under its plan: the dense network teaches it on images without labels."""

from jaxprune.recover.distance import Weights
from jaxprune.recover.healing import Healed, heal, recover
from jaxprune.recover.settings import Settings

__all__ = ["Healed", "Settings", "Weights", "heal", "recover"]
