"""Sections refuse elements that they cannot display."""

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.report import Report


def test_unsupported_elements_are_refused():
    section = Report("r").section("s")
    with pytest.raises(UserError, match="kind of note"):
        section.note("x", "infos")
    with pytest.raises(UserError, match="2 pictures got 1 captions"):
        section.gallery([np.zeros((2, 2))] * 2, ["a"])
    with pytest.raises(UserError, match=r"\(1, 2, 3, 4\)"):
        section.figure(np.zeros((1, 2, 3, 4)))
