"""The texts of a plot's points, as an id that takes them from matplotlib into an SVG file."""

import json
from collections.abc import Sequence
from urllib.parse import quote, unquote

PREFIX = "texts:"


def to_gid(texts: Sequence[str]) -> str:
    """Returns texts as the gid of a matplotlib artist.

    >>> from_gid(to_gid(['a "b"', "c"]))
    ['a "b"', 'c']
    """
    # Percent-encoded: matplotlib writes quotes in an id in more than one way.
    return PREFIX + quote(json.dumps(list(texts)))


def from_gid(gid: str) -> list[str]:
    """Returns the texts in a gid, with its prefix or without it."""
    return json.loads(unquote(gid.removeprefix(PREFIX)))
