"""The page that leads from the papers to the code is true: every file and every name on it exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = re.findall(r"^\|[^|]*\| `([\w/]+\.py)` \| ([^|]+) \|$", (ROOT / "docs/papers.md").read_text(), re.M)
PLACES = [(file, name) for file, names in ROWS for name in re.findall(r"`(\w+)`", names)]


def test_the_page_covers_the_four_papers():
    assert len(PLACES) > 80


@pytest.mark.parametrize(("file", "name"), PLACES, ids=[f"{file}:{name}" for file, name in PLACES])
def test_the_name_is_defined_in_the_file(file, name):
    source = (ROOT / file).read_text()
    assert re.search(rf"^(def|class) {name}\b|^{name}\b.*=", source, re.M), f"{file} defines no {name}"
