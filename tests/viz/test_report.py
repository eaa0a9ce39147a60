"""The report is one valid page that needs nothing else and can be added to."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.viz import plots
from jaxprune.viz.report import Report, data_uri, format_value, slugify

VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """Checks that elements close in order, and collects what the tests ask for."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


@pytest.fixture(scope="module")
def full() -> Report:
    """A report with one of everything."""
    rng = np.random.default_rng(0)
    report = Report("A <run> & more", "with `code`")
    first = report.section("Pre-training", "One **strong** `a<b` word.\n\n- item\n- *other*\n\n```\nx = 1 < 2\n```")
    first.metric_tiles({"accuracy": 0.5, "loss": (1.25, "chance is 2.3"), "state": "done"})
    first.command("python -m jaxprune.main --config=c.py --config.name='<x>'")
    first.note("careful", "warning")
    plot = plots.line_plot({"a": ([1, 2], [1, 2]), "b": ([1, 2], [2, 1])}, title="loss", bands={"a": ([0, 1], [2, 3])})
    first.figure(plot, "loss").figure(plot, "again")
    first.figure(rng.random((32, 32, 3)), "noise", alt='thirty-two "pixels"')
    inner = first.section("Details")
    inner.gallery([rng.random((8, 8)), plot, np.zeros((8, 8, 1), np.uint8)], ["a", "b", "c"])
    first.section("Details").table([{"x": 1}])
    rows = [{"method": "a & b", "top": (71.25, 0.4), "n": 1200}, {"method": "<c>", "top": 80, "n": None}]
    report.section("Table").table(
        rows, caption="all of it", highlight={"top": "max", "n": "min"}, formats={"top": ".1f"}
    )
    report.section("Raw").html('<p><input type="range" aria-label="keep rate"></p>')
    return report


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


def test_text_is_escaped(full):
    text = full.render()
    page = Page(text)
    assert "<run>" not in text and "<c>" not in text and "'<x>'" not in text
    words = "".join(page.words)
    assert "A <run> & more" in words and "<c>" in words and "a<b" in words and "x = 1 < 2" in words
    assert "python -m jaxprune.main --config=c.py --config.name='<x>'" in words
    assert len(page.all("strong")) == 1 and len(page.all("em")) == 1 and len(page.all("li")) > 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a * b * c", "<p>a * b * c</p>"),
        ("2**3 and a*b*c", "<p>2**3 and a*b*c</p>"),
        ("`**x**` and **y**", "<p><code>**x**</code> and <strong>y</strong></p>"),
        ("one\ntwo\n- x\n- y", "<p>one two</p>\n<ul><li>x</li><li>y</li></ul>"),
        ("<b>", "<p>&lt;b&gt;</p>"),
    ],
)
def test_text_marks(text, expected):
    assert expected in Report("r").section("s", text).render()


def test_tables_sort_and_mark_the_best(full):
    page = Page(full.render())
    headers = [th for th in page.all("th") if th.get("scope") == "col"]
    assert len(headers) == 4 and all(th["aria-sort"] == "none" for th in headers)
    assert [v for v in page.values("data-v") if v] == ["1.0", "71.25", "1200.0", "80.0"]
    assert len([c for c in page.values("class") if c and "best" in c]) == 2
    assert "71.2 ± 0.4" in page.words and "80.0" in page.words and "–" in page.words


def test_table_refuses_what_it_cannot_show():
    section = Report("r").section("s")
    with pytest.raises(UserError, match="Did you mean 'accuracy'"):
        section.table([{"accuracy": 1}], highlight={"acuracy": "max"})
    with pytest.raises(UserError, match="highlight 'most'"):
        section.table([{"accuracy": 1}], highlight={"accuracy": "most"})
    with pytest.raises(UserError, match="kind of note"):
        section.note("x", "infos")
    with pytest.raises(UserError, match="2 pictures got 1 captions"):
        section.gallery([np.zeros((2, 2))] * 2, ["a"])
    with pytest.raises(UserError, match=r"\(1, 2, 3, 4\)"):
        section.figure(np.zeros((1, 2, 3, 4)))


def test_format_value():
    values = (1234567, 0.123456, 12345.6, 1e-5, None, True, float("nan"), "x", np.float32(0.5))
    texts = ["1,234,567", "0.1235", "12,346", "1.00e-05", "–", "yes", "–", "x", "0.5"]
    assert [format_value(value) for value in values] == texts
    assert format_value((0.5, 0.25), ".2f") == "0.50 ± 0.25"


def test_slugify():
    assert [slugify(t) for t in ("Pre-training", "  Was ist das? ", "***")] == [
        "pre-training",
        "was-ist-das",
        "section",
    ]


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
    with pytest.raises(OSError, match="disk full"):
        Report("new").save(path)
    assert path.read_text() == before and len(list(tmp_path.iterdir())) == 1


def test_pictures_are_small():
    rng = np.random.default_rng(0)
    assert data_uri(np.zeros((8, 8, 3), np.uint8)).startswith("data:image/png;")
    photo = data_uri(rng.random((256, 256, 3)))
    assert photo.startswith(("data:image/webp;", "data:image/jpeg;"))
    assert len(photo) < 150_000
    assert 'width="160" height="160"' in Report("r").section("s").figure(rng.random((32, 32, 3))).render()


def test_large_plots_become_bitmaps():
    x = np.linspace(0, 1, 20_000)
    plot = plots.line_plot({"noise": (x, np.random.default_rng(0).random(20_000))})
    section = Report("r").section("s").figure(plot)
    assert "data:image/png" in section.render() and "<svg" not in section.render()


def test_plots_follow_the_theme():
    svg = Report("r").section("s").figure(plots.line_plot({"a": ([0, 1], [0, 1])}, title="t")).render()
    assert "var(--ink)" in svg and "var(--card)" in svg and plots.INK not in svg and plots.PAPER not in svg
