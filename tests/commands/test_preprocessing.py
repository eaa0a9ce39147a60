"""One preprocessing a network: whatever looks at an image shows the network the same pixels of it."""

import functools
import importlib
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from jaxprune import checkpoints, commands, main, models
from jaxprune.commands.shared import inputs, networks
from jaxprune.data import load_images
from jaxprune.data.folder import ImageFolder
from jaxprune.errors import UserError
from jaxprune.evaluate.collectors import predictions
from jaxprune.models.vit import VisionTransformer
from jaxprune.preprocessing import HALF, Preprocessing

CONFIGS = Path(__file__).parent.parent.parent / "configs"
CLASSES = ("ant", "bee", "cow", "dog")
# Nothing of it is a default.
RECORD = Preprocessing((32, 32), crop_pct=0.7, interpolation="bilinear", mean=HALF, std=(0.2, 0.3, 0.4))
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
ORIENTATION = 0x0112


def run(name, workdir, data=None, **overrides):
    config = main.load_config(str(CONFIGS / name))
    config.update(overrides)
    config.data.update(data or {}) if "data" in config else None
    return commands.find(config.task)(config, Path(workdir))


def photograph(path, number, orientation=1):
    """Writes a picture like no other, not square and not symmetric, that viewers turn by its tag."""
    rng = np.random.default_rng(number)
    height, width = rng.integers(24, 72, 2)
    blobs = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((int(width), int(height)))
    tags = blobs.getexif()
    tags[ORIENTATION] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    blobs.save(path, exif=tags, quality=90)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Two hundred to evaluate, of all orientations, and some to train on."""
    root = tmp_path_factory.mktemp("photographs")
    for number in range(216):
        split = "test" if number < 200 else "train"
        photograph(root / split / CLASSES[number % 4] / f"{number:03d}.jpg", number, 1 + number // 4 % 8)
    return root


@pytest.fixture(scope="module")
def trained(photographs, tmp_path_factory):
    """The run directory of a classifier on them, whose preprocessing is not a default."""
    config = main.load_config(str(CONFIGS / "reduction/small.py:smoke"))
    config.data.update(source="folder", path=str(photographs), crop_pct=0.7, interpolation="bilinear", mean=HALF)
    config.data.std = RECORD.std
    config.model.update(global_pool="avg", head_init_scale=50.0)  # so that it predicts more than one class
    workdir = tmp_path_factory.mktemp("trained") / "run"
    commands.find(config.task)(config, workdir)
    return str(workdir)


def evaluated(monkeypatch, *args, **options):
    """Runs the task `evaluate`; returns its summary and its predictions."""
    module, found = importlib.import_module("jaxprune.commands.evaluate.run"), []
    summarise = module._summary
    monkeypatch.setattr(module, "_summary", lambda each: found.append(each.predictions) or summarise(each))
    return run("evaluate.py", *args, **options), found[-1]


@pytest.mark.slow
def test_predict_says_of_two_hundred_photographs_what_evaluate_says(trained, photographs, tmp_path, monkeypatch):
    summary, found = evaluated(monkeypatch, tmp_path / "evaluate", run=trained)
    assert summary["images"] == 200
    model, names, _ = checkpoints.open_classifier(trained)
    assert model.preprocessing == RECORD and names == CLASSES
    source = ImageFolder(photographs / "test")
    files = [source.path(index) for index in range(200)]
    config = main.load_config(str(CONFIGS / "predict.py"))
    _, confidences = predictions.of_pictures(model, files, inputs.mesh(config), batch_size=50)
    np.testing.assert_array_equal(confidences.argmax(-1), found.predicted)
    assert len(set(found.predicted)) > 1
    turned = next(index for index in range(200) if Image.open(files[index]).getexif()[ORIENTATION] == 6)
    predicted = run("predict.py", tmp_path / "predict", run=trained, image=files[turned])
    assert predicted["class"] == CLASSES[found.predicted[turned]]
    # It is the turning that decides: some photographs are of another class as they are stored.
    model.preprocessing = Preprocessing(**{**vars(RECORD), "exif": False})
    _, stored = predictions.of_pictures(model, files, inputs.mesh(config), batch_size=50)
    assert np.any(stored.argmax(-1) != found.predicted)


@pytest.mark.slow
def test_a_published_file_predicts_what_the_run_predicts(trained, photographs, tmp_path, monkeypatch):
    # Under a name that says the same about its images as the run does, with the sizes of the run.
    sizes = {**checkpoints.load_card(trained).arguments, "num_classes": 1000}
    del sizes["name"]
    monkeypatch.setattr("jaxprune.models.vit.variants", lambda: {"vit": {}, "vit_ours": sizes, "vit_ours.own": sizes})
    monkeypatch.setattr("jaxprune.models.vit.preprocessing", lambda name, arguments: RECORD)
    checkpoints.save_pretrained(checkpoints.load_model(trained), tmp_path / "vit.safetensors")
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    published = {"name": "vit_ours.own", "weights": str(tmp_path / "vit.safetensors")}
    published["class_names"] = str(tmp_path / "names.txt")
    with pytest.raises(UserError, match=r"has no data set: give --config.data.source=folder"):
        run("evaluate.py", tmp_path / "a", model=published)
    summary, found = evaluated(
        monkeypatch, tmp_path / "b", model=published, data={"source": "folder", "path": str(photographs)}
    )
    expected, same = evaluated(monkeypatch, tmp_path / "c", run=trained)
    assert summary == expected
    np.testing.assert_array_equal(found.predicted, same.predicted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evaluate.py", "predict.py", "prune.py", "benchmark.py"])
def test_every_task_opens_a_classifier_in_the_same_words(name, trained):
    config = main.load_config(str(CONFIGS / name))
    config.update(run=trained, img_size=48)
    found = networks.classifier(config)
    assert found.class_names == CLASSES and found.model.preprocessing == RECORD.with_size(48)
    config.model.update(weights="file.safetensors", name="vit_base_patch16_224")
    with pytest.raises(UserError, match="both named"):
        networks.classifier(config)


@pytest.mark.slow
def test_the_card_and_not_the_config_says_how_images_are_prepared(trained):
    config = main.load_config(str(CONFIGS / "evaluate.py"))
    assert inputs.preprocessing(inputs.with_data_of(trained, RECORD, config)) == RECORD
    config.data.update(source="folder", path="elsewhere")
    chosen = inputs.with_data_of(trained, RECORD.with_size(48), config)
    assert inputs.preprocessing(chosen) == RECORD.with_size(48) and chosen.data.path == "elsewhere"
    for name, value in {"crop_pct": 1.0, "mean": (0.0, 0.0, 0.0), "exif": False}.items():
        config.data = {**chosen.data, name: value}
        with pytest.raises(UserError, match=rf"config\.data\.{name}=.* has no effect"):
            inputs.with_data_of(trained, RECORD.with_size(48), config)


@pytest.fixture
def pixels(monkeypatch):
    """Records the images that reach any ViT, batch by batch."""
    seen, embed = [], VisionTransformer.embed

    @functools.wraps(embed)
    def recording(self, images, *args):
        jax.debug.callback(lambda values: seen.append(np.asarray(values)), images)
        return embed(self, images, *args)

    monkeypatch.setattr(VisionTransformer, "embed", recording)
    return seen


@pytest.mark.slow
def test_the_same_pixels_reach_the_network_from_everywhere(tmp_path, pixels):
    model = models.create("vit", **SIZES, num_classes=1, rngs=nnx.Rngs(0))
    model.preprocessing = RECORD
    path = str(tmp_path / "model.safetensors")
    checkpoints.save_model(model, path, class_names=("ant",))
    root = tmp_path / "data"
    photograph(root / "test" / "ant" / "turned.jpg", 5, 6)
    (root / "labels").mkdir()
    (root / "labels" / "turned.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    file = str(root / "test" / "ant" / "turned.jpg")
    data = {"source": "folder", "path": str(root)}
    pruned = {"scorers": ("centre",), "keep_rates": (), "curve_steps": 0, "rounds": 0, "num_images": 1}
    recall = f"ranking/recall.py:source=yolo,path={root},num_images=1"
    views = {
        "evaluate": lambda: run("evaluate.py", tmp_path / "e", data, run=path),
        "predict": lambda: run("predict.py", tmp_path / "p", run=path, image=file),
        "prune": lambda: run("prune.py:smoke", tmp_path / "r", data, run=path, **pruned),
        "benchmark": lambda: run("benchmark.py:batch=1,rounds=1", tmp_path / "b", data, run=path, plans=()),
        "score": lambda: run("score.py:smoke", tmp_path / "s", run=path, images=file, scorers=("dino",)),
        "patch_recall": lambda: run(recall, tmp_path / "c", run=path, scorers=("dino",), batch_size=1),
        "forward_features": lambda: model.forward_features(load_images([file], model.preprocessing)),
        "forward_intermediates": lambda: model.forward_intermediates(load_images([file], model.preprocessing)),
    }
    expected = load_images([file], RECORD)[0]
    for name, view in views.items():
        pixels.clear()
        view()
        jax.effects_barrier()
        shown = [batch[0] for batch in pixels if batch.shape[1:] == expected.shape]
        if name == "benchmark":  # which also times the network on noise
            shown = shown[-1:]
        assert shown, name
        for image in shown:
            np.testing.assert_array_equal(image, expected, err_msg=name)
