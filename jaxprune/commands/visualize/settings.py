"""The settings of `visualize`."""

from jaxprune.commands.shared import inspection, train_first
from jaxprune.commands.shared.settings import number, record, setting
from jaxprune.config import Config


@record()
class Settings(inspection.Inspection):
    """A pre-training run, and the images to reconstruct; or a run of `segment` or `detect`, and images to draw."""

    FIRST = (
        *("run", "image", "num_images", "data.source"),
        *("data.path", "batch_size", "workdir"),
    )

    image: str = setting("", "a picture; empty: held-out images")
    num_images: int = number(8, "held-out images to draw", at_least=1)

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns a message if there is no pre-trained model."""
        if config.run or train_first.brings_run(config):
            return []
        return ["Give --config.run=RUN, the run directory of a pre-trained model."]
