"""The command `segment`: training, resuming, frozen features, tests of trained networks under plans."""

import csv
import dataclasses
import json
import shutil
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from dense_runs import assert_a_killed_run_ends_as_another, on_one_and_eight
from flax import nnx
from PIL import Image

from jaxprune import checkpoints, commands, main, models
from jaxprune.commands.predict import pixels as predict_pixels
from jaxprune.commands.segment import features, inputs, networks
from jaxprune.commands.shared import dense_networks
from jaxprune.commands.shared import inputs as shared_inputs
from jaxprune.data.maps.scenes import SceneMaps
from jaxprune.errors import UserError
from jaxprune.evaluate.contestants import gflops
from jaxprune.flops.scorers import scorer_flops
from jaxprune.flops.segmenters import of_segmenter
from jaxprune.nn.images import normalize
from jaxprune.nn.params import split

CONFIGS = Path(__file__).parent.parent.parent / "configs/dense"


def config(name, **changes):
    made = main.load_config(str(CONFIGS / name))
    made.update(changes)
    return made


def run(made, workdir):
    return commands.find("segment")(made, Path(workdir))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("segment") / "run"
    return workdir, run(config("scenes.py:smoke,head=linear"), workdir)


@pytest.mark.slow
def test_a_run_has_scores_with_intervals_a_report_and_a_network(trained):
    workdir, summary = trained
    assert 0 < summary["miou"] < 1 and summary["miou_low"] <= summary["miou"] <= summary["miou_high"]
    assert summary["images"] == 12 and summary["void_share"] == 0 and summary["classes"] == 11
    page = (workdir / "report.html").read_text()
    for word in ("mIoU", "mAcc", "aAcc", "12 images", "wall", "lowest mIoU", "95 % interval over images"):
        assert word in page, word
    with (workdir / "confusion.csv").open() as file:
        rows = list(csv.reader(file))
    counts = np.array([row[1:] for row in rows[1:]], int)
    assert counts.shape == (11, 11) and counts.sum() == 12 * 32 * 32
    assert np.diag(counts).sum() / counts.sum() == pytest.approx(summary["aacc"])
    model = checkpoints.load_model(workdir)
    assert model(jnp.zeros((1, 32, 32, 3))).shape == (1, 32, 32, 11)


@pytest.mark.slow
def test_a_trained_network_is_tested_under_plans(trained, tmp_path):
    workdir, summary = trained
    rivals = ("img_size=16", "img_size=24/tome@0:r=2")
    made = config("scenes.py:smoke", segmenter=str(workdir), plans=("topk", "tome", *rivals), keep_rate=0.5)
    made.data.source = ""
    tested = run(made, tmp_path / "plans")
    assert tested["miou"] == pytest.approx(summary["miou"], abs=1e-6)
    assert list(tested["plans"]) == ["dense", "topk", "tome", "img_size=24", *rivals]
    assert tested["plans"][rivals[1]]["gflops"] < tested["plans"]["img_size=24"]["gflops"]
    assert tested["plans"]["dense"]["agreement"] == 1 and tested["plans"]["topk"]["agreement"] < 1
    assert tested["plans"]["topk"]["gflops"] < tested["plans"]["dense"]["gflops"]
    assert "difference" in (tmp_path / "plans/report.html").read_text()
    with (tmp_path / "plans/plans.csv").open() as file:
        assert [row["plan"] for row in csv.DictReader(file)] == list(tested["plans"])


@pytest.mark.slow
def test_a_frozen_encoder_keeps_its_weights_and_its_features_give_what_the_network_gives(tmp_path):
    summary = run(config("camvid.py:smoke"), tmp_path / "run")
    model = checkpoints.load_model(tmp_path / "run")
    fresh = networks.new(config("camvid.py:smoke"), 11)
    from jaxprune.nn.params import variables

    ours, before = variables(model), variables(fresh)
    moved = {name for name in before if not np.array_equal(ours[name][...], before[name][...])}
    assert moved and not any(name.startswith("encoder.") for name in moved)
    assert 0 < summary["miou"] < 1
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics if row["split"] == "train"] == [2, 4]


def test_a_frozen_encoder_needs_the_images_of_a_batch(tmp_path):
    made = config("camvid.py:smoke")
    made.data.num_train = 3
    with pytest.raises(UserError, match="has 6 images, which do not fill one batch of 8: lower batch_size"):
        run(made, tmp_path / "run")


@pytest.mark.slow
def test_a_head_learns_what_a_plan_leaves_of_a_frozen_encoder(tmp_path):
    summary = run(config("camvid.py:smoke", plan="tome:r=2"), tmp_path / "run")
    model = checkpoints.load_model(tmp_path / "run")
    assert model.plan.text == "tome:r=2" and summary["plan"] == str(model.plan)
    made = config("camvid.py:smoke", plan="tome:r=2")
    source = inputs.source(made, "train")
    columns = features.of_frozen(model, source, made, shared_inputs.mesh(made))["features_0"][:4]
    images = normalize(np.stack([source[i]["image"] for i in range(4)]), made.data.mean, made.data.std)
    (under_plan,), (dense,) = model.features(images), networks.new(config("camvid.py:smoke"), 11).features(images)
    np.testing.assert_allclose(columns, under_plan, atol=4e-3)
    assert np.abs(columns - dense).max() > 0.05


def folder(root, count=6):
    """Scenes as files: images, and maps with values from 1, 0 where there is no class."""
    scenes = SceneMaps(count, (40, 48))
    for part in ("train", "test"):
        for i in range(count):
            for kind, array in (("images", scenes[i]["image"]), ("annotations", scenes[i]["label_map"] + 1)):
                place = root / part / kind
                place.mkdir(parents=True, exist_ok=True)
                array = array.copy()
                if kind == "annotations":
                    array[:5] = 0
                Image.fromarray(array).save(place / f"{i}.png")
    (root / "classes.txt").write_text("\n".join(scenes.class_names))
    return root


@pytest.mark.slow
def test_a_folder_with_void_pixels(tmp_path):
    root = folder(tmp_path / "data")
    made = config("ade20k.py:smoke", batch_size=2, steps=2)
    made.test = {"mode": "slide", "stride": (20, 20), "flip": True, "scales": (1.0, 1.5), "batch_size": 0}
    made.data.update(source="folder", path=str(root), classes=str(root / "classes.txt"), reduce_zero_label=True)
    summary = run(made, tmp_path / "run")
    assert summary["void_share"] == pytest.approx(5 / 40) and summary["images"] == 6
    assert "12.50%" in (tmp_path / "run/report.html").read_text()


def test_wrong_settings_are_said_at_once(tmp_path):
    made = config("scenes.py:smoke", steps=1)
    made.optimizer.warmup_steps = 5
    with pytest.raises(UserError, match="warmup_steps=5 are more than the 1 steps"):
        run(made, tmp_path)
    made = config("camvid.py")
    with pytest.raises(UserError, match=r"data\.source=folder needs config\.data\.path"):
        run(made, tmp_path)
    made.data.path = str(tmp_path)
    with pytest.raises(UserError, match=r"data\.source=folder needs config\.data\.classes"):
        run(made, tmp_path)
    made = config("scenes.py:smoke")
    made.data.source = ""
    with pytest.raises(UserError, match="There are no images"):
        run(made, tmp_path)
    made = config("scenes.py:smoke")
    made.test.scales = (1.0, 2.0)
    with pytest.raises(UserError, match="one scale"):
        run(made, tmp_path)


def proposal(folder):
    """A scorer that reads a ConvNet of its own, as text."""
    tiny = models.create("resnet18", **models.tiny("resnet18"), num_classes=3, rngs=nnx.Rngs(1))
    checkpoints.save_model(tiny, folder / "proposal.safetensors")
    return f"papr:run={folder / 'proposal.safetensors'}"


def test_a_plan_by_scores_takes_the_scorer_of_the_config_and_counts_its_cost(tmp_path):
    made = config("scenes.py:smoke,head=linear", plan="from_scores:keep_rate=0.5")
    with pytest.raises(UserError, match=r"config\.plan='from_scores.*give config\.scorer"):
        run(made, tmp_path)
    made.data.mean = (0.5, 0.4, 0.3)
    made.scorer = proposal(tmp_path)
    network = networks.new(made, 11)
    scorer = network.pruner.scorer.scorer
    assert scorer.normalised == ((0.5, 0.4, 0.3), tuple(made.data.std)) and scorer.grid == network.encoder.grid
    assert not [name for name in split(network).params if "scorer" in name]
    ranked = gflops(network) - of_segmenter(network).total / 1e9
    assert ranked == pytest.approx(scorer_flops(network.pruner.scorer, (32, 32)) / 1e9) and ranked > 0
    made.update(plan="", plans=("from_scores:keep_rate=0.5",), smaller_images=False)
    dense, fewer = dense_networks.under_plans(made, networks.new(made, 11)).values()
    assert dense.pruner is None and gflops(fewer) == gflops(network)


@pytest.mark.slow
def test_a_network_is_trained_and_tested_with_a_scorer(tmp_path):
    scorer = proposal(tmp_path)
    made = config("scenes.py:smoke,head=segvit", plan="from_scores:keep_rate=0.5", scorer=scorer)
    summary = run(made, tmp_path / "run")
    assert "from_scores" in summary["plan"]
    made = config("scenes.py:smoke", segmenter=str(tmp_path / "run"), plans=("from_scores:keep_rate=0.8",))
    made.update(scorer=scorer)
    made.data.source = ""
    tested = run(made, tmp_path / "plans")
    assert tested["miou"] == pytest.approx(summary["miou"], abs=1e-6) and len(tested["plans"]) == 2


COMMAND = [
    *(sys.executable, "-m", "jaxprune.main", "--config=configs/dense/scenes.py:smoke"),
    *("--config.steps=60", "--config.checkpoint_every=5", "--config.eval_every=20"),
]


@pytest.mark.slow
def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path):
    assert_a_killed_run_ends_as_another(COMMAND, tmp_path)


@pytest.mark.eight_devices
@pytest.mark.parametrize("name", ["scenes.py:smoke", "scenes.py:smoke,head=segvit", "camvid.py:smoke"])
def test_eight_devices_train_and_test_as_one(name, tmp_path, monkeypatch):
    losses, summaries = on_one_and_eight(lambda workdir: run(config(name), workdir), tmp_path, monkeypatch)
    np.testing.assert_allclose(losses["one"], losses["eight"], rtol=1e-5)
    for score in ("miou", "macc", "aacc"):
        assert summaries["one"][score] == pytest.approx(summaries["eight"][score], abs=1e-3)


@pytest.mark.slow
def test_predict_benchmark_and_export_take_a_segmentation_network(trained, tmp_path):
    workdir, _ = trained
    picture = tmp_path / "scene.png"
    Image.fromarray(SceneMaps(3, (40, 48))[1]["image"]).save(picture)
    root = CONFIGS.parent
    made = main.load_config(str(root / "predict.py"))
    made.update(run=str(workdir), image=str(picture))
    summary = commands.find("predict")(made, tmp_path / "predict")
    assert summary["class"] in SceneMaps.class_names and 0 < summary["share"] <= 1
    assert Path(summary["picture"]).is_file()
    made = main.load_config(str(root / "benchmark.py"))
    made.update(run=str(workdir), plans=("topk",), rounds=2, batch_size=2)
    assert commands.find("benchmark")(made, tmp_path / "benchmark")["plans"] == 1
    made = main.load_config(str(root / "export.py"))
    made.update(run=str(workdir), formats=("stablehlo",), plan="topk:keep_rate=0.5", reduction_loc=(1,))
    assert Path(commands.find("export")(made, tmp_path / "export")["stablehlo"]).is_file()


@pytest.mark.slow
def test_evaluate_is_the_test_of_the_run_and_visualize_draws_it(trained, tmp_path):
    workdir, summary = trained
    made = main.load_config(str(CONFIGS.parent / "evaluate.py"))
    made.update(run=str(workdir), plans=("topk",), reduction_loc=(1,), keep_rate=0.5, smaller_images=False)
    tested = commands.find("evaluate")(made, tmp_path / "evaluate")
    assert tested["miou"] == pytest.approx(summary["miou"], abs=1e-6) and list(tested["plans"]) == ["dense", "topk"]
    made.img_size = 16
    with pytest.raises(UserError, match="or use the command segment"):
        commands.find("evaluate")(made, tmp_path / "evaluate")
    made = main.load_config(str(CONFIGS.parent / "visualize.py"))
    made.update(run=str(workdir), num_images=3)
    assert commands.find("visualize")(made, tmp_path / "visualize") == {"images": 3}
    page = (tmp_path / "visualize/report.html").read_text()
    assert page.count("predictions, mIoU") >= 3 and "Legend" in page


@pytest.mark.slow
@pytest.mark.parametrize("task", ["visualize", "tune"])
def test_label_maps_with_the_classes_in_another_order_are_refused(trained, tmp_path, task):
    workdir, _ = trained
    shutil.copytree(workdir, tmp_path / "run")
    card = checkpoints.load_card(workdir)
    dataclasses.replace(card, class_names=card.class_names[::-1]).write(tmp_path / "run")
    made = main.load_config(str(CONFIGS.parent / f"{task}.py"))
    made.run = str(tmp_path / "run")
    with pytest.raises(UserError, match="in another order"):
        commands.find(task)(made, tmp_path / task)


@pytest.mark.slow
def test_it_is_healed_under_a_plan_and_tested_before_and_after(trained, tmp_path):
    workdir, summary = trained
    made = main.load_config(str(CONFIGS.parent / "recover.py:smoke"))
    made.update(run=str(workdir), plans=("tome:r=4",), reduction_loc=(), rivals=("auto",), learning_rate=1e-3)
    outcome = commands.find("recover")(made, tmp_path / "healed")
    names = ["dense", "tome:r=4, before", "tome:r=4", "img_size=24, before", "img_size=24"]
    assert list(outcome) == names and outcome["dense"].startswith(f"miou {summary['miou']:.1%}, agreement 100.0%")
    page = (tmp_path / "healed/report.html").read_text()
    for word in ("Test of a segmentation network", "Healed under its plans", "for the same time: img_size=24"):
        assert word in page, word
    healed = checkpoints.load_model(tmp_path / "healed/tome-r=4/healed.safetensors")
    assert healed.plan.text == "tome:r=4" and healed.num_classes == 11 and healed.training_images is not None
    (tmp_path / "photos").mkdir()
    for number in range(12):  # of anything, in no class
        Image.fromarray(np.full((40, 48, 3), 20 * number, np.uint8)).save(tmp_path / f"photos/{number}.png")
    made.data.source, made.data.path, made.rivals = "folder", str(tmp_path / "photos"), ()
    assert list(commands.find("recover")(made, tmp_path / "photographs")) == names[:3]
    page = (tmp_path / "photographs/report.html").read_text()
    assert "Not compared: Random (--config.plans) and the same network on smaller images (--config.rivals)." in page
    for changes, message in (({"num_images": 3}, "num_images out"), ({"keep_rates": (0.5, 0.7)}, "keep_rates out")):
        with pytest.raises(UserError, match=message):
            commands.find("recover")(type(made)({**made.to_dict(), **changes}), tmp_path)


@pytest.mark.slow
def test_a_picture_is_segmented_as_the_run_tests(tmp_path):
    """By windows, mirrored too: the classes are those of the test; under a plan they differ."""
    made = config("ade20k.py:smoke", batch_size=2, steps=2)
    made.test = {"mode": "slide", "stride": (20, 20), "flip": True, "scales": (1.0, 1.5), "batch_size": 0}
    root = folder(tmp_path / "data", count=2)
    for kind in ("images", "annotations"):
        (root / f"test/{kind}/1.png").unlink()
    made.data.update(source="folder", path=str(root), classes=str(root / "classes.txt"), reduce_zero_label=True)
    summary = run(made, tmp_path / "run")
    made = main.load_config(str(CONFIGS.parent / "predict.py"))
    made.update(run=str(tmp_path / "run"), image=str(root / "test/images/0.png"))
    pixels = predict_pixels.classes_of(made)
    labels = np.array(Image.open(root / "test/annotations/0.png"))
    assert pixels.shape == labels.shape == (40, 48)
    right = (pixels == labels.astype(int) - 1) & (labels > 0)
    assert right.sum() / (labels > 0).sum() == pytest.approx(summary["aacc"], abs=1e-6)
    made.update(plan="topk:keep_rate=0.3", reduction_loc=(1,))
    assert (predict_pixels.classes_of(made) != pixels).any()


@pytest.mark.slow
def test_tokens_that_leave_are_counted_and_timed(tmp_path):
    made = config("scenes.py:smoke,head=dtop")
    made.head.update(thresholds=0.3, keep_per_class=1, layers=1)
    summary = run(made, tmp_path / "run")
    assert "reach its heads" in (tmp_path / "run/report.html").read_text()
    made = config("scenes.py:smoke", segmenter=str(tmp_path / "run"), rounds=2, timed_batch=2)
    made.data.source = ""
    tested = run(made, tmp_path / "test")
    assert tested["miou"] == pytest.approx(summary["miou"], abs=1e-6)
    with_exits, without = (tested["plans"][name] for name in ("dense", dense_networks.WITHOUT_EXITS))
    assert without["tokens"] == [16, 16, 16] and with_exits["tokens"][-1] < 16
    assert with_exits["gflops"] < without["gflops"] and without["speed-up"] > 0
    made = main.load_config(str(CONFIGS.parent / "benchmark.py"))
    made.update(run=str(tmp_path / "run"), plans=(), rounds=2, batch_size=2)
    commands.find("benchmark")(made, tmp_path / "benchmark")
    with (tmp_path / "benchmark/benchmark.csv").open() as file:
        costs = {row["plan"]: float(row["GFLOPs"]) for row in csv.DictReader(file)}
    assert costs["dense"] < costs[dense_networks.WITHOUT_EXITS] == pytest.approx(without["gflops"])
