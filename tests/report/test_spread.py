"""Reports name what a ± and a range are."""

from jaxprune.report import spread


def test_a_half_width_is_named_with_its_number():
    assert spread.meaning(spread.WILSON, 200) == "± = half the 95 % interval (Wilson) over 200 images"
    assert spread.meaning(spread.STUDENT, 3, "seeds") == "± = half the 95 % interval (Student's t) over 3 seeds"
    assert spread.meaning(spread.STANDARD_ERROR).endswith("the standard error of the mean over the row’s images")
    assert "no ±" in spread.meaning(spread.STUDENT, 1, "seeds")
    assert spread.of_share(0.479, 0.521, 500) == "47.9% to 52.1%: 95 % interval (Wilson) over 500 images"


def test_timings_say_what_their_range_is_or_that_there_is_none():
    assert "median over 5 rounds with the smallest and the largest" in spread.ranges(5)
    assert "no spread" in spread.ranges(1)


def test_ends_of_ranges_are_in_one_cell():
    rows = [{"plan": "a", "accuracy": 0.5, "low": 0.4, "high": 0.6, "x": 2.0, "x low": 1.0, "x high": 3.0}]
    assert spread.as_ranges(rows) == [{"plan": "a", "accuracy": (0.5, 0.4, 0.6), "x": (2.0, 1.0, 3.0)}]
