"""Plans as text: `topk@3:keep_rate=0.7+tome@6:r=8`, or the arguments of a common plan, `tome:r=8`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxprune.errors import UserError, quoted
from jaxprune.text import format_items, parse_items

INPUT = "input"
_NO_OPTIONS = {"self", "layer", "method", "steps"}  # arguments of steps and plans that a text has elsewhere
_LONGEST = 2**16  # characters of a plan: thousands of steps


class StepText(NamedTuple):
    """A step of a plan as plain values.

    Attributes:
      method: name of the method.
      layer: number of the block, or INPUT; None for a common plan, whose settings say where it reduces.
      settings: the amount and the options by name.
    """

    method: str
    layer: int | str | None
    settings: Mapping[str, Any]


def read(text: str) -> list[StepText]:
    """Reads the steps of a plan; a common plan is alone, or follows a step at the input.

    >>> read("topk@3:keep_rate=0.7")
    [StepText(method='topk', layer=3, settings={'keep_rate': 0.7})]

    Raises:
      UserError: the text is not a plan.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise UserError(f"{quoted(text)} is no plan: write method@block:amount, such as topk@3:keep_rate=0.7.")
    if not text.strip():
        return []
    # A "+" joins steps only if a method's name follows, so that 1e+3 stays a number.
    parts = [part.strip() for part in re.split(r"\+(?=\s*[A-Za-z_])", text.strip())]
    steps = [_step(part, text) for part in parts]
    common = len(steps) == 1 or [step.layer for step in steps] == [INPUT, None]
    for part, step in zip(parts, steps, strict=True):
        if step.layer is None and not common:
            raise _no_place(part, text)
    return steps


def _step(part: str, text: str) -> StepText:
    place, _, rest = part.partition(":")
    method, at, layer = place.partition("@")
    if at and not (layer == INPUT or re.fullmatch(r"[0-9]{1,9}", layer)):
        raise _no_place(part, text)
    number = None if not at else INPUT if layer == INPUT else int(layer)
    settings = parse_items(rest, f"plan {quoted(text)}")
    if arguments := sorted(_NO_OPTIONS & settings.keys()):
        raise UserError(
            f"{arguments[0]} in plan {quoted(text)} is no option of a method: write for example keep_rate=0.7."
        )
    return StepText(method, number, settings)


def _no_place(part: str, text: str) -> UserError:
    return UserError(
        f"{quoted(part)} in plan {quoted(text)} names no place: write method@block:amount, such as "
        "topk@3:keep_rate=0.7."
    )


def write(steps: Iterable[StepText]) -> str:
    """Formats steps so that `read` returns equal ones.

    >>> write([StepText("tome", None, {"r": 8})])
    'tome:r=8'
    """
    return "+".join(map(_written, steps))


def _written(step: StepText) -> str:
    place = "" if step.layer is None else f"@{step.layer}"
    return f"{step.method}{place}:{format_items(step.settings)}"
