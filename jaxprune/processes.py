"""The processes of one run, joined by `jax.distributed`: which one writes, and how they synchronise.

In a single process, that process leads and all waits return at once.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxprune.errors import UserError


def join(coordinator: str = "", num_processes: int = 0, process_id: int = -1) -> None:
    """Joins this process to its run; call it before using JAX for anything else.

    Args:
      coordinator: host:port of the first process; empty where JAX detects the cluster (TPU pods, Slurm, MPI).
      num_processes, process_id: the number of processes and the index of this one; with `coordinator` only.

    Raises:
      UserError: one of the three is missing, or there is no cluster.
    """
    arguments = {"coordinator": coordinator, "num_processes": num_processes > 0, "process_id": process_id >= 0}
    missing = [name for name, value in arguments.items() if not value]
    if 0 < len(missing) < len(arguments):
        raise UserError(f"{', '.join(missing)} is missing: give coordinator, num_processes and process_id together.")
    try:
        if missing:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(coordinator, num_processes, process_id)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"The processes of this run could not be joined ({error}). Without a cluster that JAX detects, give "
            "every process coordinator=HOST:PORT, num_processes=N and process_id=I."
        ) from None


def leads() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def wait(name: str) -> None:
    """A barrier: waits until every process reaches the point called `name`."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """Ends this process at once on an exception: otherwise it and the other processes would wait for each other."""
    try:
        yield
    except Exception as error:
        if jax.process_count() == 1:
            raise
        print(f"error: {error}", file=sys.stderr) if isinstance(error, UserError) else traceback.print_exc()
        sys.stderr.flush()
        os._exit(2 if isinstance(error, UserError) else 1)


def most_urgent(level: int) -> int:
    """Returns the maximum of `level` over all processes; a collective call."""
    if jax.process_count() == 1:
        return level
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(level))))


def whole(tree: Any) -> Any:
    """Returns a pytree's arrays as NumPy, gathered from all processes; a collective call."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree, tiled=True)
