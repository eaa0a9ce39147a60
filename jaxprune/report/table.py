"""Tables of records, whose fields declare their columns once: for a CSV file, a terminal and a report."""

import csv
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

Rows = Sequence[Mapping[str, Any]]
Record = TypeVar("Record")


@dataclasses.dataclass(frozen=True)
class Column:
    """The column of a field.

    A value is text, a number, or a tuple: (centre, low, high) or (mean, standard deviation), one cell in a report and
    several in a CSV. A mapping {title: value} gives a column to each of its keys. None leaves the cell out.

    Attributes:
      name: its title, without the unit.
      unit: appended to the title.
      format: the format specification of its numbers in a report; by default they have four significant digits.
      best: "max" or "min" if a report highlights the best values.
      ends: the titles of what follows the centre of a tuple; by default "TITLE low" and "TITLE high", or "TITLE std".
    """

    name: str
    unit: str = ""
    format: str = ""
    best: str | None = None
    ends: tuple[str, ...] = ()

    def cells(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yields (title, value) of the cells of a value."""
        if isinstance(value, Mapping):
            yield from value.items()
        elif value is not None:
            yield f"{self.name} {self.unit}".strip(), value

    def parts(self, title: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yields (title, number) of the parts of a cell, as in a CSV."""
        if isinstance(value, tuple):
            ends = self.ends or tuple(f"{title} {end}" for end in (("std",) if len(value) == 2 else ("low", "high")))
            yield from zip((title, *ends), value, strict=True)
        else:
            yield title, value


def column(
    name: str = "",
    unit: str = "",
    *,
    format: str = "",
    best: str | None = None,
    ends: tuple[str, ...] = (),
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declares the column of a field of a frozen dataclass; see `Column`. A field without one is in no table.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Cost:
    ...     plan: str = column("plan")
    ...     latency: tuple[float, float, float] = column("latency", "ms", best="min")
    >>> print(Table([Cost("topk", (2.0, 1.5, 2.25))]).text())
    plan  latency ms  latency ms low  latency ms high
    topk           2             1.5             2.25
    """
    return dataclasses.field(metadata={"column": Column(name, unit, format, best, ends)}, default=default)


class Table(Sequence[Record], Generic[Record]):
    """Records of a frozen dataclass whose fields declare columns, in rows.

    A field that holds another such record has its columns. Columns are in the order in which they first appear.

    Args:
      rows: the records.
      shown: (name of a field) -> whether its column is in the table; by default all are.
    """

    def __init__(self, rows: Iterable[Record] = (), shown: Callable[[str], bool] = lambda field: True):
        self._rows, self._shown = tuple(rows), shown

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> "Table[Record]": ...

    def __getitem__(self, index):
        return Table(self._rows[index], self._shown) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, rows: Iterable[Record]) -> "Table[Record]":
        """Returns other rows with the same columns."""
        return Table(rows, self._shown)

    def only(self, *fields: str) -> "Table[Record]":
        """Returns the same rows with the columns of some fields only."""
        return Table(self._rows, lambda field: self._shown(field) and field in fields)

    def without(self, *fields: str) -> "Table[Record]":
        """Returns the same rows without the columns of some fields."""
        return Table(self._rows, lambda field: self._shown(field) and field not in fields)

    def cells(self) -> list[dict[str, Any]]:
        """Returns {title: value} for each row, as a report shows them."""
        return [{title: value for title, value, _ in self._cells(row)} for row in self]

    def flat(self) -> list[dict[str, Any]]:
        """Returns {title: value} for each row, as a CSV has them: tuples have a column for each part."""
        return [
            {name: part for title, value, column in self._cells(row) for name, part in column.parts(title, value)}
            for row in self
        ]

    def columns(self) -> dict[str, Column]:
        """Returns the columns by title."""
        return {title: column for row in self for title, _, column in self._cells(row)}

    def text(self) -> str:
        """Returns the table for a terminal."""
        return as_text(self.flat())

    def write_csv(self, path: str | os.PathLike, **same: Any) -> None:
        """Writes the table; `same` are columns with one value for all rows, such as the device."""
        write_csv(path, self.flat(), **same)

    def _cells(self, record: Any) -> Iterator[tuple[str, Any, Column]]:
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if dataclasses.is_dataclass(value):
                yield from self._cells(value)
            elif "column" in field.metadata and self._shown(field.name):
                column = field.metadata["column"]
                yield from ((title, cell, column) for title, cell in column.cells(value))


def as_text(rows: Rows) -> str:
    """Formats rows in columns, the first aligned left; numbers with three digits."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    lines = [titles, *([_text(row.get(title, "")) for title in titles] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    aligned = lambda line: [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *aligned(line)]) for line in lines)


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_csv(path: str | os.PathLike, rows: Rows, **same: Any) -> None:
    """Writes rows with the union of their columns; `same` are columns with one value for all, such as the device."""
    columns = list(dict.fromkeys(name for row in [*rows, same] for name in row))
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({**row, **same} for row in rows)
