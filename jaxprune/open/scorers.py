"""Opens patch scorers from text, with the networks that they read."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxprune import scoring
from jaxprune.errors import UserError
from jaxprune.models.convnet import ConvNet
from jaxprune.nn.params import split
from jaxprune.nn.patch_embed import pair
from jaxprune.open.origin import File, Random
from jaxprune.open.scorer_text import NetworkCache, parse_scorer
from jaxprune.preprocessing import Normalisation, Preprocessing, trained_on
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.base import is_host
from jaxprune.scoring.parts.resized_inputs import ResizedInputs
from jaxprune.weights.open_published import open_published
from jaxprune.weights.read import by_timm, load_pretrained, read_tensors
from jaxprune.weights.rules import owns

READABLE = 224  # shorter side that smaller images are enlarged to for ConvNets
GRID = (14, 14)  # the default without a ViT

_log = logging.getLogger(__name__)


class ScorerSet(NamedTuple):
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
    networks: NetworkCache,
    *,
    preprocessing: Preprocessing,
    grid: int | Sequence[int] = (),
    seed: int = 0,
) -> ScorerSet:
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
    arguments = {text: _read(text, networks) for text in texts}
    proposals = {text: scorer.options.get("proposal") for text, scorer in arguments.items()}
    vits: dict[str, Any] = {text: network for text, network in proposals.items() if is_host(network)}
    ranked: Any = next(filter(is_host, (networks.host(), *vits.values(), networks.shape())), None)
    if ranked is not None:
        preprocessing = ranked.preprocessing
        patches, prefix = ranked.entrance(preprocessing.img_size).grid, ranked.num_prefix_tokens
    else:
        patches, prefix = pair(grid or GRID), 1
    size = preprocessing.img_size
    if size[0] % patches[-2] or size[1] % patches[-1]:
        raise UserError(f"Images of {size} pixels are not a grid of {patches} whole patches: change img_size or grid.")
    for text, vit in vits.items():
        if (vit.preprocessing.img_size, vit.grid) != (size, patches):
            raise UserError(
                f"The network of {text!r} reads {vit.preprocessing.img_size} pixels in {vit.grid} patches, another one "
                f"{size} in {patches}: compare them in separate runs."
            )
    normalised, built = (preprocessing.mean, preprocessing.std), {}
    for text, scorer in arguments.items():
        if text not in vits:
            scorer.options["grid"] = patches
        built[text] = _create(text, scorer, normalised, seed)
    return ScorerSet(built, preprocessing, patches, prefix)


def open_scorer(
    text: str,
    networks: NetworkCache,
    *,
    size: tuple[int, int],
    grid: tuple[int, ...],
    normalised: Normalisation,
    seed: int = 0,
) -> Scorer:
    """Opens the scorer of a classifier's patches; one that reads a ConvNet gets small images resized.

    Args:
      text: as in `open_scorers`.
      networks: that it reads when its text names none.
      size: (height, width) of the classifier's images.
      grid: of the classifier's patches.
      normalised: (mean, std) of the classifier's pixels.
      seed: initialises its weights if it has any.
    """
    arguments = _read(text, networks)
    arguments.options.setdefault("grid", tuple(grid))
    return _resized(_create(text, arguments, normalised, seed), size)


def resized_inputs(opened: ScorerSet, side: int = 0) -> ScorerSet:
    """Returns the scorers with those that read a ConvNet getting the images resized.

    Args:
      opened: the scorers.
      side: the shorter side that they get; 0 = `READABLE`, or that of the images if they are larger.
    """
    size = opened.preprocessing.img_size
    return opened._replace(scorers={text: _resized(scorer, size, side) for text, scorer in opened.scorers.items()})


def _resized(scorer: Scorer, size: tuple[int, int], side: int = 0) -> Scorer:
    """Returns a scorer of images of `size` as `resized_inputs` makes it of one that reads a ConvNet; another as it is.

    So is one of clips, whose network resizes them itself, and a ranker, which has an output for each patch.
    """
    shorter = min(size)
    factor = (side or max(shorter, READABLE)) / shorter
    reads_maps = isinstance(scorer.proposal, ConvNet) and scorer.reads != "ranker"
    if factor == 1 or len(scorer.grid) == 3 or not reads_maps:
        return scorer
    return ResizedInputs(scorer, (round(size[0] * factor), round(size[1] * factor)))


class _Arguments(NamedTuple):
    """What a scorer is built from: its name, its options with its networks, and tensors of its own parts."""

    name: str
    options: dict[str, Any]
    tensors: dict[str, Any]


def _read(text: str, networks: NetworkCache) -> _Arguments:
    """Opens what the text of a scorer names."""
    name, origin, options = scorer = parse_scorer(text)
    cls = scoring.methods()[name]
    if isinstance(origin, File) and origin.name and cls.published_rules:
        entries = by_timm(read_tensors(origin.weights, cls.published_entries or None), ())
        tensors = {published: entry.tensor for published, entry in entries.items()}
        parts = {published: tensor for published, tensor in tensors.items() if owns(cls, published)}
        if parts:
            inferred = cls.recognise({published: np.shape(tensor) for published, tensor in parts.items()})
            return _Arguments(name, {**inferred, **options, **_networks_in(cls, tensors, origin.name)}, parts)
    network = networks.open(networks.origin_for(scorer))
    if isinstance(origin, Random):
        _log.warning("%s names no weights: its %s is random, and so are its scores. Add weights=FILE.", text, origin)
    if network is not None:
        options["proposal"] = network
    return _Arguments(name, options, {})


def _networks_in(cls: type[Scorer], tensors: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Returns the networks, all called `model`, in the published file of a scorer; every tensor of theirs is used."""
    networks = {}
    for prefix, attribute in cls.published_networks.items():
        part = {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
        part = {name: tensor for name, tensor in part.items() if not owns(cls, prefix + name)}
        networks[attribute] = open_published(part, model)
    return networks


def _create(text: str, arguments: _Arguments, normalised: Normalisation, seed: int) -> Scorer:
    """Builds a scorer and fills its own parts; warns where it has parts and there are no tensors for them.

    Args:
      normalised: (mean, std) of the pixels, which the scorer converts for a network that knows its own.
    """
    name, options, tensors = arguments
    converts = {} if trained_on(options.get("proposal")) is None else {"normalised": normalised}
    scorer = scoring.create(name, rngs=nnx.Rngs(seed), **{**options, **converts})
    networks = tuple(f"{place}." for place in scorer.published_networks.values())
    if tensors:
        return load_pretrained(scorer, tensors, new=[f"{place}*" for place in networks])
    if any(not weight.startswith(networks) for weight in split(scorer).params):
        _log.warning("%s has its own weights besides its network's; they are random, and so are its scores.", text)
    return scorer
