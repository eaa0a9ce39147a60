"""Sections stored in HTML comments of the report's file, so that later runs can read and extend it."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune.errors import UserError, shortened
from jaxprune.files import make_directory, read_text, write_atomically

_REPORT = re.compile(r"<!--jaxprune:report (\{.*?\})-->")
_SECTION = re.compile(r"<!--jaxprune:section (\{.*?\})-->\n(.*?)\n<!--jaxprune:end-->", re.DOTALL)

_log = logging.getLogger(__name__)


class StoredSection(NamedTuple):
    """A rendered section.

    Attributes:
      title: the heading.
      inside: (name, title) of the direct subsections.
      html: the section's element.
    """

    title: str
    inside: list[tuple[str, str]]
    html: str


class StoredReport(NamedTuple):
    """The content of a report's file; the sections are {name: section}."""

    title: str
    subtitle: str
    sections: dict[str, StoredSection]


def report_comment(title: str, subtitle: str) -> str:
    """Returns the comment that marks a file as a report and stores its title and subtitle."""
    return _comment("report", {"title": title, "subtitle": subtitle})


def with_comments(name: str, section: StoredSection) -> str:
    """Returns the HTML of a section between the comments from which `read` restores it."""
    meta = {"name": name, "title": section.title, "inside": section.inside}
    return "\n".join([_comment("section", meta), section.html, "<!--jaxprune:end-->"])


def read(path: Path) -> StoredReport:
    """Reads a report's file.

    Raises:
      UserError: the file is not a report.
    """
    try:
        page = read_text(path, None)
        head = _REPORT.search(page)
        meta = None if head is None else json.loads(head[1])
        title, subtitle = (str(meta[name]) for name in ("title", "subtitle")) if isinstance(meta, dict) else ("", "")
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read as a report ({shortened(error)}); move it away, or give the report another place."
        ) from error
    if head is None:
        raise UserError(f"{path} is not a report of jaxprune; move it away, or give the report another place.")
    return StoredReport(title, subtitle, dict(_sections(page, path)))


def _sections(page: str, path: Path) -> Iterator[tuple[str, StoredSection]]:
    """Yields the name and the content of the sections; a damaged one is left out with a warning."""
    for match in _SECTION.finditer(page):
        try:
            meta = json.loads(match[1])
            inside = [(str(name), str(title)) for name, title in meta["inside"]]
            yield str(meta["name"]), StoredSection(str(meta["title"]), inside, match[2])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("%s: a damaged section is left out (%s).", path, shortened(repr(error)))


def write(path: Path, page: str) -> Path:
    """Writes a file atomically, so that readers find either the old version or the new one; creates directories."""
    make_directory(path.parent)
    write_atomically(path, page)
    return path


def _comment(kind: str, meta: Mapping[str, Any]) -> str:
    text = json.dumps(meta, ensure_ascii=False).replace("--", "\\u002d\\u002d").replace(">", "\\u003e")
    return f"<!--jaxprune:{kind} {text}-->"
