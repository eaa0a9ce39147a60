"""The settings of `benchmark`."""

from jaxprune import reduction
from jaxprune.commands.shared import inspection
from jaxprune.commands.shared.settings import number, record, setting


@record()
class Settings(inspection.Rivals, inspection.Plans, inspection.ClassifierInspection):
    """A network, and plans to measure side by side."""

    FIRST = (
        *("run", "model.weights", "model.name", "plans", "keep_rate"),
        *("reduction_loc", "batch_size", "rounds", "num_images", "data.path"),
    )

    plans: tuple[str, ...] = setting(reduction.standalone(), "token-reduction plans")
    rounds: int = number(5, "timing rounds", at_least=1)
    num_images: int = number(1000, "held-out images, evenly spread; 0: all", at_least=0)
