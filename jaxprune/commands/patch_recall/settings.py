"""The settings of `patch_recall`."""

from jaxprune.commands.shared import inspection
from jaxprune.commands.shared.settings import number, record, setting

RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@record(is_open=True)
class Annotations:
    """`config.annotations`: the arguments of the annotations' format, such as `path`."""


@record()
class Settings(inspection.Ranked):
    """Annotated images, and scorers of their patches."""

    FIRST = (
        *("run", "model.weights", "model.name", "scorers", "source"),
        *("unseen", "keep_rates", "num_images", "img_size", "proposal"),
    )

    scorers: tuple[str, ...] = inspection.scorer_texts(("random", "centre", "norm"))
    proposal_size: int = number(0, "shorter side of its input; 0: 224, or the images' if larger", at_least=0)
    source: str = setting("scenes", "scenes (built in, exact masks), yolo, masks, voc, coco or tfds")
    annotations: Annotations = Annotations()
    unseen: str = setting("", "coco or voc: LTRP's list of classes that are not in ImageNet-1k")
    num_images: int = number(500, "0: all", at_least=0)
    min_area: float = setting(0.0, "smallest and largest share of the image that objects of a class cover")
    max_area: float = setting(1.0, "see min_area")
    keep_rates: tuple[float, ...] = number(RATES, "shares of the patches to keep", above=0, at_most=1)
    keep_rate: float = number(0.3, "for the table and the pictures", above=0, at_most=1)
    batch_size: int = number(32, "images a batch", at_least=1)
