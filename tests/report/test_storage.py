"""Saving never destroys a file that is not a report, nor leaves half a page."""

import pytest

from jaxprune.errors import UserError
from jaxprune.report import Report


def test_a_foreign_file_is_left_alone(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("<p>mine</p>")
    with pytest.raises(UserError, match="not a report"):
        Report("r").add_to(path)
    assert path.read_text() == "<p>mine</p>"


def test_a_failed_save_keeps_the_old_page(tmp_path, monkeypatch):
    path = Report("old").save(tmp_path / "report.html")
    before = path.read_text()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(UserError, match="disk full"):
        Report("new").save(path)
    assert path.read_text() == before and len(list(tmp_path.iterdir())) == 1
