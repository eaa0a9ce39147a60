"""Evaluates a segmentation network or a detector by the test of its own command."""

from pathlib import Path
from typing import Any

from jaxprune.commands import detect, segment
from jaxprune.commands.shared import dense_networks, networks
from jaxprune.config import Config


def evaluate(config: Config, workdir: Path) -> dict[str, Any]:
    """Tests the network of `config.run` on its own held-out images, dense and under plans."""
    command, key = (segment, "segmenter") if networks.segments(config) else (detect, "detector")
    return command.run(dense_networks.test_of_run(command.defaults(), config, key), workdir)
