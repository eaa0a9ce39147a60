"""Settings as text, parsed and formatted as `name=value,name=value`; and texts as file names and in a shell."""

import re
import shlex
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from jaxprune.errors import UserError, quoted, shortened

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)  # a shell takes it as it is
_IN_DOUBLE_QUOTES = re.compile(r'[$`"\\!]')  # a shell does not take it as it is

_DIGITS = 18  # of whole numbers, which fit 64 bits; longer ones are read as floats


def split_items(text: str) -> Iterator[tuple[str, str | None]]:
    """Yields the (name, value) of each comma-separated item; the value is None where there is no `=`.

    Raises:
      UserError: the parentheses are not balanced, or a name is given twice.

    >>> list(split_items("seed=3, sizes=(1,2), smoke"))
    [('seed', '3'), ('sizes', '(1,2)'), ('smoke', None)]
    """
    names = set()
    for item in filter(None, (part.strip() for part in _parts(text))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if name in names:
            raise UserError(f"{quoted(name)} is given twice in {quoted(text)}: give it once.")
        names.add(name)
        yield name, value if equals else None


def _parts(text: str) -> Iterator[str]:
    """Splits at the commas outside parentheses."""
    depth = start = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
        if letter == "," and not depth:
            yield text[start:place]
            start = place + 1
    if depth:
        raise UserError(f"The parentheses in {quoted(text)} are not balanced: write several values as name=(1,2).")
    yield text[start:]


def parse_items(text: str, where: str, *, texts: Collection[str] = ()) -> dict[str, Any]:
    """Parses `name=value,name=value`.

    Args:
      text: the items.
      where: what the text belongs to, for error messages.
      texts: names whose values are kept as text, such as file names.

    Raises:
      UserError: an item is not `name=value`.

    >>> parse_items("keep_rate=0.5,renormalise=true", "plan")
    {'keep_rate': 0.5, 'renormalise': True}
    """
    items = {}
    for name, value in split_items(text):
        if value is None:
            raise UserError(
                f"{quoted(name)} in {shortened(where)} sets nothing: write name=value, such as keep_rate=0.5."
            )
        items[name] = value if name in texts else parse_value(value)
    return items


def parse_value(text: str) -> Any:
    """Parses a boolean, a number, "none", or a parenthesised tuple of these; anything else stays text.

    >>> parse_value("8"), parse_value("0.5"), parse_value("False"), parse_value("textbook"), parse_value("(3,6)")
    (8, 0.5, False, 'textbook', (3, 6))
    """
    if text.startswith("(") and text.endswith(")"):
        return tuple(parse_value(part.strip()) for part in _parts(text[1:-1]) if part.strip())
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        if kind is int and len(text) > _DIGITS:
            continue
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def writable(text: str) -> str:
    """Returns a text in which what is not Unicode, such as bytes in the name of a file, is escaped.

    >>> writable("caf" + chr(0xDCE9)) == "caf" + chr(92) + "udce9"
    True
    """
    return text.encode(errors="backslashreplace").decode()


def format_items(items: Mapping[str, Any]) -> str:
    """Formats items for `parse_items`.

    >>> format_items({"keep_rate": 0.5, "renormalise": True})
    'keep_rate=0.5,renormalise=true'
    """
    return ",".join(f"{name}={format_value(value)}" for name, value in items.items())


def format_value(value: Any) -> str:
    """Formats a value for `parse_value`."""
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(format_value, value))})"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def abridged(name: str, most: int = 56) -> str:
    """Returns a name for a line of a terminal: of a longer one than `most` letters the beginning and the end.

    >>> abridged("topk@3:keep_rate=0.7+topk@6:keep_rate=0.49", 24)
    'topk@3:keep_rat…ate=0.49'
    """
    end = most // 3
    return name if len(name) <= most else f"{name[: most - end - 1]}…{name[-end:]}"


def file_name(text: str) -> str:
    """Returns a readable and unique file name, without a suffix.

    >>> file_name("vit, topk@3:keep_rate=0.7")
    'vit--topk-3-keep-rate-0-7-3e4775d3'
    """
    short = "".join(letter if letter.isalnum() else "-" for letter in text)[:60].strip("-")
    return f"{short}-{zlib.crc32(text.encode(errors='surrogateescape')):08x}"


def shell_line(words: Iterable[str]) -> str:
    """Formats the words of a command such that a shell reads the same words, and a reader the least of quotes.

    >>> print(shell_line(["run", "--config=a.py", "--config.plans=('topk', 'tome')", "--config.name=it's $5"]))
    run --config=a.py --config.plans="('topk', 'tome')" --config.name='it'"'"'s $5'
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    flag, equals, value = word.partition("=")
    if not (word.startswith("--") and equals and value and _PLAIN.fullmatch(flag)):
        flag, equals, value = "", "", word
    if "'" in value and not _IN_DOUBLE_QUOTES.search(value):
        return f'{flag}{equals}"{value}"'
    return f"{flag}{equals}{shlex.quote(value)}"
