"""Pages written from known results, and read again as a reader sees them."""

import sys

import pytest
from written_pages import read_page

from jaxprune.report import Report

COMMAND = "python -m jaxprune.main --config=configs/x.py"


@pytest.fixture(autouse=True)
def command_line(monkeypatch):
    """The command line of the run that writes the page."""
    monkeypatch.setattr(sys, "argv", ["x", *COMMAND.split()[3:]])


@pytest.fixture(scope="session")
def part_of(tmp_path_factory):
    """Returns the parts of a page whose only section was filled by a function, the section itself first."""

    def parts_of(fill):
        report = Report("jaxprune", "runs/vit")
        fill(report.section("Results"))
        return list(read_page(report.save(tmp_path_factory.mktemp("page") / "report.html")).parts.values())

    return parts_of
