"""The plots of a report as files beside it, for papers and slides."""

import glob
import hashlib
from pathlib import Path

from jaxprune.files import reading, writing
from jaxprune.report.section import Section

FOLDER = "plots"
_LONGEST = 200  # bytes of a name; file systems allow 255


def write(section: Section, beside: Path) -> None:
    """Writes the plots of a top-level section as PDF and SVG; those that it had before and has no longer are removed.

    Args:
      section: its plots are named by it and their axes: `plots/benchmark--accuracy-by-gflops.pdf`.
      beside: the directory of the report.
    """
    folder, figures = beside / FOLDER, section.plots()
    files: set[Path] = set()
    if figures:
        from jaxprune.report import plots  # imported here, because a report without plots does not need matplotlib

        files = {file for name, figure in figures.items() for file in plots.save(figure, folder / _short(name))}
    with reading(folder):
        older = list(folder.glob(f"{glob.escape(section.name)}--*.*"))
    for file in older:
        if file not in files and file.suffix in (".pdf", ".svg"):
            with writing(file):
                file.unlink()


def there_are(beside: Path) -> bool:
    """Whether there are files of plots beside a report."""
    with reading(beside / FOLDER):
        return next((beside / FOLDER).glob("*.pdf"), None) is not None


def _short(name: str) -> str:
    encoded = name.encode()
    if len(encoded) <= _LONGEST:
        return name
    return f"{encoded[:_LONGEST].decode(errors='ignore')}-{hashlib.sha256(encoded).hexdigest()[:8]}"
