"""Tables can be sorted and highlight the best values."""

import pytest
from parsed_page import Page

from jaxprune.errors import UserError
from jaxprune.report import Report


def test_tables_sort_and_mark_the_best(full):
    page = Page(full.render())
    headers = [th for th in page.all("th") if th.get("scope") == "col"]
    assert len(headers) == 4 and all(th["aria-sort"] == "none" for th in headers)
    assert [v for v in page.values("data-v") if v] == ["1.0", "71.25", "1200.0", "80.0"]
    assert len([c for c in page.values("class") if c and "best" in c]) == 2
    assert "71.2 ± 0.4" in page.words and "80.0" in page.words and "–" in page.words


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
