"""Sections stored in HTML comments of the report's file, so that later runs can read and extend it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune.errors import UserError
from jaxprune.files import write_atomically

_REPORT = re.compile(r"<!--jaxprune:report (\{.*?\})-->")
_SECTION = re.compile(r"<!--jaxprune:section (\{.*?\})-->\n(.*?)\n<!--jaxprune:end-->", re.DOTALL)


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
    page = path.read_text(encoding="utf-8")
    head = _REPORT.search(page)
    if head is None:
        raise UserError(f"{path} is not a report of jaxprune; move it away, or give the report another place.")
    sections = {
        meta["name"]: StoredSection(meta["title"], [tuple(pair) for pair in meta["inside"]], html)
        for meta, html in ((json.loads(match[1]), match[2]) for match in _SECTION.finditer(page))
    }
    meta = json.loads(head[1])
    return StoredReport(meta["title"], meta["subtitle"], sections)


def write(path: Path, page: str) -> Path:
    """Writes a file atomically, so that readers find either the old version or the new one; creates directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return path


def _comment(kind: str, meta: Mapping[str, Any]) -> str:
    text = json.dumps(meta, ensure_ascii=False).replace("--", "\\u002d\\u002d").replace(">", "\\u003e")
    return f"<!--jaxprune:{kind} {text}-->"
