"""The page of a report: it includes its style, script and images, and needs neither a server nor the network."""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from jaxprune import __version__
from jaxprune.files import alone_in, make_directory
from jaxprune.report import plot_files, storage
from jaxprune.report.ids import slugify
from jaxprune.report.markup import escape, inline
from jaxprune.report.section import Section
from jaxprune.report.storage import StoredSection

# Forbids every request to the network.
CONTENT_POLICY = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


class Report:
    """A page of sections: `save` writes it, `add_to` adds its sections to an existing page."""

    def __init__(self, title: str, subtitle: str = ""):
        """Creates a report without sections; `title` and `subtitle` may contain `code`, **strong** and *emphasis*."""
        self.title = title
        self.subtitle = subtitle
        self._sections: dict[str, Section] = {}

    def section(self, title: str, text: str = "", slug: str | None = None) -> Section:
        """Appends a section, or replaces the one of the same name, and returns it.

        Args:
          title: the heading.
          text: the first element, as in `Section.text`.
          slug: the name of the section; by default made from the title.
        """
        name = slugify(title if slug is None else slug)
        self._sections[name] = Section(title, name)
        return self._sections[name].text(text) if text else self._sections[name]

    def render(self) -> str:
        """Returns the page as HTML."""
        return _page(self.title, self.subtitle, self._stored())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes this report to `path` atomically, replacing any existing file; creates missing directories.

        Its plots are written beside it, as PDF and SVG, in the folder `plots`.
        """
        return self._write(Path(path), self.title, self.subtitle, {})

    def add_to(self, path: str | os.PathLike[str]) -> Path:
        """Adds the sections to the report at `path`, or creates it if there is none; their plots as in `save`.

        Sections of the same name are replaced in place, others are appended; the title and subtitle in the file are
        kept. Of several processes that add to one report, one adds after the other.

        Raises:
          UserError: the file is not a report, or cannot be written.
        """
        path = Path(path)
        with alone_in(make_directory(path.parent)):
            if not path.exists():
                return self.save(path)
            old = storage.read(path)
            return self._write(path, old.title, old.subtitle, old.sections)

    def _write(self, path: Path, title: str, subtitle: str, older: Mapping[str, StoredSection]) -> Path:
        for section in self._sections.values():
            plot_files.write(section, path.parent)
        page = _page(title, subtitle, {**older, **self._stored()}, plot_files.there_are(path.parent))
        return storage.write(path, page)

    def _stored(self) -> dict[str, StoredSection]:
        return {name: StoredSection(s.title, s.outline(), s.render()) for name, s in self._sections.items()}


def _contents(sections: Mapping[str, StoredSection]) -> str:
    """Returns the table of contents, or an empty string if there are fewer than three sections."""
    if len(sections) < 3:
        return ""
    entries = []
    for name, section in sections.items():
        inside = "".join(f'<li><a href="#{n}">{inline(title)}</a></li>' for n, title in section.inside)
        inside = f"<ul>{inside}</ul>" if inside else ""
        entries.append(f'<li><a href="#{name}">{inline(section.title)}</a>{inside}</li>')
    return f'<nav aria-label="Contents"><h2>Contents</h2><ul>{"".join(entries)}</ul></nav>'


def _page(title: str, subtitle: str, sections: Mapping[str, StoredSection], plots_beside: bool = False) -> str:
    files = resources.files("jaxprune.report")
    style, script = (files.joinpath(f"report.{end}").read_text(encoding="utf-8") for end in ("css", "js"))
    contents = _contents(sections)
    beside = f" · its plots as PDF and SVG: <code>{plot_files.FOLDER}/</code> beside this page" if plots_beside else ""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"{" class=wide" if contents else ""}>',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style>",
            "</head>",
            "<body>",
            storage.report_comment(title, subtitle),
            f"<header><h1>{inline(title)}</h1>{f'<p>{inline(subtitle)}</p>' if subtitle else ''}</header>",
            contents,
            "<main>",
            *(storage.with_comments(name, section) for name, section in sections.items()),
            "</main>",
            f"<footer>jaxprune {__version__}{beside}</footer>",
            f"<script>\n{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )
