"""Plans as text: `topk@3:keep_rate=0.7+tome@6:r=8`, or the arguments of a common plan, `tome:r=8`."""

import re
from collections.abc import Mapping
from typing import Any

from jaxprune.errors import UserError
from jaxprune.reduction.parts.plan import INPUT, At, Plan, works_at_input
from jaxprune.text import format_items, parse_items


def read(text: str, defaults: Mapping[str, Any]) -> Plan:
    """Reads a plan; see `Plan.from_text`."""
    if not text.strip() and not defaults:
        return Plan(steps=())  # the text of a plan that removes nothing
    # A "+" joins steps only if a method's name follows, so that 1e+3 stays a number.
    parts = re.split(r"\+(?=\s*[A-Za-z_])", text.strip())
    places = [part.split(":", 1)[0].partition("@")[2].strip() for part in parts]
    if len(parts) == 2 and places == [INPUT, ""]:
        # A scorer at the input, followed by a common plan.
        return read(parts[1], defaults).behind(read(parts[0], {}))
    if len(parts) > 1 or "@" in text.split(":", 1)[0]:
        return Plan(steps=[_step(part.strip(), text) for part in parts])
    method, _, rest = parts[0].partition(":")
    items = parse_items(rest, f"plan {text!r}")
    # An amount in the text replaces the default one, and a method at the input takes no blocks.
    amounts = {"keep_rate", "num_keep", "r"}
    replaced = (amounts if amounts & set(items) else set()) | ({"reduction_loc"} if works_at_input(method) else set())
    kept = {name: value for name, value in defaults.items() if name not in replaced}
    return Plan(method, **{**kept, **items})


def _step(part: str, text: str) -> At:
    place, _, rest = part.partition(":")
    method, at, layer = place.partition("@")
    if not at or not (layer == INPUT or layer.isdigit()):
        raise UserError(
            f"{part!r} in plan {text!r} names no place: write method@block:amount, such as topk@3:keep_rate=0.7."
        )
    return At(INPUT if layer == INPUT else int(layer), method, **parse_items(rest, f"plan {text!r}"))


def write(plan: Plan) -> str:
    """Formats a plan so that `read` returns an equal one."""
    if isinstance(plan.r, int):
        tilt = {"inflection": plan.inflection} if plan.inflection else {}
        position = {} if plan.position == "mean" else {"position": plan.position}
        common = f"{plan.method}:{format_items({'r': plan.r, **tilt, **position, **dict(plan.options)})}"
        return "+".join([*map(_written, plan.steps), common])
    return "+".join(map(_written, plan.steps))


def _written(at: At) -> str:
    return f"{at.method}@{at.layer}:{format_items(at.settings())}"
