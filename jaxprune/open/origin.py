"""Where a network comes from: a run, published weights, an installed package, or nothing but its name."""

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
    """Published weights: a file, a directory of shards, or a name on the Hugging Face Hub (see `read_tensors`).

    >>> File("timm:vit_tiny_patch16_224").name
    'vit_tiny_patch16_224.augreg_in21k_ft_in1k'

    Attributes:
      weights: the file.
      name: the network that they belong to, such as "vit_base_patch16_224"; "" if neither the caller nor the Hub tells.
    """

    weights: str | os.PathLike
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or network_of(self.weights))

    def __str__(self) -> str:
        return str(self.weights)


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


Published = File | Package
Origin = Run | Published | Random


def at(path: str | os.PathLike, name: str = "") -> Run | File:
    """Returns the origin at a path: a run if it describes its own network, else published weights of `name`."""
    return Run(path) if is_ours(path) else File(path, name)


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
    return Run(run) if run else File(weights, name)


def parse(text: str) -> Origin:
    """Parses an origin: a run directory or a file of `save_model`, "weights=FILE,name=NAME", or a name on the Hub.

    >>> parse("runs/base"), parse("weights=deit.pth,name=deit_small_patch16_224")
    (Run(path='runs/base'), File(weights='deit.pth', name='deit_small_patch16_224'))

    Raises:
      UserError: the text sets anything else.
    """
    if not text.startswith(("weights=", "name=")):
        return File(text) if is_remote(text) else Run(text)
    items = parse_items(text, f"network {text!r}", texts=("weights", "name"))
    if unknown := set(items) - {"weights", "name"}:
        raise UserError(f"{text!r} sets {', '.join(sorted(unknown))}: a network is a run, or weights=FILE,name=NAME.")
    return named(**items)


def exists(origin: Origin) -> bool:
    """Returns whether a run or a file is there; what is on the Hub or in packages is not looked for."""
    local = isinstance(origin, Run | File) and not is_remote(str(origin))
    return not local or os.path.exists(os.path.expanduser(str(origin)))
