"""From a config to networks, plans and scorers."""

import dataclasses
from typing import Any

from flax import nnx

from jaxprune import models
from jaxprune.checkpoints import scorers
from jaxprune.checkpoints.classifier import Classifier, open_classifier
from jaxprune.checkpoints.network import open_network
from jaxprune.checkpoints.networks import Networks
from jaxprune.checkpoints.scorers import Opened
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import Plan, apply
from jaxprune.scoring import Scorer
from jaxprune.tasks.setup.defaults import PROPOSAL

RANDOM = "random"  # in place of a file of weights
IMG_SIZE = 224  # of images, where neither a network nor the config has one


def classifier(config: Config) -> Classifier:
    """Opens the classifier of `config.run`, or of the published file `config.model.weights`.

    Weights called "random" are those of a network that was never trained, to try out what is to be run.

    Raises:
      UserError: there is none, there are two, or it is another kind of model.
    """
    published = config.model
    if published.weights == RANDOM:
        model = models.create(**model_arguments(config), rngs=nnx.Rngs(config.seed))
        opened = Classifier(model, tuple(map(str, range(model.num_classes))), published.name)
    else:
        opened = open_classifier(
            config.run,
            published.weights,
            published.name,
            class_names=published.class_names,
            img_size=config.img_size or None,
        )
    if opened.model.preprocessing.num_frames:
        opened.model.preprocessing = with_stride(opened.model.preprocessing, config.frame_stride)
    return opened


def with_stride(record: Preprocessing, frame_stride: int) -> Preprocessing:
    """A record of clips with another distance of their frames; -1 leaves it as it is."""
    return record if frame_stride < 0 else dataclasses.replace(record, frame_stride=frame_stride)


def featured(config: Config) -> Any:
    """Opens the network of `config.run`, or of the published file `config.model.weights`, under `config.plan`.

    It needs no classifier.

    Raises:
      UserError: there is none, there are two, or the plan is not for it.
    """
    published = config.model
    model = open_network(config.run, published.weights, published.name, img_size=config.img_size or None)
    return apply(model, plan(config, config.plan), rngs=nnx.Rngs(config.seed)) if config.plan else model


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
    """The arguments of `models.create` in `config.model`; no `global_pool` where a network always pools the mean."""
    chosen = {name: value for name, value in config.model.to_dict().items() if name not in ("weights", "class_names")}
    if chosen.get("global_pool") == "avg" and not models.takes(chosen["name"], "global_pool"):
        chosen.pop("global_pool")
    return chosen


def plans(config: Config) -> dict[str, Plan]:
    """The plans that the texts in `config.plans` describe, by text."""
    return {text: plan(config, text) for text in config.plans}


def plan(config: Config, text: str, keep_rate: float | None = None) -> Plan:
    """The plan that a text describes; what it does not say is the config's.

    Args:
      keep_rate: in place of the config's, which may have several.
    """
    if keep_rate is None:
        keep_rate = config.keep_rate if "keep_rate" in config else config.keep_rates[0]
    return Plan.from_text(text, keep_rate=keep_rate, reduction_loc=tuple(config.reduction_loc))


def guide(config: Config, model: Any) -> Scorer | None:
    """Opens `config.scorer`, which drops patches of a network under plans with from_scores; None where it is empty.

    What ConvNets read is EfficientNet-Lite0 unless the text names another network.
    """
    if not config.scorer:
        return None
    reads = Networks(run=model, proposal=PROPOSAL, seed=config.seed)
    opened = scorers.open_scorers([config.scorer], reads, preprocessing=model.preprocessing, seed=config.seed)
    return scorers.enlarged(opened).scorers[config.scorer]


def open_scorers(config: Config, classifier: Classifier | None = None) -> Opened:
    """Opens `config.scorers`; those that read a ConvNet see the images at `config.proposal_size`, if there is one.

    Args:
      classifier: whose patches they rank; else those of the ViT of `config.run` or `config.model`, or of the ViT that a
        scorer reads. Without any, the size and grid of the patches and what happens to the images are the config's.
    """
    if classifier is None:
        named = {"run": config.run, "model": config.model.name, "model_weights": config.model.weights}
        size, grid = pair(config.img_size or IMG_SIZE), config.grid
        mean, std = tuple(config.mean), tuple(config.std)
        record = Preprocessing(size, crop_pct=config.crop_pct, mean=mean, std=std)
    else:
        named, record, grid = {"run": classifier.model}, classifier.model.preprocessing, ()
    networks = Networks(proposal=config.proposal, weights=config.weights, seed=config.seed, **named)
    opened = scorers.open_scorers(config.scorers, networks, preprocessing=record, grid=grid, seed=config.seed)
    if opened.preprocessing.num_frames and "frame_stride" in config:
        opened = opened._replace(preprocessing=with_stride(opened.preprocessing, config.frame_stride))
    return scorers.enlarged(opened, config.proposal_size) if "proposal_size" in config else opened


def open_scorer(config: Config, grid: tuple[int, ...]) -> Scorer:
    """Opens `config.scorer`; what ConvNets read is EfficientNet-Lite0 unless its text names another network."""
    return scorers.open_scorer(
        config.scorer,
        Networks(proposal=PROPOSAL, seed=config.seed),
        size=pair(config.data.img_size),
        grid=tuple(grid),
        normalised=(tuple(config.data.mean), tuple(config.data.std)),
        seed=config.seed,
    )
