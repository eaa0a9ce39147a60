"""Prints and stores measurements together with their device."""

import platform
from pathlib import Path
from typing import Any

import jax

from jaxprune.viz.table import Rows, as_text, write_csv


def device() -> dict[str, str]:
    """Returns the columns common to all stored measurements: the device, and the version of JAX."""
    return {"device": f"{jax.devices()[0].device_kind} ({platform.machine()})", "jax": jax.__version__}


def publish(title: str, rows: Rows, path: Path, *, shown: Rows | None = None, quiet: bool = False, **same: Any) -> None:
    """Prints rows under a title with the device, and writes them to a CSV file with the device.

    Args:
      title: title of the measurements.
      rows: the measurements; all their columns are written.
      path: path of the CSV file.
      shown: rows to print instead of `rows`, which may be too wide for a terminal.
      quiet: print nothing.
      same: further columns of the CSV, with the same value in every row.
    """
    named = device()
    write_csv(path, rows, **same, **named)
    if not quiet:
        print(f"\n{title}, {named['device']}, jax {named['jax']}\n{as_text(rows if shown is None else shown)}")
        print(f"written to {path}", flush=True)
