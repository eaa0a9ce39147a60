"""From a config to networks, plans and scorers."""

from pathlib import Path
from typing import Any

from jaxprune.checkpoints import scorers
from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.networks import Networks
from jaxprune.checkpoints.scorers import Opened
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.reduction import Plan
from jaxprune.scoring import Scorer


def classifier_card(run: str | Path) -> Card:
    """The card of the run directory of a classifier.

    Raises:
      UserError: there is none, or it holds another kind of model.
    """
    if not run:
        raise UserError("Give --config.run=RUN, the run directory of a classifier.")
    return Card.read(run).require("model", run)


def start_of(config: Config) -> str:
    """What a classifier starts from: the run directory `config.run`, or the published file `config.model.weights`.

    Raises:
      UserError: both are set.
    """
    if config.run and config.model.weights:
        raise UserError(
            f"config.run={config.run} and config.model.weights={config.model.weights} are both set: start from one."
        )
    return config.run or config.model.weights


def model_arguments(config: Config) -> dict[str, Any]:
    """The arguments of `models.create` in `config.model`."""
    return {name: value for name, value in config.model.to_dict().items() if name != "weights"}


def plans(config: Config) -> dict[str, Plan]:
    """The plans that the texts in `config.plans` describe, by text."""
    shared = {"keep_rate": config.keep_rate, "reduction_loc": tuple(config.reduction_loc)}
    return {text: Plan.from_text(text, **shared) for text in config.plans}


def networks(config: Config) -> Networks:
    """The networks that scorers read by default: `config.run`, `config.model`, `config.proposal`."""
    names = {name: config.get(name) or "" for name in ("model", "proposal", "weights")}
    return Networks(run=config.get("run") or "", seed=config.seed, **names)


def open_scorers(config: Config) -> Opened:
    """Opens `config.scorers`; those that read a ConvNet see the images at `config.proposal_size`, if there is one."""
    opened = scorers.open_scorers(
        config.scorers,
        networks(config),
        normalised=(tuple(config.mean), tuple(config.std)),
        img_size=config.get("img_size") or 0,
        grid=config.get("grid") or 0,
        seed=config.seed,
    )
    return scorers.enlarged(opened, config.proposal_size) if "proposal_size" in config else opened


def open_scorer(config: Config, grid: tuple[int, ...]) -> Scorer:
    """Opens `config.scorer`; what ConvNets read is EfficientNet-Lite0 unless its text names another network."""
    return scorers.open_scorer(
        config.scorer,
        Networks(proposal="efficientnet_lite0", seed=config.seed),
        grid=tuple(grid),
        normalised=(tuple(config.data.mean), tuple(config.data.std)),
        seed=config.seed,
    )
