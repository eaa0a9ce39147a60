"""Tables can be sorted and highlight the best values."""

import pytest
from parsed_page import Page
from written_pages import read_page

from jaxprune.errors import UserError
from jaxprune.report import Report


def test_tables_sort_and_mark_the_best(full):
    page = Page(full.render())
    headers = [th for th in page.all("th") if th.get("scope") == "col"]
    assert len(headers) == 4 and all(th["aria-sort"] == "none" for th in headers)
    assert [v for v in page.values("data-v") if v] == ["1.0", "71.25", "1200.0", "80.0"]
    assert len([c for c in page.values("class") if c and "best" in c]) == 2
    assert "71.2 ± 0.4" in page.words and "80.0" in page.words and "–" in page.words


@pytest.mark.parametrize(("better", "best"), [("max", ["3 *", "1", "3 *", "–"]), ("min", ["3", "1 *", "3", "–"])])
def test_the_best_is_the_largest_or_the_smallest_value(better, best, tmp_path):
    report = Report("r")
    report.section("s").table([{"n": n} for n in (3, 1, 3, None)], highlight={"n": better})
    (table,) = read_page(report.save(tmp_path / "page.html")).parts["s"].tables
    assert table.rows == [["n"], *([cell] for cell in best)]


@pytest.mark.parametrize(
    ("cells", "marks"),
    [
        ([(0.8, 0.7, 0.9), (0.6, 0.5, 0.69)], [True, False]),
        ([(0.8, 0.7, 0.9), (0.6, 0.5, 0.71)], [False, False]),  # they overlap
        ([(0.8, 0.7, 0.9), (0.8, 0.7, 0.9)], [False, False]),
        ([(0.8, 0.05), (0.6, 0.05)], [True, False]),
        ([(0.8, 0.15), (0.6, 0.15)], [False, False]),
        ([(2.0, float("nan"), float("nan")), (1.0, float("nan"), float("nan"))], [False, False]),  # a single round
        ([(0.8, 0.7, 0.9), 0.75], [False, False]),  # within the other one's interval
    ],
)
def test_nothing_is_marked_where_intervals_overlap(cells, marks):
    html = Report("r").section("s").table([{"n": cell} for cell in cells], ["n"], highlight={"n": "max"}).render()
    assert [" best" in row for row in html.split("<tr>")[2:]] == marks


def test_unknown_columns_and_highlights_are_refused():
    section = Report("r").section("s")
    with pytest.raises(UserError, match="Did you mean 'accuracy'"):
        section.table([{"accuracy": 1}], highlight={"acuracy": "max"})
    with pytest.raises(UserError, match="highlight 'most'"):
        section.table([{"accuracy": 1}], highlight={"accuracy": "most"})


def test_long_plans_wrap_between_their_steps():
    report = Report("r")
    report.section("s").table([{"plan": "topk@3:keep_rate=0.7+tome@6:keep_rate=0.5", "short": "a+b"}])
    html = report.render()
    assert "topk@3:keep_rate=0.7+<wbr>tome@6:keep_rate=0.5" in html and ">a+b<" in html


def test_long_tables_have_a_filter():
    report = Report("r")
    section = report.section("s").table([{"n": n} for n in range(12)], caption="long").table([{"n": 1}])
    page = Page(report.render())
    (field,) = page.all("input")
    assert field["type"] == "search" and field["aria-controls"] in page.values("id")
    assert "Filter rows " in page.words and section.render().count('class="filter" hidden') == 1
