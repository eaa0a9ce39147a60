"""A page is valid HTML that loads nothing from elsewhere, and later runs can add sections to it."""

import re

from parsed_page import Page

from jaxprune.report import Report


def test_page_is_well_formed_and_closed_to_the_world(full):
    text = full.render()
    page = Page(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for reference in page.values("src") + page.values("href"):
        assert reference.startswith(("data:", "#"))
        assert not reference.startswith("#") or reference[1:] in ids
    for reference in re.findall(r"url\(([^)]*)\)", text):
        assert reference[0] == "#" and reference[1:] in ids
    assert "http://" not in text and "https://" not in text
    assert all("alt" in img for img in page.all("img"))
    assert page.values("http-equiv") == ["Content-Security-Policy"]
    assert page.all("nav")


def test_a_later_run_adds_and_replaces(tmp_path):
    path = tmp_path / "run" / "report.html"
    first = Report("First -- title", "sub>title")
    first.section("One", "old words")
    first.section("Two --> x", "stay").section("inside")
    first.add_to(path)
    assert "Contents" not in path.read_text()

    later = Report("Later")
    later.section("One", "new words")
    later.section("Three")
    later.add_to(path)
    text = path.read_text()
    page = Page(text)
    assert "old words" not in text and "Later" not in text
    assert "First -- title" in page.words and "sub>title" in page.words
    assert [s["id"] for s in page.all("section")] == ["one", "two-x", "two-x--inside", "three"]
    assert [a["href"] for a in page.all("a")][:4] == ["#one", "#two-x", "#two-x--inside", "#three"]

    once = path.read_bytes()
    later.add_to(path)
    assert path.read_bytes() == once
    later.save(path)
    assert [s["id"] for s in Page(path.read_text()).all("section")] == ["one", "three"]
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
