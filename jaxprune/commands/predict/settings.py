"""The settings of `predict`."""

import os

from jaxprune.commands.shared import inspection
from jaxprune.commands.shared.settings import record, setting
from jaxprune.config import Config
from jaxprune.data.pictures import BUILT_IN
from jaxprune.errors import PLACE, UserError, shortened


def _refuse_folder(path: str) -> None:
    if path != BUILT_IN and os.path.isdir(os.path.expanduser(path)):
        raise UserError(
            f"image={shortened(path, PLACE)} is a folder, and predict reads one file: give a picture or a video in it, "
            "or classify a folder with labels by configs/evaluate.py."
        )


@record()
class Settings(inspection.OnePlan, inspection.ClassifierInspection):
    """A classifier, a segmentation network or a detector, and a picture."""

    FIRST = (
        *("run", "model.weights", "model.name", "image"),
        *("model.class_names", "img_size", "plan", "workdir"),
    )

    scorer: str = inspection.scorer_text("", 'of a plan with from_scores: "norm", "ltrp:run=RUN", …')
    image: str = setting("", 'a file, or "scenes": a built-in picture', _refuse_folder)

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns a message if there is no image."""
        return [] if config.image else ["Give --config.image=FILE, the picture to classify."]
