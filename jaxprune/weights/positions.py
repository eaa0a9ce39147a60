"""Position tables made for another grid or window, resampled to a network's: the only place that does.

Each family has its rule. Learned positions of patches are resized as maps (`Host.position_rule`), relative positions of
pairs are spread as in BEiT, and computed ones are those that the network computes for its own grid.
"""

import logging
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxprune.dense import Segmenter
from jaxprune.mim import Framework
from jaxprune.nn import Host
from jaxprune.nn.host import at_path
from jaxprune.nn.params import Computed, variables
from jaxprune.ops.posembed import Resampling, resample, resample_relative, table_grid
from jaxprune.weights.sources.timm import RELATIVE

_ABSOLUTE = "pos_embed"
# The encoders and decoders of pre-training frameworks are MAE's, whatever their sizes are called; segmentation code of
# MAE and BEiT resizes positions likewise.
_OF_FRAMEWORKS = Resampling("bicubic", antialias=False)

_log = logging.getLogger(__name__)


def table_names(network: Any) -> list[str]:
    """The dotted names of a network's position tables."""
    return [name for name in variables(network) if is_table(name)]


def is_table(name: str) -> bool:
    """Whether a dotted name is that of a position table."""
    return name.rpartition(".")[2] in (_ABSOLUTE, RELATIVE)


def resample_to(
    model: Any,
    name: str,
    table: Any,
    *,
    source: Any = None,
    antialias: bool | None = None,
    label: str | None = None,
) -> np.ndarray:
    """Resamples a position table to the grid of `model`, which has it under `name`, by the rule of its family.

    A table of another network, and not only of another grid, is returned unchanged.

    Args:
      table: an array in the layout of this library, of any grid or window.
      source: the network that the table is of, possibly abstract (`nnx.eval_shape`); None infers the grid from the
        number of rows, see `ops.posembed.table_grid` and `resample_relative`.
      antialias: replaces that of the family's rule.
      label: name of the table in messages, by default `name`.

    Raises:
      UserError: the rows make no grid.
    """
    table, path = np.asarray(table), name.rpartition(".")[0]
    shape = at_path(model, name).shape
    if table.ndim != len(shape) or table.shape[-1] != shape[-1]:
        return table
    if name.endswith(RELATIVE):
        return _relative(model, path.removesuffix(".attn"), table, shape, source)
    return _absolute(model, path, table, source, antialias, label or name)


def _relative(model: Any, path: str, table: np.ndarray, shape: tuple[int, ...], source: Any) -> np.ndarray:
    if source is None and table.shape == shape:
        return table
    (grid, num_extra), old_grid = _offsets(model, path), None if source is None else _offsets(source, path)[0]
    cubic = isinstance(model, Segmenter)  # as in BEiT's segmentation code; linear in timm's
    return resample_relative(table, grid, num_extra, old_grid=old_grid, cubic=cubic)


def _offsets(network: Any, path: str) -> tuple[tuple[int, int], int]:
    """The grid or window of a block's relative positions, and the number of rows of their table for the CLS token."""
    block = at_path(network, path)
    windows = getattr(block, "windows", None)
    return (block.grid, 3) if windows is None else (windows.size, 0)


def _absolute(model: Any, path: str, table: np.ndarray, source: Any, antialias: bool | None, label: str) -> np.ndarray:
    owner = _part(model, path)
    target, grid = owner.pos_embed, _grid(owner)
    old_grid = None if source is None else _grid(_part(source, path))
    if grid is None or table.ndim != 3 or len(table) != 1 or (source is None and table.shape == target.shape):
        return table
    if isinstance(target, Computed):
        return table if old_grid == grid else np.asarray(target[...])
    prefix = target.shape[1] - math.prod(grid)
    if old_grid is None:
        old_grid = table_grid(table.shape[1], prefix, grid, label)
        _log.info("%s: resampled from a grid of %s to %s", label, *("x".join(map(str, g)) for g in (old_grid, grid)))
    elif table.shape[1] != prefix + math.prod(old_grid):
        return table
    of_framework = (isinstance(model, Framework | Segmenter) and path == "encoder") or not isinstance(owner, Host)
    rule = _OF_FRAMEWORKS if of_framework else owner.position_rule
    smooth = rule.antialias if antialias is None else antialias
    return np.asarray(resample(jnp.asarray(table), old_grid, grid, prefix, **rule._replace(antialias=smooth)._asdict()))


def _part(network: Any, path: str) -> Any:
    return at_path(network, path) if path else network


def _grid(owner: Any) -> tuple[int, ...] | None:
    """The grid of patches that the position table of a network, or of a decoder, is for."""
    position_grid = getattr(owner, "position_grid", None)
    if position_grid is not None or not isinstance(owner, Host):
        return position_grid or getattr(owner, "grid", None)
    return owner.sites()[0].grid
