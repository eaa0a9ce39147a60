"""The rows of a table that an earlier call wrote, so that nothing is measured or compiled again."""

import csv
import dataclasses
from pathlib import Path
from typing import Any, TypeVar

Row = TypeVar("Row")
_READERS: dict[Any, Any] = {bool: "True".__eq__}


def read(kind: type[Row], path: Path) -> list[Row]:
    """Returns the rows of a CSV as records of `kind`, whose fields are columns of one cell; none without a file."""
    if not path.exists():
        return []
    fields: tuple[Any, ...] = dataclasses.fields(kind)  # type: ignore[arg-type]
    cells = [(field.metadata["column"].title, _READERS.get(field.type, field.type)) for field in fields]
    with path.open() as file:
        return [kind(*(reader(row[title]) for title, reader in cells)) for row in csv.DictReader(file)]
