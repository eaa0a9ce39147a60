"""Reads weights that people already have, and puts them into a network: all of them or a clear error."""

import fnmatch
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxprune.checkpoints.rules import to_ours
from jaxprune.errors import UserError
from jaxprune.models.vit import Fixed
from jaxprune.nn.params import variables
from jaxprune.ops.posembed import resample

logger = logging.getLogger(__name__)


def read_tensors(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Reads the tensors of a `.safetensors` or `.npz` file, under the names they have there.

    Raises:
      UserError: there is no such file, it is of another kind, or it is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no weights file {path}: check the path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            return load_file(path)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
    except Exception as error:  # safetensors, zip and numpy have a kind each
        raise UserError(f"{path} cannot be read ({error}): it may be truncated; fetch it again.") from error
    raise UserError(f"{path} is neither .safetensors nor .npz: save the weights as one of those.")


def load_pretrained(
    model: Any,
    source: str | os.PathLike | Mapping[str, Any],
    *,
    new: Sequence[str] = (),
    ignored: Sequence[str] = (),
) -> Any:
    """Fills a network in place with published weights, strictly: every tensor is used and every parameter filled.

    A position table made for another grid is resampled (bicubic) to the network's.

    Args:
      model: a ViT or a masked autoencoder, reducing or not.
      source: a file, or {published name: array}: names of timm (ViT, DeiT) or of the MAE repository, and for a
        reducing network those of the method's modules ("cluster_layers.0.queries"), numbered by stage.
      new: patterns of our parameters that stay as built, such as ("head.*",).
      ignored: patterns of published tensors that are left out, such as ("decoder_*",).

    Returns:
      The network.

    Raises:
      UserError: tensors are missing, left over or of another shape; all of them are named.
    """
    what = str(source) if isinstance(source, (str, os.PathLike)) else "the given tensors"
    tensors = dict(source) if isinstance(source, Mapping) else read_tensors(source)
    tensors = {name: tensor for name, tensor in tensors.items() if not _matches(name, ignored)}
    targets = variables(model)
    found = to_ours(tensors, model)
    _resample_positions(model, targets, found)

    wanted = {name for name in targets if not _matches(name, new)}
    missing = sorted(n for n in wanted - set(found) if not isinstance(targets[n], Fixed))
    left_over = sorted(published for name, (published, _) in found.items() if name not in wanted)
    misfits = sorted(
        f"{published} {tensor.shape} for {name} {targets[name].shape}"
        for name, (published, tensor) in found.items()
        if name in wanted and tensor.shape != targets[name].shape
    )
    problems = [
        *(["missing (list them in new= to keep them as built): " + ", ".join(missing)] if missing else []),
        *(["left over (list them in ignored= to leave them out): " + ", ".join(left_over)] if left_over else []),
        *(["of another shape (both in the layout of this library): " + ", ".join(misfits)] if misfits else []),
    ]
    if problems:
        raise UserError(f"{what} do not fit this {type(model).__name__}; tensors " + "; ".join(problems) + ".")
    for name in wanted & set(found):
        targets[name][...] = jnp.asarray(found[name][1], targets[name].dtype)
    return model


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _resample_positions(model: Any, targets: dict, found: dict[str, tuple[str, np.ndarray]]) -> None:
    name = "encoder.pos_embed" if "encoder.pos_embed" in targets else "pos_embed"
    if name not in found or found[name][1].shape == targets[name].shape or isinstance(targets[name], Fixed):
        return
    published, table = found[name]
    host = model.encoder if name.startswith("encoder") else model
    prefix = targets[name].shape[1] - host.num_patches
    side = math.isqrt(max(table.shape[1] - prefix, 0))
    if table.ndim != 3 or table.shape[2] != host.embed_dim or side * side != table.shape[1] - prefix:
        return
    logger.warning("%s: resampled from a grid of %dx%d to %dx%d", published, side, side, *host.grid)
    found[name] = (published, np.asarray(resample(jnp.asarray(table), (side, side), host.grid, prefix)))
