"""A network healed under its plan: the dense network teaches it on images without labels."""

from jaxprune.recover.distance import Weights
from jaxprune.recover.healing import Healed, Settings, heal, recover

__all__ = ["Healed", "Settings", "Weights", "heal", "recover"]
