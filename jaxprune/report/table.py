"""Tables of records, whose fields declare their columns once: for a CSV file, a terminal and a report."""

import csv
import dataclasses
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from jaxprune.files import write_atomically
from jaxprune.report.formatting import format_number, format_value
from jaxprune.report.latex_table import latex_table
from jaxprune.text import abridged

Rows = Sequence[Mapping[str, Any]]
Record = TypeVar("Record")

_ENDS = {1: ("std",), 2: ("low", "high")}


@dataclasses.dataclass(frozen=True)
class Column:
    """The column of a field.

    A value is text, a number, or a tuple: (centre, low, high) or (mean, standard deviation), one cell in a report and
    several in a CSV; None inside of it is a blank. A mapping {title: value} gives a column to each of its keys. None
    leaves the cell out.

    Attributes:
      name: its title, without the unit.
      unit: appended to the title.
      format: the format specification of its numbers in a report; by default they have four significant digits.
      best: "max" or "min" if a report highlights the best values.
      header: the title in a report, if it is another one.
      ends: the titles of what follows the centre of a tuple; by default "TITLE low" and "TITLE high", or "TITLE std".
    """

    name: str
    unit: str = ""
    format: str = ""
    best: str | None = None
    header: str = ""
    ends: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The title in a CSV and a terminal."""
        return f"{self.name} {self.unit}".strip()

    def cells(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yields (title, value) of the cells of a value in a report."""
        if isinstance(value, Mapping):
            yield from value.items()
        elif value is not None:
            yield self.header or self.title, value

    def parts(self, value: Any, ends: bool = True) -> Iterator[tuple[str, Any]]:
        """Yields (title, number) of the cells of a value in a CSV, with or without the ends of tuples."""
        if isinstance(value, Mapping):
            yield from value.items()
        elif isinstance(value, tuple):
            yield self.title, value[0]
            titles = self.ends or tuple(f"{self.title} {end}" for end in _ENDS[len(value) - 1])
            yield from zip(titles, value[1:], strict=True) if ends else ()
        elif value is not None:
            yield self.title, value


def column(
    name: str = "",
    unit: str = "",
    *,
    format: str = "",
    best: str | None = None,
    header: str = "",
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
    return dataclasses.field(metadata={"column": Column(name, unit, format, best, header, ends)}, default=default)


class Table(Sequence[Record], Generic[Record]):
    """Records of a frozen dataclass whose fields declare columns, in rows.

    A field that holds another such record has its columns. Columns are in the order in which they first appear.

    Args:
      rows: the records.
      fields: the fields whose columns are in the table, in order; by default all.
      hidden: fields whose columns are not.
    """

    def __init__(self, rows: Iterable[Record] = (), fields: Sequence[str] = (), hidden: Sequence[str] = ()):
        self._rows, self._fields, self._hidden = tuple(rows), tuple(fields), tuple(hidden)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> "Table[Record]": ...

    def __getitem__(self, index):
        return self.of(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, rows: Iterable[Record]) -> "Table[Record]":
        """Returns other rows with the same columns."""
        return Table(rows, self._fields, self._hidden)

    def only(self, *fields: str) -> "Table[Record]":
        """Returns the same rows with the columns of these fields, in this order."""
        return Table(self._rows, fields, self._hidden)

    def without(self, *fields: str) -> "Table[Record]":
        """Returns the same rows without the columns of some fields."""
        return Table(self._rows, self._fields, (*self._hidden, *fields))

    def cells(self) -> list[dict[str, Any]]:
        """Returns {title: value} for each row, as a report shows them."""
        return [
            _distinct((title, cell) for column, value in self._values(row) for title, cell in column.cells(value))
            for row in self
        ]

    def flat(self, ends: bool = True) -> list[dict[str, Any]]:
        """Returns {title: value} for each row, as a CSV has them: tuples have a column for each of their parts.

        Args:
          ends: whether what follows the centre of a tuple is there.
        """
        return [
            _distinct((title, cell) for column, value in self._values(row) for title, cell in column.parts(value, ends))
            for row in self
        ]

    def columns(self) -> dict[str, Column]:
        """Returns the columns by their title in a report."""
        return {
            title: column for row in self for column, value in self._values(row) for title, _ in column.cells(value)
        }

    def text(self, ends: bool = True) -> str:
        """Returns the table for a terminal; see `flat`."""
        return as_text(self.flat(ends))

    def brief(self) -> str:
        """Returns the table for a narrow terminal: its cells are those of a report, intervals in brackets."""
        formats = {title: column.format for title, column in self.columns().items()}
        return as_text(
            [{title: format_value(cell, formats[title]) for title, cell in cells.items()} for cells in self.cells()]
        )

    def to_latex(self, *, caption: str = "", label: str = "") -> str:
        r"""Returns the table for a paper, in the style of booktabs.

        Args:
          caption, label: with one of them, the table floats; both are LaTeX.
        """
        formats = {title: column.format for title, column in self.columns().items() if column.format}
        return latex_table(self.cells(), formats, caption=caption, label=label)

    def write_csv(self, path: str | os.PathLike, **same: Any) -> None:
        """Writes the table; `same` are columns with one value for all rows, such as the device."""
        write_csv(path, self.flat(), **same)

    def _values(self, record: Any) -> list[tuple[Column, Any]]:
        values = {name: (column, value) for name, column, value in _fields(record) if name not in self._hidden}
        return [values[name] for name in self._fields or values if name in values]


def _fields(record: Any) -> Iterator[tuple[str, Column, Any]]:
    """Yields the name, column and value of each field that has a column, also of records inside the record."""
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if "column" in field.metadata:
            yield field.name, field.metadata["column"], value
        elif dataclasses.is_dataclass(value):
            yield from _fields(value)


def _distinct(cells: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for title, cell in cells:
        if title in row:
            raise ValueError(f"two columns of a table are called {title!r}: one would hide the other")
        row[title] = cell
    return row


def as_text(rows: Rows) -> str:
    """Formats rows in columns; numbers with three digits, NaN as a dash.

    The first column is aligned left, and long names in it, such as plans of many steps, lose their middle.
    """
    titles = list(dict.fromkeys(title for row in rows for title in row))
    lines = [titles, *([_text(row.get(title, "")) for title in titles] for row in rows)]
    names = [abridged(name) for name, *_ in lines]
    if len(set(names)) == len({name for name, *_ in lines}):  # else rows could not be told apart
        lines = [[name, *line[1:]] for name, line in zip(names, lines, strict=True)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    aligned = lambda line: [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *aligned(line)]) for line in lines)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else format_number(value, ".3g")
    return "" if value is None else str(value)


def write_csv(path: str | os.PathLike, rows: Rows, **same: Any) -> None:
    """Writes rows with the union of their columns, atomically; `same` are columns with one value for all.

    Raises:
      UserError: the file cannot be written.
    """
    columns = list(dict.fromkeys(name for row in [*rows, same] for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({**row, **same} for row in rows)
    write_atomically(Path(path), text.getvalue())
