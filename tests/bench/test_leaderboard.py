"""Rows of a leaderboard: what a check finds in a forged one."""

import itertools
from pathlib import Path

import pytest

from jaxprune import main, tasks
from jaxprune.bench import leaderboard
from jaxprune.bench.leaderboard import COLUMNS, chosen, differences, escapes, order_text, read, same_order, sealed
from jaxprune.errors import UserError
from jaxprune.viz.table import write_csv

MEASURED = {
    "network": "vit",
    "plan": "topk@3:keep_rate=0.7",
    "images": 1000.0,
    "accuracy": 0.731,
    "agreement": 0.914,
    "GFLOPs": 3.0127,
    "weights": "3f2a" * 4,
    "code": "77aa" * 4,
    "data": "0bcd" * 4,
    "low": 0.70,
    "high": 0.76,
    "images/s": 30.5,
    "speed-up": 1.44,
    "speed-up low": 1.38,
    "speed-up high": 1.49,
    "verdict": "as promised",
}
ROW = sealed(MEASURED)
FORGED = {
    "accuracy": (0.732, 0.74, 0.9, 0.7309999),
    "agreement": (0.915, 0.93, 1.0, 0.9140001),
    "GFLOPs": (3.0126, 2.9, 1.5, 3.01),
    "weights": ("3f2b" * 4,),
    "code": ("77ab" * 4,),
    "data": ("0bce" * 4,),
    "images": (999.0, 10_000.0),
    "hash": ("0" * 16, ROW["hash"][::-1]),
    "speed-up": (1.6, 2.2),
}


def test_a_true_row_holds_also_from_a_file(tmp_path):
    write_csv(tmp_path / "leaderboard.csv", [ROW], device="cpu")
    (again,) = read(tmp_path / "leaderboard.csv")
    assert differences(again, ROW) == [] and again == ROW


@pytest.mark.parametrize("reseal", [False, True])
def test_every_forgery_is_caught_when_its_row_is_measured_again(reseal):
    forgeries = [(name, value) for name, values in FORGED.items() for value in values]
    assert len(forgeries) >= 20
    for name, value in forgeries:
        if reseal and name == "hash":
            continue
        forged = {**ROW, name: value}
        assert differences(sealed(forged) if reseal else forged, ROW), (name, value)


def test_speeds_hold_where_their_ranges_meet():
    slower = sealed({**MEASURED, "speed-up": 1.40, "speed-up low": 1.35, "speed-up high": 1.41})
    assert differences(slower, ROW) == []
    faster = sealed({**MEASURED, "speed-up": 1.55, "speed-up low": 1.5, "speed-up high": 1.6})
    assert "speed-up" in differences(faster, ROW)[0]


def test_rows_are_chosen_by_name_or_at_random():
    rows = [sealed({**MEASURED, "plan": f"topk@{i}:keep_rate=0.7"}) for i in range(10)]
    assert chosen(rows, 0, (), seed=0) == rows
    assert len(chosen(rows, 3, (), seed=0)) == 3 and chosen(rows, 3, (), seed=0) != chosen(rows, 3, (), seed=1)
    assert chosen(rows, 3, ("vit topk@4:keep_rate=0.7",), seed=0) == [rows[4]]
    with pytest.raises(UserError, match="has no row 'vit topk'"):
        chosen(rows, 3, ("vit topk",), seed=0)


def test_the_chance_to_escape_is_that_of_counting():
    for rows, checked in ((5, 2), (6, 3)):
        subsets = list(itertools.combinations(range(rows), checked))
        assert escapes(rows, checked) == pytest.approx(sum(0 not in subset for subset in subsets) / len(subsets))


def test_what_is_no_leaderboard_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "none.csv")
    write_csv(tmp_path / "other.csv", [{"a": 1}])
    with pytest.raises(UserError, match="is not a leaderboard"):
        read(tmp_path / "other.csv")
    write_csv(tmp_path / "cut.csv", [{**ROW, "accuracy": "0.7x"}])
    with pytest.raises(UserError, match=r"accuracy '0\.7x' is not a number"):
        read(tmp_path / "cut.csv")


def test_hashes_follow_what_they_are_of():
    assert leaderboard.code_hash() == leaderboard.code_hash()
    one = leaderboard.data_hash({"img_size": 32, "path": "here"}, ["a", "b"])
    assert one == leaderboard.data_hash({"img_size": 32, "path": "there"}, ["a", "b"])
    assert one != leaderboard.data_hash({"img_size": 48, "path": "here"}, ["a", "b"])
    assert set(COLUMNS) == set(MEASURED)


def test_the_order_of_speeds_is_compared_over_common_rows(tmp_path):
    rows = [sealed({**MEASURED, "plan": f"topk@{i}", "speed-up": 1 + i / 10}) for i in range(5)]
    others = [sealed({**row, "speed-up": -row["speed-up"]}) for row in rows[:4]]
    assert same_order(rows, rows).value == pytest.approx(1)
    found = same_order(rows, others)
    assert found.value == pytest.approx(-1) and found.count == 4 and "4 rows: -1.00" in order_text(found)
    assert "too few" in order_text(same_order(rows, others[:2]))
    for name, own in {"a": rows, "b": others}.items():
        write_csv(tmp_path / f"{name}.csv", own)
    config = main.load_config(str(Path(__file__).parent.parent.parent / "configs" / "leaderboard.py"))
    config.update(verify=str(tmp_path / "a.csv"), compare=str(tmp_path / "b.csv"))
    assert tasks.find("leaderboard")(config, tmp_path)["tau of speeds"] == pytest.approx(-1)
