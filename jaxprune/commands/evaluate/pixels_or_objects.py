"""Evaluates a segmentation network or a detector by the test of its own command."""

from pathlib import Path
from typing import Any

from jaxprune.commands import detect, segment
from jaxprune.commands.evaluate.settings import Settings
from jaxprune.commands.shared import dense_networks, networks
from jaxprune.config import Config
from jaxprune.errors import UserError

# The settings of the batch of a test.
_TEST_BATCH = {"segmenter": "batch_size", "detector": "test_batch"}


def evaluate(config: Config, workdir: Path) -> dict[str, Any]:
    """Tests the network of `config.run` on its own held-out images, dense and under plans.

    Raises:
      UserError: `only_present` is set, which such a network does not take.
    """
    if config.only_present:
        raise UserError(f"{config.run} is not a classifier of images: leave --config.only_present out.")
    command, key = (segment, "segmenter") if networks.segments(config) else (detect, "detector")
    test = dense_networks.test_of_run(command.defaults(), config, key)
    if config.batch_size != Settings.defaults().batch_size:
        (test if command is detect else test.test).update({_TEST_BATCH[key]: config.batch_size})
    return command.run(test, workdir)
