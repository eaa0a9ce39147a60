"""Plans as text: `topk@3:keep_rate=0.7+tome@6-9:r=8`, or the arguments of a common plan, `tome:r=8`."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxprune.errors import UserError, quoted
from jaxprune.text import format_items, parse_items

INPUT = "input"
_NO_OPTIONS = {"self", "layer", "method", "steps"}  # arguments of steps and plans that a text has elsewhere
_LONGEST = 2**16  # characters of a plan: thousands of steps
_BLOCKS = 1000  # of one range
_STEPS = 10_000


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
    """Reads the steps of a plan; a common plan is alone, or follows one at the input. `@0-7` is a step in each block.

    >>> read("topk@3:keep_rate=0.7")
    [StepText(method='topk', layer=3, settings={'keep_rate': 0.7})]
    >>> [step.layer for step in read("tome@0-2:r=8")]
    [0, 1, 2]

    Raises:
      UserError: the text is not a plan.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise UserError(f"{quoted(text)} is not a plan: write method@block:amount, such as topk@3:keep_rate=0.7.")
    if not text.strip():
        return []
    # A "+" joins steps only if a method's name follows, so that 1e+3 stays a number.
    parts = [part.strip() for part in re.split(r"\+(?=\s*[A-Za-z_])", text.strip())]
    by_part, count = [], 0
    for part in parts:
        by_part.append(_steps(part, text))
        count += len(by_part[-1])
        if count > _STEPS:
            raise UserError(f"The plan {quoted(text)} has more than {_STEPS} steps: name fewer blocks.")
    steps = list(itertools.chain(*by_part))
    common = len(parts) == 1 or [step.layer for step in steps] == [INPUT, None]
    for part, (first, *_) in zip(parts, by_part, strict=True):
        if first.layer is None and not common:
            raise _no_place(part, text)
    return steps


def _steps(part: str, text: str) -> list[StepText]:
    place, _, rest = part.partition(":")
    method, at, places = place.partition("@")
    layers = _layers(places) if at else [None]
    if not layers:
        raise _no_place(part, text)
    settings = parse_items(rest, f"plan {quoted(text)}")
    if arguments := sorted(_NO_OPTIONS & settings.keys()):
        raise UserError(
            f"{arguments[0]} in plan {quoted(text)} is not an option of a method: write for example keep_rate=0.7."
        )
    return [StepText(method, layer, settings) for layer in layers]


def _layers(places: str) -> Sequence[int | str]:
    """The blocks that a text names; none if it does not."""
    if places == INPUT:
        return [INPUT]
    if not re.fullmatch(r"[0-9]{1,9}(-[0-9]{1,9})?", places):
        return []
    first, _, last = places.partition("-")
    blocks = range(int(first), int(last or first) + 1)
    return blocks if len(blocks) <= _BLOCKS else []


def _no_place(part: str, text: str) -> UserError:
    return UserError(
        f"{quoted(part)} in plan {quoted(text)} names no place: write method@block:amount, such as "
        "topk@3:keep_rate=0.7 or, for blocks in a row, tome@0-7:r=8."
    )


def write(steps: Iterable[StepText]) -> str:
    """Formats steps so that `read` returns equal ones; equal steps of blocks in a row have one place.

    >>> write([StepText("tome", None, {"r": 8})])
    'tome:r=8'
    >>> write([StepText("tome", layer, {"r": 8}) for layer in (0, 1, 2, 5)])
    'tome@0-2:r=8+tome@5:r=8'
    """
    runs: list[list[StepText]] = []
    for step in steps:
        last = runs[-1][-1] if runs else None
        follows = last is not None and isinstance(last.layer, int) and step.layer == last.layer + 1
        if follows and step._replace(layer=last.layer) == last:
            runs[-1].append(step)
        else:
            runs.append([step])
    return "+".join(map(_written, runs))


def _written(run: Sequence[StepText]) -> str:
    first, last = run[0], run[-1]
    places = f"{first.layer}" if len(run) == 1 else f"{first.layer}-{last.layer}"
    return f"{first.method}{'' if first.layer is None else f'@{places}'}:{format_items(first.settings)}"
