"""Weights in several files, and weights by their name on the Hub."""

import json
import sys
import types

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from jaxprune.checkpoints import open_classifier
from jaxprune.errors import UserError
from jaxprune.models import create
from jaxprune.models.class_names import imagenet1k
from jaxprune.weights.read import read_tensors
from jaxprune.weights.rules import to_published

TENSORS = {f"layer.{index}.weight": np.full((2, 3), index, np.float32) for index in range(4)}


def shard(directory, tensors=TENSORS, **changed):
    directory.mkdir(exist_ok=True)
    names = list(tensors)
    places = {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, directory / file)
        places.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": {**places, **changed}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)


def test_shards_are_one_file(tmp_path):
    same(read_tensors(shard(tmp_path / "a")), TENSORS)


@pytest.mark.parametrize("name", ["model.safetensors", "open_clip_model.safetensors", "other.safetensors"])
def test_a_directory_with_one_file(name, tmp_path):
    save_file(TENSORS, tmp_path / name)
    same(read_tensors(tmp_path), TENSORS)


def missing_shard(path):
    (shard(path) / "model-00002-of-00002.safetensors").unlink()


def lost_tensor(path):
    shard(path, **{"layer.9.weight": "model-00001-of-00002.safetensors"})


def escaping(path):
    shard(path, **{"layer.9.weight": "../else.safetensors"})


def torn_index(path):
    index = shard(path) / "model.safetensors.index.json"
    index.write_text(index.read_text()[:40])


def config_alone(path):
    (path / "config.json").write_text("{}")


def two_files(path):
    for name in ("a", "b"):
        save_file(TENSORS, path / f"{name}.safetensors")


WRONG = {
    missing_shard: r"lists model-00002-of-00002\.safetensors, which is missing: fetch all shards",
    lost_tensor: r"lists 1 tensors that its files do not contain \(layer\.9\.weight",
    escaping: r"lists '\.\./else\.safetensors', which is not a file beside it",
    torn_index: r"index\.json cannot be read",
    config_alone: r"has a config\.json and no weights: fetch model\.safetensors too",
    two_files: r"has 2 weights files \(a\.safetensors, …\) and no index",
    lambda path: None: r"is a directory without weights",
}


@pytest.mark.parametrize("spoil", WRONG)
def test_a_wrong_directory_is_one_line(spoil, tmp_path):
    spoil(tmp_path)
    with pytest.raises(UserError, match=WRONG[spoil]):
        read_tensors(tmp_path)


def hub(monkeypatch, download):
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=download))


def test_names_on_the_hub_are_fetched(tmp_path, monkeypatch):
    asked = []

    def download(name, revision, allow_patterns):
        asked.append((name, revision))
        return str(shard(tmp_path / "cached"))

    hub(monkeypatch, download)
    same(read_tensors("hf-hub:someone/network@v2"), TENSORS)
    same(read_tensors("timm:vit_small_patch16_dinov3"), TENSORS)
    assert asked == [("someone/network", "v2"), ("timm/vit_small_patch16_dinov3.lvd1689m", None)]


def test_what_cannot_be_fetched_is_one_line(monkeypatch):
    def download(name, **_):
        raise OSError("no route\nto host")

    hub(monkeypatch, download)
    with pytest.raises(
        UserError, match=r"hf-hub:a/b cannot be fetched and is not in the cache \(OSError: no route to host\)"
    ):
        read_tensors("hf-hub:a/b")
    with pytest.raises(UserError, match="hf-hub:b names no repository: write hf-hub:OWNER/NAME"):
        read_tensors("hf-hub:b")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"not installed: pip install 'jaxprune\[hub\]'"):
        read_tensors("hf-hub:a/b")


def test_a_name_of_timm_says_its_network_and_imagenet_its_classes(tmp_path, monkeypatch):
    sizes = {"img_size": 32, "patch_size": 16, "embed_dim": 8, "depth": 1, "num_heads": 1}
    monkeypatch.setattr("jaxprune.models.vit.variants", lambda: {"vit": {}, "vit_tiny_patch16_224": sizes})
    model = create("vit_tiny_patch16_224", rngs=nnx.Rngs(0))
    save_file(to_published(model), tmp_path / "model.safetensors")
    hub(monkeypatch, lambda name, **_: str(tmp_path))
    found = open_classifier(weights="timm:vit_tiny_patch16_224")
    assert found.class_names == imagenet1k() and found.model.grid == (2, 2)
