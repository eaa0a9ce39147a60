"""The processes of one run, joined by `jax.distributed`: which one writes, how they synchronise, how they end together.

In a single process, that process leads and all waits return at once.
"""

import contextlib
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import numpy as np

from jaxprune.errors import UserError, shortened

# Seconds after which a process that does not answer counts as gone: the others end within a minute.
_HEARTBEAT = 40
# What the libraries say when a process of the run has gone.
_PEER_IS_GONE = re.compile(r"Gloo|NCCL|coordination service|heartbeat|closed by peer|reset by peer|UNAVAILABLE", re.I)

_log = logging.getLogger(__name__)


def join(coordinator: str = "", num_processes: int = 0, process_id: int = -1, *, patience: int = 300) -> None:
    """Joins this process to its run; call it before using JAX for anything else.

    Args:
      coordinator: host:port of the first process; empty where JAX detects the cluster (TPU pods, Slurm, MPI).
      num_processes, process_id: the number of processes and the index of this one; with `coordinator` only.
      patience: seconds to wait for the others; after these, this process ends with one line and status 2.

    Raises:
      UserError: one of the three is missing, or there is no cluster.
    """
    arguments = {"coordinator": coordinator, "num_processes": num_processes > 0, "process_id": process_id >= 0}
    missing = [name for name, value in arguments.items() if not value]
    if 0 < len(missing) < len(arguments):
        raise UserError(f"{', '.join(missing)} is missing: give coordinator, num_processes and process_id together.")
    where = f" at {coordinator}" if coordinator else ""
    _log.info("Waiting for the other processes of the run%s, for at most %d s.", where, patience)
    # JAX itself would abort, with a stack trace, and only after its own timeout.
    absent = (
        f"The other processes of the run did not come{where} within {patience} s. Start all of them, and check that "
        "they reach that address."
    )
    alarm = threading.Timer(patience, _end, (absent, 2))
    alarm.daemon = True
    alarm.start()
    timeouts = {"initialization_timeout": patience + _HEARTBEAT, "heartbeat_timeout_seconds": _HEARTBEAT}
    try:
        if missing:
            jax.distributed.initialize(**timeouts)
        else:
            jax.distributed.initialize(coordinator, num_processes, process_id, **timeouts)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"The processes of this run could not be joined ({error}). Without a cluster that JAX detects, give "
            "every process coordinator=HOST:PORT, num_processes=N and process_id=I."
        ) from None
    finally:
        alarm.cancel()


def _end(message: str, status: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(status)


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
        if isinstance(error, UserError):
            _end(str(error), 2)
        if _PEER_IS_GONE.search(str(error)):
            _end(
                f"Another process of the run has ended or cannot be reached ({shortened(error)}). Start all of them "
                "again: the run resumes from its newest checkpoint.",
                1,
            )
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


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
