"""The settings of `robustness`."""

from collections.abc import Iterator

from jaxprune.commands.shared import inspection
from jaxprune.commands.shared.settings import number, record, refused, setting
from jaxprune.config import Config
from jaxprune.data.corruptions import NAMES, SEVERITIES, Corruption


@record()
class Settings(inspection.OnlyPlans, inspection.Plans, inspection.ClassifierInspection):
    """A classifier, corruptions of its held-out images, and plans to evaluate it under."""

    FIRST = (
        *("run", "model.weights", "model.name", "corruptions", "severities"),
        *("published", "plans", "num_images", "data.source", "data.path"),
    )

    corruptions: tuple[str, ...] = setting(NAMES, "names of the corruptions")
    severities: tuple[int, ...] = setting(SEVERITIES, "from 1 to 5")
    published: str = setting("", "TFDS name of corrupted sets, such as imagenet2012_corrupted; empty: computed here")
    published_split: str = setting("validation", "their split")
    num_images: int = number(1000, "held-out images, evenly spaced; 0: all", at_least=0)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what is wrong with the corruptions."""
        if not config.corruptions or not config.severities:
            yield "corruptions and severities must not be empty: leave them unset for all."
        for name in config.corruptions:
            yield from refused(lambda name=name: Corruption(name, 1))
        for severity in config.severities:
            yield from refused(lambda severity=severity: Corruption("fog", severity))
        if len(set(config.corruptions)) < len(config.corruptions):
            yield f"corruptions={config.corruptions} has a duplicate: name each once."
        if len(set(config.severities)) < len(config.severities):
            yield f"severities={config.severities} has a duplicate: give each once."
