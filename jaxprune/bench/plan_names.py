"""Short names of plans for tables and plots."""

import re

_STEP = re.compile(r"(\w+)@(-?\d+):(\w+)=([\d.e-]+)((?:,[^+]+)?)")


def short_plan(text: str) -> str:
    """Returns the text of a plan with equal steps joined and numbers rounded to three digits; others unchanged.

    The result is for readers: a plan has to be built from its whole text.

    >>> short_plan("topk@1:keep_rate=0.7+topk@2:keep_rate=0.48999999999999994")
    'topk@1,2:keep_rate=0.7,0.49'
    >>> short_plan("dpc_knn@1:keep_rate=0.7,equal_weights=true+dpc_knn@2:keep_rate=0.49,equal_weights=true")
    'dpc_knn@1,2:keep_rate=0.7,0.49,equal_weights=true'
    >>> short_plan("topk@1:keep_rate=0.7+tome@2:r=8")
    'topk@1:keep_rate=0.7+tome@2:r=8'
    """
    steps = [_STEP.fullmatch(step) for step in text.split("+")]
    parts = [step.groups() for step in steps if step]
    if len(parts) < len(steps) or len({(method, amount, options) for method, _, amount, _, options in parts}) > 1:
        return text
    (method, _, amount, _, options), *_ = parts
    layers, values = (",".join(column) for column in zip(*((s[1], f"{float(s[3]):.3g}") for s in parts), strict=True))
    return f"{method}@{layers}:{amount}={values}{options}"
