"""The settings of `predict`."""

from jaxprune.commands.shared import inspection
from jaxprune.commands.shared.settings import record, setting
from jaxprune.config import Config


@record()
class Settings(inspection.OnePlan, inspection.ClassifierInspection):
    """A classifier, a segmentation network or a detector, and a picture."""

    FIRST = (
        *("run", "model.weights", "model.name", "image"),
        *("model.class_names", "img_size", "plan", "workdir"),
    )

    scorer: str = inspection.scorer_text("", 'of a plan with from_scores: "norm", "ltrp:run=RUN", …')
    image: str = setting("", 'a file, or "scenes": a built-in picture')

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns a message if there is no image."""
        return [] if config.image else ["Give --config.image=FILE, the picture to classify."]
