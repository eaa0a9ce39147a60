"""Errors a user can act on: one sentence with the thing, the value and the remedy."""

import difflib
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

_MANY, _LISTED = 60, 12  # names in an error


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


def nearest(value: str, choices: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the choice closest to `value`, or "" when none is close."""
    match = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""


def unknown(thing: str, value: str, choices: Iterable[str]) -> UserError:
    """Builds the error for a name that is not among `choices`; a long list is cut to the closest matches."""
    choices = sorted(str(c) for c in choices)
    listed = difflib.get_close_matches(str(value), choices, n=_LISTED, cutoff=0.0) if len(choices) > _MANY else choices
    remainder = f", … ({len(choices)} in all)" if len(listed) < len(choices) else ""
    return UserError(
        f"Unknown {thing} {value!r}.{nearest(value, choices)} Choose one of: {', '.join(listed)}{remainder}."
    )
