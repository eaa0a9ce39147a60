"""Values formatted for display in tables and tiles."""

import math
import numbers
from typing import Any

_IN_FULL = 1e9  # larger numbers keep their exponent


def unwrap_scalar(value: Any) -> Any:
    """Returns NumPy and JAX scalars as Python scalars, and any other value unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value


def sort_key(value: Any) -> float | None:
    """Returns the number by which a table cell is sorted.

    Args:
      value: a scalar, or a tuple as in `format_value`, which is sorted by its centre.

    Returns:
      The number, or None for text and missing values.
    """
    if isinstance(value, tuple):
        value = value[0]
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value):
        return float(value)
    return None


def format_value(value: Any, spec: str = "") -> str:
    """Returns a value as text for display.

    Args:
      value: a number, a bool, text, None, or a tuple: (centre, half width) is shown as "a ± b", (centre, low, high)
        as "a (b–c)", or "a (b to c)" if one is negative. None and NaN are shown as a dash; a spread that is one of
        them, or of an empty text, is not shown.
      spec: the format specification of numbers; by default, they are shown with four significant digits.
    """
    value = unwrap_scalar(value)
    if isinstance(value, tuple):
        centre, *spread = (format_value(part, spec) for part in value)
        if "–" in spread or not centre:
            return centre
        if len(spread) == 1:
            return f"{centre} ± {spread[0]}"
        between = " to " if any(end.startswith("-") for end in spread) else "–"  # a dash before a minus sign misleads
        return f"{centre} ({between.join(spread)})"
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, numbers.Real):
        return str(value)
    if spec:
        return format_number(value, spec)
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(float(value))
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2e}" if 0 < size < 1e-3 else f"{value:.4g}"


def format_number(value: float, spec: str) -> str:
    """Returns a number as text, large ones in full: a rate of 1,234 images/s, not 1.23e+03.

    >>> format_number(1234.5, ".3g"), format_number(0.25, ".1%")
    ('1,234', '25.0%')
    """
    text = format(value, spec)
    return f"{value:,.0f}" if "e+" in text and abs(value) < _IN_FULL else text
