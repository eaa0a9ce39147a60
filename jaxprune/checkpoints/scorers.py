"""Opens patch scorers from text, with the networks that they read."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxprune import scoring
from jaxprune.checkpoints.networks import Networks, nothing_to_read
from jaxprune.checkpoints.run import carries_card
from jaxprune.errors import UserError, unknown
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.params import split
from jaxprune.nn.patch_embed import pair
from jaxprune.preprocessing import Normalisation, Preprocessing, trained_on
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.base import is_host
from jaxprune.scoring.parts.wrappers import Enlarged
from jaxprune.text import parse_items
from jaxprune.weights.open_published import open_published
from jaxprune.weights.packaged import published_weights
from jaxprune.weights.read import by_timm, load_pretrained, read_tensors
from jaxprune.weights.rules import owns

READABLE = 224  # shorter side that smaller images are enlarged to for ConvNets
GRID = (14, 14)  # the default without a ViT

_log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """Scorers for the same patch grid and images.

    Attributes:
      scorers: by the text that describes them.
      preprocessing: preprocessing of their images.
      grid: of the patches, (rows, columns), or (layers, rows, columns) of the tubes of clips.
      num_prefix_tokens: of the ViT whose patches are ranked; a count that includes the CLS token needs it.
    """

    scorers: dict[str, Scorer]
    preprocessing: Preprocessing
    grid: tuple[int, ...]
    num_prefix_tokens: int

    @property
    def size(self) -> tuple[int, ...]:
        """(height, width) of the images, or (frames, height, width) of clips."""
        return self.preprocessing.sides


def open_scorers(
    texts: Sequence[str],
    networks: Networks,
    *,
    preprocessing: Preprocessing,
    grid: int | Sequence[int] = (),
    seed: int = 0,
) -> Opened:
    """Opens scorers.

    A scorer is written as "random", "ltrp:run=RUN" or "papr:model=NAME,weights=FILE": `run` is a run directory,
    `weights` a file of the network called `model`; other options are the scorer's own. Without them it reads one of
    `networks`, where it reads any. The published file of a selector with parts of its own, such as
    "ia_red2:model=deit_small_patch16_224,weights=FILE", fills those too.

    Preprocessing and grid are those of the ViT whose patches are ranked: the one that is open or has weights in
    `networks`, else the first among the scorers' own, else the one whose name `networks` has. Every other network gets
    the same images, normalised as it wants them.

    Args:
      texts: one text per scorer.
      networks: that scorers read when their texts name none.
      preprocessing: of the images, where there is no ViT.
      grid: of the patches, where there is no ViT; () = `GRID`.
      seed: seed for scorers with parameters.

    Raises:
      UserError: an item is not `name=value`, a scorer cannot be built, weights are missing, or two networks read images
        of different sizes.
    """
    described = {text: _read(text, networks) for text in texts}
    proposals = {text: read.options.get("proposal") for text, read in described.items()}
    vits = {text: network for text, network in proposals.items() if is_host(network)}
    ranked = next(filter(is_host, (networks.host(), *vits.values(), networks.vit())), None)
    if ranked is not None:
        preprocessing = ranked.preprocessing
        patches, prefix = ranked.entrance(preprocessing.img_size).grid, ranked.num_prefix_tokens
    else:
        patches, prefix = pair(grid or GRID), 1
    size = preprocessing.img_size
    if size[0] % patches[-2] or size[1] % patches[-1]:
        raise UserError(f"Images of {size} pixels are not a grid of {patches} whole patches: change img_size or grid.")
    scorers = {}
    for text, (name, options, own) in described.items():
        vit = vits.get(text)
        if vit is None:
            options["grid"] = patches
        elif (vit.preprocessing.img_size, vit.grid) != (size, patches):
            raise UserError(
                f"The network of {text!r} reads {vit.preprocessing.img_size} pixels in {vit.grid} patches, another one "
                f"{size} in {patches}: compare them in separate runs."
            )
        normalised = _converts(options, (preprocessing.mean, preprocessing.std))
        scorers[text] = _create(text, name, {**options, **normalised}, own, seed)
    return Opened(scorers, preprocessing, patches, prefix)


def open_scorer(
    text: str,
    networks: Networks,
    *,
    size: tuple[int, int],
    grid: tuple[int, ...],
    normalised: Normalisation,
    seed: int = 0,
) -> Scorer:
    """Opens the scorer of a classifier's patches; one that reads a ConvNet sees small images resized, as `enlarged`.

    Args:
      text: as in `open_scorers`.
      networks: that it reads when its text names none.
      size: (height, width) of the classifier's images.
      grid: of the classifier's patches.
      normalised: (mean, std) of the classifier's pixels.
      seed: initialises its weights if it has any.
    """
    name, options, own = _read(text, networks)
    scorer = _create(text, name, {"grid": tuple(grid), **options, **_converts(options, normalised)}, own, seed)
    return _seeing(scorer, size)


def enlarged(opened: Opened, side: int = 0) -> Opened:
    """Returns the scorers with those that read a ConvNet seeing the images resized.

    Args:
      opened: the scorers.
      side: the shorter side that they see; 0 = `READABLE`, or that of the images if they are larger.
    """
    scorers = {text: _seeing(scorer, opened.preprocessing.img_size, side) for text, scorer in opened.scorers.items()}
    return opened._replace(scorers=scorers)


def _seeing(scorer: Scorer, size: tuple[int, int], side: int = 0) -> Scorer:
    """Returns a scorer of images of `size` as `enlarged` makes it of one that reads a ConvNet; any other as it is.

    So is one of clips, whose network resizes them itself.
    """
    shorter = min(size)
    factor = (side or max(shorter, READABLE)) / shorter
    if factor == 1 or len(scorer.grid) == 3 or not isinstance(scorer.proposal, ConvNet):
        return scorer
    return Enlarged(scorer, (round(size[0] * factor), round(size[1] * factor)))


class Described(NamedTuple):
    """The parsed text of a scorer.

    Attributes:
      name: of the scorer.
      run, weights, model: of the network that it reads; empty where the text does not say.
      options: the scorer's own.
    """

    name: str
    run: str
    weights: str
    model: str
    options: dict[str, Any]


def describe(text: str) -> Described:
    """Parses the text of a scorer, such as "papr:model=NAME,weights=FILE,with_fc=true"; opens nothing.

    Raises:
      UserError: there is no such scorer, or an item is not `name=value`.
    """
    name, _, rest = text.partition(":")
    options = parse_items(rest, f"scorer {text!r}", texts=("run", "weights", "model"))
    network = {part: options.pop(part, "") for part in ("run", "weights", "model")}
    if name not in (known := scoring.methods()):
        raise unknown("scoring method", name, known)
    return Described(name, **network, options=options)


def require_network(text: str, *, host: bool, proposal: str, weights: str = "") -> None:
    """Raises for a scorer without a network in `Networks`; opens nothing.

    Args:
      text: as in `open_scorers`.
      host: whether there is a ViT or ranker that scorers read by default.
      proposal, weights: see `Networks`.

    Raises:
      UserError: its text names no network, and there is none by default.
    """
    name, run, file, model, options = describe(text)
    cls = scoring.methods()[name]
    if run or file or model or cls.reads in ("nothing", "optional"):
        return
    if cls.reads in ("vit", "ranker"):
        if not host:
            raise nothing_to_read(name, cls.reads)
    elif not proposal:
        raise nothing_to_read(name, cls.reads)
    elif len(cls.published_networks) > 1 and not options:
        raise UserError(
            f"{name} reads networks that were trained with it: write {name}:model=NAME,weights=FILE with its file."
        )
    elif not weights:
        published_weights(proposal)


class _Read(NamedTuple):
    """What opening the text of a scorer gives: its name, its options with its networks, tensors of its own parts."""

    name: str
    options: dict[str, Any]
    own: dict[str, Any]


def _read(text: str, networks: Networks) -> _Read:
    """Opens what the text of a scorer names."""
    name, run, weights, model, options = describe(text)
    cls = scoring.methods()[name]
    if weights and model and not run and cls.published_rules and not carries_card(weights):
        found = by_timm(read_tensors(weights, cls.published_entries or None), ())
        tensors = {published: entry.tensor for published, entry in found.items()}
        own = {published: tensor for published, tensor in tensors.items() if owns(cls, published)}
        if own:
            shown = cls.recognise({published: np.shape(tensor) for published, tensor in own.items()})
            return _Read(name, {**shown, **options, **_networks_in(cls, tensors, model)}, own)
    if run or weights or model:
        network = networks.open(run or weights, model)
    else:
        network = networks.usual(name, cls.reads)
    if model and not (run or weights):
        _log.warning("%s names no weights: its %s is random, and so are its scores. Add weights=FILE.", text, model)
    if network is not None:
        options["proposal"] = network
    return _Read(name, options, {})


def _networks_in(cls: type[Scorer], tensors: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Returns the networks, all called `model`, in the published file of a scorer; every tensor of theirs is used."""
    opened = {}
    for theirs, ours in cls.published_networks.items():
        part = {name.removeprefix(theirs): tensors[name] for name in tensors if name.startswith(theirs)}
        opened[ours] = open_published({name: part[name] for name in part if not owns(cls, theirs + name)}, model)
    return opened


def _create(text: str, name: str, arguments: dict[str, Any], own: Mapping[str, Any], seed: int) -> Scorer:
    """Builds a scorer and fills its own parts with `own`; warns where it has parts and there is nothing for them."""
    scorer = scoring.create(name, rngs=nnx.Rngs(seed), **arguments)
    networks = tuple(f"{place}." for place in scorer.published_networks.values())
    if own:
        return load_pretrained(scorer, own, new=[f"{place}*" for place in networks])
    if any(not weight.startswith(networks) for weight in split(scorer).params):
        _log.warning("%s has its own weights besides its network's; they are random, and so are its scores.", text)
    return scorer


def _converts(options: Mapping[str, Any], normalised: Normalisation) -> dict[str, Normalisation]:
    """Returns the argument by which a scorer converts the pixels for its network, if that knows its own."""
    return {} if trained_on(options.get("proposal")) is None else {"normalised": normalised}
