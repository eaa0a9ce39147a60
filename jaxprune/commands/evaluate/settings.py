"""The settings of `evaluate`."""

from jaxprune.commands.shared import inspection
from jaxprune.commands.shared.settings import number, record, setting


@record()
class Settings(inspection.Rivals, inspection.Plans, inspection.ClassifierInspection):
    """A classifier, its held-out images, and plans to evaluate it under."""

    FIRST = (
        *("run", "model.weights", "model.name", "model.class_names", "data.source"),
        *("data.path", "data.eval_split", "plans", "img_size", "only_present"),
    )

    neighbours: int = number(
        5, "without a classifier: nearest images by the full network, to retrieve one of", at_least=1
    )
    only_present: bool = setting(False, "True: predict only classes of the held-out images (ImageNet-A, ImageNet-R)")
