"""A section of a report, composed element by element."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from jaxprune.errors import UserError, unknown
from jaxprune.report.data_uri import image_element
from jaxprune.report.formatting import format_value
from jaxprune.report.html_table import table_element
from jaxprune.report.ids import ElementIds
from jaxprune.report.markup import blocks, escape, inline
from jaxprune.report.svg import plot_element
from jaxprune.report.table import Rows, Table

NOTE_KINDS = ("info", "warning")
FILTERED_ROWS = 12


class Section:
    """A titled part of a report. Each method appends one element and returns the section."""

    def __init__(self, title: str, name: str, level: int = 2, names: ElementIds | None = None):
        """Creates an empty section.

        Args:
          title: the heading; may contain `code`, **strong** and *emphasis*.
          name: the id of the section's element.
          level: the level of the heading.
          names: the ids of the top-level section that contains this one; None if this is a top-level section.
        """
        self.title = title
        self.name = name
        self._level = level
        self._names = names or ElementIds(name)
        self._parts: list[str | Section] = []
        self._plots: dict[str, Any] = {}

    def new_id(self, word: str) -> str:
        """Returns an element id that is unique in the report, for hand-written HTML."""
        return self._names.new(word)

    def section(self, title: str, text: str = "") -> "Section":
        """Appends a subsection and returns it."""
        child = Section(title, self.new_id(title), self._level + 1, self._names)
        self._parts.append(child)
        return child.text(text) if text else child

    def text(self, text: str) -> Self:
        """Appends text: paragraphs separated by blank lines, `- ` lists, ``` fences, `code`, **strong**, *emphasis*."""
        return self.html(blocks(text))

    def note(self, text: str, kind: str = "info") -> Self:
        """Appends a highlighted remark.

        Args:
          text: as in `text`.
          kind: "info" or "warning".

        Raises:
          UserError: `kind` is unknown.
        """
        if kind not in NOTE_KINDS:
            raise unknown("kind of note", kind, NOTE_KINDS)
        return self.html(f'<div class="note {kind}" role="note">{blocks(text)}</div>')

    def command(self, command: str) -> Self:
        """Appends the command that produced the section, with a button that copies it."""
        # Each word has its own element, because browsers would otherwise also break lines after the hyphens of a flag.
        words = "".join(f"<span>{escape(w)}</span>" if w.strip() else w for w in re.split(r"(\s+)", command.strip()))
        code = f'<pre tabindex="0"><code>{words}</code></pre>'
        return self.html(f'<div class="command">{code}<button type="button" class="copy">Copy</button></div>')

    def metric_tiles(self, metrics: Mapping[str, Any]) -> Self:
        """Appends headline numbers, {name: value} or {name: (value, remark)}."""
        tiles = []
        for name, value in metrics.items():
            value, remark = value if isinstance(value, tuple) and isinstance(value[1], str) else (value, "")
            remark = f"<small>{inline(remark)}</small>" if remark else ""
            tiles.append(f"<div><dt>{inline(name)}</dt><dd>{escape(format_value(value))}{remark}</dd></div>")
        return self.html(f'<dl class="tiles">{"".join(tiles)}</dl>')

    def figure(self, image: Any, caption: str = "", alt: str | None = None) -> Self:
        """Appends an image or a plot.

        Args:
          image: an array (H, W[, 1, 3 or 4]), uint8 or floating point in [0, 1], or a matplotlib `Figure`.
          caption: displayed below.
          alt: the alternative text for readers who cannot see the image; by default the caption.

        Raises:
          UserError: the array has another shape.
        """
        media = self._media(image, caption if alt is None else alt)
        caption = f"<figcaption>{inline(caption)}</figcaption>" if caption else ""
        return self.html(f"<figure>{media}{caption}</figure>")

    def gallery(self, images: Sequence[Any], captions: Sequence[str] | None = None, columns: int = 4) -> Self:
        """Appends images or plots side by side.

        Args:
          images: each as in `figure`.
          captions: one for each image.
          columns: the number of columns on a wide screen; a narrow screen has fewer.

        Raises:
          UserError: the number of captions differs from that of images, or an array has an unsupported shape.
        """
        captions = [""] * len(images) if captions is None else captions
        if len(captions) != len(images):
            raise UserError(f"A gallery of {len(images)} pictures got {len(captions)} captions; give one for each.")
        cells = []
        for image, caption in zip(images, captions, strict=True):
            media = self._media(image, caption)
            below = f"<figcaption>{inline(caption)}</figcaption>" if caption else ""
            cells.append(f"<figure>{media}{below}</figure>")
        # The minimum width of a column: a phone displays two photographs side by side, but only one plot.
        wide = any(hasattr(image, "savefig") or np.shape(image)[1] > 1.5 * np.shape(image)[0] for image in images)
        style = f"--columns:{columns};--least:{'18rem' if wide else '8.5rem'}"
        return self.html(f'<div class="gallery" style="{style}">{"".join(cells)}</div>')

    def table(
        self,
        rows: Table | Rows,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        caption: str = "",
        highlight: Mapping[str, str] | None = None,
        formats: Mapping[str, str] | str | None = None,
    ) -> Self:
        """Appends a table that can be sorted by any column: click its header, or press Enter on it.

        A table of at least `FILTERED_ROWS` rows has a field that filters them by words.

        Args:
          rows: a table of records, or one mapping per row, {column: cell}. A cell is text, a number, None,
            (centre, half width) or (centre, low, high).
          columns: keys in order, or {key: header}; by default every key, in order of first appearance.
          caption: displayed above.
          highlight: {column: "max" or "min"}: the best values of that column are highlighted; by default as the columns
            of the records declare.
          formats: a format specification for all numbers (".1f") or {column: specification}; by default as the columns
            of the records declare.

        Raises:
          UserError: `highlight` or `formats` names an unknown column, or a highlight is neither "max" nor "min".
        """
        if isinstance(rows, Table):
            declared, rows = rows.columns(), rows.cells()
            if highlight is None:
                highlight = {title: column.best for title, column in declared.items() if column.best}
            if formats is None:
                formats = {title: column.format for title, column in declared.items() if column.format}
        table = table_element(rows, columns, highlight, formats or "")
        name = self.new_id("table")
        label = f'aria-labelledby="{name}"' if caption else 'aria-label="Table"'
        above = f'<figcaption id="{name}">{inline(caption)}</figcaption>' if caption else ""
        below, filter_ = self.new_id("rows"), ""
        if len(rows) >= FILTERED_ROWS:  # hidden until the script of the page shows it: it does nothing without
            filter_ = (
                f'<div class="filter" hidden><label>Filter rows <input type="search" aria-controls="{below}" '
                'autocomplete="off" spellcheck="false"></label><output></output></div>'
            )
        return self.html(
            f'<figure class="table">{above}{filter_}<div class="scroll" id="{below}" role="region" tabindex="0" '
            f"{label}>{table}</div></figure>"
        )

    def html(self, raw: str) -> Self:
        """Appends HTML unchanged, for example interactive elements, which must include their scripts and styles."""
        self._parts.append(raw)
        return self

    def render(self) -> str:
        """Returns the section as HTML."""
        level = min(self._level, 6)
        link = f'<a class="anchor" href="#{self.name}" aria-label="Link to this section">#</a>'
        parts = [part if isinstance(part, str) else part.render() for part in self._parts]
        head = f"<h{level}>{inline(self.title)}{link}</h{level}>"
        return "\n".join([f'<section id="{self.name}">', head, *parts, "</section>"])

    def outline(self) -> list[tuple[str, str]]:
        """Returns (name, title) of the direct subsections."""
        return [(part.name, part.title) for part in self._parts if isinstance(part, Section)]

    def plots(self) -> dict[str, Any]:
        """Returns the plots of this section and of those inside, {id: matplotlib `Figure`}."""
        inside = (part.plots() for part in self._parts if isinstance(part, Section))
        return dict(itertools.chain(self._plots.items(), *(plots.items() for plots in inside)))

    def _media(self, image: Any, alt: str) -> str:
        if not hasattr(image, "savefig"):
            return image_element(image, alt)
        name = self.new_id(_axes_of(image))
        self._plots[name] = image
        return plot_element(image, alt, name)


def _axes_of(plot: Any) -> str:
    """Returns what a plot shows, "accuracy by GFLOPs", for the names of its files."""
    labels = [label for axes in plot.axes[:1] for label in (axes.get_ylabel(), axes.get_xlabel()) if label]
    return " by ".join(labels)[:60] or "plot"
