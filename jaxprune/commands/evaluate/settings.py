"""The settings of `evaluate`."""

from jaxprune.commands.shared import groups
from jaxprune.commands.shared.settings import record, setting


@record()
class Settings(groups.Plans, groups.ClassifierInspection):
    """A classifier, its held-out images, and plans to evaluate it under."""

    only_present: bool = setting(
        False, "True: predict only classes present in the held-out images (ImageNet-A, ImageNet-R)"
    )
