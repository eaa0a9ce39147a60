"""An in-depth analysis of networks under token-reduction plans: accuracy, patterns, features, and lost images."""

from jaxprune.commands.analyse.run import DATA_FOLDER, FOLDER, run
from jaxprune.commands.analyse.settings import Settings

__all__ = ["DATA_FOLDER", "FOLDER", "Settings", "defaults", "run"]

defaults = Settings.defaults
