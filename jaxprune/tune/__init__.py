"""Plans for a device: the cheapest whose risk is bounded, or the safest whose cost is, with a statistical guarantee."""

from jaxprune.tune.bound import Bound
from jaxprune.tune.tuned import Settings, Tuned
from jaxprune.tune.tuning import tune

__all__ = ["Bound", "Settings", "Tuned", "tune"]
