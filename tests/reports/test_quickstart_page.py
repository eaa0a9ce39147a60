"""What `quickstart` writes: its results, the time of every phase, and a section for each of them."""

import dataclasses
import json
from importlib import import_module
from pathlib import Path

import pytest
from written_pages import read_page

from jaxprune import main
from jaxprune.bench.costs import BenchmarkRow, PlanCost, Promise
from jaxprune.bench.timing import OverRounds, Turn
from jaxprune.commands import benchmark, evaluate, train_ranker
from jaxprune.commands.quickstart.page import verdicts
from jaxprune.commands.shared import reporting
from jaxprune.evaluate.collectors.agreement import Scores
from jaxprune.evaluate.collectors.plans import PlanResult
from jaxprune.measures.intervals import Interval
from jaxprune.report.table import Table

# The package has a function of the same name.
headline = import_module("jaxprune.commands.quickstart.headline")
quickstart = import_module("jaxprune.commands.quickstart.run")

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "quickstart.py") + ":scratch=steps"
COMMON = {"data": "40 scenes", "held_out": 50, "classes": 10, "plan": None}
SUMMARIES = {
    "pretrain": {**COMMON, "steps": 900, "planned_steps": 1250, "seconds": 165.2, "loss": 0.03},
    "finetune": reporting.with_interval(
        {**COMMON, "steps": 375, "planned_steps": 375, "seconds": 70.4, "accuracy": 0.6}
    ),
    "scratch": reporting.with_interval(
        {**COMMON, "steps": 375, "planned_steps": 375, "seconds": 69.6, "accuracy": 0.46}
    ),
    "ranker": {
        **COMMON,
        "steps": 156,
        "planned_steps": 156,
        "seconds": 80.0,
        "recall": 0.515,
        "recall_centre": 0.634,
        "recall_norm": 0.466,
    },
}
SUMMARIES["pretrain"]["ratio_to_mean_colour"] = 0.6543

RECALL = ("51.5%; centre 63.4%, norm 46.6%",)


def row(plan, gflops, faster, accuracy):
    cost = PlanCost(
        plan=plan,
        gflops=gflops,
        gflops_compiled=gflops,
        images_per_second=40.0 * faster,
        latency=25.0,
        promise=Promise(faster, 1.0, faster, ""),
    )
    return BenchmarkRow(cost, PlanResult(Scores(Interval(accuracy, accuracy, accuracy), 1.0)))


ROWS = Table(
    [
        row("dense", 4.0, 1.0, 0.6),
        row("slow but right", 3.0, 0.9, 0.59),
        row("topk", 2.5, 1.4, 0.55),
        row("fast but wrong", 2.0, 1.8, 0.3),
    ]
)


TURNS = {"PR-MIM": [Turn(0.2, 0.2)] * 2, "full form": [Turn(0.3, 0.3)] * 2}
ACCURACIES = {"pretrain": (), "finetune": (0.4, 0.6), "scratch": (0.3, 0.46), "ranker": ()}  # of each evaluation


def trained(phase, folder):
    """Leaves the metrics of a phase, and returns its summary."""
    lines = [{"split": "eval", "step": 100 * i, "accuracy": value} for i, value in enumerate(ACCURACIES[phase], 1)]
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return dict(SUMMARIES[phase])


@pytest.fixture(autouse=True)
def unopened(monkeypatch):
    """What opens networks writes nothing."""
    monkeypatch.setattr(evaluate, "assess", lambda run, report: {})
    monkeypatch.setattr(train_ranker, "describe", lambda *arguments, **options: None)


@pytest.fixture
def workdir(tmp_path):
    for phase in SUMMARIES:
        trained(phase, tmp_path / phase)
    return tmp_path


@pytest.mark.slow
def test_the_results_come_first_then_the_phases(workdir):
    pruned = benchmark.Measured("runs/vit", ROWS, None, class_names="abcdefghij")
    quickstart.describe(main.load_config(CONFIG), workdir, SUMMARIES, pruned)
    page = read_page(workdir / "report.html")
    assert page.title == "jaxprune quickstart"
    assert list(page.parts) == [
        *("Results", "Pre-training", "Fine-tuning", "Training from scratch", "Its classifier, pruned")
    ]
    part = page.parts["Results"]
    # Wilson's intervals of 30 and 23 of 50: .4618 to .7239 and .3297 to .5960.
    assert part.tiles == {
        "accuracy, pre-trained": ("60.0%", "46.2% to 72.4%: 95 % interval (Wilson) over 50 images"),
        "accuracy, from scratch": ("46.0%", "33.0% to 59.6%: 95 % interval (Wilson) over 50 images"),
        "chance": ("10%", ""),
        "reconstruction loss": ("0.65", "1 = each patch's mean colour"),
        "object patches found": (
            "51.5%",
            "by the ranker, in its first 30% of the patches; centre 63.4%, norm 46.6%, random 30%. It was trained "
            "without labels",
        ),
    }
    assert part.texts[0].startswith("Whether pre-training helped cannot be told from these images: +14.0 points [-5.")
    expected, table = part.tables
    assert expected.rows == [
        ["expected before the run", "measured", "came true"],
        [
            "the classifier is right on at least 70% of the held-out images",
            "60.0% [46.2%, 72.4%]",
            "cannot be told",
        ],
        [
            "a plan is at least 1.5 times as fast and loses at most 2 points",
            "fast but wrong: 1.80 times, -30.0 points [-30.0, -30.0]",
            "no",
        ],
        ["the ranker finds more of the object's patches than their nearness to the centre", *RECALL, "no"],
    ]
    assert table.caption.startswith("Lengths are in steps: a busy machine takes longer and trains the same networks.")
    assert table.rows == [
        ["phase", "steps", "of", "seconds", "of which steps"],
        ["pretrain", "900", "1,250", "165", "165"],
        ["finetune", "375", "375", "70", "70"],
        ["scratch", "375", "375", "70", "70"],
        ["ranker", "156", "156", "80", "80"],
    ]
    against_speed, plot = part.figures
    assert against_speed.caption.startswith("Accuracy against measured speed, with 95 % intervals")
    assert {"dense", "topk", "speed (dense = 1)", "accuracy"} <= set(against_speed.labels)
    assert plot.caption.startswith(
        "In the end, the pre-trained network has an accuracy of 60.0% on held-out images, that from scratch 46.0%, "
        "chance 10.0%."
    )
    assert {"pre-trained", "from scratch", "chance", "step", "held-out accuracy"} <= set(plot.labels)
    assert page.parts["Pre-training"].notes == ["Stopped at step 900 of 1250: max_minutes was reached."]
    assert page.parts["Fine-tuning"].notes == [] and page.parts["Its classifier, pruned"].tables


FLAGS = Table(
    [
        row("dense", 4.0, 1.0, 0.88),
        row("from_scores:keep_rate=0.25", 1.4, 2.9, 0.87),
        row("tome@1:keep_rate=0.25,rounds=3", 2.2, 1.7, 0.86),
        row("random@0:keep_rate=0.25", 1.3, 3.0, 0.7),
        row("img_size=96", 2.0, 2.2, 0.875),
    ]
)


def test_the_headline_is_the_most_accurate_plan_of_those_fast_enough():
    assert headline.headline(FLAGS, 1.5).cost.plan == "from_scores:keep_rate=0.25"
    assert headline.headline(FLAGS[2:], 1.5).cost.plan == "tome@1:keep_rate=0.25,rounds=3"
    # None is as fast: the most accurate of the faster ones; and none is faster.
    assert headline.headline(FLAGS, 9.0).cost.plan == "from_scores:keep_rate=0.25"
    assert headline.headline(FLAGS[:1], 1.5) is None


def test_what_was_expected_is_checked():
    config = main.load_config(CONFIG)
    over = {"recall_over_centre": 0.6, "recall_over_centre_low": 0.5, "recall_over_centre_high": 0.7}
    ranked = {"recall": 0.9, "recall_centre": 0.3, "recall_norm": 0.5, **over}
    found = headline.checked(config, {"finetune": {"accuracy": 0.88}, "ranker": ranked}, FLAGS)
    assert len(found) == len(headline.expectations(config)) == 5
    assert {row["came true"] for row in found} == {"yes"}
    assert found[2]["measured"] == "+17.0 points [+17.0, +17.0] over random@0:keep_rate=0.25"
    assert found[-1]["measured"].endswith("; +60.0 points [+50.0, +70.0] over the centre")
    ranked["recall_over_centre_low"] = -0.1
    unclear = headline.checked(config, {"finetune": {"accuracy": 0.88}, "ranker": ranked}, FLAGS)
    assert unclear[-1]["came true"] == "cannot be told"
    slow = headline.checked(config, {"finetune": {"accuracy": 0.5}}, FLAGS[:1])
    assert [row["came true"] for row in slow] == ["no", "no", "no"]


def test_the_verdicts_for_the_terminal_are_those_of_the_report():
    config = main.load_config(CONFIG)
    cost = "A step of PR-MIM takes 0.67 [0.67, 0.67] of the time of MAE's (2 rounds)."
    helped = "training from scratch for"
    (said, *rest) = verdicts(config, SUMMARIES, TURNS)
    assert said.startswith("Whether pre-training helped cannot be told from these images: +14.0 points [-5.")
    assert f"{helped} as many steps as fine-tuning." in said and rest == [cost]
    config.scratch_time = "equal"
    untrained = {**SUMMARIES, "pretrain": {**SUMMARIES["pretrain"], "ratio_to_mean_colour": 1.2}}
    said, short = verdicts(config, untrained, None)
    assert f"{helped} the time of both phases (236 s of steps, and 70 s from scratch)" in said
    assert "no smaller than that of predicting" in short
    assert verdicts(config, {phase: SUMMARIES[phase] for phase in ("pretrain", "finetune")}, TURNS) == [cost]


def test_a_run_without_expectations_states_none():
    config = main.load_config(str(Path(CONFIG).parent / "mim" / "cifar10.py"))
    assert headline.expectations(config) == {}


def test_the_summary_names_no_plan_that_may_be_as_accurate_as_another():
    wide = ROWS.of(
        dataclasses.replace(row, result=PlanResult(Scores(Interval(accuracy, accuracy - 0.2, accuracy + 0.2), 1.0)))
        for row, accuracy in zip(ROWS, (0.6, 0.59, 0.55, 0.3), strict=True)
    )
    summary = quickstart._best(benchmark.Measured("vit", wide, None, ()))
    assert summary == {"pruned_by": "no plan stands out"}


def test_a_plan_is_faster_only_if_it_is_in_every_round():
    def over(low):
        promise = Promise(OverRounds(1.3, low, 1.6), 1.5, 0.87, "")
        (row,) = ROWS[1:2]
        return Table([dataclasses.replace(row, cost=dataclasses.replace(row.cost, promise=promise))])

    best = lambda low: quickstart._best(benchmark.Measured("vit", over(low), None, ()))
    assert best(0.9) == {} and best(1.1)["speed_up_pruned"] == 1.3


@pytest.mark.parametrize("name", ["random@1:keep_rate=0.5", "img_size=112"])
def test_the_summary_names_no_baseline(name):
    rows = Table([row("dense", 4.0, 1.0, 0.6), row(name, 2.0, 1.8, 0.59)])
    assert quickstart._best(benchmark.Measured("vit", rows, None, ())) == {}


@pytest.mark.slow
def test_the_summary_names_the_most_accurate_plan_that_is_faster(tmp_path, monkeypatch):
    for phase in SUMMARIES:
        monkeypatch.setitem(quickstart._TASKS, phase, lambda config, folder, phase=phase: trained(phase, folder))
    monkeypatch.setattr(quickstart, "step_times", lambda config, rounds: TURNS)
    monkeypatch.setattr(benchmark, "measure", lambda config, workdir: benchmark.Measured("vit", ROWS, None, ()))
    summary = quickstart.run(main.load_config(CONFIG), tmp_path / "run")
    captions = [figure.caption for figure in read_page(tmp_path / "run" / "report.html").parts["Results"].figures]
    assert any(
        "A step of PR-MIM takes 0.67 [0.67, 0.67] of the time of MAE's (2 rounds)." in caption for caption in captions
    )
    assert summary == {
        "reconstruction_ratio": 0.6543,
        "object_recall": 0.515,
        "accuracy": 0.6,
        "accuracy_from_scratch": 0.46,
        "pruned_by": "topk",
        "accuracy_pruned": 0.55,
        "speed_up_pruned": 1.4,
        "seconds": {"pretrain": 165.2, "finetune": 70.4, "scratch": 69.6, "ranker": 80.0},
    }
