"""An in-depth analysis of networks under token-reduction plans: accuracy, patterns, features, and lost images."""

from jaxprune.commands.analyse.run import DATA_FOLDER, FOLDER, check, missing, run

__all__ = ["DATA_FOLDER", "FOLDER", "check", "missing", "run"]
