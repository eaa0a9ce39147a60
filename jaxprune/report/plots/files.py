"""Plots as files for papers and slides: PDF with embedded fonts, SVG with outlined text, PNG."""

import io
import os
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from jaxprune.errors import unknown
from jaxprune.files import as_path, make_directory, write_atomically

FORMATS = ("pdf", "svg")  # beside every report
_ALL = (*FORMATS, "png")
# Type 42: fonts that journals accept and editors can change. Without dates, the same plot is the same file.
_STYLE = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "jaxprune", "text.parse_math": False}
_DATES = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def save(figure: Figure, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Writes a plot, atomically, and returns the files; the same plot always gives the same bytes.

    >>> import tempfile
    >>> from jaxprune.report import plots
    >>> figure = plots.line_plot({"loss": ([1, 2, 3], [3.0, 2.0, 1.5])}, "step", "loss")
    >>> [file.name for file in save(figure, Path(tempfile.mkdtemp()) / "loss")]
    ['loss.pdf', 'loss.svg']

    Args:
      figure: what a function of `report.plots` returns, or any matplotlib `Figure`.
      path: ending in .pdf, .svg or .png, or without an ending: a PDF and an SVG. Missing directories are created.

    Raises:
      UserError: the ending is another one, or the file cannot be written.
    """
    path = as_path(path)
    ending = path.suffix.lower().lstrip(".")
    if ending and ending not in _ALL:
        raise unknown("format of a plot", ending, _ALL)
    make_directory(path.parent)
    files = (path,) if ending else tuple(path.with_name(f"{path.name}.{ending}") for ending in FORMATS)
    for file in files:
        write_atomically(file, _drawn(figure, file.suffix.lower().lstrip(".")))
    return files


def _drawn(figure: Figure, ending: str) -> bytes:
    data = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(data, format=ending, dpi=300, metadata=_DATES[ending])
    return data.getvalue()
