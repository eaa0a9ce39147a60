"""`recover`: contestants are healed once each, compared on other images, and their files load everywhere."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from PIL import Image

from jaxprune import commands, main, models, reduction
from jaxprune.bench.timing import OverRounds
from jaxprune.checkpoints import load_card, load_model, save_model
from jaxprune.commands.recover import page, pictures
from jaxprune.commands.recover.page import Comparison, _finding, summary
from jaxprune.errors import UserError
from jaxprune.measures.intervals import Interval, share
from jaxprune.recover.compare import NetworkOutputs, OutputClassifier, Predictions, Row, agreement_columns
from jaxprune.report import Report
from jaxprune.report.table import Table

CONFIGS = Path(__file__).parent.parent.parent / "configs"
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}


@pytest.mark.slow
def test_a_network_on_smaller_images_is_healed_under_its_plan(tmp_path):
    config = main.load_config(str(CONFIGS / "recover.py:smoke"))
    config.update(plans=(), rivals=("img_size=16/topk@0:keep_rate=0.5",))
    results = commands.find("recover")(config, tmp_path)
    assert list(results) == ["dense", *config.rivals]
    (file,) = tmp_path.glob("*/healed.safetensors")
    healed = load_model(file)
    assert healed.preprocessing.sides == (16, 16) and healed.plan.text == "topk@0:keep_rate=0.5"
    # It is not a network on smaller images alone, which a plan has to beat.
    assert "smaller images (--config.rivals)" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("folders", [("2019", "2020"), ("c", "b", "a"), ()])
def test_a_healed_classifier_keeps_its_class_names_whatever_the_folders_are_called(tmp_path, folders, caplog):
    names = ("a", "b", "c")
    model = models.create("vit", **SIZES, num_classes=len(names), rngs=nnx.Rngs(0))
    save_model(model, tmp_path / "model.safetensors", class_names=names)
    for number in range(30):
        place = tmp_path / "photos" / (folders[number % len(folders)] if folders else "")
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    if len(folders) == 3:  # label numbers are those of sorted folders, so the network's names are in another order
        names = folders
        save_model(model, tmp_path / "model.safetensors", class_names=names)
    config = main.load_config(str(CONFIGS / "recover.py:smoke"))
    config.update(run=str(tmp_path / "model.safetensors"), rivals=(), learning_rate=1e-4, steps=1)
    config.data.update(source="folder", path=str(tmp_path / "photos"), labels=bool(folders), held_out=0.5)
    commands.find("recover")(config, tmp_path / "run")
    assert load_card(tmp_path / "run" / "topk" / "healed.safetensors").class_names == names
    with (tmp_path / "run" / "recover.csv").open() as file:
        assert {row["accuracy"] for row in csv.DictReader(file)} == {""}
    assert ("Labels are ignored" in caplog.text) == bool(folders)


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("recover")
    config = main.load_config(str(CONFIGS / "recover.py:smoke"))
    summary = commands.find("recover")(config, workdir)
    written = [(workdir / name).read_text() for name in ("report.html", "recover.csv")]  # a test runs it once more
    return workdir, config, summary, *written


@pytest.mark.slow
def test_every_contestant_leaves_a_network(run_directory):
    workdir, _, results, text, table = run_directory
    assert list(results) == ["dense", "topk", "depth=1", "img_size=16"]
    fast = load_model(workdir / "topk" / "healed.safetensors")
    assert fast.plan.steps[0].method == "topk"
    assert len(load_model(workdir / "depth=1" / "healed.safetensors").blocks) == 1
    assert load_model(workdir / "img_size=16" / "healed.safetensors").preprocessing.sides == (16, 16)
    assert "Not compared: Random" in text and "smaller images (--config.rivals)" not in text
    for word in ("Healed under its plans", "agreement before", "measured speed-up", "depth=1"):
        assert word in text
    assert "topk: the image, then the patches left after each step" in text and "by keep rate" not in text
    assert table.count("\n") == 5
    assert "steps ÷ all" in text and "of the wall-clock of all sessions" in text


@pytest.mark.slow
def test_rivals_of_the_same_cost_stand_beside_plans(tmp_path):
    """By default the same network on smaller images and with fewer blocks; and a file for several rates shows each."""
    config = main.load_config(str(CONFIGS / "recover.py:smoke"))
    config.update(rivals=("auto",), plans=("topk", "random"), reduction_loc=(0,))
    config.update(keep_rate=0.25, keep_rates=(0.5, 0.25))
    results = commands.find("recover")(config, tmp_path)
    names = list(results)
    assert names[:3] == ["dense", "topk", "random"] and len(names) == 5
    assert names[3].startswith("img_size=") and names[4].startswith("depth=")
    text = (tmp_path / "report.html").read_text()
    assert f"Rivals at about the FLOPs of the plans, healed for the same time: {', '.join(names[3:])}." in text
    assert "Not compared" not in text and "Before and after, by keep rate" in text


def test_what_still_differs_is_shown():
    dense, healed = predictions([0, 1, 1, 0, 0]), predictions([0, 1, 0, 0, 1])
    asked = []

    def shown(numbers):
        asked.extend(numbers)
        return [np.full((8, 8, 3), number, np.uint8) for number in numbers]

    rows = pictures.differences({"topk": healed, "same": dense}, dense, LABELS, shown)
    assert asked == [2, 4] and [(row.name, row.predicted, row.dense, row.label) for row in rows] == [
        ("topk", 0, 1, 1),
        ("topk", 1, 0, 1),
    ]
    assert [int(row.image[0, 0, 0]) for row in rows] == [2, 4]


def test_networks_are_compared_at_every_rate():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
    fast = reduction.apply(model, reduction.Plan("topk", keep_rate=0.5, reduction_loc=(1,)))
    predict = lambda network, desc: predictions([0, 1, 1, 0, int("before" in desc)])
    rows = pictures.by_rate({"a": fast, "depth=1": model}, {"a": fast}, (0.75, 0.25), predictions(LABELS), predict, 0)
    assert [(row.name, row.keep_rate) for row in rows] == [("a", 0.75), ("a", 0.25)]
    assert [(row.agreement_before.value, row.agreement.value) for row in rows] == [(1.0, 0.8)] * 2
    assert rows[0].gflops > rows[1].gflops


@pytest.mark.slow
def test_what_is_healed_is_not_healed_again(run_directory):
    workdir, config, *_ = run_directory
    before = (workdir / "topk" / "healed.safetensors").stat().st_mtime_ns
    again = config.copy_and_resolve_references()
    again.update(rivals=("depth=1",), rounds=3)
    assert list(commands.find("recover")(again, workdir)) == ["dense", "topk", "depth=1"]
    assert (workdir / "topk" / "healed.safetensors").stat().st_mtime_ns == before
    again.update(learning_rate=0.5)
    with pytest.raises(UserError, match="learning_rate"):
        commands.find("recover")(again, workdir)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rivals": ("depth=some",)}, "rivals: 'depth=some' is not a rival: write img_size=182"),
        ({"rivals": ("img_size=8x0",)}, "is not a rival: write img_size=182"),
        ({"rivals": ("img_size=8/topc:r=1",)}, "topc"),
        ({"rivals": ("nowhere",)}, "no run directory or file nowhere"),
        ({"plans": ()}, "are empty: give a plan"),
        ({"minutes": 0.0}, "are both 0"),
        ({"trainable": "few"}, "none of all, norms, last:K, lora:R"),
        ({"easing": 2.0}, r"config.easing=2.0 must be a finite number in \[0, 1\]"),
        ({"keep_rates": (2.0,)}, r"config.keep_rates=\(2.0,\) must be .*: use for example \(0.7, 0.5\)"),
        ({"crop_scale": (1.0, 0.5)}, "must not fall"),
    ],
)
def test_what_cannot_work_is_refused(changes, message, tmp_path):
    config = main.load_config(str(CONFIGS / "recover.py"))
    config.update(run=str(tmp_path), **changes)
    with pytest.raises(UserError, match=message):
        commands.find("recover")(config, tmp_path / "out")


@pytest.mark.slow
def test_a_rival_of_other_classes_is_refused_before_anything_is_healed(tmp_path):
    for classes in (2, 3):
        save_model(
            models.create("vit", **SIZES, num_classes=classes, rngs=nnx.Rngs(0)), tmp_path / f"{classes}.safetensors"
        )
    config = main.load_config(str(CONFIGS / "recover.py:smoke"))
    config.update(run=str(tmp_path / "3.safetensors"), rivals=(str(tmp_path / "2.safetensors"),))
    config.data.source = "scenes"
    with pytest.raises(UserError, match="has 2 classes and the teacher 3"):
        commands.find("recover")(config, tmp_path / "run")
    assert not list((tmp_path / "run").rglob("checkpoints"))


LABELS = np.array([0, 1, 1, 0, 1])


def predictions(classes, labels=LABELS):
    return Predictions.of(OutputClassifier(None), NetworkOutputs(np.eye(2)[np.array(classes)], np.asarray(labels)))


def test_predictions_are_counted():
    dense, healed, before = predictions([0, 1, 1, 0, 0]), predictions([0, 1, 0, 0, 1]), predictions([1, 0, 0, 1, 1])
    earlier, agreement, accuracy, lost, rescued = agreement_columns(
        healed, dense, before, np.array([0, 0, 1, 0, 1], bool)
    )
    assert (earlier.value, agreement.value, accuracy.value, rescued.value) == (0.0, 0.6, 0.8, 0.5)
    assert lost.value == 0.0 and agreement == share(3, 5) and lost.low < 0 < lost.high
    assert predictions(LABELS).lost(dense).value == pytest.approx(0.2) == -dense.lost(predictions(LABELS)).value
    assert agreement_columns(None, dense, None, None) == ("",) * 5
    unlabelled = predictions([0, 1], [-1, -1])
    assert unlabelled.accuracy() == "" and not unlabelled.labelled and unlabelled.agreement(unlabelled).value == 1.0


@pytest.mark.slow
def test_a_network_without_a_head_is_classified_by_a_linear_head():
    class Headless:
        num_classes = 0

    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 4)) + 4 * np.eye(4)[np.arange(60) % 3]
    labelled = NetworkOutputs(features.astype(np.float32), np.arange(60) % 3)
    classifier = OutputClassifier.of(Headless(), lambda: labelled)
    assert (classifier.classes(labelled.values) == labelled.labels).mean() > 0.9
    assert OutputClassifier.of(Headless(), lambda: NetworkOutputs(features, np.full(60, -1))) is None


def row(name, accuracy, speed, spread=0.0):
    share = Interval(accuracy, accuracy - 0.02, accuracy + 0.02)
    speeds = OverRounds(speed, speed - spread, speed + spread)
    return Row(name, 1.0, 1.0, speeds, share, share, share, share, "", 100)


def test_the_finding_names_no_winner_where_intervals_overlap():
    dense = row("dense", 0.8, 1.0)
    assert "is that of a: 79.0% [77.0%, 81.0%]. dense has 80.0%" in _finding(
        Table([dense, row("a", 0.79, 2.0), row("b", 0.7, 2.1)]), "accuracy"
    )
    assert "stands out in accuracy: the intervals of a (79.0%) and b (78.0%) overlap" in _finding(
        Table([dense, row("a", 0.79, 2.0), row("b", 0.78, 2.1)]), "accuracy"
    )
    assert "stands out in accuracy" in _finding(Table([dense, row("a", 0.79, 2.0), row("b", 0.78, 2.0)]), "accuracy")
    # The interval of b ends above the lower end of a's, its value lies below.
    assert "stands out in accuracy: the intervals of a (79.0%) and b (76.0%) overlap" in _finding(
        Table([dense, row("a", 0.79, 2.0), row("b", 0.76, 2.1)]), "accuracy"
    )
    assert "no other network is as fast" in _finding(
        Table([dense, row("a", 0.79, 2.0), row("b", 0.7, 1.5)]), "accuracy"
    )
    assert "No healed network is clearly faster" in _finding(Table([dense, row("a", 0.79, 0.9)]), "accuracy")


def test_the_finding_asks_whether_ranges_of_speed_overlap():
    dense, fast = row("dense", 0.8, 1.0), row("a", 0.79, 2.0, spread=0.3)
    level = row("b", 0.78, 1.8, spread=0.1)
    assert "stands out in accuracy" in _finding(Table([dense, fast, level]), "accuracy")
    assert "no other network is as fast" in _finding(Table([dense, fast, row("b", 0.78, 1.5, spread=0.1)]), "accuracy")
    slow = row("a", 0.79, 1.1, spread=0.2)
    assert "No healed network is clearly faster" in _finding(Table([dense, slow]), "accuracy")
    single = dataclasses.replace(level, speed=OverRounds(1.8, float("nan"), float("nan")))
    assert "stands out in accuracy" in _finding(Table([dense, fast, single]), "accuracy")


def test_accuracy_and_agreement_are_drawn_with_their_intervals(monkeypatch):
    drawn, scatter = [], page.plots.scatter_plot

    def watched(series, xlabel, ylabel, **options):
        drawn.append((ylabel, series, options["intervals"]))
        return scatter(series, xlabel, ylabel, **options)

    monkeypatch.setattr(page.plots, "scatter_plot", watched)
    rows = Table([row("dense", 0.8, 1.0), dataclasses.replace(row("a", 0.79, 2.0), accuracy="")])
    section = Report("r").section("s")
    page.describe(section, Comparison(rows, {}, False), {}, length="9 steps")
    assert [(name, list(series)) for name, series, _ in drawn] == [
        ("accuracy", ["dense"]),
        ("agreement", ["dense", "a"]),
    ]
    assert drawn[1][1]["a"] == ([2.0], [0.79]) and drawn[1][2]["a"] == [(0.79 - 0.02, 0.79 + 0.02)]
    assert "a: agreement 79.0% [77.0%, 81.0%]" in section.render()


def test_the_summary_is_json():
    dense = row("dense", 0.8, 1.0)
    rows = Table([dense, row("a", 0.79, 2.0)])
    assert summary(Comparison(rows, {}, False))["a"] == "agreement 79.0% accuracy 79.0% speed-up 2.00"
    assert json.dumps(summary(Comparison(rows, {}, False)))


def test_baselines_that_are_missing_are_said():
    section = Report("r").section("s")
    page._not_compared(section, ["tome:r=4", "random:r=4"])
    text = section.render()
    assert "Not compared: the same network on smaller images (--config.rivals)." in text and "Random" not in text


@pytest.mark.parametrize(("changes", "length"), [({"steps": 9}, "9 steps"), ({"minutes": 0.5}, "0.5 minutes")])
def test_steps_take_the_place_of_minutes_on_the_page(changes, length):
    config = main.load_config(str(CONFIGS / "recover.py"))
    config.update(changes)
    assert page.length_of(config) == length
