"""Reads what commands write, their pages and CSV files, as plain lists: what a reader sees, whatever made it."""

import csv
import dataclasses
import os
import re
from html.parser import HTMLParser
from pathlib import Path

_VOID = {"meta", "link", "img", "br", "input", "wbr"}
_HIDDEN = {"script", "style", "svg", "nav", "button"}


@dataclasses.dataclass
class Table:
    """A table: its caption, and its rows of cells as they are shown, the header first; " *" ends a marked cell."""

    caption: str
    rows: list[list[str]]

    @property
    def header(self) -> list[str]:
        return self.rows[0]

    @property
    def lines(self) -> list[str]:
        """The rows as text, which is easier to read where there are many columns."""
        return as_lines(self.rows)


@dataclasses.dataclass
class Figure:
    """A picture or a plot: its caption, and the texts inside the plot (titles of axes, ticks, names of series)."""

    caption: str
    labels: list[str]


@dataclasses.dataclass
class Part:
    """A section without its subsections; `tiles` are {name: (value, remark)}."""

    title: str
    texts: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    commands: list[str] = dataclasses.field(default_factory=list)
    tiles: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    tables: list[Table] = dataclasses.field(default_factory=list)
    figures: list[Figure] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Page:
    """A page: its title and subtitle, and its sections and subsections by title, in order."""

    title: str
    subtitle: str
    parts: dict[str, Part]


def read_page(path: str | os.PathLike) -> Page:
    """Reads a page of sections."""
    root = _Tree(Path(path).read_text(encoding="utf-8")).root
    (header,) = root.every("header")
    title, *subtitle = header.elements()
    parts: dict[str, Part] = {}
    for section in root.every("section"):
        part = _part(section)
        assert part.title not in parts, f"two sections are called {part.title!r}"
        parts[part.title] = part
    return Page(title.text(), subtitle[0].text() if subtitle else "", parts)


def read_csv(path: str | os.PathLike) -> list[list[str]]:
    """Reads the rows of a CSV file, the header first."""
    with Path(path).open(newline="") as file:
        return list(csv.reader(file))


def as_lines(rows: list[list[str]]) -> list[str]:
    """Returns rows as text, " | " between their cells."""
    return [" | ".join(row) for row in rows]


class _Element:
    def __init__(self, tag: str, attributes: dict[str, str | None]):
        self.tag, self.children = tag, []
        self.classes = (attributes.get("class") or "").split()

    def elements(self) -> list["_Element"]:
        return [child for child in self.children if isinstance(child, _Element)]

    def every(self, *tags: str) -> list["_Element"]:
        """The elements of these tags at any depth, in order."""
        inside = []
        for child in self.elements():
            inside += [child] * (child.tag in tags) + child.every(*tags)
        return inside

    def text(self, hidden: frozenset[str] | set[str] = _HIDDEN) -> str:
        """The words inside, one space between them."""
        return re.sub(r"\s+", " ", self._raw(hidden)).strip()

    def _raw(self, hidden: frozenset[str] | set[str]) -> str:
        parts = []
        for child in self.children:
            if isinstance(child, str):
                parts.append(child)
            elif child.tag not in hidden and "anchor" not in child.classes:
                parts.append(child._raw(hidden))
        return "".join(parts)


class _Tree(HTMLParser):
    def __init__(self, page: str):
        super().__init__(convert_charrefs=True)
        self.root = _Element("", {})
        self._open = [self.root]
        self.feed(page)
        self.close()
        assert len(self._open) == 1, f"<{self._open[-1].tag}> is not closed"

    def handle_starttag(self, tag, attrs):
        element = _Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self._open[-1].children.append(_Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag

    def handle_data(self, data):
        self._open[-1].children.append(data)


def _part(section: _Element) -> Part:
    heading, *content = section.elements()
    part = Part(heading.text())
    for element in content:
        _add(part, element)
    return part


def _add(part: Part, element: _Element) -> None:
    if element.tag == "figure" and "table" in element.classes:
        part.tables.append(Table(_caption(element), [_cells(row) for row in element.every("tr")]))
    elif element.tag == "figure":
        part.figures.append(Figure(_caption(element), [text.text() for text in element.every("text")]))
    elif "tiles" in element.classes:
        part.tiles.update(map(_tile, element.elements()))
    elif "note" in element.classes:
        part.notes.append(element.text())
    elif "command" in element.classes:
        part.commands.append(element.text())
    elif element.tag in ("p", "ul", "pre"):
        part.texts.append(element.text())
    elif element.tag == "div":
        for child in element.elements():
            _add(part, child)


def _caption(figure: _Element) -> str:
    return "".join(caption.text() for caption in figure.every("figcaption"))


def _cells(row: _Element) -> list[str]:
    # The headers of columns are buttons, which sort the table.
    cells = [(cell.text(_HIDDEN - {"button"}), "best" in cell.classes) for cell in row.every("th", "td")]
    return [f"{text} *" if best else text for text, best in cells]


def _tile(tile: _Element) -> tuple[str, tuple[str, str]]:
    name, value = tile.elements()
    remark = "".join(small.text() for small in value.every("small"))
    return name.text(), (value.text(_HIDDEN | {"small"}), remark)
