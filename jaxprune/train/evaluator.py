"""Averages over a data set, exact whatever the batch size and the padding of the last batch."""

from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from jaxprune import parallel
from jaxprune.errors import UserError
from jaxprune.train.progress import progress

Sums = dict[str, tuple[jax.Array, jax.Array]]


def evaluate(
    eval_fn: Callable[[dict[str, jax.Array], Mapping[str, jax.Array]], Sums],
    params: dict[str, jax.Array],
    batches: Iterable[Mapping[str, np.ndarray]],
    mesh: Mesh,
    *,
    desc: str = "evaluate",
    show_progress: bool = True,
) -> dict[str, float]:
    """Returns {name: sum / count} over all batches.

    Args:
      eval_fn: (params, batch) -> {name: (sum, count)}, compiled here; `metrics.average` makes one from values per row.
      params: {dotted name: array}.
      batches: host batches; `valid` (b,) is False on padding rows, and is added, all True, where a batch lacks it.
      mesh: where to run.
      desc: the progress bar's label.
      show_progress: whether there is a bar.

    Sums and counts are merged in float64 on the host.

    Raises:
      UserError: there is no batch, or a metric counted nothing.
    """
    compiled = jax.jit(eval_fn)
    totals: dict[str, np.ndarray] = {}
    running = None
    with progress(desc, show=show_progress) as bar:
        for batch in batches:
            rows = len(next(iter(batch.values())))
            whole = {"valid": np.ones(rows, bool), **batch}
            # One batch behind: the device works on this one while the host adds up the one before.
            running, finished = compiled(params, parallel.place_batch(mesh, whole)), running
            _merge(totals, finished)
            bar.update(int(np.sum(whole["valid"])))
        _merge(totals, running)
    empty = [name for name, (_, count) in totals.items() if count == 0]
    if empty or not totals:
        raise UserError(f"{desc}: nothing to average{f' for {empty}' if empty else ''}; the evaluation data is empty.")
    return {name: float(total / count) for name, (total, count) in totals.items()}


def _merge(totals: dict[str, np.ndarray], sums: Sums | None) -> None:
    for name, pair in jax.device_get(sums or {}).items():
        totals[name] = totals.get(name, np.zeros(2)) + np.asarray(pair, np.float64)
