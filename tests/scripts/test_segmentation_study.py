"""The study of segmentation refuses runs that it cannot tell apart."""

import pytest
import segmentation

from jaxprune.errors import UserError


def test_two_runs_of_one_name_are_refused():
    before = {"dense, 32×32 px": None, "tome:r=2": None}
    segmentation.require_other_names({"dense, 24×24 px": None}, before, "runs/small")
    with pytest.raises(UserError, match='--runs runs/other: there is a "dense, 32×32 px" before it'):
        segmentation.require_other_names({"dense, 32×32 px": None}, before, "runs/other")
