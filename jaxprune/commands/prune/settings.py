"""The settings of `prune`."""

from collections.abc import Iterator

from jaxprune.commands.shared import inspection
from jaxprune.commands.shared.settings import number, record, setting
from jaxprune.config import Config


@record()
class Settings(inspection.Scorers, inspection.ClassifierInspection):
    """A classifier, and scorers that prune it."""

    FIRST = (
        *("run", "model.weights", "model.name", "scorers", "keep_rates"),
        *("proposal", "weights", "num_images", "data.source", "data.path"),
    )

    scorers: tuple[str, ...] = inspection.scorer_texts(("papr", "grad_cam", "cam", "score_cam:top_channels=32"))
    proposal_size: int = number(0, "shorter side of its input; 0: 224, or the images' if larger", at_least=0)
    keep_rates: tuple[float, ...] = number((0.7, 0.6, 0.5, 0.4), "shares of the patches to keep", above=0, at_most=1)
    keep_rate: float = number(0.5, "for the timing and the pictures", above=0, at_most=1)
    num_images: int = number(200, "held-out images, evenly spaced; 0: all", at_least=0)
    curve_steps: int = setting(10, "points of the insertion and deletion curves; 0: none")
    sanity: bool = setting(True, "check that scores depend on the image, and on the weights of the scorer's network")
    rounds: int = number(5, "timing rounds, whose median and range are shown; 0: none", at_least=0)

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields that there is no curve, or nothing to prune."""
        if config.curve_steps < 2 and config.curve_steps != 0:
            yield f"curve_steps={config.curve_steps} is not a curve: give 2 or more, or 0 for none."
        if config.keep_rate == 1:
            yield "keep_rate=1, which speed and pictures are for, prunes nothing: give one below 1, such as 0.5."
