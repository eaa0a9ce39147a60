"""Rows of a leaderboard: what a check finds in a forged one."""

import csv
import importlib
import itertools
import sys

import attacks
import pytest
from attacks import leaderboards
from attacks.leaderboards import CONFIG, DENSE, HIGH, LOW, MEASURED, PLANS, ROW, SPEEDS, table_text

from jaxprune import commands, main
from jaxprune.bench import leaderboard
from jaxprune.bench.leaderboard import (
    COLUMNS,
    caveats,
    chosen,
    completed,
    differences,
    different_device,
    escapes,
    order_text,
    plan_text,
    read,
    same_order,
    sealed,
)
from jaxprune.commands import leaderboard as leaderboard_task
from jaxprune.errors import UserError
from jaxprune.measures.intervals import Interval, wilson_interval
from jaxprune.report.table import write_csv

FORGED = {
    "accuracy": (0.732, 0.74, 0.9, 0.7309999, float("nan"), 2.0),
    "low": (LOW + 1e-6, 0.73, 0.5),
    "high": (HIGH - 1e-6, 0.732, 1.0),
    "agreement": (0.915, 0.93, 1.0, 0.9140001),
    "agreement low": (0.9, 0.914, 0.1),
    "agreement high": (0.92, 0.914, 1.0),
    "accuracy where smaller images fail": (0.26, float("nan")),
    "accuracy where smaller images fail low": (0.19, 0.25),
    "accuracy where smaller images fail high": (0.32, 0.25),
    "hard images": (121, 0),
    "GFLOPs": (2.9999, 2.9, 1.5, 3.01),
    "FLOP-implied": (1.3, 1.51, 0.0),
    "weights": ("3f2b" * 4,),
    "code": ("77ab" * 4,),
    "data": ("0bce" * 4,),
    "plan hash": ("0123" * 4,),
    "jax": ("0.7.0",),
    "images": (999, 10_000),
    "batch size": (1, 64),
    "rounds": (3, 100),
    "seed": (1,),
    "image size": ("0", "384"),
    "verdict": ("baseline", "slower than dense", "95% of the promise", ""),
    "images/s": (3.0, 30.0, 60.0, 1000.0, float("nan")),
    "hash": ("0" * 16, ROW["hash"][::-1]),
    "speed-up": (1.6, 2.2, 1.0, float("nan")),
    "speed-up low": (0.1, 0.5, 1.45, float("nan")),
    "speed-up high": (1.43, 3.1, 100.0, float("nan")),
}
# Several cells that were changed to agree with each other; the verdict is that of the new speed-up.
TOGETHER = {
    "a wide range around another median": {"speed-up": 50.0, "speed-up low": 0.5, "speed-up high": 100.0},
    "a wide range around the true median": {"speed-up low": 0.5, "speed-up high": 100.0},
    "a slightly higher speed": {"speed-up": 1.7, "speed-up low": 1.66, "speed-up high": 1.75, "images/s": 51.0},
    "a slow plan as a fast one": {"speed-up": 1.7, "speed-up low": 1.3, "speed-up high": 1.8},
    "a lower speed": {
        "speed-up": 0.9,
        "speed-up low": 0.85,
        "speed-up high": 1.45,
        "images/s": 27.0,
        "verdict": "slower than dense",
    },
    "another accuracy with its interval": dict(
        zip(("accuracy", "low", "high"), (0.74, *wilson_interval(740, 1000)), strict=True)
    ),
    "fewer images with their interval": dict(
        zip(("images", "low", "high"), (10_000, *wilson_interval(7310, 10_000)), strict=True)
    ),
}


def honest(speed_up, *ends, rate=None):
    """The row of another day: other speeds, and all else equal."""
    rate = rate or DENSE["images/s"] * speed_up
    kept = speed_up / MEASURED["FLOP-implied"]
    speeds = dict(zip(("speed-up", "speed-up low", "speed-up high"), (speed_up, *ends), strict=True))
    verdict = leaderboard.verdict(MEASURED["plan"], Interval(speed_up, *ends), kept)
    return sealed({**MEASURED, **speeds, "images/s": rate, "verdict": verdict})


def test_a_true_row_holds_also_from_a_file(tmp_path):
    write_csv(tmp_path / "leaderboard.csv", [ROW, DENSE])
    again, dense = read(tmp_path / "leaderboard.csv")
    assert differences(again, ROW, dense) == [] and again == ROW
    assert differences(dense, DENSE, dense) == [] and dense == DENSE


def test_a_network_that_reads_no_smaller_images_has_no_hard_ones():
    row = sealed({**MEASURED, **leaderboard.NOT_HARD})
    assert differences(row, row, DENSE) == [] and differences(row, ROW, DENSE) and differences(ROW, row, DENSE)


@pytest.mark.parametrize("reseal", [False, True])
def test_every_forgery_is_caught_when_its_row_is_measured_again(reseal):
    forgeries = {f"{name} {value}": {name: value} for name, values in FORGED.items() for value in values}
    forgeries |= TOGETHER
    assert len(forgeries) >= 60 and {*FORGED, "network", "plan", "device"} == {*COLUMNS, "hash"}
    for name, changed in forgeries.items():
        if reseal and "hash" in changed:
            continue
        forged = {**ROW, **changed}
        found = differences(sealed(forged) if reseal else forged, ROW, DENSE)
        # Where nothing but the hash is wrong, the one who forged it can write a new one.
        assert [why for why in found if "hash is not" not in why] or "hash" in changed, name


def test_the_dense_row_is_exactly_as_fast_as_itself():
    for name, value in {**dict.fromkeys(SPEEDS, 1.01), "images/s": 100.0, "verdict": "as promised"}.items():
        forged = sealed({**DENSE, name: value})
        assert differences(forged, DENSE, forged), name


def test_all_speeds_of_a_table_cannot_be_scaled():
    forged, dense = (sealed({**row, "images/s": 3 * row["images/s"]}) for row in (ROW, DENSE))
    assert "images/s is 43, but 129 in the row" in differences(forged, ROW, dense)[0]
    assert "no dense row" in differences(ROW, ROW, None)[0]


def test_an_honest_row_of_another_day_holds():
    for row in (
        honest(1.40, 1.35, 1.41),
        honest(1.44, 1.43, 1.45, rate=44.5),
        honest(1.53, 1.45, 1.6, rate=45.0),
        honest(1.30, 0.9, 1.9),  # with other load in single rounds
    ):
        assert differences(row, ROW, DENSE) == []
        # And the other way round: the day of the check was the noisy one.
        assert differences(ROW, row, DENSE) == []
    assert "the speed-up is 1.38 to 1.49, but 1.7 in the row" in differences(honest(1.7, 1.4, 1.8), ROW, DENSE)[0]


def test_speeds_of_another_device_are_not_compared_and_this_is_reported():
    other = {**MEASURED, "device": "NVIDIA H100", "speed-up": 9.0, "speed-up low": 8.0, "speed-up high": 9.5}
    claimed, dense = sealed({**other, "images/s": 3000.0}), sealed({**DENSE, "device": "NVIDIA H100"})
    assert differences(claimed, ROW, dense) == []
    assert differences(claimed, ROW, DENSE) == [
        f"the dense row was measured on {ROW['device']}, this row on NVIDIA H100"
    ]
    assert different_device(claimed, ROW).startswith("Speeds are not compared: the row was measured on NVIDIA H100")
    assert different_device(ROW, ROW) == ""
    assert "hash" in differences({**ROW, "device": "NVIDIA H100"}, ROW, dense)[0]
    assert "verdict" in differences(sealed({**other, "verdict": "baseline"}), ROW, dense)[0]
    assert "own range" in differences(sealed({**other, "speed-up": 20.0}), ROW, dense)[0]
    forged = sealed({**DENSE, "device": "NVIDIA H100", "speed-up": 2.0, "speed-up high": 2.0})
    assert "speed-up is 1.0, but 2.0" in differences(forged, DENSE, forged)[0]


def elsewhere(count, agreeing=914, *, plan=ROW["plan"], **cells):
    """A row of another device or version, with other numbers of images that were right and that agree."""
    low, high = wilson_interval(count, 1000)
    shares = {"accuracy": count / 1000, "low": low, "high": high, "agreement": agreeing / 1000}
    return sealed(completed({**MEASURED, **shares, "plan": plan, **cells}))


ELSEWHERE = {
    "a device": {"device": "NVIDIA H100"},
    "a patch of jax": {"jax": "0.8.2"},
    "a patch of jaxprune": {"code": "0.2.3-" + "8b" * 8},
}


@pytest.mark.parametrize("cells", ELSEWHERE.values(), ids=ELSEWHERE)
def test_an_honest_row_of_another_device_or_patch_release_holds(cells):
    measured = {**ROW, "code": "0.2.1-" + "77" * 8}
    cells = {"code": measured["code"], **cells}
    dense = sealed({**DENSE, **cells})
    for count, agreeing in ((731, 914), (726, 919), (736, 909)):
        row = elsewhere(count, agreeing, **cells)
        assert differences(row, measured, dense) == []
        assert "within 5 of 1,000 images, which rounding can flip" in caveats(row, measured)[-1]
    assert len(caveats(row, measured)) == 2 and caveats(measured, measured) == []
    forged = {
        "more than the 5 of 1,000 images": (
            elsewhere(737, **cells),
            elsewhere(931, **cells),
            elsewhere(731, 920, **cells),
        ),
        "not a share of 1,000 images": (sealed({**elsewhere(731, **cells), "accuracy": 0.7314}),),
        "not the interval": (sealed({**elsewhere(731, **cells), "low": 0.73, "high": 0.732}),),
        "weights is": (elsewhere(731, **cells, weights="f" * 16),),
        "GFLOPs is": (elsewhere(731, **cells, GFLOPs=2.0),),
    }
    for reason, rows in forged.items():
        for row in rows:
            assert reason in "; ".join(differences(row, measured, dense)), reason
    forged = sealed({**dense, "agreement": 0.999})
    assert "agreement is 1.0, but 0.999" in "; ".join(differences(forged, {**DENSE, "agreement": 1.0}, forged))


@pytest.mark.parametrize(
    "cells", [{"jax": "0.9.0"}, {"jax": "0.8.0.1"}, {"code": "0.3.0-" + "77" * 8}, {"code": "7" * 16}]
)
def test_another_release_or_other_code_of_the_same_release_is_a_difference(cells):
    measured = {**ROW, "code": "0.2.1-" + "77" * 8}
    row = elsewhere(731, **{"code": measured["code"], **cells})
    assert len(differences(row, measured, DENSE)) == 1 and caveats(row, measured) == []
    other = elsewhere(731, code="0.2.1-" + "8b" * 8)
    assert "code is" in differences(other, measured, DENSE)[0]


def test_the_hash_of_a_plan_does_not_depend_on_its_spelling():
    again = completed({**MEASURED, "plan": "topk@3:keep_rate=0.70"})
    assert again["plan hash"] == MEASURED["plan hash"] != completed({**MEASURED, "plan": "topk@3:r=7"})["plan hash"]
    assert plan_text("dense") == "dense"


def test_rows_are_chosen_by_name_or_at_random():
    rows = [sealed({**MEASURED, "plan": f"topk@{i}:keep_rate=0.7"}) for i in range(10)]
    assert chosen(rows, 0, (), seed=0) == rows
    assert len(chosen(rows, 3, (), seed=0)) == 3 and chosen(rows, 3, (), seed=0) != chosen(rows, 3, (), seed=1)
    assert chosen(rows, 3, ("vit topk@4:keep_rate=0.7",) * 2, seed=0) == [rows[4]]
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
    write_csv(tmp_path / "old.csv", [{name: value for name, value in ROW.items() if name != "plan hash"}])
    with pytest.raises(UserError, match="earlier version of jaxprune, without plan hash"):
        read(tmp_path / "old.csv")
    cells = {
        "accuracy": ("0.7x", "a number"),
        "rounds": ("7.5", "a whole number"),
        "images": ("1e3", "a whole number"),
        "batch size": ("9" * 400, "a whole number"),
        "image size": ("big", "a size such as 224 or 192x256"),
    }
    for name, (text, kind) in cells.items():
        write_csv(tmp_path / "cut.csv", [{**ROW, name: text}])
        with pytest.raises(UserError, match=f"{name} '{text[:80]}.* is not {kind}") as error:
            read(tmp_path / "cut.csv")
        assert len(str(error.value)) < 300
    write_csv(tmp_path / "cut.csv", [ROW])
    (tmp_path / "cut.csv").write_text((tmp_path / "cut.csv").read_text()[:-30])
    with pytest.raises(UserError, match="a row without"):
        read(tmp_path / "cut.csv")


def test_a_plan_in_two_rows_is_refused(tmp_path):
    better = {**ROW, "accuracy": 0.9}
    spelled = completed({**ROW, "plan": "topk@3:keep_rate=0.70"})
    for twice in ([ROW, ROW], [ROW, DENSE, sealed(better)], [ROW, sealed(spelled)]):
        write_csv(tmp_path / "twice.csv", twice)
        with pytest.raises(UserError, match=r"twice\.csv has two rows of vit .*: remove one of them"):
            read(tmp_path / "twice.csv")
    write_csv(tmp_path / "both.csv", [ROW, sealed({**ROW, "network": "deit"})])
    assert len(read(tmp_path / "both.csv")) == 2


def changed(text, name, change, row=1):
    """The cells of a table with one of them changed by a function, and all others as they are."""
    text = [list(line) for line in text]
    place = text[0].index(name)
    text[row][place] = change(text[row][place])
    return text


def beside(text, name, value, before=True):
    """The cells of a table with a column more, of the same or another name."""
    place = 0 if before else len(text[0])
    return [[*line[:place], name if number == 0 else value, *line[place:]] for number, line in enumerate(text)]


TABLE = table_text(ROW, DENSE)
ESCAPES = "\x1b[8m", "\x1b[2K\rvit  True", "\r", "\n", "\x00", "\t", "\u202e", "\u200b", "\u00ad", "\ufeff"
UNREADABLE = {
    "a column shown and another checked": beside(TABLE, "accuracy", "0.99"),
    "the same behind": beside(TABLE, "accuracy", "0.99", before=False),
    "a second device": beside(TABLE, "device", "NVIDIA H100"),
    "a look-alike column": beside(TABLE, "\u0430ccuracy", "0.99"),
    "a column with a space": beside(TABLE, "accuracy ", "0.99"),
    "a column that nobody checks": beside(TABLE, "accuracy (verified)", "0.99"),
    "a cell behind the columns": [TABLE[0], [*TABLE[1], "0.99"], TABLE[2]],
    "a device with a space": changed(TABLE, "device", lambda text: text + " "),
    "a device with a letter that looks alike": changed(TABLE, "device", lambda text: text.replace("c", "\u0441")),
    "digits of another script": changed(TABLE, "images", lambda text: "\u0661\u0660\u0660\u0660"),
    "a number of another script": changed(TABLE, "accuracy", lambda text: "\u0660.9"),
    "a number with an underscore": changed(TABLE, "images/s", lambda text: "4_3.0"),
    "a number with a space": changed(TABLE, "accuracy", lambda text: f" {text}"),
    "a plan that fills the screen": changed(TABLE, "plan", lambda text: text + " " * 2000 + "True"),
    "an endless cell": changed(TABLE, "network", lambda text: "vit" * 10_000),
    **{
        f"{letters!a} in a name": changed(TABLE, "network", lambda text, more=letters: f"vi{more}t")
        for letters in ESCAPES
    },
    **{f"{letters!a} in a plan": changed(TABLE, "plan", lambda text, more=letters: text + more) for letters in ESCAPES},
    **{
        f"{letters!a} in a device": changed(TABLE, "device", lambda text, more=letters: f"c{more}pu")
        for letters in ESCAPES
    },
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_table_shows_what_is_checked(name, tmp_path):
    with (tmp_path / "forged.csv").open("w", newline="") as file:
        csv.writer(file).writerows(UNREADABLE[name])
    with pytest.raises(UserError, match=r"leaderboard") as error:
        read(tmp_path / "forged.csv")
    assert len(str(error.value)) < 400 and str(error.value).isprintable()


@pytest.mark.parametrize(
    "device", ["CPU (x86_64), 2 cores", "cpu (x86_64),  2 cores", "cpu(x86_64) 2 c0res", "cpu (x86-64), 2 coreS"]
)
def test_a_device_by_another_spelling_is_the_same_device(device):
    fast = {name: 5 * ROW[name] for name in ("images/s", "speed-up", "speed-up low", "speed-up high")}
    verdict = leaderboard.verdict(
        ROW["plan"],
        Interval(fast["speed-up"], fast["speed-up low"], fast["speed-up high"]),
        fast["speed-up"] / ROW["FLOP-implied"],
    )
    forged = sealed({**ROW, **fast, "device": device, "verdict": verdict})
    assert "the speed-up" in " ".join(differences(forged, ROW, DENSE)) and different_device(forged, ROW) == ""


def test_under_load_nothing_holds_that_was_not_measured():
    noisy = {**ROW, "speed-up": 19.2, "speed-up low": 0.9, "speed-up high": 40.0}
    row = honest(0.94, 0.93, 0.95)
    assert "the speed-up is 19.2, but 0.94 in the row" in "; ".join(differences(row, noisy, DENSE))
    assert "on an idle machine" in "; ".join(
        differences(ROW, {**ROW, "speed-up low": 0.5, "speed-up high": 3.0}, DENSE)
    )


@pytest.mark.slow
def test_no_forged_table_is_verified(tmp_path):
    outcome = attacks.run(leaderboards.forgeries(tmp_path, len(leaderboards.FORGERIES) + 7, 0))
    assert not outcome.raw and not outcome.unnoticed and outcome.longest < 600 and outcome.seconds < 5
    (tmp_path / "honest.csv").write_bytes(leaderboards.as_bytes(leaderboards.table_text(*PLANS)))
    assert leaderboards.verified(tmp_path / "honest.csv", tmp_path)["wrong"] == 0


@pytest.mark.parametrize(
    ("device", "other"), [("RTX 3060", "RTX 3080"), ("RTX 3090", "RTX 3060"), ("A100", "A10"), ("H100", "H200")]
)
def test_devices_of_other_numbers_are_other_devices(device, other):
    assert different_device({"device": device}, {"device": other})


def test_hashes_follow_what_they_are_of():
    assert leaderboard.code_hash() == leaderboard.code_hash()
    one = leaderboard.data_hash({"img_size": 32, "path": "here"}, ["a", "b"])
    assert one == leaderboard.data_hash({"img_size": 32, "path": "there"}, ["a", "b"])
    assert one != leaderboard.data_hash({"img_size": 48, "path": "here"}, ["a", "b"])
    assert set(COLUMNS) == set(MEASURED)


def test_the_order_of_speeds_is_compared_over_common_rows(tmp_path):
    rows = [
        sealed(completed({**MEASURED, "plan": f"topk@{i}:keep_rate=0.7", "speed-up": 1 + i / 10})) for i in range(5)
    ]
    others = [sealed({**row, "speed-up": -row["speed-up"]}) for row in rows[:4]]
    assert same_order(rows, rows).value == pytest.approx(1)
    found = same_order(rows, others)
    assert found.value == pytest.approx(-1) and found.count == 4 and "4 rows: -1.00" in order_text(found)
    assert "too few" in order_text(same_order(rows, others[:2]))
    for name, own in {"a": rows, "b": others}.items():
        write_csv(tmp_path / f"{name}.csv", own)
    config = main.load_config(CONFIG)
    config.update(verify=str(tmp_path / "a.csv"), compare=str(tmp_path / "b.csv"))
    assert commands.find("leaderboard")(config, tmp_path)["tau of speeds"] == pytest.approx(-1)


@pytest.fixture
def verifying(tmp_path, monkeypatch):
    """Checks a table as if every row were measured again as it is in `PLANS`."""
    measured = {row["plan"]: row for row in PLANS}
    again = lambda config, claimed, workdir: [measured[row["plan"]] for row in claimed]
    monkeypatch.setattr(importlib.import_module("jaxprune.commands.leaderboard.run"), "_again", again)

    def check(table, **settings):
        write_csv(tmp_path / "table.csv", table)
        config = main.load_config(CONFIG)
        config.update(verify=str(tmp_path / "table.csv"), **settings)
        return leaderboard_task.run(config, tmp_path)

    return check


def test_the_choice_of_rows_is_new_each_time_and_can_be_repeated(verifying, tmp_path, capsys):
    lines = lambda: (tmp_path / "verified.csv").read_text()
    found = verifying(PLANS, rows=2)
    assert found["escapes"] == pytest.approx(1 - 2 / len(PLANS)) and found["wrong"] == 0
    assert f"--config.rows_seed={found['rows_seed']} checks the same rows again" in capsys.readouterr().out
    first = lines()
    assert verifying(PLANS, rows=2)["rows_seed"] != found["rows_seed"]
    verifying(PLANS, rows=2, rows_seed=found["rows_seed"])
    assert lines() == first


def test_nothing_is_claimed_of_rows_and_speeds_that_are_not_checked(verifying, capsys):
    found = verifying(PLANS, named=("vit dense",))
    printed = capsys.readouterr().out
    assert "escapes" not in found and "Only the named rows were checked, 1 of" in printed
    assert "probability" not in printed
    verifying([sealed({**row, "device": "NVIDIA H100"}) for row in PLANS], rows=0)
    printed = capsys.readouterr().out
    assert printed.count("Speeds are not compared: the row was measured on NVIDIA H100") == 1
    assert max(map(len, printed.splitlines())) <= 120


def test_a_forged_row_is_named_with_the_reason(verifying, capsys):
    forged = sealed({**PLANS[2], "accuracy": 0.9})
    assert verifying([forged if row is PLANS[2] else row for row in PLANS], rows=0)["wrong"] == 1
    assert f"vit {forged['plan']}: accuracy is 0.731, but 0.9 in the row" in capsys.readouterr().out


def test_a_wrong_row_is_an_exit_status(monkeypatch, tmp_path):
    for wrong, status in ((1, 1), (0, None)):
        monkeypatch.setattr(commands, "find", lambda task, wrong=wrong: lambda config, workdir: {"wrong": wrong})
        monkeypatch.setattr(sys, "argv", ["main", "--config=configs/leaderboard.py", f"--workdir={tmp_path}"])
        with pytest.raises(SystemExit) as ended:
            main.run()
        assert ended.value.code == status


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"rounds": 1}, "rounds=1 must be a whole number of 2 or more"),
        ({"batch size": 0}, "batch_size=0 must be"),
        ({"image size": "0x0x"}, "is not a size"),
        ({"plan": "nothing@1:keep_rate=0.5"}, "nothing"),
    ],
)
def test_a_row_that_cannot_be_measured_is_refused_before_measuring(tmp_path, cell, message):
    write_csv(tmp_path / "odd.csv", [DENSE, sealed({**ROW, **cell})])
    config = main.load_config(CONFIG)
    config.update(verify=str(tmp_path / "odd.csv"), run=str(tmp_path), rows=0)
    with pytest.raises(UserError, match=message):
        leaderboard_task.run(config, tmp_path)


def test_the_seed_of_the_choice_is_checked():
    config = main.load_config(CONFIG)
    config.rows_seed = -2
    assert any(
        "config.rows_seed=-2 must be a whole number of -1 or more" in problem for problem in commands.problems(config)
    )
