"""Settings as text: `name=value,name=value` and the values in it, read and written the same way everywhere."""

from collections.abc import Mapping
from typing import Any

from jaxprune.errors import UserError


def parse_items(text: str, where: str) -> dict[str, Any]:
    """Reads `name=value,name=value`.

    Args:
      where: what the text belongs to, for the error.

    Raises:
      UserError: an item is not `name=value`.

    >>> parse_items("keep_rate=0.5,renormalise=true", "plan")
    {'keep_rate': 0.5, 'renormalise': True}
    """
    items = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"{item!r} in {where} sets nothing: write name=value, such as keep_rate=0.5.")
        items[name.strip()] = parse_value(value.strip())
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
