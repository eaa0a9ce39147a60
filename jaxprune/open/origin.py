"""Where a network comes from: a run, a published file, a name on the Hub, an installed package, or nothing."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxprune.checkpoints.run import is_ours
from jaxprune.errors import UserError
from jaxprune.text import parse_items
from jaxprune.weights.hub import is_remote, network_of
from jaxprune.weights.packaged import published_weights

RANDOM = "random"  # in place of a weights file: an untrained network


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory, or a file that `save_model` wrote: both describe their own network."""

    path: str | os.PathLike

    def __str__(self) -> str:
        return str(self.path)


@dataclasses.dataclass(frozen=True)
class File:
    """A published file, or a directory of its shards, and the name of its network, such as "vit_base_patch16_224"."""

    weights: str | os.PathLike
    name: str = ""

    def __str__(self) -> str:
        return str(self.weights)


@dataclasses.dataclass(frozen=True)
class Hub:
    """Weights on the Hugging Face Hub, "hf-hub:OWNER/NAME" or "timm:NAME.TAG", and the name of their network."""

    weights: str
    name: str

    def __str__(self) -> str:
        return self.weights


@dataclasses.dataclass(frozen=True)
class Package:
    """The weights of a named network in an installed Python package."""

    name: str

    @property
    def weights(self) -> Path:
        """The file; a `UserError` if the package is not installed."""
        return published_weights(self.name)

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Random:
    """A named network with random weights; `arguments` are (name, value) pairs for `models.create`."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return self.name


Published = File | Hub | Package
Origin = Run | Published | Random


def published(weights: str | os.PathLike, name: str = "") -> File | Hub:
    """Returns the origin of published weights: a file, or a name on the Hub, which may tell the network.

    >>> published("timm:vit_tiny_patch16_224").name
    'vit_tiny_patch16_224.augreg_in21k_ft_in1k'
    """
    return Hub(str(weights), name or network_of(weights)) if is_remote(weights) else File(weights, name)


def at(path: str | os.PathLike, name: str = "") -> Run | File | Hub:
    """Returns the origin at a path: a run if it describes its own network, else published weights of `name`."""
    return Run(path) if is_ours(path) else published(path, name)


def named(
    run: str | os.PathLike = "",
    weights: str | os.PathLike = "",
    name: str = "",
    *,
    kind: str = "network",
    arguments: Sequence[tuple[str, Any]] = (),
    settings: tuple[str, str, str] = ("run", "weights", "name"),
) -> Origin:
    """Returns the origin that either `run` or `weights` and `name` give.

    >>> named(weights="random", name="resnet18")
    Random(name='resnet18', arguments=())

    Args:
      run: a run directory, or a file that `save_model` wrote.
      weights: published weights, or `RANDOM`.
      name: the network that `weights` belong to.
      kind: what is to be opened, for messages.
      arguments: of a network with random weights; see `Random`.
      settings: what the caller calls the three, for messages.

    Raises:
      UserError: neither is given, or both are.
    """
    if bool(run) == bool(weights):
        fault = f"{run} and {weights} are both named: open one of them" if run else f"No {kind} is named"
        raise UserError(
            f"{fault}. Give {settings[0]}=RUN, the run directory of a {kind} or a file of save_model, or "
            f"{settings[1]}=FILE with {settings[2]}=NAME, a published file."
        )
    if weights == RANDOM:
        return Random(name, tuple(arguments))
    return Run(run) if run else published(weights, name)


def parse(text: str) -> Origin:
    """Parses an origin: a run directory or a file of `save_model`, "weights=FILE,name=NAME", or a name on the Hub.

    >>> parse("runs/base"), parse("weights=deit.pth,name=deit_small_patch16_224")
    (Run(path='runs/base'), File(weights='deit.pth', name='deit_small_patch16_224'))

    Raises:
      UserError: the text sets anything else.
    """
    if is_remote(text):
        return published(text)
    if not text.startswith(("weights=", "name=")):
        return Run(text)
    items = parse_items(text, f"network {text!r}", texts=("weights", "name"))
    if unknown := set(items) - {"weights", "name"}:
        raise UserError(f"{text!r} sets {', '.join(sorted(unknown))}: a network is a run, or weights=FILE,name=NAME.")
    return named(**items)


def exists(origin: Origin) -> bool:
    """Returns whether the files of an origin are there; those of the Hub and of packages are not looked for."""
    if isinstance(origin, (Run, File)):
        return Path(str(origin)).expanduser().exists()
    return True
