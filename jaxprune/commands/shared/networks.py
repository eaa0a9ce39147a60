"""Builds networks, plans and scorers from a config."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from jaxprune import checkpoints, models
from jaxprune import open as door
from jaxprune.checkpoints.run import is_ours
from jaxprune.config import Config
from jaxprune.errors import UserError, quoted
from jaxprune.evaluate.contestants import Contestant, contestant
from jaxprune.files import as_path
from jaxprune.models.class_names import imagenet1k
from jaxprune.nn.around_host import host_of
from jaxprune.nn.params import copied
from jaxprune.nn.patch_embed import pair
from jaxprune.open import Classifier, NetworkCache, Origin, ScorerSet
from jaxprune.open.rivals import is_rival, rival
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import Plan, apply
from jaxprune.reduction.parts.apply_plan import require_tokens
from jaxprune.scoring import Scorer

PROPOSAL = "efficientnet_lite0"  # the default ConvNet of patch scorers
IMG_SIZE = 224  # image size if neither the network nor the config has one


# What a user of a command calls the parts of an origin.
SETTINGS = ("--config.run", "--config.model.weights", "--config.model.name")


def origin(config: Config, kind: str = "network") -> Origin:
    """Where the network of a command comes from: `config.run`, or `config.model.weights` of `config.model.name`.

    The weights "random" are those of an untrained network, to try out a config.

    Args:
      kind: what is to be opened, for messages.

    Raises:
      UserError: there is no network, or there are two.
    """
    published = config.model
    arguments = tuple((name, value) for name, value in model_arguments(config).items() if name != "name")
    named = {"run": config.run, "weights": published.weights, "name": published.name}
    return door.named(**named, kind=kind, arguments=arguments, settings=SETTINGS)


def with_origin(config: Config, origin: Origin) -> Config:
    """Returns a copy of the config with another `origin`."""
    run = str(origin) if isinstance(origin, door.Run) else ""
    weights = door.RANDOM if isinstance(origin, door.Random) else "" if run else str(origin)
    published = {**config.model.to_dict(), "weights": weights, "name": getattr(origin, "name", "")}
    return ConfigDict({**config.to_dict(), "run": run, "model": published})


def classifier(config: Config, *, features: bool = False) -> Classifier:
    """Opens the classifier of `origin`.

    Args:
      features: see `open_classifier`.

    Raises:
      UserError: there is no classifier, there are two, or it is another kind of model.
    """
    opened = door.open_classifier(
        origin(config, "classifier"),
        class_names=config.model.class_names,
        img_size=config.img_size or None,
        seed=config.seed,
        features=features,
    )
    if opened.model.preprocessing.num_frames:
        opened.model.preprocessing = with_stride(opened.model.preprocessing, config.frame_stride)
    return opened


def with_head(config: Config) -> Classifier:
    """Opens the classifier of `origin`, or the segmentation network or detector of `config.run`.

    Raises:
      UserError: see `classifier`.
    """
    if not (segments(config) or detects(config)):
        return classifier(config)
    card = checkpoints.load_card(config.run)
    return Classifier(
        checkpoints.load_model(config.run, img_size=config.img_size or None), card.class_names, config.run
    )


def segments(config: Config) -> bool:
    """Whether `config.run` is that of a segmentation network."""
    return bool(config.run) and is_ours(config.run) and checkpoints.load_card(config.run).family == "dense"


def detects(config: Config) -> bool:
    """Whether `config.run` is that of a detector."""
    return bool(config.run) and is_ours(config.run) and checkpoints.load_card(config.run).family == "detector"


def is_dense(config: Config) -> bool:
    """Whether `config.run` holds a network that `segment` or `detect` tests."""
    return segments(config) or detects(config)


def spends_by_image(config: Config) -> bool:
    """Whether `config.run` is that of a network that spends by image."""
    return bool(config.run) and is_ours(config.run) and checkpoints.load_card(config.run).family == "dynamic"


def by_image(config: Config, plans: Sequence[str] = (), option: str = "plans") -> Classifier:
    """Opens the network that spends by image of `config.run`.

    Args:
      plans: that are asked for.
      option: of the config, which asks for them.

    Raises:
      UserError: plans or another image size are set, which such a network does not take.
    """
    if plans or config.img_size:
        raise UserError(
            f"{config.run} holds a network that spends by image, which takes no plans and no other size of images: "
            f"leave --config.{option} and --config.img_size out."
        )
    model, names = checkpoints.load_model(config.run), checkpoints.load_card(config.run).class_names
    return Classifier(model, names or tuple(map(str, range(model.num_classes))), config.run)


def class_names(origin: str, model: Any) -> tuple[str, ...]:
    """The names on the card of a run; of published weights with a thousand classes those of ImageNet-1k."""
    if is_ours(origin):
        return checkpoints.load_card(origin).class_names
    return tuple(imagenet1k()) if getattr(model, "num_classes", 0) == 1000 else ()


def with_stride(record: Preprocessing, frame_stride: int) -> Preprocessing:
    """Returns a clip preprocessing with another frame stride; -1 keeps the stride."""
    return record if frame_stride < 0 else dataclasses.replace(record, frame_stride=frame_stride)


def featured(config: Config) -> Any:
    """Opens the network of `origin`, which needs no classifier, under `config.plan`.

    Raises:
      UserError: there is no network, there are two, or the plan does not fit.
    """
    model = door.open_network(origin(config), img_size=config.img_size or None, seed=config.seed)
    return apply(model, plan(config, config.plan), rngs=nnx.Rngs(config.seed)) if config.plan else model


def start_of(config: Config) -> Origin | None:
    """The origin of the weights that a classifier's training starts with; None = from scratch.

    Raises:
      UserError: both `config.run` and `config.model.weights` are set.
    """
    if not (config.run or config.model.weights):
        return None
    start = origin(config)
    return start if isinstance(start, door.Random) else door.at(str(start))


def model_arguments(config: Config) -> dict[str, Any]:
    """The arguments of `models.create` in `config.model`, without those of other kinds of networks.

    Those are a pooling by the mean for networks that only pool the mean, and what else a ConvNet lacks.
    """
    arguments = {
        name: value for name, value in config.model.to_dict().items() if name not in ("weights", "class_names")
    }
    lacked = [name for name in ("drop_path_rate", "head_init_scale") if name in arguments]
    lacked += [name for name, value in (("global_pool", "avg"), ("remat", False)) if arguments.get(name) == value]
    for name in lacked:
        if not models.takes(arguments["name"], name):
            arguments.pop(name)
    return arguments


def plans(config: Config) -> dict[str, Plan]:
    """The plans of `config.plans`, by text, without the rivals among them."""
    return {text: plan(config, text) for text in config.plans if not is_rival(text)}


def rivals(config: Config, model: Any) -> dict[str, Contestant]:
    """The rivals among `config.plans`, by text: the network on smaller images, for example; see `open.rivals`."""
    return {text: contestant(rival(model, text)) for text in config.plans if is_rival(text)}


def plan(config: Config, text: str, keep_rate: float | None = None) -> Plan:
    """Parses a plan; settings that the text lacks come from the config.

    Args:
      text: the plan, or the `.txt` file with its text, such as the `plan.txt` of `tune`.
      keep_rate: replaces the config's, which may have several.

    Raises:
      UserError: the text is not a plan, or the config has no keep rate.
    """
    if keep_rate is None:
        rates = (config.keep_rate,) if "keep_rate" in config else config.keep_rates
        if not rates:
            raise UserError("keep_rates is empty: give shares of the patches to keep, such as (0.7, 0.5).")
        keep_rate = rates[0]
    return Plan.from_text(_read(text), keep_rate=keep_rate, reduction_loc=tuple(config.reduction_loc) or None)


def under_plan(config: Config, model: Any) -> Any:
    """Returns a network under `config.plan`, or as it is without one.

    Raises:
      UserError: the plan does not fit, or needs `config.scorer`.
    """
    if not config.plan:
        return model
    steps = plan(config, config.plan)
    return apply(model, steps, scorer=guide(config, model) if steps.at_input else None, rngs=nnx.Rngs(config.seed))


def _read(text: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"{quoted(text)} is not a plan: write a text such as 'topk:keep_rate=0.7'.")
    if not text.endswith(".txt"):
        return text
    path = as_path(text)
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The plan {path} cannot be read ({error}): give the plan.txt that tune wrote.") from error


def guide(config: Config, model: Any) -> Scorer | None:
    """Opens `config.scorer`, the scorer of plans with from_scores; None if it is empty.

    The default ConvNet is EfficientNet-Lite0.

    Args:
      model: the network whose patches it ranks, or one around it.

    Raises:
      UserError: the network has no patches to drop, or the text names no scorer.
    """
    if not config.scorer:
        return None
    host, record = host_of(model), model.preprocessing
    require_tokens(host)
    if host is not model:
        host = copied(host)
        host.preprocessing = record
    networks = NetworkCache(host=host, proposal=proposal(PROPOSAL), seed=config.seed)
    opened = door.open_scorers([config.scorer], networks, preprocessing=record, seed=config.seed)
    return door.resized_inputs(opened).scorers[config.scorer]


def proposal(name: str, weights: str = "") -> Origin | None:
    """The origin of the ConvNet that scorers read by default; without a weights file, that of an installed package."""
    if not name:
        return None
    return door.at(weights, name) if weights else door.Package(name)


def open_scorers(config: Config, classifier: Classifier | None = None) -> ScorerSet:
    """Opens `config.scorers`; those with a ConvNet get the images at `config.proposal_size`, if set.

    Args:
      classifier: the classifier whose patches they rank; by default the ViT of `config.run` or `config.model`, or the
        ViT that a scorer reads. Without any of these, patch size, grid and preprocessing come from the config.
    """
    if classifier is None:
        ranked = {"host": origin(config) if config.run or config.model.weights else None, "shape": config.model.name}
        size, grid = pair(config.img_size or IMG_SIZE), config.grid
        mean, std = tuple(config.mean), tuple(config.std)
        record = Preprocessing(size, crop_pct=config.crop_pct, mean=mean, std=std)
    else:
        ranked, record, grid = {"host": classifier.model}, classifier.model.preprocessing, ()
    networks = NetworkCache(**ranked, proposal=proposal(config.proposal, config.weights), seed=config.seed)
    opened = door.open_scorers(config.scorers, networks, preprocessing=record, grid=grid, seed=config.seed)
    if opened.preprocessing.num_frames and "frame_stride" in config:
        opened = opened._replace(preprocessing=with_stride(opened.preprocessing, config.frame_stride))
    return door.resized_inputs(opened, config.proposal_size) if "proposal_size" in config else opened


def open_scorer(config: Config, grid: tuple[int, ...]) -> Scorer:
    """Opens `config.scorer`; the default ConvNet is EfficientNet-Lite0."""
    return door.open_scorer(
        config.scorer,
        NetworkCache(proposal=proposal(PROPOSAL), seed=config.seed),
        size=pair(config.data.img_size),
        grid=tuple(grid),
        normalised=(tuple(config.data.mean), tuple(config.data.std)),
        seed=config.seed,
    )
