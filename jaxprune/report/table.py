"""Rows of values, as text for a terminal and as a CSV file."""

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def as_text(rows: Rows) -> str:
    """Formats rows in columns, the first aligned left; numbers with three digits."""
    cells = _cells(rows)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = (
        [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        for row in cells
    )
    return "\n".join("  ".join(line) for line in lines)


def _cells(rows: Rows) -> list[list[str]]:
    shown = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    return [list(rows[0]), *shown]


def write_csv(path: str | os.PathLike, rows: Rows, **same: Any) -> None:
    """Writes rows with the union of their columns; `same` are columns with one value for all, such as the device."""
    columns = list(dict.fromkeys(name for row in [*rows, same] for name in row))
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({**row, **same} for row in rows)
