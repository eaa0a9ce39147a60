"""Builds networks, plans and scorers from a config."""

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

PROPOSAL = "efficientnet_lite0"  # the default ConvNet of patch scorers
RANDOM = "random"  # instead of a weights file
IMG_SIZE = 224  # image size if neither the network nor the config has one


def classifier(config: Config) -> Classifier:
    """Opens the classifier of `config.run`, or of the published file `config.model.weights`.

    The weights "random" are those of an untrained network, to try out a config.

    Raises:
      UserError: there is no classifier, there are two, or it is another kind of model.
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
    """Returns a clip preprocessing with another frame stride; -1 keeps the stride."""
    return record if frame_stride < 0 else dataclasses.replace(record, frame_stride=frame_stride)


def featured(config: Config) -> Any:
    """Opens the network of `config.run`, or of the published file `config.model.weights`, under `config.plan`.

    It needs no classifier.

    Raises:
      UserError: there is no network, there are two, or the plan does not fit.
    """
    published = config.model
    model = open_network(config.run, published.weights, published.name, img_size=config.img_size or None)
    return apply(model, plan(config, config.plan), rngs=nnx.Rngs(config.seed)) if config.plan else model


def start_of(config: Config) -> str:
    """The start of a classifier's training: the run directory `config.run`, or the file `config.model.weights`.

    Raises:
      UserError: both are set.
    """
    if config.run and config.model.weights:
        raise UserError(
            f"config.run={config.run} and config.model.weights={config.model.weights} are both set: give one of them."
        )
    return config.run or config.model.weights


def model_arguments(config: Config) -> dict[str, Any]:
    """The arguments of `models.create` in `config.model`; no `global_pool` for networks that only pool the mean."""
    chosen = {name: value for name, value in config.model.to_dict().items() if name not in ("weights", "class_names")}
    if chosen.get("global_pool") == "avg" and not models.takes(chosen["name"], "global_pool"):
        chosen.pop("global_pool")
    return chosen


def plans(config: Config) -> dict[str, Plan]:
    """The plans of `config.plans`, by text."""
    return {text: plan(config, text) for text in config.plans}


def plan(config: Config, text: str, keep_rate: float | None = None) -> Plan:
    """Parses a plan; settings that the text lacks come from the config.

    Args:
      keep_rate: replaces the config's, which may have several.
    """
    if keep_rate is None:
        keep_rate = config.keep_rate if "keep_rate" in config else config.keep_rates[0]
    return Plan.from_text(text, keep_rate=keep_rate, reduction_loc=tuple(config.reduction_loc))


def guide(config: Config, model: Any) -> Scorer | None:
    """Opens `config.scorer`, the scorer of plans with from_scores; None if it is empty.

    The default ConvNet is EfficientNet-Lite0.
    """
    if not config.scorer:
        return None
    reads = Networks(run=model, proposal=PROPOSAL, seed=config.seed)
    opened = scorers.open_scorers([config.scorer], reads, preprocessing=model.preprocessing, seed=config.seed)
    return scorers.enlarged(opened).scorers[config.scorer]


def open_scorers(config: Config, classifier: Classifier | None = None) -> Opened:
    """Opens `config.scorers`; those with a ConvNet see the images at `config.proposal_size`, if set.

    Args:
      classifier: the classifier whose patches they rank; by default the ViT of `config.run` or `config.model`, or the
        ViT that a scorer reads. Without any of these, patch size, grid and preprocessing come from the config.
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
    """Opens `config.scorer`; the default ConvNet is EfficientNet-Lite0."""
    return scorers.open_scorer(
        config.scorer,
        Networks(proposal=PROPOSAL, seed=config.seed),
        size=pair(config.data.img_size),
        grid=tuple(grid),
        normalised=(tuple(config.data.mean), tuple(config.data.std)),
        seed=config.seed,
    )
