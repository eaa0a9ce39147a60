"""Saving never destroys a file that is not a report, nor leaves half a page."""

import random
import re
import threading

import pytest

from jaxprune.errors import UserError
from jaxprune.report import Report, storage


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


def test_sections_that_are_added_at_the_same_time_are_all_kept(tmp_path):
    path = tmp_path / "run" / "report.html"

    def add(writer):
        for number in range(10):
            report = Report("title")
            report.section(f"Section {writer} {number}", "text")
            report.add_to(path)

    writers = [threading.Thread(target=add, args=(writer,)) for writer in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(storage.read(path).sections) == 30


def test_damaged_data_of_a_section_leave_out_the_section(tmp_path, caplog):
    path = tmp_path / "report.html"
    Report("title", "subtitle").save(path)
    for name in ("one", "two"):
        report = Report("title")
        report.section(name, f"text of {name}")
        report.add_to(path)
    text, damaged = path.read_text(), 0
    rng = random.Random(0)
    for _ in range(300):
        start = rng.choice([match.start() for match in re.finditer("<!--jaxprune", text)])
        place = start + rng.randrange(90)
        change = rng.choice(["", "[", "\x00", '"', "{", "9" * 5000, "null", "[" * 100_000])
        path.write_text(text[:place] + change + text[place + rng.randrange(4) :])
        report = Report("title")
        report.section("three", "more")
        try:
            report.add_to(path)
        except UserError as error:
            damaged += 1
            assert len(str(error)) < 400
        else:
            assert "more" in path.read_text()
    assert damaged > 10 and "a damaged section is left out" in caplog.text


def test_a_report_that_is_no_text_is_one_line(tmp_path):
    (tmp_path / "report.html").write_bytes(b"\xff\xfe<!--jaxprune:report")
    with pytest.raises(UserError, match="cannot be read as a report"):
        Report("r").add_to(tmp_path / "report.html")
