"""The HTML of a sortable table with aligned numbers, where a value that stands out is highlighted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxprune.errors import unknown
from jaxprune.measures.intervals import Interval
from jaxprune.measures.leaders import leaders
from jaxprune.report.formatting import format_value, sort_key, unwrap_scalar
from jaxprune.report.markup import escape


class _Column(NamedTuple):
    cells: list[str]
    numeric: bool


def table_element(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str] | Mapping[str, str] | None,
    highlight: Mapping[str, str] | None,
    formats: Mapping[str, str] | str,
) -> str:
    """Returns a `<table>` element.

    Args:
      rows: one mapping per row. A cell is text, a number, None, or a tuple as in `format_value`.
      columns: keys in order, or {key: header}; by default every key, in order of first appearance.
      highlight: {column: "max" or "min"}: the best value of that column is highlighted, unless its interval, as the
        cells show it, overlaps another one; numbers without intervals are taken as exact, and equal ones are
        highlighted together.
      formats: a format specification for all numbers (".1f") or {column: specification}.

    Raises:
      UserError: `highlight` or `formats` names an unknown column, or a highlight is neither "max" nor "min".
    """
    if columns is None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
    headers = dict(columns) if isinstance(columns, Mapping) else {key: key for key in columns}
    for option in (highlight or {}, {} if isinstance(formats, str) else formats):
        for key in option:
            if key not in headers:
                raise unknown("column", key, headers)
    cells = {
        key: _column(
            [unwrap_scalar(row.get(key)) for row in rows],
            formats if isinstance(formats, str) else formats.get(key, ""),
            (highlight or {}).get(key),
            first=index == 0,
        )
        for index, key in enumerate(headers)
    }
    # Headers of numeric columns are aligned to the right, like their numbers.
    head = "".join(
        f'<th scope="col" aria-sort="none"{" class=n" if cells[key].numeric else ""}>'
        f'<button type="button">{escape(header)}</button></th>'
        for key, header in headers.items()
    )
    body = "\n".join(f"<tr>{''.join(cells[key].cells[i] for key in headers)}</tr>" for i in range(len(rows)))
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def _column(values: list[Any], spec: str, better: str | None, first: bool) -> _Column:
    """Returns the cells of one column, with numbers aligned to the right, and the one that stands out highlighted."""
    if better not in (None, "max", "min"):
        raise unknown("highlight", better, ("max", "min"))
    keys = [sort_key(value) for value in values]
    texts = [format_value(value, spec) for value in values]
    best = _standing_out(values, keys, texts, better) if better else set()
    numeric = any(key is not None for key in keys)
    prose = not numeric and max(map(len, texts), default=0) > 32
    cells = []
    for place, (key, text) in enumerate(zip(keys, texts, strict=True)):
        classes = " ".join(word for word, on in (("n", numeric), ("prose", prose), ("best", place in best)) if on)
        tag = 'th scope="row"' if first else "td"
        attributes = (f' class="{classes}"' if classes else "") + ("" if key is None else f' data-v="{key!r}"')
        # Long texts wrap, plans between their steps.
        content = escape(text).replace("+", "+<wbr>") if prose else escape(text)
        cells.append(f"<{tag}{attributes}>{content}</{tag[:2]}>")
    return _Column(cells, numeric)


def _standing_out(values: list[Any], keys: list[float | None], texts: list[str], better: str) -> set[int]:
    """Returns the places of the best value, none where it is not certain to be the best."""
    intervals = {place: _interval(values[place], key) for place, key in enumerate(keys) if key is not None}
    first, *level = leaders(intervals, better) or [-1]
    # Compared as text: values that are equal as displayed are highlighted together.
    equal = {place for place in intervals if texts[place] == texts[first]}
    return equal if equal.issuperset(level) and (len(equal) == 1 or not isinstance(values[first], tuple)) else set()


def _interval(value: Any, centre: float) -> Interval:
    """Returns the interval that a cell shows; that of a plain number is the number."""
    if not isinstance(value, tuple):
        return Interval(centre, centre, centre)
    spread = [float("nan") if (end := sort_key(part)) is None else end for part in value[1:]]
    return Interval(centre, *spread) if len(spread) == 2 else Interval(centre, centre - spread[0], centre + spread[0])
