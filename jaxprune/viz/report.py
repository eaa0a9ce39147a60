"""One self-contained `report.html`: any task fills its sections, and a later run adds its own to the same file.

The page carries its style, its script and its pictures, asks the network for nothing (its content policy forbids it)
and needs no server. The file is its own store: each section lies between two comments, so that adding to a report
means reading the sections that are there, replacing those of the same name and writing the page anew in one move.
"""

import base64
import html
import inspect
import io
import itertools
import json
import math
import numbers
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from PIL import Image, features

from jaxprune import __version__
from jaxprune.errors import UserError, unknown
from jaxprune.viz import pictures

MAX_SVG_BYTES = 120_000  # a plot with more in it is smaller as a bitmap
MAX_PNG_BYTES = 24_000  # a picture with more in it is a photograph: lossy from here on
MAX_PIXELS = 2400  # longest side of an embedded picture
SMALL_PIXELS = 160  # pictures below are shown enlarged, pixel by pixel
NOTE_KINDS = ("info", "warning")

# What `plots` paints these with follows the reader's light or dark theme; PNGs keep the light values.
THEME = {"#1f2933": "--ink", "#5b6775": "--muted", "#dde3e8": "--line", "#fefefe": "--card"}

_HEAD = re.compile(r"<!--jaxprune:report (\{.*?\})-->")
_STORED = re.compile(r"<!--jaxprune:section (\{.*?\})-->\n(.*?)\n<!--jaxprune:end-->", re.DOTALL)


# --- text ---------------------------------------------------------------------------------------------------------


def _escape(value: object) -> str:
    return html.escape(str(value), quote=True)


def _inline(text: str) -> str:
    """Escapes a line; `code`, **strong** and *emphasis* become elements."""
    out = []
    for index, piece in enumerate(re.split(r"`([^`\n]+)`", text)):
        piece = _escape(piece)
        if index % 2:
            out.append(f"<code>{piece}</code>")
            continue
        piece = re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"<strong>\1</strong>", piece)
        out.append(re.sub(r"(?<![\w*])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![\w*])", r"<em>\1</em>", piece))
    return "".join(out)


def _blocks(text: str) -> str:
    """Turns paragraphs, `- ` lists and ``` fences into elements; everything else is escaped text."""
    out = []
    for index, piece in enumerate(re.split(r"^```[^\n]*\n(.*?)^```\s*$", inspect.cleandoc(text), flags=re.M | re.S)):
        if index % 2:
            out.append(f'<pre tabindex="0"><code>{_escape(piece.rstrip())}</code></pre>')
            continue
        for block in filter(None, re.split(r"\n\s*\n", piece.strip())):
            for is_list, lines in itertools.groupby(block.splitlines(), lambda line: line.lstrip()[:2] in ("- ", "* ")):
                if is_list:
                    items = "".join(f"<li>{_inline(line.strip()[2:])}</li>" for line in lines)
                    out.append(f"<ul>{items}</ul>")
                else:
                    out.append(f"<p>{_inline(' '.join(line.strip() for line in lines))}</p>")
    return "\n".join(out)


def slugify(title: str) -> str:
    """Returns the name of a section in its address: lower case, words joined by single hyphens."""
    return re.sub(r"[\W_]+", "-", title.casefold()).strip("-") or "section"


# --- numbers ------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Unwraps numpy and JAX scalars."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value


def _number(value: Any) -> float | None:
    """Returns what a cell sorts by: its number, the centre of an interval, or None for text and missing values."""
    if isinstance(value, tuple):
        value = value[0]
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value):
        return float(value)
    return None


def format_value(value: Any, spec: str = "") -> str:
    """Returns a value as a reader wants it: `spec` for numbers, else four digits; (centre, half width) as "a ± b"."""
    value = _plain(value)
    if isinstance(value, tuple):
        return " ± ".join(format_value(part, spec) for part in value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, numbers.Real):
        return str(value)
    if spec:
        return format(value, spec)
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(float(value))
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2e}" if 0 < size < 1e-3 else f"{value:.4g}"


# --- pictures -----------------------------------------------------------------------------------------------------


def _encode(image: np.ndarray) -> tuple[str, bytes, int, int]:
    """Returns (media type, bytes, width, height) of an array: PNG, or a lossy format if that is large."""
    array = pictures.to_uint8(image)
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[-1] in (3, 4)):
        raise UserError(f"A picture must be (height, width) or (height, width, 1, 3 or 4); this one is {array.shape}.")
    picture = Image.fromarray(array)
    picture.thumbnail((MAX_PIXELS, MAX_PIXELS), Image.Resampling.LANCZOS)
    data, kind = io.BytesIO(), "png"
    picture.save(data, format="PNG", optimize=True)
    if data.tell() > MAX_PNG_BYTES:
        lossy = io.BytesIO()
        if features.check("webp"):
            picture.save(lossy, format="WEBP", quality=88, method=4)
        else:
            picture.convert("RGB").save(lossy, format="JPEG", quality=90, optimize=True)
        if lossy.tell() < data.tell():
            data, kind = lossy, "webp" if features.check("webp") else "jpeg"
    return f"image/{kind}", data.getvalue(), *picture.size


def data_uri(image: np.ndarray) -> str:
    """Returns a picture as an address that holds its bytes, for the `src` of hand-written HTML.

    `image` is (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); uint8, or floating point in [0, 1].
    """
    kind, data, _, _ = _encode(image)
    return _uri(kind, data)


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _img(image: np.ndarray, alt: str) -> str:
    kind, data, width, height = _encode(image)
    factor = math.ceil(SMALL_PIXELS / max(width, height))
    pixel = ' class="pixel"' if factor > 1 else ""
    size = f'width="{width * factor}" height="{height * factor}"'
    return f'<img{pixel} src="{_uri(kind, data)}" {size} alt="{_escape(alt)}">'


def _plot(figure: Any, alt: str, prefix: str) -> str:
    """Returns a matplotlib figure as inline SVG, or as a PNG where that is smaller."""
    import matplotlib  # a report without plots starts without it

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxprune"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = _inline_svg(text.getvalue(), alt, prefix)
    if len(svg) <= MAX_SVG_BYTES:
        return svg
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=160)
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    src = _uri("image/png", data.getvalue())
    return f'<img class="plot" src="{src}" width="{width}" height="{height}" alt="{_escape(alt)}">'


def _inline_svg(svg: str, alt: str, prefix: str) -> str:
    """Makes matplotlib's SVG fit for a page that holds many: own ids, the page's colours, no namespaces, no style."""
    view, width = re.findall(r'(viewBox="[\d.]+ [\d.]+ ([\d.]+) [\d.]+")', svg)[0]
    svg = re.sub(r".*?<svg[^>]*>", "", svg, count=1, flags=re.S)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r"<defs>\s*</defs>", "", svg).replace("xlink:href", "href")
    used = sorted({a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)})
    names = {name: f"{prefix}-{index}" for index, name in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", svg)
    svg = re.sub(r'(url\(|href=")#([^)"]+)', lambda m: f"{m[1]}#{names[m[2]]}", svg)
    svg = re.sub(
        r' (d|x|y|points|transform)="[^"]*"',  # coordinates: a hundredth of a point is finer than any screen
        lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]),
        svg,
    )
    for colour, variable in THEME.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r"\s*\n\s*", "\n", svg).strip()
    shown = float(width) * 5 / 3  # points to pixels, and a quarter larger
    return f'<svg {view} role="img" aria-label="{_escape(alt)}" style="max-width:{shown:.0f}px">\n{svg}'


def _media(image: Any, alt: str, prefix: str) -> str:
    return _plot(image, alt, prefix) if hasattr(image, "savefig") else _img(image, alt)


# --- the report ---------------------------------------------------------------------------------------------------


class _Names:
    """The element ids of one section of the report: all begin with its name, which no other section has."""

    def __init__(self, root: str):
        self._root = root
        self._taken = {root}

    def new(self, word: str) -> str:
        stem = f"{self._root}--{slugify(word)}"  # two hyphens: no section's name has them
        names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name


class Section:
    """A titled part of a report. Each method appends one element and returns the section."""

    def __init__(self, title: str, name: str, level: int = 2, names: _Names | None = None):
        self.title = title
        self.name = name
        self._level = level
        self._names = names or _Names(name)
        self._parts: list[str | Section] = []

    def new_id(self, word: str) -> str:
        """Returns an element id that nothing else in the report has, for hand-written HTML."""
        return self._names.new(word)

    def section(self, title: str, text: str = "") -> "Section":
        """Starts a section inside this one."""
        child = Section(title, self.new_id(title), self._level + 1, self._names)
        self._parts.append(child)
        return child.text(text) if text else child

    def text(self, text: str) -> Self:
        """Appends text: blank lines part paragraphs; `- ` lists, ``` fences, `code`, **strong** and *emphasis*."""
        return self.html(_blocks(text))

    def note(self, text: str, kind: str = "info") -> Self:
        """Appends a remark that stands out; `kind` is "info" or "warning"."""
        if kind not in NOTE_KINDS:
            raise unknown("kind of note", kind, NOTE_KINDS)
        return self.html(f'<div class="note {kind}" role="note">{_blocks(text)}</div>')

    def command(self, command: str) -> Self:
        """Appends the command behind the section, with a button that copies it."""
        # Lines break between words only: a browser would also break after the hyphens of a flag.
        words = "".join(f"<span>{_escape(w)}</span>" if w.strip() else w for w in re.split(r"(\s+)", command.strip()))
        code = f'<pre tabindex="0"><code>{words}</code></pre>'
        return self.html(f'<div class="command">{code}<button type="button" class="copy">Copy</button></div>')

    def metric_tiles(self, metrics: Mapping[str, Any]) -> Self:
        """Appends headline numbers, {name: value} or {name: (value, remark)}."""
        tiles = []
        for name, value in metrics.items():
            value, remark = value if isinstance(value, tuple) and isinstance(value[1], str) else (value, "")
            remark = f"<small>{_inline(remark)}</small>" if remark else ""
            tiles.append(f"<div><dt>{_inline(name)}</dt><dd>{_escape(format_value(value))}{remark}</dd></div>")
        return self.html(f'<dl class="tiles">{"".join(tiles)}</dl>')

    def figure(self, image: Any, caption: str = "", alt: str | None = None) -> Self:
        """Appends a picture: an array (H, W[, 1, 3 or 4]), uint8 or floating point in [0, 1], or a matplotlib Figure.

        `alt` says in words what there is to see, for those who cannot; the caption stands in for it.
        """
        media = _media(image, caption if alt is None else alt, self.new_id("figure"))
        caption = f"<figcaption>{_inline(caption)}</figcaption>" if caption else ""
        return self.html(f"<figure>{media}{caption}</figure>")

    def gallery(self, images: Sequence[Any], captions: Sequence[str] | None = None, columns: int = 4) -> Self:
        """Appends pictures or plots side by side, `columns` of them where the screen is wide enough."""
        captions = [""] * len(images) if captions is None else captions
        if len(captions) != len(images):
            raise UserError(f"A gallery of {len(images)} pictures got {len(captions)} captions; give one for each.")
        cells = []
        for image, caption in zip(images, captions, strict=True):
            media = _media(image, caption, self.new_id("figure"))
            below = f"<figcaption>{_inline(caption)}</figcaption>" if caption else ""
            cells.append(f"<figure>{media}{below}</figure>")
        # A phone shows two photographs side by side, but only one plot.
        wide = any(hasattr(image, "savefig") or np.shape(image)[1] > 1.5 * np.shape(image)[0] for image in images)
        style = f"--columns:{columns};--least:{'18rem' if wide else '8.5rem'}"
        return self.html(f'<div class="gallery" style="{style}">{"".join(cells)}</div>')

    def table(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Sequence[str] | Mapping[str, str] | None = None,
        caption: str = "",
        highlight: Mapping[str, str] | None = None,
        formats: Mapping[str, str] | str = "",
    ) -> Self:
        """Appends a table whose columns sort by a click on, or Enter in, their headers.

        Args:
          rows: one mapping a row. A cell is text, a number, None, or (centre, half width of an interval).
          columns: keys in order, or {key: header}; by default every key, in order of first appearance.
          caption: shown above.
          highlight: {column: "max" or "min"}: the best values of that column stand out.
          formats: a format specification for all numbers (".1f") or {column: specification}.
        """
        if columns is None:
            columns = list(dict.fromkeys(key for row in rows for key in row))
        headers = dict(columns) if isinstance(columns, Mapping) else {key: key for key in columns}
        for asked in (highlight or {}, {} if isinstance(formats, str) else formats):
            for key in asked:
                if key not in headers:
                    raise unknown("column", key, headers)
        cells = {
            key: _column(
                [_plain(row.get(key)) for row in rows],
                formats if isinstance(formats, str) else formats.get(key, ""),
                (highlight or {}).get(key),
                first=index == 0,
            )
            for index, key in enumerate(headers)
        }
        # A heading stands over its figures: both right.
        head = "".join(
            f'<th scope="col" aria-sort="none"{" class=n" if cells[key].numeric else ""}>'
            f'<button type="button">{_escape(header)}</button></th>'
            for key, header in headers.items()
        )
        body = "\n".join(f"<tr>{''.join(cells[key].cells[i] for key in headers)}</tr>" for i in range(len(rows)))
        name = self.new_id("table")
        label = f'aria-labelledby="{name}"' if caption else 'aria-label="Table"'
        above = f'<figcaption id="{name}">{_inline(caption)}</figcaption>' if caption else ""
        return self.html(
            f'<figure class="table">{above}<div class="scroll" role="region" tabindex="0" {label}>'
            f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div></figure>"
        )

    def html(self, raw: str) -> Self:
        """Appends HTML as it is: the door for interactive pieces. Scripts and styles must stand inside it."""
        self._parts.append(raw)
        return self

    def render(self) -> str:
        """Returns the section as HTML."""
        level = min(self._level, 6)
        link = f'<a class="anchor" href="#{self.name}" aria-label="Link to this section">#</a>'
        parts = [part if isinstance(part, str) else part.render() for part in self._parts]
        head = f"<h{level}>{_inline(self.title)}{link}</h{level}>"
        return "\n".join([f'<section id="{self.name}">', head, *parts, "</section>"])

    def outline(self) -> list[tuple[str, str]]:
        """Returns (name, title) of the sections directly inside."""
        return [(part.name, part.title) for part in self._parts if isinstance(part, Section)]


class _Column(NamedTuple):
    cells: list[str]
    numeric: bool


def _column(values: list[Any], spec: str, better: str | None, first: bool) -> _Column:
    """Returns a table's cells of one column, figures to the right, the best of them marked."""
    if better not in (None, "max", "min"):
        raise unknown("highlight", better, ("max", "min"))
    keys = [_number(value) for value in values]
    texts = [format_value(value, spec) for value in values]
    known = [key for key in keys if key is not None]
    # Two values that read the same are equally good.
    best = texts[keys.index({"max": max, "min": min}[better](known))] if better and known else None
    numeric = bool(known)
    prose = not numeric and max(map(len, texts), default=0) > 32
    cells = []
    for key, text in zip(keys, texts, strict=True):
        classes = " ".join(word for word, on in (("n", numeric), ("prose", prose), ("best", text == best)) if on)
        tag = 'th scope="row"' if first else "td"
        attributes = (f' class="{classes}"' if classes else "") + ("" if key is None else f' data-v="{key!r}"')
        cells.append(f"<{tag}{attributes}>{_escape(text)}</{tag[:2]}>")
    return _Column(cells, numeric)


class _Stored(NamedTuple):
    """A section as the file holds it."""

    title: str
    inside: list[tuple[str, str]]
    html: str


class Report:
    """A page of sections; `save` writes it, `add_to` puts its sections into a page that is already there."""

    def __init__(self, title: str, subtitle: str = ""):
        self.title = title
        self.subtitle = subtitle
        self._sections: dict[str, Section] = {}

    def section(self, title: str, text: str = "", slug: str | None = None) -> Section:
        """Starts a section; one of the same name (`slug`, by default made from the title) is replaced."""
        name = slugify(title if slug is None else slug)
        self._sections[name] = Section(title, name)
        return self._sections[name].text(text) if text else self._sections[name]

    def render(self) -> str:
        """Returns the page."""
        return _page(self.title, self.subtitle, self._stored())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes this report, and nothing else, to `path` in one move; directories are made."""
        return _write(Path(path), self.render())

    def add_to(self, path: str | os.PathLike[str]) -> Path:
        """Adds the sections to the report at `path`, or starts it.

        Sections of the same name are replaced where they stand, new ones follow; title and subtitle stay as they are.
        Raises `UserError` if the file is something else than a report.
        """
        path = Path(path)
        if not path.exists():
            return self.save(path)
        page = path.read_text(encoding="utf-8")
        head = _HEAD.search(page)
        if head is None:
            raise UserError(f"{path} is not a report of jaxprune; move it away, or give the report another place.")
        kept = {
            meta["name"]: _Stored(meta["title"], [tuple(pair) for pair in meta["inside"]], body)
            for meta, body in ((json.loads(m[1]), m[2]) for m in _STORED.finditer(page))
        }
        meta = json.loads(head[1])
        return _write(path, _page(meta["title"], meta["subtitle"], kept | self._stored()))

    def _stored(self) -> dict[str, _Stored]:
        return {name: _Stored(s.title, s.outline(), s.render()) for name, s in self._sections.items()}


def _comment(kind: str, meta: Mapping[str, Any]) -> str:
    text = json.dumps(meta, ensure_ascii=False).replace("--", "\\u002d\\u002d").replace(">", "\\u003e")
    return f"<!--jaxprune:{kind} {text}-->"


def _contents(sections: Mapping[str, _Stored]) -> str:
    if len(sections) < 3:
        return ""
    entries = []
    for name, section in sections.items():
        inside = "".join(f'<li><a href="#{n}">{_inline(title)}</a></li>' for n, title in section.inside)
        inside = f"<ul>{inside}</ul>" if inside else ""
        entries.append(f'<li><a href="#{name}">{_inline(section.title)}</a>{inside}</li>')
    return f'<nav aria-label="Contents"><h2>Contents</h2><ul>{"".join(entries)}</ul></nav>'


def _page(title: str, subtitle: str, sections: Mapping[str, _Stored]) -> str:
    files = resources.files("jaxprune.viz")
    style, script = (files.joinpath(f"report.{end}").read_text(encoding="utf-8") for end in ("css", "js"))
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    body = []
    for name, section in sections.items():
        meta = {"name": name, "title": section.title, "inside": section.inside}
        body += [_comment("section", meta), section.html, "<!--jaxprune:end-->"]
    contents = _contents(sections)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"{" class=wide" if contents else ""}>',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{_escape(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            _comment("report", {"title": title, "subtitle": subtitle}),
            f"<header><h1>{_inline(title)}</h1>{f'<p>{_inline(subtitle)}</p>' if subtitle else ''}</header>",
            contents,
            "<main>",
            *body,
            "</main>",
            f"<footer>jaxprune {__version__}</footer>",
            f"<script>\n{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _write(path: Path, page: str) -> Path:
    """Writes a file so that whoever looks finds the old one or the new one, and never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
