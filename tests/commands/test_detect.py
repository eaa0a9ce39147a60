"""The command `detect`: settings, training, resuming, tests of trained detectors under plans."""

import csv
import functools
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dense_runs import assert_a_killed_run_ends_as_another, on_one_and_eight
from flax import nnx
from PIL import Image
from support import slow_but

from jaxprune import checkpoints, commands, dense, main, parallel
from jaxprune.commands import detect, evaluate, segment
from jaxprune.commands.detect import inputs, networks
from jaxprune.commands.evaluate import pixels_or_objects
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.data.objects.base import Object, coco_content
from jaxprune.data.objects.scenes import SceneObjects
from jaxprune.data.objects.truth import Truth
from jaxprune.errors import UserError
from jaxprune.evaluate.detection import measure
from jaxprune.nn.params import split
from jaxprune.nn.patch_embed import pair

ROOT = Path(__file__).parent.parent.parent
CONFIGS = ROOT / "configs/dense"
NAMES = ("coco.py", "scenes_detect.py", "bccd.py", "bccd.py:small=true", "bccd.py:small=true,wide=true")


def config(name, **changes):
    made = main.load_config(str(CONFIGS / name))
    made.update(changes)
    return made


def run(made, workdir):
    return commands.find("detect")(made, Path(workdir))


def test_the_recipe_on_coco_has_the_published_numbers():
    base, large = config("coco.py"), config("coco.py:size=large,cascade=true")
    optimizer = base.optimizer
    assert (base.batch_size, base.steps, optimizer.lr, optimizer.warmup_steps) == (32, 368_750, 5e-5, 250)
    # ViTDet's 184,375 steps of 64 images, whose rate falls at 163,889 and 177,546.
    assert [round(share * 184_375) for share in optimizer.milestones] == [163_889, 177_546]
    assert base.steps * base.batch_size == 184_375 * 64
    assert (optimizer.weight_decay, optimizer.layer_decay, base.model.drop_path_rate) == (0.1, 0.7, 0.1)
    assert (large.optimizer.layer_decay, large.model.drop_path_rate, large.head.name) == (0.8, 0.4, "cascade_mask_rcnn")
    assert tuple(base.data.scale) == (0.1, 2.0) and base.data.masks == "polygons"
    with pytest.raises(UserError, match=r"size.*'huge'"):
        config("coco.py:size=huge")


@pytest.mark.parametrize("name", slow_but(NAMES[:2], NAMES))
def test_a_whole_detector_is_described_by_its_config(name):
    """Every argument of encoder and head is one, at full size; nothing is computed."""
    made = config(name)
    network = nnx.eval_shape(lambda: networks.new(made, 3))
    assert network.num_classes == 3 and (network.mask_head is None) == (made.data.masks == "none")
    assert network.preprocessing.img_size == pair(made.data.img_size)


def refusal(made, tmp_path):
    with pytest.raises(UserError) as error:
        run(made, tmp_path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_wrong_settings_are_said_at_once(tmp_path):
    made = config("scenes_detect.py:smoke", steps=1)
    made.optimizer.warmup_steps = 5
    assert "warmup_steps=5 are more than the 1 steps" in refusal(made, tmp_path)
    assert "data.source=voc needs config.data.path" in refusal(config("bccd.py"), tmp_path)
    made = config("coco.py")
    made.data.path = str(tmp_path / "nowhere")
    assert "nowhere' does not exist" in refusal(made, tmp_path)
    made = config("scenes_detect.py:smoke")
    made.data.source = ""
    assert "There are no images" in refusal(made, tmp_path)
    for name, masks, problem in (
        ("scenes_detect.py", "polygons", "data.source=scenes has no polygons"),
        ("bccd.py", "bitmaps", "data.source=voc has boxes only"),
    ):
        made = config(name)
        made.data.update(masks=masks, path=str(tmp_path))
        assert problem in refusal(made, tmp_path)
    made = config("scenes_detect.py:smoke")
    made.data.scale = (2.0, 1.0)
    assert "scale=(2.0, 1.0) is not a range" in refusal(made, tmp_path)
    made = config("scenes_detect.py:smoke")
    made.head = {**made.head.to_dict(), "with_masks": False}
    assert "head.with_masks follows from config.data.masks" in refusal(made, tmp_path)
    made = config("scenes_detect.py:smoke", frozen=True, plan="sinkhorn")
    assert "'sinkhorn' has parameters, which config.frozen would leave random" in refusal(made, tmp_path)


def test_a_missing_library_is_said_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    made = config("scenes_detect.py:smoke")
    assert refusal(made, tmp_path / "run").endswith("pip install 'jaxprune[detection]'.")
    assert not (tmp_path / "run").exists()


class Boxed:
    """Two images with an object each; that of the second may lack a mask."""

    class_names = ("cell",)

    def __init__(self, masked: bool):
        self.masked = masked

    def __len__(self):
        return 2

    def path(self, index):
        return f"{index}.jpg"

    def objects(self, index):
        outline = (np.array([1.0, 1.0, 9.0, 1.0, 9.0, 9.0]),) if self.masked or not index else ()
        return (Object((1.0, 1.0, 9.0, 9.0), 0, outline),)


def test_objects_without_masks_are_refused_before_masks_are_learnt():
    of = lambda masked: Truth(coco_content(Boxed(masked), [(16, 16)] * 2), [1, 2], [1])
    settings = config("coco.py").data
    inputs.require_masks(Boxed(True), of(True), settings)
    inputs.require_masks((), of(True), settings)
    for examples, truth in ((Boxed(False), of(True)), (Boxed(True), of(False)), ((), of(False))):
        with pytest.raises(UserError, match=r"1\.jpg has an object without a mask: write config\.data\.masks=none"):
            inputs.require_masks(examples, truth, settings)
    settings.masks = "none"
    inputs.require_masks(Boxed(False), of(False), settings)


@pytest.mark.parametrize(("kind", "read"), [("detects", "test_batch"), ("segments", "test.batch_size")])
def test_evaluate_takes_its_batch_size_to_a_test_and_no_classes(kind, read, monkeypatch, tmp_path):
    command, seen = (detect if kind == "detects" else segment), []
    monkeypatch.setattr(pixels_or_objects.networks, "segments", lambda config: kind == "segments")
    monkeypatch.setattr(command, "run", lambda config, workdir: seen.append(config))
    made = evaluate.defaults(run=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"config": {"batch_size": 16}}))
    pixels_or_objects.evaluate(made, tmp_path)
    made.batch_size = 3
    pixels_or_objects.evaluate(made, tmp_path)
    of_test = [functools.reduce(lambda values, name: values[name], read.split("."), found) for found in seen]
    assert of_test == [0, 3] and [found.batch_size for found in seen] == [16, 16]
    made.only_present = True
    with pytest.raises(UserError, match=r"is not a classifier of images: leave --config\.only_present out"):
        pixels_or_objects.evaluate(made, tmp_path)


def voc(root):
    """Two splits of PASCAL VOC, the classes of the second among those of the first, and a class of its own."""
    (root / "ImageSets/Main").mkdir(parents=True)
    (root / "JPEGImages").mkdir()
    (root / "Annotations").mkdir()
    for name, kinds in {"a": ("cat", "dog"), "b": ("cat",), "c": ("owl",)}.items():
        Image.new("RGB", (40, 30)).save(root / f"JPEGImages/{name}.jpg")
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>10</ymax></bndbox>"
        objects = "".join(f"<object><name>{kind}</name>{box}</object>" for kind in kinds)
        (root / f"Annotations/{name}.xml").write_text(f"<annotation>{objects}</annotation>")
    (root / "ImageSets/Main/train.txt").write_text("a\nb\n")
    (root / "ImageSets/Main/test.txt").write_text("c\n")
    return root


def test_sources_of_a_config_have_the_same_classes_in_every_split(tmp_path):
    made = config("bccd.py")
    made.data.update(path=str(voc(tmp_path)), train_split="train")
    train, held_out = inputs.source(made, "train"), inputs.source(made, "eval")
    assert train.class_names == held_out.class_names == ("cat", "dog", "owl")
    assert (len(train), len(held_out)) == (2, 1)
    truth = Truth.of(held_out)
    assert truth.content["images"][0]["width"] == 40 and truth.content["annotations"][0]["category_id"] == 3
    inputs.require_room(train, made.data)
    made.data.num_objects = 1
    with pytest.raises(UserError, match=r"a\.jpg has 2 objects.*config\.data\.num_objects=1: use 2"):
        inputs.require_room(train, made.data)
    made.data.eval_split = "val"
    with pytest.raises(UserError, match=r"no list ImageSets/Main/val\.txt: choose one of test, train"):
        inputs.source(made, "eval")
    inputs.require_same_classes(train.class_names, held_out, "run")
    with pytest.raises(UserError, match="held-out images have 3 classes and run 1"):
        inputs.require_same_classes(("cat",), held_out, "run")


def test_annotations_with_more_edges_than_there_are_places_are_said_before_training(tmp_path):
    (tmp_path / "train2017").mkdir()
    (tmp_path / "annotations").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "train2017/a.png")
    angles = np.linspace(0, 6, 50)
    polygon = np.stack([20 + 9 * np.cos(angles), 15 + 9 * np.sin(angles)], 1).reshape(-1).tolist()
    entry = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [11, 6, 18, 18], "segmentation": [polygon], "iscrowd": 0}
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": 30, "width": 40}],
        "categories": [{"id": 1, "name": "disc"}],
        "annotations": [entry],
    }
    (tmp_path / "annotations/instances_train2017.json").write_text(json.dumps(content))
    made = config("coco.py")
    made.data.path = str(tmp_path)
    source = inputs.source(made, "train")
    inputs.require_room(source, made.data)
    made.data.num_edges = 40
    with pytest.raises(UserError, match=r"object in .* has 50 edges.*config\.data\.num_edges=40"):
        inputs.require_room(source, made.data)


@pytest.fixture(scope="module")
def tested():
    """What an untrained detector finds in six scenes, and its network."""
    made = config("scenes_detect.py:smoke")
    made.data.num_eval = 6
    made.head.min_score = 0.0
    network = networks.new(made, 10)
    parts = split(network)
    source = inputs.source(made, "eval")
    truth = Truth.of(source)
    arrays = {"model": (parts, {**parts.params, **parts.rest})}
    mesh = parallel.make_mesh({"data": 1}, jax.devices()[:1])
    options = {"batch_size": 4, "pictures": 2}
    return measure(arrays, source, truth, preprocessing(made), mesh, **options)["model"], truth


@pytest.mark.slow
def test_a_test_reads_every_image_once_and_keeps_pictures(tested):
    outcome, truth = tested
    assert outcome.images == 6 and outcome.detections > 0 and set(outcome.precision) == {"bbox", "segm"}
    assert [picture.index for picture in outcome.pictures] == [0, 3]
    assert outcome.pictures[0].image.shape == (32, 32, 3) and outcome.pictures[0].detections
    assert sum(int(matched.objects.sum()) for matched in outcome.matches["bbox"]) == 6
    assert len(truth.of_images([1, 2])["annotations"]) == 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("detect") / "run"
    return workdir, run(config("scenes_detect.py:smoke"), workdir)


@pytest.mark.slow
def test_a_run_has_scores_with_intervals_a_report_and_a_network(trained):
    workdir, summary = trained
    assert summary["box_AP_low"] <= summary["box_AP"] <= summary["box_AP_high"] and summary["images"] == 12
    assert summary["box_AP50_low"] <= summary["box_AP50"] <= summary["box_AP50_high"]
    assert 0 <= summary["mask_AP"] <= 1 and summary["classes"] == 10 and summary["steps"] == 4
    page = (workdir / "report.html").read_text()
    for word in ("box AP", "mask AP", "AP50", "AP75", "medium", "12 images", "crescent", "95 % interval over images"):
        assert word in page, word
    with (workdir / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == list(SceneObjects.class_names)
    assert sum(int(row["objects"]) for row in rows) == 12
    metrics = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {"loss_cls", "loss_box_reg", "loss_mask", "loss_rpn_cls", "loss_rpn_loc"} <= set(metrics[0])
    model = checkpoints.load_model(workdir)
    assert model(jnp.zeros((1, 32, 32, 3))).masks.shape == (1, 4, 28, 28)


RIVAL = "img_size=24/topk@0:keep_rate=0.5,restore=last"


@pytest.mark.slow
def test_a_trained_detector_is_tested_under_plans(trained, tmp_path):
    workdir, summary = trained
    made = config("scenes_detect.py:smoke", detector=str(workdir), plans=("topk:restore=last", RIVAL), keep_rate=0.5)
    made.update(rounds=2, reduction_loc=(0,))
    made.data.source = ""
    tested = run(made, tmp_path / "plans")
    assert tested["box_AP"] == pytest.approx(summary["box_AP"], abs=1e-6)
    assert list(tested["plans"])[:2] == ["dense", "topk:restore=last"]
    smaller, reduced = list(tested["plans"])[2:]
    assert reduced == RIVAL and tested["plans"][RIVAL]["gflops"] < tested["plans"]["dense"]["gflops"]
    assert smaller in ("img_size=16", "img_size=24") and 0 <= tested["plans"][smaller]["box_AP"] <= 1
    assert tested["plans"]["topk:restore=last"]["gflops"] < tested["plans"]["dense"]["gflops"]
    assert tested["plans"]["topk:restore=last"]["speed-up"] > 0
    assert "difference" in (tmp_path / "plans/report.html").read_text()
    with (tmp_path / "plans/plans.csv").open() as file:
        assert [row["plan"] for row in csv.DictReader(file)] == list(tested["plans"])


@pytest.mark.slow
def test_a_detector_of_rectangles_is_trained_and_tested(tmp_path):
    made = config("scenes_detect.py:smoke", steps=2)
    made.data = {**made.data.to_dict(), "img_size": (16, 32)}
    assert 0 <= run(made, tmp_path / "run")["box_AP"] <= 1
    assert "resized to fit 32 × 16 pixels" in (tmp_path / "run/report.html").read_text()
    model = checkpoints.load_model(tmp_path / "run")
    assert model.preprocessing.img_size == (16, 32)
    made = config("scenes_detect.py:smoke", detector=str(tmp_path / "run"), plans=("topk:restore=last",), keep_rate=0.5)
    made.update(reduction_loc=(0,))
    made.data.source = ""
    assert list(run(made, tmp_path / "plans")["plans"])[:2] == ["dense", "topk:restore=last"]


@pytest.mark.slow
def test_a_frozen_encoder_keeps_its_weights(tmp_path, monkeypatch):
    """And computes as in the test, without stochastic depth."""
    made, maps, modes = config("bccd.py:smoke", frozen=True, steps=2), dense.mask_rcnn.MaskRCNN.maps, []

    def watched(self, images, *, train=False, key=None):
        modes.append(train)
        return maps(self, images, train=train, key=key)

    monkeypatch.setattr(dense.mask_rcnn.MaskRCNN, "maps", watched)
    summary = run(made, tmp_path / "run")
    assert modes and not any(modes)
    from jaxprune.nn.params import variables

    ours, before = variables(checkpoints.load_model(tmp_path / "run")), variables(networks.new(made, 10))
    moved = {name for name in before if not np.array_equal(ours[name][...], before[name][...])}
    assert moved and not any(name.startswith("encoder.") for name in moved)
    assert "box_AP" in summary and "mask_AP" not in summary


@pytest.mark.slow
def test_other_commands_say_which_one_knows_a_detector(trained, tmp_path):
    workdir, _ = trained
    made = main.load_config(str(CONFIGS / "scenes.py:smoke"))
    made.segmenter, made.data.source = str(workdir), ""
    with pytest.raises(
        UserError, match="holds a detector, and a segmentation network is needed: use the command detect"
    ):
        commands.find("segment")(made, tmp_path / "segment")


@pytest.mark.slow
def test_evaluate_and_visualize_take_a_detector(trained, tmp_path):
    workdir, summary = trained
    made = main.load_config(str(ROOT / "configs/evaluate.py"))
    made.update(run=str(workdir))
    assert commands.find("evaluate")(made, tmp_path / "evaluate")["box_AP"] == pytest.approx(summary["box_AP"])
    made = main.load_config(str(ROOT / "configs/visualize.py"))
    made.update(run=str(workdir), num_images=2)
    assert commands.find("visualize")(made, tmp_path / "visualize") == {"images": 2}
    assert "detections" in (tmp_path / "visualize/report.html").read_text()


@pytest.mark.slow
def test_it_is_healed_under_a_plan(trained, tmp_path):
    workdir, summary = trained
    made = main.load_config(str(ROOT / "configs/recover.py:smoke"))
    made.update(run=str(workdir), plans=("topk:keep_rate=0.5",), reduction_loc=(0,), rivals=(), learning_rate=1e-3)
    outcome = commands.find("recover")(made, tmp_path / "healed")
    assert list(outcome) == ["dense", "topk:keep_rate=0.5, before", "topk:keep_rate=0.5"]
    assert outcome["dense"].startswith(f"box_AP {summary['box_AP']:.1%}, speed-up 1")
    (folder,) = (path.parent for path in (tmp_path / "healed").glob("*/healed.safetensors"))
    assert checkpoints.load_model(folder / "healed.safetensors").plan.steps[0].method == "topk"
    assert {"cosine before", "cosine after"} <= set(json.loads((folder / "result.json").read_text()))


@pytest.mark.slow
def test_predict_draws_the_objects_that_a_detector_finds(tmp_path, monkeypatch):
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "features": 8, "hidden": 8}
    counts = {"before_nms": (16, 16), "after_nms": (8, 8), "max_detections": 3, "min_score": 0.0}
    model = dense.create("mask_rcnn", encoder="vit", num_classes=3, **sizes, **counts, rngs=nnx.Rngs(0))
    names = ("red", "white", "platelet")
    checkpoints.save_model(model, tmp_path / "detector.safetensors", class_names=names)
    Image.fromarray(SceneObjects(1, (40, 48))[0]["image"]).save(tmp_path / "photo.png")
    made = main.load_config(str(ROOT / "configs/predict.py"))
    made.update(run=str(tmp_path / "detector.safetensors"), image=str(tmp_path / "photo.png"))
    monkeypatch.setattr("jaxprune.commands.predict.objects.LEAST", 0.0)
    for plan in ("", "topk:keep_rate=0.5,restore=last"):
        made.update(plan=plan, reduction_loc=(0,))
        found = commands.find("predict")(made, tmp_path / f"predict{len(plan)}")
        assert 0 < found["objects"] <= 3 and set(found["classes"]) <= set(names) and Path(found["picture"]).is_file()
        page = (tmp_path / f"predict{len(plan)}/report.html").read_text()
        assert all(name in page for name in found["classes"])


COMMAND = [
    *(sys.executable, "-m", "jaxprune.main", "--config=configs/dense/scenes_detect.py:smoke"),
    *("--config.steps=40", "--config.checkpoint_every=5", "--config.eval_every=20"),
]


@pytest.mark.slow
def test_a_run_that_is_killed_ends_as_one_that_is_not(tmp_path):
    # XLA for CPUs compiles this step to programs whose gradients differ in the last bits from process to process; the
    # cache hands the first one to all runs.
    cache = {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    assert_a_killed_run_ends_as_another(COMMAND, tmp_path, env={**os.environ, **cache})


@pytest.mark.eight_devices
def test_eight_devices_train_and_test_as_one(tmp_path, monkeypatch):
    smoke = lambda workdir: run(config("scenes_detect.py:smoke"), workdir)
    losses, summaries = on_one_and_eight(smoke, tmp_path, monkeypatch)
    np.testing.assert_allclose(losses["one"], losses["eight"], rtol=1e-4)
    assert summaries["one"]["box_AP"] == pytest.approx(summaries["eight"]["box_AP"], abs=1e-3)
