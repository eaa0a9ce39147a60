"""The task tune on a segmentation network: shares of pixels, on images of its run and on others without label maps."""

import csv
from pathlib import Path

import jax
import numpy as np
import pytest
from counted_seconds import count_seconds
from flax import nnx
from PIL import Image

import jaxprune
from jaxprune import checkpoints, commands, main, reduction
from jaxprune.checkpoints import save_model
from jaxprune.commands.segment import inputs
from jaxprune.commands.segment.run import measured
from jaxprune.commands.shared import dense_networks
from jaxprune.data.sample import Picked
from jaxprune.dense.dtop import DToP
from jaxprune.errors import UserError
from jaxprune.open.rivals import rival
from jaxprune.reduction import Plan
from jaxprune.tune import Bound, PixelImages, Settings, tune

CONFIGS = Path(__file__).parent.parent.parent / "configs"
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
QUICK = {"methods": ("topk",), "places": ((1,),), "kept": (0.5,), "rounds": 1, "batch_size": 2, "delta": 0.5}


def run(workdir, **settings):
    config = main.load_config(str(CONFIGS / "tune.py"))
    config.update_from_flattened_dict(settings)
    return commands.find("tune")(config, Path(workdir))


@pytest.fixture(autouse=True)
def counting_device(monkeypatch):
    count_seconds(monkeypatch)


def network(head="linear", **arguments):
    options = {"linear": {"indices": (1,)}, "segvit": {"features": 8, "head_heads": 2, "indices": (0, 1)}}
    options["dtop"] = options["segvit"]
    arguments = {"num_classes": 3, **options[head], **SIZES, **arguments}
    return jaxprune.dense.create(head, encoder="vit", **arguments, rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_a_run_on_scenes_is_tuned_by_shares_of_pixels(tmp_path, capsys):
    made = main.load_config(str(CONFIGS / "dense/scenes.py:smoke,head=linear"))
    made.update(steps=2)
    commands.find("segment")(made, tmp_path / "scenes")
    settings = {"run": str(tmp_path / "scenes"), "value": 0.3, "num_images": 12, **QUICK}
    found = run(tmp_path / "tuned", **settings)
    with (tmp_path / "tuned/tune.csv").open() as file:
        rows = {row["plan"]: row for row in csv.DictReader(file)}
    assert next(iter(rows)) == "dense" and {"topk@1:keep_rate=0.5", "img_size=24"} < set(rows)
    assert found["plan"] in rows and 0 < found["miou"] < 1 and rows["topk@1:keep_rate=0.5"]["certified"]
    # Risks again, by the test of the command segment on the same half of the images.
    segmenter = checkpoints.load_model(tmp_path / "scenes")
    half = Picked(inputs.source(made, "eval"), np.random.default_rng(0).permutation(12)[:6].tolist())
    names = [name for name in rows if rows[name]["n"] == "6"]
    networks = {"dense": segmenter} | {
        name: rival(segmenter, name)
        if name.startswith("img_size")
        else reduction.apply(segmenter, Plan.from_text(name))
        for name in names
        if name != "dense"
    }
    sizes = {name: model.preprocessing.img_size for name, model in networks.items()}
    mesh = jaxprune.parallel.make_mesh({"data": 1}, jax.devices()[:1])
    outcomes = measured(made, dense_networks.arrays(networks), half, mesh, 0, sizes)
    for name in names:
        agreement = outcomes[name].agreement.mean()
        assert float(rows[name]["risk"]) == pytest.approx(1 - agreement, abs=2e-3), name
        assert float(rows[name]["agreement"]) == pytest.approx(agreement, abs=2e-3)
        labelled = jaxprune.measures.segmentation.scores(outcomes[name].confusion).mean_iou
        assert float(rows[name]["mIoU"]) == pytest.approx(labelled, abs=2e-3)
    plan = tmp_path / "tuned/plan.txt"
    if found["plan"] == "dense" or found["plan"].startswith("img_size="):
        assert not plan.exists()
    else:
        assert plan.read_text().strip() == found["plan"] and found["risk at most"] <= 0.7
    page = (tmp_path / "tuned/report.html").read_text()
    for words in ("Tuned to this device", "the mean over images of the share of pixels", "mIoU", "<svg"):
        assert words in page, words
    assert "The risk is the mean over images of the share of pixels" in capsys.readouterr().out
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "tuned/tuned").iterdir()}
    assert run(tmp_path / "tuned", **settings) == found
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tuned/tuned").iterdir()} == stored
    # Photographs of two sizes, without label maps.
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256, (5, 6, 3), np.uint8)
        (tmp_path / "photos/test").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((40 + 8 * (number % 2), 48)).save(tmp_path / f"photos/test/{number}.png")
    photos = {"data.source": "folder", "data.path": str(tmp_path / "photos"), "smaller_images": False}
    unlabelled = run(tmp_path / "unlabelled", **{**settings, **photos})
    assert "miou" not in unlabelled and "agreement" in unlabelled and unlabelled["plans"] == 1
    # What does not apply is refused, in one line.
    for changes, words in (
        ({"img_size": 24}, "leave --config.img_size out"),
        ({"neighbours": 3}, "neighbours=3 is for networks without a classifier"),
        ({"data.source": "scenes", "bound": "accuracy"}, "Lost accuracy needs label maps"),
        ({"data.source": "scenes", "bound": "speedup", "value": 2.0, "error": "accuracy"}, "Lost accuracy needs label"),
    ):
        with pytest.raises(UserError, match=words):
            run(tmp_path / "refused", **{**settings, **changes})


@pytest.mark.slow
def test_images_in_memory_need_no_label_maps():
    model = network("segvit")
    images = np.random.default_rng(0).integers(0, 256, (12, 20, 24, 3), np.uint8)
    settings = Settings(**{**QUICK, "smaller_images": False})
    found = tune(model, images, bound=Bound("speedup", 1.01), settings=settings)
    (row,) = (row for row in found.rows if row.name == "topk@1:keep_rate=0.5")
    assert row.scores.mean_iou is None and row.risk.value == pytest.approx(1 - row.scores.agreement)
    assert found.rows[0].name == "dense" and found.rows[0].errors == 0 and found.images == (6, 6)
    assert row.gflops < found.rows[0].gflops and "share of pixels whose class" in found.about


def test_what_cannot_be_tuned_is_named(tmp_path):
    images = np.zeros((12, 16, 16, 3), np.uint8)
    bound = Bound("agreement", 0.5)
    with pytest.raises(UserError, match="DToP spends by image"):
        tune(network("dtop"), images, bound=bound)
    detector = object.__new__(jaxprune.dense.detectors()["mask_rcnn"])
    with pytest.raises(UserError, match="finds objects, and tune bounds the classes of images or pixels"):
        tune(detector, images, bound=bound)
    with pytest.raises(UserError, match=r"classifies pixels: give an array of images .* or tune\.PixelImages"):
        tune(network(), lambda numbers: [], bound=bound, num_images=12)
    with pytest.raises(UserError, match=r"12 images are too few.* takes 15 without a loss"):
        tune(network(), images, bound=Bound("agreement", 0.8), settings=Settings(delta=0.05))
    save_model(network(), tmp_path / "net.safetensors", class_names=("a", "b", "c"))
    with pytest.raises(UserError, match=r"net.safetensors has no data set: give .*--config\.data\.source=folder"):
        run(tmp_path / "run", run=str(tmp_path / "net.safetensors"), value=0.5, delta=0.5)
    assert isinstance(network("dtop"), DToP) and len(PixelImages.of_arrays(images, None, network())) == 12
