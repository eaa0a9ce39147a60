"""The page about files of others names the limits that the code has."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "security.md").read_text()
LIMITS = re.findall(r"^\| .* \| ([\d,]+)[^|]* \| `([\w.]+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("number", "place"), LIMITS, ids=lambda text: text)
def test_a_limit_is_that_of_the_code(number, place):
    module, name = place.rsplit(".", 1)
    assert getattr(importlib.import_module(f"jaxprune.{module}"), name) == int(number.replace(",", ""))


def test_the_table_was_read():
    assert len(LIMITS) >= 17
