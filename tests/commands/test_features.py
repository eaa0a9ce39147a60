"""The task `features`: what it writes, that it goes on where it was, what it refuses, how it classifies."""

import csv
import io
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow_datasets as tfds
from flax import nnx
from PIL import Image

from jaxprune import commands, data, main, models, parallel, reduction
from jaxprune.checkpoints import load_model, open_classifier, save_model, save_pretrained
from jaxprune.commands.shared import inputs
from jaxprune.data.file_list import open_images
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.evaluate import feature_files
from jaxprune.evaluate.collectors.features import FEATURES, features, require
from jaxprune.evaluate.feature_formats import FORMATS, Shard, array_record, encode, read_shard
from jaxprune.nn.host import Host
from jaxprune.nn.images import normalize
from jaxprune.nn.params import jitted

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "features.py")
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
ALL = tuple(FEATURES)
SCENES = {"data.source": "scenes", "data.num_train": 20, "data.num_eval": 12}
SMALL = {"batch_size": 4, "shard_size": 8, "features": ALL}


def network(**arguments):
    return models.create("vit", **{**SIZES, "num_classes": 3, **arguments}, rngs=nnx.Rngs(1))


def run(workdir, **settings):
    config = main.load_config(CONFIG)
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in settings.items()})
    return commands.find(config.task)(config, Path(workdir))


def shards(workdir, split):
    return [read_shard(path) for path in sorted((workdir / "features" / split).glob("[0-9]*"))]


def contents(workdir):
    return {
        str(path.relative_to(workdir)): path.read_bytes() for path in sorted((workdir / "features").rglob("[0-9]*.*"))
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    save_model(network(), path)
    return str(path)


@pytest.fixture(scope="module")
def written(saved, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("features") / "run"
    return workdir, run(workdir, run=saved, **SCENES, **SMALL)


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """Pictures of two classes that any network tells apart, one of them broken."""
    root, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for name, colour in {"blue": (0, 0, 250), "red": (250, 0, 0)}.items():
        (root / name).mkdir()
        for number in range(8):
            noisy = np.clip(np.array(colour) + rng.integers(-9, 9, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(root / name / f"{number}.png")
    (root / "red" / "3.png").write_bytes(b"no picture")
    return root


def of_model(model, images, what):
    """What `forward_features` makes of the pixels of images, by the public calls of a network."""
    record = model.preprocessing

    def call(model, pixels):
        tokens, _ = model.forward_features(normalize(pixels, record.mean, record.std))
        rows = tokens.x[:, model.num_prefix_tokens :]
        maps = rows.reshape(len(pixels), *model.grid, -1)
        return {"cls": tokens.x[:, 0], "pooled": model.pool(tokens), "patches": maps}

    return {name: np.asarray(jitted(model, call)(images)[name]) for name in what}


@pytest.mark.slow
def test_features_are_those_of_the_network_to_the_bit(written, saved):
    workdir, summary = written
    assert summary["images"] == 32 and summary["features"] == str(workdir / "features")
    model = load_model(saved)
    for split, name, count in (("train", "train", 20), ("eval", "test", 12)):
        source = Scenes(split=name, num_examples=count, image_size=(16, 16), seed=0)
        parts = shards(workdir, split)
        assert [len(part.names) for part in parts] == [8] * (count // 8) + [count % 8]
        assert [name for part in parts for name in part.names] == [f"{source.name}[{i}]" for i in range(count)]
        np.testing.assert_array_equal(np.concatenate([part.index for part in parts]), np.arange(count))
        np.testing.assert_array_equal(
            np.concatenate([part.labels for part in parts]), [source[i]["label"] for i in range(count)]
        )
        for start in range(0, count, 4):
            images = jnp.stack([source[i]["image"] for i in range(start, start + 4)])
            part, rows = parts[start // 8], slice(start % 8, start % 8 + 4)
            for feature, values in of_model(model, images, ALL).items():
                assert part.features[feature].dtype == np.float32
                np.testing.assert_array_equal(part.features[feature][rows], values)


@pytest.mark.slow
def test_maps_under_a_plan_are_dense_again(saved, tmp_path):
    plan = {"plan": "topk:keep_rate=0.5", "reduction_loc": (1,)}
    run(tmp_path / "run", run=saved, splits=("eval",), **SCENES, **plan, **SMALL)
    fast = reduction.apply(load_model(saved), reduction.Plan("topk", 0.5, (1,)))
    source, record = Scenes(split="test", num_examples=12, image_size=(16, 16), seed=0), fast.preprocessing
    images = data.load_images([source[i]["image"] for i in range(8)], record)
    (maps,) = fast.forward_intermediates(images, 1, norm=True, intermediates_only=True)
    found = shards(tmp_path / "run", "eval")[0].features
    np.testing.assert_allclose(found["patches"], maps, atol=1e-5)
    empty = (found["patches"] == 0).all(-1).sum((1, 2))
    np.testing.assert_array_equal(empty, 8)  # of 16 patches
    np.testing.assert_allclose(found["pooled"], fast.pool(fast.forward_features(images)[0]), atol=1e-5)


@pytest.mark.parametrize("form", FORMATS)
def test_a_stopped_run_goes_on_to_the_same_files(form, saved, colours, tmp_path):
    if form == "arrayrecord":
        pytest.importorskip("array_record")
    settings = {"run": saved, "images": str(colours), "format": form, **SMALL}
    summary = run(tmp_path / "run", **settings)
    assert summary["images"] == 15 and summary["unreadable"] == 1
    whole = contents(tmp_path / "run")
    first, second = (tmp_path / "run" / name for name in whole)
    second.write_bytes(second.read_bytes()[: len(whole[str(second.relative_to(tmp_path / "run"))]) // 2])
    kept = first.stat().st_mtime_ns
    assert run(tmp_path / "run", **settings) == summary
    assert contents(tmp_path / "run") == whole and first.stat().st_mtime_ns == kept
    first.unlink()
    assert run(tmp_path / "run", **settings) == summary
    assert contents(tmp_path / "run") == whole
    names = [name for part in shards(tmp_path / "run", "images") for name in part.names]
    assert names == sorted(map(str, colours.rglob("*.png")))[:11] + sorted(map(str, colours.rglob("*.png")))[12:]
    assert "3.png" in (tmp_path / "run" / "features" / "images" / feature_files.UNREADABLE).read_text()
    assert "red/3.png" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_an_interrupted_run_ends_in_the_files_of_one_that_was_not(written, saved, tmp_path, monkeypatch):
    encoded, left = feature_files.encode, iter([True, True, False])

    def encode_two(shard, form):
        if not next(left):
            raise KeyboardInterrupt
        return encoded(shard, form)

    settings = {"run": saved, **SCENES, **SMALL}
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(feature_files, "encode", encode_two)
        run(tmp_path / "run", **settings)
    assert len(contents(tmp_path / "run")) == 2
    run(tmp_path / "run", **settings)
    assert contents(tmp_path / "run") == contents(written[0])


@pytest.mark.slow
def test_other_settings_weights_or_images_are_refused(saved, colours, tmp_path):
    settings = {"images": str(colours / "blue"), **SMALL}
    run(tmp_path / "run", run=saved, **settings)
    with pytest.raises(UserError, match=r"dtype is 'float32' there and 'float16' here"):
        run(tmp_path / "run", run=saved, dtype="float16", **settings)
    Path(tmp_path / "model.safetensors").write_bytes(Path(saved).read_bytes())
    own = {"run": str(tmp_path / "model.safetensors"), **settings}
    run(tmp_path / "own", **own)
    save_model(models.create("vit", **SIZES, num_classes=3, rngs=nnx.Rngs(2)), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="network is"):
        run(tmp_path / "own", **own)
    lines = tmp_path / "some.txt"
    lines.write_text(f"{colours}/blue/0.png\n\n{colours}/red/0.png\n")
    run(tmp_path / "list", run=saved, **SMALL, images=str(lines))
    lines.write_text(f"{colours}/blue/0.png\n")
    with pytest.raises(UserError, match=r"images of\.images is '2 images"):
        run(tmp_path / "list", run=saved, **SMALL, images=str(lines))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("labelled", [True, False])
def test_a_file_holds_what_was_written(form, labelled, tmp_path):
    labels = np.array([1, 0], np.int32) if labelled else None
    shard = Shard(("ä", "b"), np.array([3, 4], np.int32), labels, {"cls": np.eye(2, 3, dtype=np.float16)})
    assert encode(shard, form) == encode(shard, form)
    (tmp_path / f"part.{form}").write_bytes(encode(shard, form))
    found = read_shard(tmp_path / f"part.{form}")
    assert found.names == shard.names and (found.labels is None) == (labels is None)
    chex.assert_trees_all_equal(found, shard)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("data", [b"", b"no features"])
def test_a_damaged_file_is_named(form, data, tmp_path):
    (path := tmp_path / f"part.{form}").write_bytes(data)
    with pytest.raises(UserError, match=rf"part.{form} cannot be read as features"):
        read_shard(path)


def test_parts_of_a_pass_are_its_batches():
    source = Scenes(split="test", num_examples=10, image_size=(16, 16), seed=0)
    batches = data.eval_batches(source, batch_size=2, preprocessing=models.Preprocessing((16, 16)))
    whole, part = list(batches), batches.part(1, 3)
    assert len(part) == 2 and list(part.starts) == [2, 4] and len(batches.part(4, 9)) == 1
    chex.assert_trees_all_equal(list(part), whole[1:3])
    assert feature_files._joined([(0, 2), (2, 4), (6, 8)]) == [(0, 4), (6, 8)]


def test_a_list_and_a_picture_are_taken_in_their_order(saved, colours, tmp_path):
    lines = tmp_path / "list.txt"
    Image.new("RGB", (30, 20)).save(tmp_path / "here.png")
    lines.write_text(f"{colours}/red/1.png\nhere.png\n{colours}/blue/1.png\n")
    run(tmp_path / "list", run=saved, images=str(lines), **SMALL, format="arrayrecord")
    (part,) = shards(tmp_path / "list", "images")
    assert part.names == (f"{colours}/red/1.png", str(tmp_path / "here.png"), f"{colours}/blue/1.png")
    assert part.labels is None
    (path,) = (tmp_path / "list" / "features" / "images").glob("*.arrayrecord")
    reader = array_record().ArrayRecordReader(str(path))
    assert reader.num_records() == 3
    with np.load(io.BytesIO(reader.read([1])[0])) as record:
        assert str(record["name"]) == part.names[1] and record["cls"].shape == (16,)
    run(tmp_path / "one", run=saved, images=f"{colours}/red/1.png", **SMALL)
    (one,) = shards(tmp_path / "one", "images")
    np.testing.assert_allclose(one.features["patches"][0], part.features["patches"][0], atol=1e-6)


@pytest.mark.slow
def test_held_out_images_of_a_folder_are_classified(saved, colours, tmp_path, capsys):
    folder = {"data.source": "folder", "data.path": str(colours), "data.held_out": 0.4}
    summary = run(tmp_path / "run", run=saved, **folder, **{**SMALL, "features": ("pooled", "patches")}, neighbours=3)
    assert summary["images"] == 15 and summary["chance"] == 0.5 and summary["held-out images"] in (5, 6)
    with (tmp_path / "run" / "features.csv").open() as file:
        rows = list(csv.DictReader(file))
    classifiers = [(row["features"], row["classifier"]) for row in rows]
    names = ("mean of patches", "pooled")
    assert classifiers == [(name, how) for name in names for how in ("3 nearest neighbours", "linear")]
    for row in rows:
        assert float(row["accuracy"]) == 1 == summary[f"{row['features']}, {row['classifier']}"]
        assert 0.5 < float(row["low"]) == summary[f"{row['features']}, {row['classifier']}, low"] < 1
        assert int(row["images"]) + int(row["training images"]) == 15 and float(row["chance"]) == 0.5
    page = (tmp_path / "run" / "report.html").read_text()
    assert "In the files, <code>pooled</code> is the input of the classifier" in page
    assert "features by cosine" in page and "95 % interval (Wilson)" in page and "chance is 50.0%" in page
    assert "nearest neighbours" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "run" / "pictures").iterdir()] == ["nearest_00000000.png"]
    # The linear classifier is left as a network, which evaluates to the same accuracy.
    opened = open_classifier(summary["classifier"])
    assert opened.class_names == ("blue", "red") and "classifier.safetensors" in page
    (part,) = shards(tmp_path / "run", "eval")
    logits = np.asarray(opened.model.head(jnp.asarray(part.features["pooled"])))
    assert list(logits.argmax(-1)) == list(part.labels)


def test_images_of_several_classes_keep_their_labels_and_are_not_classified(saved, tmp_path):
    with tfds.testing.mock_data(num_examples=6):
        source = {"data.source": "tfds", "data.name": "voc/2012", "data.label_key": "objects.label"}
        splits = {"data.train_split": "train", "data.eval_split": "validation"}
        summary = run(tmp_path / "run", run=saved, **source, **splits, **{**SMALL, "features": ("pooled",)})
    assert summary["images"] == 12 and "chance" not in summary
    (part,) = shards(tmp_path / "run", "train")
    assert part.labels.shape == (6, 20) and part.names[2] == "voc/2012/train[2]"
    assert "no classification by features" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("img_size", [0, 24])
def test_a_published_file_without_a_classifier_will_do(img_size, colours, tmp_path, monkeypatch):
    names = "deit_tiny_patch16_224"
    monkeypatch.setattr(models, "arguments", lambda name: {**SIZES, "img_size": 16})
    model = models.create(names, num_classes=0, rngs=nnx.Rngs(1))
    save_pretrained(model, tmp_path / "bare.safetensors")
    published = {"model.weights": str(tmp_path / "bare.safetensors"), "model.name": names}
    run(tmp_path / "run", **published, images=str(colours / "blue"), img_size=img_size, **SMALL)
    (part,) = shards(tmp_path / "run", "images")
    rows = (img_size or model.preprocessing.img_size[0]) // 4
    assert part.features["patches"].shape == (8, rows, rows, 16) and part.features["cls"].shape == (8, 16)
    np.testing.assert_array_equal(part.features["cls"], part.features["pooled"])


def test_what_does_not_fit_into_float16_is_refused():
    cast = feature_files._cast
    assert cast(np.array([1.5, np.nan], np.float32), "float16", "cls").dtype == np.float16
    with pytest.raises(UserError, match=r"cls features reach 1e\+05, beyond the range of float16: use dtype=float32"):
        cast(np.array([1e5], np.float32), "float16", "cls")


@pytest.mark.slow
def test_float16_is_float32_rounded(written, saved, tmp_path):
    run(tmp_path / "run", run=saved, **SCENES, **SMALL, dtype="float16", splits=("eval",), probe=False)
    for ours, theirs in zip(shards(tmp_path / "run", "eval"), shards(written[0], "eval"), strict=True):
        for name in ALL:
            np.testing.assert_array_equal(ours.features[name], theirs.features[name].astype(np.float16))


@pytest.mark.slow
def test_a_network_of_convolutions_has_maps_and_their_mean():
    network = models.create("resnet18", num_classes=0, width=8, rngs=nnx.Rngs(0))
    forward = features(network, ("pooled", "patches"))
    found = forward.call(forward.arrays, {"image": jnp.zeros((2, 64, 64, 3), jnp.uint8)})
    assert found["patches"].shape[:3] == (2, 2, 2)
    np.testing.assert_allclose(found["patches"].mean((1, 2)), found["pooled"], atol=1e-6)


def test_a_network_that_does_not_pool_is_asked_for_patches():
    class Unpooled(Host):
        pass

    require(Unpooled(), ("patches",), "own")
    with pytest.raises(UserError, match="Unpooled has no `pool`: write 'patches'"):
        require(Unpooled(), ("pooled",), "own")


BAD = {
    "no network": ({"images": "IMAGES"}, "Give --config.run=RUN"),
    "no images": ({"run": "SAVED"}, "has no data set: give --config.images=FOLDER"),
    "images twice": ({"run": "SAVED", "images": "IMAGES", **SCENES}, "are both set: give one of them"),
    "images that are not there": ({"run": "SAVED", "images": "nowhere"}, "There are no pictures at nowhere"),
    "an unknown feature": ({"run": "SAVED", "images": "IMAGES", "features": ("pooling",)}, "Did you mean 'pooled'"),
    "nothing": ({"run": "SAVED", "images": "IMAGES", "features": ()}, "is empty: give some of cls, pooled"),
    "an unknown split": ({"run": "SAVED", **SCENES, "splits": ("test",)}, "Choose one of: eval, train"),
    "an unknown format": ({"run": "SAVED", "images": "IMAGES", "format": "npy"}, "Did you mean 'npz'"),
    "a dtype to compute in": (
        {"run": "SAVED", "images": "IMAGES", "dtype": "bfloat16"},
        "one of: float32, float16",
    ),
    "an unknown plan": ({"run": "SAVED", "images": "IMAGES", "plan": "topkk"}, "Did you mean 'topk'"),
    "broken batches": ({"run": "SAVED", "images": "IMAGES", "shard_size": 100}, "of config.batch_size=64: use 128"),
    "no CLS to pool": ({"run": "UNPOOLED", "images": "IMAGES"}, "pools a CLS token, but has none"),
    "no CLS": (
        {"run": "BARE", "images": "IMAGES", "features": ("cls",)},
        "has no CLS token: write 'pooled' or 'patches'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_used_is_refused_before_anything_is_written(what, saved, colours, tmp_path):
    settings, message = BAD[what]
    bare = tmp_path / "bare.safetensors"
    save_model(network(class_token=False, global_pool="avg"), bare)
    unpooled = tmp_path / "unpooled.safetensors"
    save_model(network(class_token=False, num_classes=0), unpooled)
    places = {"UNPOOLED": str(unpooled), "SAVED": saved, "IMAGES": str(colours), "BARE": str(bare)}
    named = {name: places.get(value, value) if isinstance(value, str) else value for name, value in settings.items()}
    with pytest.raises(UserError, match=message) as refused:
        run(tmp_path / "run", **named)
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_array_record_is_asked_for_in_a_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    config = main.load_config(CONFIG)
    config.update(format="arrayrecord")
    assert any("pip install array_record" in problem for problem in commands.problems(config))


def test_an_empty_or_missing_list_is_refused(tmp_path):
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(UserError, match="lists no pictures"):
        open_images(str(tmp_path / "list.txt"))
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        open_images(str(tmp_path / "list.txt"))


@pytest.mark.eight_devices
def test_eight_devices_write_the_same(saved, tmp_path, monkeypatch):
    meshes = {"one": lambda config: parallel.make_mesh({"data": 1}, jax.devices()[:1]), "eight": inputs.mesh}
    settings = {"run": saved, **SCENES, **SMALL, "batch_size": 5, "shard_size": 10}  # five cannot be shared evenly
    settings |= {"plan": "tome:keep_rate=0.5", "reduction_loc": (1,)}
    found = {}
    for name, mesh in meshes.items():
        monkeypatch.setattr(inputs, "mesh", mesh)
        found[name] = run(tmp_path / name, **settings)
    assert found["one"]["images"] == found["eight"]["images"] == 32
    for split in ("train", "eval"):
        for ours, theirs in zip(shards(tmp_path / "one", split), shards(tmp_path / "eight", split), strict=True):
            assert ours.names == theirs.names
            np.testing.assert_array_equal(ours.labels, theirs.labels)
            for feature in ALL:
                np.testing.assert_allclose(ours.features[feature], theirs.features[feature], rtol=1e-4, atol=1e-5)
