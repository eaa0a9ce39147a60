"""Settings as text: `name=value,name=value` and the values in it, read and written the same way everywhere."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jaxprune.errors import UserError


def split_items(text: str) -> Iterator[tuple[str, str | None]]:
    """Yields the (name, value) of each comma-separated item; the value is None where there is no `=`.

    >>> list(split_items("seed=3, smoke"))
    [('seed', '3'), ('smoke', None)]
    """
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        yield name.strip(), value.strip() if equals else None


def parse_items(text: str, where: str, *, texts: Collection[str] = ()) -> dict[str, Any]:
    """Reads `name=value,name=value`.

    Args:
      text: the items.
      where: what the text belongs to, for the error.
      texts: names whose values stay as they are written, such as those of files.

    Raises:
      UserError: an item is not `name=value`.

    >>> parse_items("keep_rate=0.5,renormalise=true", "plan")
    {'keep_rate': 0.5, 'renormalise': True}
    """
    items = {}
    for name, value in split_items(text):
        if value is None:
            raise UserError(f"{name!r} in {where} sets nothing: write name=value, such as keep_rate=0.5.")
        items[name] = value if name in texts else parse_value(value)
    return items


def parse_value(text: str) -> Any:
    """Reads a truth value, a number, "none", or the text itself.

    >>> parse_value("8"), parse_value("0.5"), parse_value("False"), parse_value("textbook")
    (8, 0.5, False, 'textbook')
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def format_items(items: Mapping[str, Any]) -> str:
    """Writes what `parse_items` reads.

    >>> format_items({"keep_rate": 0.5, "renormalise": True})
    'keep_rate=0.5,renormalise=true'
    """
    return ",".join(f"{name}={format_value(value)}" for name, value in items.items())


def format_value(value: Any) -> str:
    """Writes what `parse_value` reads."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
