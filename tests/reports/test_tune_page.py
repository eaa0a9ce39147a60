"""What `tune` writes: cost and risk of every plan, the tests of some, and why one is chosen."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from written_pages import read_csv

from jaxprune.bench.timing import OverRounds
from jaxprune.commands.tune import page
from jaxprune.tune import Bound, Settings
from jaxprune.tune.cost_table import Cost, CostTable, Part
from jaxprune.tune.decision import decision, untested
from jaxprune.tune.image_errors import ClassScores, ImagePredictions
from jaxprune.tune.loss_kinds import ClassLoss
from jaxprune.tune.pareto_testing import fixed_sequence, of_errors
from jaxprune.tune.tuned import SMALLER, Row, Tuned

SAFE, CHEAP, CHEAPEST = (f"topk@{place}:keep_rate={rate}" for place, rate in ((3, 0.8), (3, 0.5), (1, 0.5)))
# Errors in 100 test images, the safest first, for a risk of at most .1 with confidence .9: at most 5 pass.
SAFE_TEST, CHEAP_TEST = fixed_sequence([1, 5], 100, 0.1, 0.1)
CHEAPEST_TEST = fixed_sequence([1, 5, 9], 100, 0.1, 0.1)[-1]
BLOCKS = ((Part(0, "plain", "", 17, 17, 200), Cost(0.002, 1.5)), (Part(0, "topk", "cls", 17, 9, 150), Cost(0.001, 1.0)))


def timed(seconds, megabytes=8.0):
    return OverRounds.of([seconds, 0.9 * seconds, 1.1 * seconds]), megabytes


def tuned(**changes):
    """Dense takes 40 ms a batch of 8; the plans take 30 and 25, as predicted up to 10 %, and 16 predicted ms."""
    rows = (
        Row("dense", 4.0, None, timed(0.04), 0, 100),
        Row(SMALLER, 1.0, timed=timed(0.02)),
        Row(SAFE, 3.0, Cost(0.033, 8.0), timed(0.03), 2, 100, SAFE_TEST),
        Row(CHEAP, 2.5, Cost(0.0245, 7.0), timed(0.025), 5, 100, CHEAP_TEST),
        Row(CHEAPEST, 1.5, Cost(0.016, 6.0), None, 10, 25),
    )
    why = f"{CHEAP} is 1.60 times as fast as dense."
    table = CostTable(BLOCKS, Cost(0.001, 0.5), Cost(0.04, 8.0))
    values = (CHEAP, None, why, rows, (SAFE, CHEAP), table, Bound("agreement", 0.9), Settings(batch_size=8), (100, 100))
    made = Tuned(*values)._replace(**changes)
    return made._replace(about=ClassLoss.about(made.bound), smaller="192 wide, 12 blocks, 5.5 M parameters")


def test_plans_are_listed_with_cost_risk_and_test(part_of):
    part, _ = part_of(lambda section: page.describe(section, tuned()))
    (table,) = part.tables
    assert table.caption == "Risk: in brackets the 95 % interval (Wilson)."
    # 5 errors in 100 have p = P(Bin(100, .1) <= 5) = .0576, and 1 has .000322.
    assert table.lines == [
        "plan | chosen | certified | latency ms | risk | risk at most | tested | images/s | GFLOPs | MiB | "
        "predicted ms | front | n | p",
        "dense |  |  | 40 | 0 (0–0.037) |  |  | 200 | 4 | 8 |  |  | 100 | ",
        "next smaller, dense |  |  | 20 |  |  |  | 400 | 1 | 8 |  |  |  | ",
        "topk@3:keep_rate=0.8 |  | yes | 30 | 0.02 (0.0055–0.07) | 0.0908 | 1 of 100 | 267 | 3 | 8 | 33 | yes | 100 | "
        "0.000322",
        "topk@3:keep_rate=0.5 | yes | yes | 25 | 0.05 (0.0215–0.112) | 0.0908 | 5 of 100 | 320 | 2.5 | 8 | 24.5 | "
        "yes | 100 | 0.0576",
        "topk@1:keep_rate=0.5 |  |  |  | 0.4 (0.234–0.593) |  |  | 500 | 1.5 | 6 | 16 |  | 25 | ",
    ]


def test_the_test_is_exact():
    assert [test.passed for test in (SAFE_TEST, CHEAP_TEST, CHEAPEST_TEST)] == [True, True, False]
    assert CHEAP_TEST.p_value == pytest.approx(stats.binom.cdf(5, 100, 0.1))
    # At the limit, 5 or fewer errors have probability .1.
    assert stats.binom.cdf(5, 100, CHEAP_TEST.limit) == pytest.approx(0.1)


def test_the_choice_is_explained(part_of):
    part, blocks = part_of(lambda section: page.describe(section, tuned()))
    assert part.notes == [f"{CHEAP} is 1.60 times as fast as dense."] and part.commands == [CHEAP]
    _, bound, times = part.texts
    assert bound == (
        "Bound: agreement with the dense network of at least 0.9. Risk: the fraction of errors, an image on which the "
        "plan does not agree with the dense network, estimated on n of 100 images: on a part of them if that already "
        "showed it to be too large, or another plan to be better. Plans of the front were tested in turn, the safest "
        "first, on 100 other, independent images (Pareto Testing). A plan is certified if so few errors would have a "
        'probability of at most 0.1 at the allowed risk. The limits in "risk at most" hold for all tested plans '
        "together with confidence 0.9, hence for the chosen one. Other bounds that are tested on these images can fail "
        "too: their probabilities add up."
    )
    # Predictions are off by 10 % and 2 %.
    assert times == (
        "Times are for a batch of 8: measured in turns if a network was timed as a whole, else predicted from 2 kinds "
        "of blocks that were timed one by one, and scaled to the measured time of the dense network. Predicted times "
        "of the timed plans are off by 6.0% (median). The next smaller dense network (192 wide, 12 blocks, 5.5 M "
        "parameters) takes 20 ms; its risk is unknown."
    )
    assert blocks.title == "Blocks on this device" and blocks.tables[0].rows == [
        ["kind", "role", "state", "rows", "left", "macs", "ms", "MiB"],
        ["0", "plain", "", "17", "17", "200", "2", "1.5"],
        ["0", "topk", "cls", "17", "9", "150", "1", "1"],
    ]
    (plot,) = part.figures
    assert plot.caption == (
        "Risk against time. Numbers are the fractions of patches left in the end; plans of one method at the same "
        "blocks have one colour. The grey line joins the lowest risks measured at each cost."
    )
    words = {"ms a batch", "risk", "dense", "topk ×1 from block 3", "0.5, chosen", "0.8", "topk 0.5", "allowed (0.1)"}
    assert words <= set(plot.labels)


def test_a_network_without_a_plan_is_a_warning(part_of):
    untuned = tuned(plan="", why="Nothing beats dense.", bound=Bound("latency", 20.0, alpha=0.05))
    part, _ = part_of(lambda section: page.describe(section, untuned))
    assert part.notes == ["Nothing beats dense."] and part.commands == []
    assert [row[:3] for row in part.tables[0].rows[1:]] == [
        ["dense", "yes", ""],
        [SMALLER, "", ""],
        [SAFE, "", "yes"],
        [CHEAP, "", "yes"],
        [CHEAPEST, "", ""],
    ]
    assert "Bound: latency at most 20 ms. Risk:" in part.texts[0]
    lost = tuned(bound=Bound("accuracy", 0.01))
    texts = part_of(lambda section: page.describe(section, lost))[0].texts
    assert (
        "at most 0.01 lost accuracy. Risk: the fraction of errors, an image that the dense network gets right"
        in texts[1]
    )


def test_accuracy_stands_ahead_of_the_risk_where_images_have_classes(part_of):
    dense, *plans = tuned().rows
    truth, answers = np.zeros(100, int), np.repeat([0, 1], [95, 5])
    right = ImagePredictions(truth, truth)
    of_plan = ClassScores.of(ImagePredictions(answers, truth), right)
    rows = (dense._replace(scores=ClassScores.of(right, right)), *plans[:2], plans[2]._replace(scores=of_plan))
    labelled = tuned(rows=rows, bound=Bound("latency", 30.0))
    part, _ = part_of(lambda section: page.describe(section, labelled))
    (table,) = part.tables
    assert "Accuracy, and its difference from the dense network's, paired by image" in table.caption
    assert table.rows[0][:7] == ["plan", "chosen", "certified", "latency ms", "accuracy", "accuracy − dense", "risk"]
    assert table.rows[1][4:6] == ["100.0% (96.3%–100.0%)", "–"]
    # 5 of 100 are lost and none is won.
    assert table.rows[4][4] == "95.0% (88.8%–97.8%)" and table.rows[4][5].startswith("-5.0% (-")
    assert {row[2] for row in table.rows[1:]} == {""}  # any risk is allowed: nothing is certified
    assert page.summary(labelled)["accuracy"] == 0.95


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("img_size=154", "154 px"),
        ("img_size=154/dpc_knn@3:keep_rate=0.5,equal_weights=true", "154 px, 0.5"),
        ("dpc_knn@3:keep_rate=0.5,equal_weights=true", "0.5"),
    ],
)
def test_points_are_labelled_by_their_images_and_what_is_kept(name, label):
    assert page._label(tuned(), Row(name, 1.0), alone=False) == label


def test_the_summary_compares_with_dense():
    summary = page.summary(tuned())
    assert summary == {
        "plan": CHEAP,
        "speed-up": pytest.approx(1.6),
        "latency ms": pytest.approx(25),
        "risk at most": CHEAP_TEST.limit,
        "plans": 3,
        "median error of predicted times": pytest.approx(0.06),
    }
    dense = page.summary(tuned(plan=""))
    assert (dense["plan"], dense["speed-up"], dense["latency ms"], dense["risk at most"]) == ("dense", 1, 40, 0)


def test_the_csv_file_names_the_device(tmp_path):
    page.table(tuned()).write_csv(tmp_path / "tune.csv", device="cpu", jax="0.8.0")
    header, *rows = read_csv(tmp_path / "tune.csv")
    assert header == [
        *("plan", "chosen", "certified", "latency ms", "risk", "risk low", "risk high", "risk at most", "tested"),
        *("images/s", "GFLOPs", "MiB", "predicted ms", "front", "n", "p", "device", "jax"),
    ]
    assert [row[0] for row in rows] == ["dense", SMALLER, SAFE, CHEAP, CHEAPEST]
    assert rows[3][:4] == [CHEAP, "yes", "yes", "25.0"] and rows[3][-2:] == ["cpu", "0.8.0"]


def choice(errors, bound, seconds=(0.03, 0.025, 0.016), times=timed):
    """The reason for a choice between three plans, the safest first, that make so many errors in 100 images."""
    names = (SAFE, CHEAP, CHEAPEST)
    counts = dict(zip(names, errors, strict=True))
    counting = SimpleNamespace(test=lambda plan, bound, delta: of_errors(counts[plan.name], 100, bound.risk, delta))
    taken = {"dense": times(0.04), **{name: times(median) for name, median in zip(names, seconds, strict=True)}}
    plans = [SimpleNamespace(name=name, members=()) for name in names]
    best, why, tests = decision(plans, taken, counting, bound, Settings(batch_size=8, delta=0.1))
    return best and best.name, why, list(tests)


def test_why_a_plan_is_chosen_in_words():
    agreement = Bound("agreement", 0.9)
    assert choice((1, 5, 9), agreement) == (
        CHEAP,
        f"{CHEAP} is 1.60 times as fast as dense, and with confidence 0.9 its risk is at most 0.1: 5 errors in 100 "
        "independent images.",
        [SAFE, CHEAP, CHEAPEST],
    )
    assert choice((9, 0, 0), agreement) == (
        None,
        f"Nothing beats dense: {SAFE}, the safest plan, fails on 9 of 100 images, too many for a risk of at most 0.1 "
        "with confidence 0.9.",
        [SAFE],
    )
    assert choice((1, 5, 9), agreement, (0.039, 0.038, 0.016))[1].endswith(
        "independent images. The timing rounds do not show that it is faster."
    )
    single = lambda seconds: (OverRounds.of([seconds]), 1000 * seconds)
    why = choice((1, 5, 9), Bound("memory", 26.0), times=single)[1]
    assert "(memory 25 MiB, of dense 40 MiB)" in why and why.endswith("do not show that it is faster.")
    slower = "Nothing beats dense: no plan found is cheaper on this device."
    assert choice((0, 0, 0), agreement, (0.05, 0.05, 0.04)) == (None, slower, [])
    # A bound on cost takes the safest plan within it, whatever the cheaper ones do.
    assert choice((1, 5, 9), Bound("latency", 26.0)) == (
        CHEAP,
        f"{CHEAP} is 1.60 times as fast as dense (latency 25 ms, of dense 40 ms), and with confidence 0.9 its risk is "
        "at most 0.0908: 5 errors in 100 independent images.",
        [CHEAP],
    )
    itself = "The dense network itself satisfies the bound: throughput at least 150 images/s."
    assert choice((1, 5, 9), Bound("throughput", 150.0)) == (None, itself, [])


def test_the_terminal_says_how_other_commands_take_the_choice():
    said = lambda **changes: page.in_other_commands(tuned()._replace(**changes), Path("w/plan.txt"), Path("w/c"))
    of_plan = said(plan="topk", img_size=0, healed="", cascade=())
    assert "--config.plan=w/plan.txt." in of_plan and "--config.plans=\"('w/plan.txt',)\"" in of_plan
    of_size = said(plan="img_size=24", img_size=24)
    assert "--config.img_size=24." in of_size and "--config.plans=\"('img_size=24',)\"" in of_size
    assert said(plan="topk", healed="h.safetensors") == "Other commands take it as --config.run=h.safetensors."
    assert said(plan="topk", cascade=("a", "b")) == "Other commands take it as --config.run=w/c."
    assert said(plan="", img_size=0) == ""


def test_why_plans_are_not_tested_is_said(part_of):
    plans = [SimpleNamespace(name=name) for name in ("beaten", "risky", "over", "slow", "failed", "late")]
    times = {"dense": 0.04, "slow": 0.05, "failed": 0.03, "late": 0.02}
    losses = SimpleNamespace(estimate=lambda plan: np.array([plan.name == "risky"]))
    rest = ({name: timed(seconds) for name, seconds in times.items()}, {"failed": CHEAPEST_TEST}, losses)
    why = untested(plans, plans[1:], plans[3:], *rest, Bound("agreement", 0.9), Settings())
    assert why == {
        "beaten": "another one costs no more, and its estimated risk is no larger",
        "risky": "its estimated risk is above the allowed one",
        "over": "most_tested=3",
        "slow": "it is measured no cheaper than dense",
        "late": "a safer one failed its test",
    }
    rows = [row._replace(untested=why["risky"]) if row.name == CHEAPEST else row for row in tuned().rows]
    part, _ = part_of(lambda section: page.describe(section, tuned(rows=tuple(rows))))
    heads, *_, last = part.tables[0].rows
    assert heads[-1] == "not tested" and last[-1] == why["risky"]
