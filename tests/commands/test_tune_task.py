"""The task tune: what it leaves in its directory, and what it refuses before it begins."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from counted_seconds import count_seconds
from flax import nnx
from PIL import Image

from jaxprune import commands, main, models, reduction, tune
from jaxprune.bench.timing import OverRounds
from jaxprune.checkpoints import load_card, save_model
from jaxprune.commands.tune import page, subject
from jaxprune.data import Scenes
from jaxprune.errors import UserError
from jaxprune.reduction import Plan
from jaxprune.report import Section
from jaxprune.tune import Bound, pareto_testing
from jaxprune.tune.cost_table import Cost, CostTable
from jaxprune.tune.tuned import Row

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "tune.py")
SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}


def run(workdir, **settings):
    config = main.load_config(CONFIG)
    config.update_from_flattened_dict(settings)
    return commands.find(config.task)(config, Path(workdir))


@pytest.mark.slow
def test_photographs_without_classes_choose_a_plan_of_an_encoder(tmp_path, capsys):
    encoder = models.create("vit", **SIZES, num_classes=0, rngs=nnx.Rngs(0))
    save_model(encoder, tmp_path / "encoder.safetensors")
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(24):
        picture = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)).resize((40, 48))
        picture.save(tmp_path / "photos" / f"{number}.png")
    settings = {
        "run": str(tmp_path / "encoder.safetensors"),
        "data.source": "folder",
        "data.path": str(tmp_path / "photos"),
        "data.labels": False,
        "data.held_out": 0.5,
        "num_images": 12,
        "value": 0.4,
        "delta": 0.5,
        "methods": ("tome",),
        "places": ((1,),),
        "kept": (0.7, 0.5),
        "rounds": 2,
        "batch_size": 2,
    }
    found = run(tmp_path / "run", **settings)
    with (tmp_path / "run" / "tune.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["plan"] for row in rows[:2]] == ["dense", "next smaller, dense"] and rows[0]["device"]
    assert [row["plan"] for row in rows if row["chosen"]] == [found["plan"]]
    plan = tmp_path / "run" / "plan.txt"
    if found["plan"] == "dense":  # as a busy machine may measure it
        assert not plan.exists() and "Nothing beats dense" in capsys.readouterr().out
    elif found["plan"].startswith("img_size="):
        assert not plan.exists() and f"--config.{found['plan']}" in (tmp_path / "run" / "report.html").read_text()
    else:
        reduction.apply(encoder, Plan.from_text(plan.read_text().strip()))
        assert found["risk at most"] <= 1 and found["speed-up"] > 1
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Tuned to this device" in page and "Blocks on this device" in page and "<svg" in page
    # What was measured is read again.
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "tuned").iterdir()}
    assert run(tmp_path / "run", **settings) == found and len(stored) >= 2
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "tuned").iterdir()} == stored


@pytest.mark.slow
def test_a_tuned_cascade_is_a_file_that_other_commands_open(tmp_path, monkeypatch, capsys):
    """Its networks and thresholds are in the table with their mixture, and the file serves them."""
    count_seconds(monkeypatch)
    names = Scenes.class_names
    spread = nnx.initializers.normal(0.3)
    classifier = models.create("vit", **SIZES, num_classes=len(names), kernel_init=spread, rngs=nnx.Rngs(0))
    save_model(classifier, tmp_path / "classifier.safetensors", class_names=names)
    scenes = {"data.source": "scenes", "data.num_eval": 80}
    settings = {"methods": ("l2",), "places": ((1,),), "kept": (0.3,), "rounds": 1, "num_images": 80}
    settings |= {
        "bound": "speedup",
        "value": 1.3,
        "smaller_images": False,
        "cascades": True,
        "run": str(tmp_path / "classifier.safetensors"),
    }
    answer = run(tmp_path / "run", **settings, **scenes)
    assert answer["plan"].startswith("l2@1:keep_rate=0.3, then dense (from "), capsys.readouterr().out
    file = tmp_path / "run" / "cascade.safetensors"
    assert load_card(file).class_names == names and not (tmp_path / "run" / "plan.txt").exists()
    with (tmp_path / "run" / "tune.csv").open() as csv_file:
        rows = {row["plan"]: row for row in csv.DictReader(csv_file)}
    assert rows[answer["plan"]]["mixture"].startswith("100 % of the images reach l2@1:keep_rate=0.3, ")
    assert rows["dense"]["mixture"] == ""
    page = (tmp_path / "run" / "report.html").read_text()
    for words in (f"--config.run={file}", "Its time is a mixture", "one δ, 0.1, covers all", "no image that chose"):
        assert words in page, words
    assert "Its time is a mixture" in capsys.readouterr().out

    def command(task, **options):
        config = main.load_config(str(Path(CONFIG).parent / f"{task}.py"))
        config.update_from_flattened_dict({"run": str(file), **options})
        return commands.find(config.task)(config, tmp_path / task)

    assert "accuracy, step 2 of 2 of the dial" in command(
        "evaluate", batch_size=16, **{"data.source": "scenes", "data.num_eval": 80}
    )
    assert len(command("benchmark", batch_size=4, rounds=1)) == 2
    (index,) = command("export").values()
    about = json.loads(Path(index).read_text())
    assert about["class_names"] == list(names) and len(about["dial"]) == 2 and len(about["segments"]) == 2
    # Where something else wins, the file of an earlier run would mislead.
    run(tmp_path / "run", **{**settings, "cascades": False}, **scenes)
    assert not file.exists()


@pytest.mark.parametrize("gallery", [(), (3, 1)])
def test_a_cascade_is_told_in_the_table_and_on_the_page(gallery):
    """What its cost is made of, and what one δ covers; of retrieval also what it is unsure of."""
    timed = lambda seconds: (OverRounds(seconds, seconds, seconds), 1.0)
    dense = Row("dense", 2.0, None, timed(2.0), 0, 40)
    test = pareto_testing.of_errors(0, 40, 0.1, 0.1)
    name = "img_size=8, then dense (from 0.8)"
    reach = {"img_size=8": 1.0, "dense": 0.25}
    row = Row(name, 0.8, Cost(0.9, 1.0), timed(0.9), 1, 40, test, reach=reach)
    table = CostTable((), Cost(0.0, 0.0), Cost(2.0, 1.0))
    settings = (Bound("agreement", 0.9), tune.Settings(cascades=True), (40, 40), "", 0, "an error")
    tuned = tune.Tuned(name, None, "why", (dense, row), (name,), table, *settings, tuple(reach), "", gallery)
    (first, second) = page.table(tuned)
    assert first.mixture is None and second.mixture == "100 % of the images reach img_size=8, 25 % dense"
    section = Section("Tuned", "tuned")
    page.describe(section, tuned, cascade=Path("run") / "cascade.safetensors")
    text = section.render()
    for words in (
        *("times the share of the estimation images that reach it", "one δ, 0.1, covers all that were tested together"),
        *("no image that chose a threshold tests it", "--config.run=run/cascade.safetensors"),
        "first all images at the dense network, then thresholds that passed, the chosen ones last",
    ):
        assert words in text, words
    assert ("images of a gallery" in text) == bool(gallery)
    assert page.summary(tuned)["speed-up"] == pytest.approx(2 / 0.9)


def test_a_bound_on_accuracy_needs_the_classes_of_the_network(tmp_path):
    classifier = models.create("vit", **SIZES, num_classes=3, rngs=nnx.Rngs(0))
    save_model(classifier, tmp_path / "c.safetensors", class_names=("a", "b", "c"))
    settings = {"run": str(tmp_path / "c.safetensors"), "data.source": "scenes", "data.num_eval": 8}
    with pytest.raises(UserError, match=r"The data have 10 classes and .* knows 3"):
        run(tmp_path / "run", bound="accuracy", value=0.5, delta=0.5, **settings)


def test_labels_of_another_order_are_refused_for_accuracy_and_ignored_for_agreement(tmp_path, caplog):
    names = tuple(reversed(Scenes.class_names))
    classifier = models.create("vit", **SIZES, num_classes=len(names), rngs=nnx.Rngs(0))
    save_model(classifier, tmp_path / "c.safetensors", class_names=names)
    config = main.load_config(CONFIG)
    config.update_from_flattened_dict(
        {"run": str(tmp_path / "c.safetensors"), "data.source": "scenes", "data.num_eval": 8, "num_images": 8}
    )
    assert {int(subject.open_subject(config).sample[place]["label"]) for place in range(8)} == {-1}
    assert "Labels are ignored" in caplog.text and "in another order" in caplog.text
    config.update(bound="accuracy", value=0.5, delta=0.5)
    with pytest.raises(UserError, match="in another order"):
        subject.open_subject(config)


def test_what_is_refused_is_named(tmp_path):
    with pytest.raises(UserError, match="Give --config"):
        run(tmp_path)
    wrong = {
        "bound": "agreement",
        "value": 95.0,
        "methods": ("topkk",),
        "places": ((3, 1),),
        "kept": (1.5,),
        "delta": 1.0,
        "plans_on_smaller_images": True,
        "smaller_images": False,
    }
    with pytest.raises(UserError) as caught:
        run(tmp_path, run=str(tmp_path), smaller="nowhere", **wrong)
    refused = ("not a fraction in (0, 1)", "topkk", "rising order", "config.kept", "delta", "nowhere")
    for words in (*refused, "plans_on_smaller_images needs"):
        assert words in str(caught.value), words
    assert not list(tmp_path.iterdir())
