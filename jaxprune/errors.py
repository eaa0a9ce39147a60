"""Errors a user can act on: one sentence with the thing, the value and the remedy."""

import difflib
import functools
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn

_MANY, _LISTED = 60, 12  # names in an error
_QUOTED = 80  # letters of what was read
PLACE = 800  # letters of the place of what was read, with its file


class UserError(ValueError):
    """A mistake in the user's input; the command line prints its message without a traceback."""


def fail(error: UserError) -> NoReturn:
    """Ends the program with one line on stderr and status 2."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def command(main: Callable[..., None]) -> Callable[..., None]:
    """Decorates the main function of a program: a `UserError` ends it by `fail`, without a traceback."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            main(*args, **kwargs)
        except UserError as error:
            fail(error)

    return wrapped


def quoted(value: Any) -> str:
    """Returns a value that was read as it stands in an error: escaped, and cut after 80 characters.

    >>> quoted("topk"), quoted(0.5)
    ("'topk'", '0.5')
    >>> quoted("x" * 200)[-24:]
    "xxxxx…' (200 characters)"
    """
    if not isinstance(value, str):
        return shortened(repr(value))
    return repr(value) if len(value) <= _QUOTED else f"{value[:_QUOTED] + '…'!r} ({len(value):,} characters)"


def shortened(text: Any, most: int = 3 * _QUOTED) -> str:
    """Returns the message of another program as it stands in an error: on one line, escaped, and cut.

    >>> shortened("one two", most=5)
    'one t… (7 characters)'
    """
    text = str(text)
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(text[:most].split()))
    return line if len(text) <= most else f"{line}… ({len(text):,} characters)"


def nearest(value: str, choices: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the choice closest to `value`, or "" when none is close."""
    match = difflib.get_close_matches(str(value)[:_QUOTED], [str(c) for c in choices], n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""


def unknown(thing: str, value: str, choices: Iterable[str]) -> UserError:
    """Builds the error for a name that is not among `choices`; a long list is cut to the closest matches."""
    choices = sorted(str(c) for c in choices)
    matches = difflib.get_close_matches(str(value)[:_QUOTED], choices, n=_LISTED, cutoff=0.0)
    listed = matches if len(choices) > _MANY else choices
    remainder = f", … ({len(choices)} in all)" if len(listed) < len(choices) else ""
    return UserError(
        f"Unknown {thing} {quoted(value)}.{nearest(value, choices)} Choose one of: {', '.join(listed)}{remainder}."
    )


def require_options(owner: str, options: Iterable[str], names: Collection[str], *, word: str = "option") -> None:
    """Checks the names of options, or of what `word` calls them, against those that their owner has.

    >>> require_options("The data source 'folder'", ["paht"], ["path", "split"])
    Traceback (most recent call last):
    jaxprune.errors.UserError: The data source 'folder' has no option 'paht'. Did you mean 'path'? It has: path, split.

    Raises:
      UserError: there is no such option; the message suggests the nearest one.
    """
    for name in options:
        if name not in names:
            listing = ", ".join(names)
            raise UserError(f"{owner} has no {word} {quoted(name)}.{nearest(name, names)} It has: {listing}.")
