"""Tables as LaTeX, in the style of the package booktabs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxprune.report.formatting import format_value, sort_key

_MATHS = ("-", r"\pm", r"\times", r"\div", r"\leq", r"\geq", r"\infty", "^2", r"\mu", r"\approx", r"\to")
_SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "…": r"\ldots{}",
    **dict(zip("−±×÷≤≥∞²µ≈→", (f"${sign}$" for sign in _MATHS), strict=True)),
}
_NEGATIVE = re.compile(r"(?<![\w.)-])-(?=[\d.])")


def latex_text(value: object) -> str:
    """Returns `str(value)` with LaTeX's special characters escaped.

    >>> latex_text("topk@3:keep_rate=0.7, 50 %")
    'topk@3:keep\\\\_rate=0.7, 50 \\\\%'
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in str(value))


def latex_table(
    rows: Sequence[Mapping[str, Any]], formats: Mapping[str, str], *, caption: str = "", label: str = ""
) -> str:
    r"""Returns a `tabular`; with a caption or a label, inside a `table`.

    Columns of percentages have the sign in their header. Nothing is highlighted: whether a best value differs from the
    second is a question for the intervals.

    >>> print(latex_table([{"plan": "top_k", "accuracy": (0.5, 0.4, 0.6)}], {"accuracy": ".0%"}))
    % needs \usepackage{booktabs}
    \begin{tabular}{lr}
    \toprule
    plan & accuracy (\%) \\
    \midrule
    top\_k & 50 (40--60) \\
    \bottomrule
    \end{tabular}

    Args:
      rows: one mapping per row, {title: cell}; a cell is as in `format_value`.
      formats: {title: format specification of its numbers}.
      caption: below the table, as LaTeX.
      label: for `\ref`.
    """
    titles = list(dict.fromkeys(title for row in rows for title in row))
    numeric = {title for title in titles if any(sort_key(row.get(title)) is not None for row in rows)}
    head = [latex_text(title + (" (%)" if _percent(formats.get(title, "")) else "")) for title in titles]
    body = [[_cell(row.get(title, ""), formats.get(title, ""), title in numeric) for title in titles] for row in rows]
    lines = [
        rf"\begin{{tabular}}{{{''.join('r' if title in numeric else 'l' for title in titles)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if caption or label:
        below = [rf"\caption{{{caption}}}"] * bool(caption) + [rf"\label{{{label}}}"] * bool(label)
        lines = [r"\begin{table}", r"\centering", *lines, *below, r"\end{table}"]
    return "\n".join([r"% needs \usepackage{booktabs}", *lines])


def _percent(spec: str) -> bool:
    return spec.endswith("%")


def _cell(value: Any, spec: str, numeric: bool) -> str:
    text = format_value(value, spec)
    if not numeric:
        return latex_text(text)
    return _NEGATIVE.sub("$-$", latex_text(text.replace("%", "") if _percent(spec) else text))
