"""Matplotlib figures as inline SVG that can share a page with others and follows its theme."""

import io
import re
from typing import Any

from jaxprune.report import point_texts
from jaxprune.report.data_uri import bytes_uri
from jaxprune.report.markup import escape

MAX_SVG_BYTES = 120_000  # a plot whose SVG is larger is embedded as a PNG

_TEXTS = re.compile(r' data-texts="[^"]*"')
_POINTS = re.compile(r'<g data-texts="([^"]*)">((?:(?!<g ).)*?</defs>\s*<g [^>]*>)(.*?</g>)', re.S)

# The neutral colours of `plots` and the CSS variables that replace them in SVG, so that plots follow the reader's
# light or dark theme; PNGs keep the light colours.
THEME = {"#1f2933": "--ink", "#5b6775": "--muted", "#dde3e8": "--line", "#fefefe": "--card"}


def plot_element(figure: Any, alt: str, prefix: str) -> str:
    """Returns a figure as an inline `<svg>` element, or as an `<img>` with a PNG if the SVG is large.

    Args:
      figure: a matplotlib `Figure`.
      alt: the alternative text.
      prefix: start of the ids inside the SVG; unique in the page.
    """
    import matplotlib  # imported here, because a report without plots does not need it

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxprune", "text.parse_math": False}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = _clean(text.getvalue(), alt, prefix)
    if len(_TEXTS.sub("", svg)) <= MAX_SVG_BYTES:
        return _with_labels(svg)
    data = io.BytesIO()
    with matplotlib.rc_context({"text.parse_math": False}):
        figure.savefig(data, format="png", dpi=160)
    width, height = (_pixels(72 * inches) for inches in figure.get_size_inches())
    src = bytes_uri("image/png", data.getvalue())
    return f'<img class="plot" src="{src}" width="{width}" height="{height}" alt="{escape(alt)}">'


def _with_labels(svg: str) -> str:
    """Labels the points that have texts, see `plots.tips.add_tips`, for tooltips and screen readers.

    One point of a plot can be reached by the tabulator key, the others from there by the arrow keys.
    """
    labelled = _POINTS.sub(lambda match: _labelled(match[1], match[2], match[3]), svg)
    if labelled == svg:
        return _TEXTS.sub("", svg)
    labelled = labelled.replace('class="point" tabindex="-1"', 'class="point" tabindex="0"', 1)
    # Elements inside one of role "img" are hidden from screen readers.
    return _TEXTS.sub("", labelled.replace('role="img"', 'role="group"', 1))


def _labelled(gid: str, before: str, points: str) -> str:
    texts = point_texts.from_gid(gid)
    if points.count("<use ") != len(texts):  # points outside the axes are not drawn
        return f"<g>{before}{points}"
    labels = iter(texts)
    attributes = lambda _: f'<use class="point" tabindex="-1" role="img" aria-label="{escape(next(labels))}" '
    return f"<g>{before}{re.sub('<use ', attributes, points)}"


def _pixels(points: float) -> int:
    """Returns at which size a plot is shown: one of the usual width, 6.4 inches, fills a report."""
    return round(points * 1.95)


def _clean(svg: str, alt: str, prefix: str) -> str:
    """Adapts matplotlib's SVG to the page: unique ids, theme colours, no namespaces, metadata or style sheets."""
    view, width = re.findall(r'(viewBox="[\d.]+ [\d.]+ ([\d.]+) [\d.]+")', svg)[0]
    svg = re.sub(r".*?<svg[^>]*>", "", svg, count=1, flags=re.S)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r"<defs>\s*</defs>", "", svg).replace("xlink:href", "href")
    svg = svg.replace(f' id="{point_texts.PREFIX}', ' data-texts="')
    used = sorted({a or b for a, b in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)})
    # Two hyphens: an id of the page, such as that of a later figure, never continues the prefix so.
    ids = {old: f"{prefix}--{index}" for index, old in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{ids[m[1]]}"' if m[1] in ids else "", svg)
    svg = re.sub(r'(url\(|href=")#([^)"]+)', lambda m: f"{m[1]}#{ids[m[2]]}", svg)
    svg = re.sub(
        r' (d|x|y|points|transform)="[^"]*"',  # two decimals: finer than the resolution of any screen
        lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]),
        svg,
    )
    for colour, variable in THEME.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r"\s*\n\s*", "\n", svg).strip()
    return f'<svg {view} role="img" aria-label="{escape(alt)}" style="max-width:{_pixels(float(width))}px">\n{svg}'
