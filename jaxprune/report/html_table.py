"""The HTML of a sortable table with aligned numbers and highlighted best values."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxprune.errors import unknown
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
      highlight: {column: "max" or "min"}: the best values of that column are highlighted.
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
    """Returns the cells of one column, with numbers aligned to the right and the best of them highlighted."""
    if better not in (None, "max", "min"):
        raise unknown("highlight", better, ("max", "min"))
    keys = [sort_key(value) for value in values]
    texts = [format_value(value, spec) for value in values]
    numbers = [key for key in keys if key is not None]
    # Compared as text: values that are equal as displayed are highlighted together.
    best = texts[keys.index({"max": max, "min": min}[better](numbers))] if better and numbers else None
    numeric = bool(numbers)
    prose = not numeric and max(map(len, texts), default=0) > 32
    cells = []
    for key, text in zip(keys, texts, strict=True):
        classes = " ".join(word for word, on in (("n", numeric), ("prose", prose), ("best", text == best)) if on)
        tag = 'th scope="row"' if first else "td"
        attributes = (f' class="{classes}"' if classes else "") + ("" if key is None else f' data-v="{key!r}"')
        # Long texts wrap, plans between their steps.
        content = escape(text).replace("+", "+<wbr>") if prose else escape(text)
        cells.append(f"<{tag}{attributes}>{content}</{tag[:2]}>")
    return _Column(cells, numeric)
