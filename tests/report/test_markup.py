"""Text is escaped, and the marks of the Markdown dialect become elements."""

import pytest
from parsed_page import Page

from jaxprune.report import Report


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
