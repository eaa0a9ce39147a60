"""The settings of `leaderboard`."""

import os
from collections.abc import Iterator

from jaxprune.commands.shared import inspection, several_networks, train_first
from jaxprune.commands.shared.settings import number, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import PLACE, shortened


@record()
class Settings(inspection.ManyPlans, inspection.ClassifierInspection):
    """Networks and plans to measure, or a leaderboard to check."""

    FIRST = (
        *("run", "model.weights", "model.name", "networks", "plans"),
        *("keep_rates", "num_images", "data.path", "verify", "compare"),
    )

    batch_size: int = number(8, "images a batch", at_least=1)
    rounds: int = number(7, "timing rounds, at least 2 for a range of speeds to check against", at_least=2)
    num_images: int = number(1000, "held-out images, evenly spaced; 0: all", at_least=0)
    verify: str = setting("", "a leaderboard.csv whose rows are checked")
    compare: str = setting("", "another leaderboard.csv, whose ranking by speed is compared with that of `verify`")
    rows: int = number(3, "number of random rows to check; 0: all", at_least=0)
    rows_seed: int = number(-1, "seed of that choice; -1: a new one, which nobody knows beforehand", at_least=-1)
    named: tuple[str, ...] = setting((), 'or the rows to check, each as "NETWORK PLAN"')

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what is wrong with the networks, and with the leaderboards to check."""
        yield from refused(lambda: several_networks.check_names(config))
        for name in ("verify", "compare"):
            if config[name] and not os.path.isfile(os.path.expanduser(config[name])):
                yield f"There is no leaderboard {shortened(config[name], PLACE)}: check {prefix}{name}."
        if config.compare and not config.verify:
            yield f"{prefix}compare needs another leaderboard to compare with: give it as {prefix}verify."

    @staticmethod
    def missing(config: Config) -> Iterator[str]:
        """Yields a message if there is no network."""
        if not (config.compare or config.run or config.model.weights or train_first.brings_run(config)):
            yield (
                "Give --config.run=RUN, the run directory of a classifier, or --config.model.weights=FILE with its "
                "name."
            )
