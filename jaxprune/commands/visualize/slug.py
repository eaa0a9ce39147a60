"""The name of the section and the files of what is drawn."""

from jaxprune.commands.shared.picture_name import picture_name
from jaxprune.config import Config


def slug(config: Config) -> str:
    """The name of the section and the files: another one for other images, or another run."""
    about = config.run, config.data.source, config.data.path, config.num_images
    return picture_name("visualize", config.image or "held-out", *about)
