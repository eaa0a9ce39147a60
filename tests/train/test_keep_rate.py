"""Keep rates that fall from epoch to epoch."""

import pytest

from jaxprune.errors import UserError
from jaxprune.reduction import At, Plan
from jaxprune.train.keep_rate import KeepRateWarmUp


@pytest.mark.parametrize("plan", [Plan(steps=(At(3, "evit", keep_rate=0.7),)), Plan("tome", r=3), None])
def test_a_plan_without_a_single_keep_rate_is_refused(plan):
    with pytest.raises(UserError, match=r"give reduction\.method and a single keep_rate"):
        KeepRateWarmUp(plan, 10, {"start": 0, "epochs": 1}, lambda plan: None)
