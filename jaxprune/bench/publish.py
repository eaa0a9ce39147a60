"""Prints and stores measurements together with their device."""

import os
import platform
from pathlib import Path
from typing import Any

import jax

from jaxprune.report.table import Rows, as_text, write_csv


def machine() -> str:
    """Returns the name of the processor and the number of cores that this process may use."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{named or platform.processor() or platform.machine()}, {cores} core{'' if cores == 1 else 's'}"


def device() -> dict[str, str]:
    """Returns the columns common to all stored measurements: the device, for CPUs with `machine`, and JAX's version."""
    found = jax.devices()[0]
    more = f", {machine()}" if found.platform == "cpu" else ""
    return {"device": f"{found.device_kind} ({platform.machine()}){more}", "jax": jax.__version__}


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
