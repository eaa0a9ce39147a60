"""Converts published weights, or the network of a run, to a file of published weights."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx

from jaxprune import mim, models
from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import load_model
from jaxprune.errors import UserError
from jaxprune.open.origin import Run, at
from jaxprune.weights.architecture import architecture
from jaxprune.weights.open_published import open_published
from jaxprune.weights.read import by_timm, load_pretrained, read_tensors
from jaxprune.weights.write import save_pretrained, writable
from jaxprune.weights.write_names import TIMM


def convert(
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    model: str | None = None,
    key: str | None = None,
    ignored: Sequence[str] = (),
    names: str = TIMM,
    overwrite: bool = False,
) -> Any:
    """Reads weights strictly and writes them with `save_pretrained`.

    Args:
      source: any file that `read_tensors` reads, or a run directory.
      model: name of a model that they are of, such as "vit_base_patch16_224"; by default as their shapes show. Of a
        masked autoencoder, the encoder's.
      key: see `read_tensors`.
      ignored: see `load_pretrained`.
      names: see `save_pretrained`.

    Returns:
      The network. If it is read from a file, the number of heads is a guess unless `model` is given.

    Raises:
      UserError: the weights belong to no known network, or not to `model`.
    """
    writable(output, overwrite, names)
    if isinstance(at(source), Run):
        if extra := [name for name, value in (("model", model), ("key", key), ("ignored", ignored)) if value]:
            raise UserError(f"{source} is a run, which describes its own network: leave out {' and '.join(extra)}.")
        network = load_model(source)
    elif model is not None and not _of_framework(source, key, ignored):
        network = open_published(source, model, key=key, ignored=ignored)
    else:
        tensors = read_tensors(source, key)
        kind, arguments = architecture(by_timm(tensors, ignored), str(source))
        if model is not None:
            arguments |= {name: value for name, value in models.arguments(model).items() if name in arguments}
        network = build(kind, arguments, rngs=nnx.Rngs(0))
        load_pretrained(network, tensors, ignored=ignored)
    save_pretrained(network, output, names=names, overwrite=overwrite)
    return network


def _of_framework(source: str | os.PathLike, key: str | None, ignored: Sequence[str]) -> bool:
    tensors = by_timm(read_tensors(source, key), ignored)
    return mim.recognise({name: np.shape(entry.tensor) for name, entry in tensors.items()}) is not None
