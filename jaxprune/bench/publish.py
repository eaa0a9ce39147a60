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
    model_name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model_name or platform.processor() or platform.machine()}, {cores} core{'' if cores == 1 else 's'}"


def device() -> dict[str, str]:
    """Returns the columns common to all stored measurements: the device, for CPUs with `machine`, and JAX's version."""
    hardware = jax.devices()[0]
    suffix = f", {machine()}" if hardware.platform == "cpu" else ""
    return {"device": f"{hardware.device_kind} ({platform.machine()}){suffix}", "jax": jax.__version__}


def publish(
    title: str, rows: Rows, path: Path, *, summary: Rows | None = None, quiet: bool = False, **same: Any
) -> None:
    """Prints rows under a title with the device, and writes them to a CSV file with the device.

    Args:
      title: title of the measurements.
      rows: the measurements; all their columns are written.
      path: path of the CSV file.
      summary: rows to print instead of `rows`, which may be too wide for a terminal.
      quiet: print nothing.
      same: further columns of the CSV, with the same value in every row.
    """
    columns = device()
    write_csv(path, rows, **same, **columns)
    if not quiet:
        print(f"\n{title}, {columns['device']}, jax {columns['jax']}\n{as_text(rows if summary is None else summary)}")
        print(f"written to {path}", flush=True)
