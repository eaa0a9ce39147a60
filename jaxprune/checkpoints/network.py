"""Opens a network for its features: from a run directory, a file of `save_model`, or published weights."""

import os
import zlib
from typing import Any

import numpy as np

from jaxprune.checkpoints.run import backbone, carries_card, load_model
from jaxprune.errors import UserError
from jaxprune.nn.params import variables
from jaxprune.weights.hub import network_of
from jaxprune.weights.open_published import open_published


def open_network(
    run: str | os.PathLike = "",
    weights: str | os.PathLike = "",
    name: str = "",
    *,
    img_size: int | tuple[int, int] | None = None,
) -> Any:
    """Returns a network, with or without a classifier; for a pre-training framework its encoder.

    Args:
      run: a run directory, or a file that `save_model` wrote.
      weights: a published file, instead of `run`.
      name: of the network that `weights` are of.
      img_size: for images of another size; see `load_model`.

    Raises:
      UserError: there is no network, or there are two.
    """
    if bool(run) == bool(weights):
        what = f"{run} and {weights} are both named: open one of them" if run else "No network is named"
        raise UserError(
            f"{what}. Give --config.run=RUN, a run directory or a file of save_model, or --config.model.weights=FILE "
            "with --config.model.name=NAME, a published file."
        )
    return backbone(load_model(run, img_size=img_size)) if run else open_file(weights, name, img_size=img_size)


def open_file(weights: str | os.PathLike, name: str, *, img_size: int | tuple[int, int] | None = None) -> Any:
    """Opens a published file, which does not say which network it belongs to.

    Raises:
      UserError: it was written by `save_model`, or no network is named.
    """
    if carries_card(weights):
        raise UserError(f"{weights} was written by save_model and describes its own network: give it as a run.")
    name = name or network_of(weights)
    if not name:
        raise UserError(f"{weights} does not say which network it belongs to: name it, such as vit_base_patch16_224.")
    return open_published(weights, name, img_size=img_size)


def fingerprint(model: Any) -> str:
    """Returns the CRC-32 of all arrays of a network, to identify its weights."""
    crc = 0
    for name, variable in sorted(variables(model).items()):
        crc = zlib.crc32(np.asarray(variable[...]).tobytes(), zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"
