"""Exported cascades and networks with exits answer as their engines do, in plain JAX and in ONNX Runtime."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from jaxprune import dynamic, export, models
from jaxprune.errors import UserError
from jaxprune.export import as_cascade, as_onnx, verify
from jaxprune.export.segment_programs import segment_programs
from jaxprune.nn.params import variables

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
SPREAD = nnx.initializers.normal(0.3)
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def cascade():
    networks = [
        models.create("vit", img_size=side, **SIZES, kernel_init=SPREAD, rngs=nnx.Rngs(side)) for side in (8, 16)
    ]
    return dynamic.create("cascade", networks=networks)


def tiny(name):
    """A small network with exits, whose parameters are spread out."""
    network = dynamic.create(name, **dynamic.tiny(name), num_classes=3, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    for variable in variables(network).values():
        value = np.asarray(variable[...])
        if np.issubdtype(value.dtype, np.floating):
            variable[...] = (value + rng.normal(0, 0.1, value.shape) ** 2).astype(value.dtype)
    return network


def agree(cascade, folder, monkeypatch):
    side = cascade.preprocessing.sides[0]
    images = np.random.default_rng(0).integers(0, 256, (7, side, side, 3)).astype(np.uint8)
    exits = len(cascade.segments())
    later = [1e8] * (exits - 2) + [-1e8]
    engine = dynamic.Engine(cascade, [-1e8] * exits, batch_size=4, buckets=(4,))
    confidence = np.sort(dynamic.confidence(engine(images).logits[None])[0])
    cascade.set_dial([(1e8, *later), (float(confidence[2:4].mean()), *later)])
    found = export.cascade(cascade, folder, format=folder.name, batch_size=4, class_names=NAMES, platforms=("cpu",))
    assert [(v.images, v.ties) for v in found] == [(8, 0)] * exits and max(
        v.difference for v in found
    ) <= verify.TOLERANCE
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "pictures", raising=False)  # of the tests; the examples have a module of that name
    serve = importlib.import_module("serve_cascade")
    sys.modules.pop("pictures", None)
    for position, dial in enumerate(cascade.dial):
        served, (logits, leaving) = engine.under(dial)(images), serve.Loader(folder, position)(images)
        np.testing.assert_array_equal(leaving, served.exits)
        np.testing.assert_allclose(logits, served.logits, atol=2e-5 * max(1, np.abs(served.logits).max()))
        assert sorted(leaving) == ([exits - 1] * 7 if position == 0 else [0] * 4 + [exits - 1] * 3)
    about = json.loads((folder / "cascade.json").read_text())
    assert about["buckets"] == [1, 2, 4] and about["class_names"] == list(NAMES)
    assert [segment["gmacs"] for segment in about["segments"]] == [s.cost for s in cascade.segments()]


@pytest.mark.slow
def test_stablehlo_agrees_with_the_engine(cascade, tmp_path, monkeypatch):
    agree(cascade, tmp_path / "stablehlo", monkeypatch)
    np.save(tmp_path / "images.npy", np.zeros((3, 16, 16, 3), np.uint8))
    command = [sys.executable, EXAMPLES / "serve_cascade.py", tmp_path / "stablehlo", tmp_path / "images.npy"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("exit 1: ") == 3, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    any(as_onnx.importlib.util.find_spec(name) is None for name in as_onnx.NEEDED), reason="needs jaxprune[export]"
)
def test_onnx_agrees_with_the_engine(cascade, tmp_path, monkeypatch):
    agree(cascade, tmp_path / "onnx", monkeypatch)


@pytest.mark.slow
def test_a_segment_takes_only_what_it_needs():
    """Of the state that goes through a network, files pass what a later one reads, under one name each."""
    segments = [segment.program for segment in segment_programs(tiny("dyn_perceiver"))]
    left = {"images"}
    for segment in segments:
        assert set(segment.names) <= left and not left & (set(segment.outputs) - {"logits"})
        left |= set(segment.outputs)
    assert segments[2].names == ("segment_1_maps",) and segments[3].names[0] == "segment_1_latents"
    assert [segment.outputs[0] for segment in segments] == ["segment_0_logits", "segment_1_logits", *["logits"] * 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dvt", "dyn_perceiver"])
def test_networks_with_exits_are_exported_in_segments(name, tmp_path, monkeypatch):
    agree(tiny(name), tmp_path / "stablehlo", monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif(
    any(as_onnx.importlib.util.find_spec(name) is None for name in as_onnx.NEEDED), reason="needs jaxprune[export]"
)
@pytest.mark.parametrize("name", ["dvt", "dyn_perceiver"])
def test_their_segments_run_in_onnx_runtime(name, tmp_path, monkeypatch):
    agree(tiny(name), tmp_path / "onnx", monkeypatch)


def test_segments_of_an_earlier_export_do_not_stay(cascade, tmp_path, monkeypatch):
    monkeypatch.setattr(as_cascade.as_stablehlo, "serialized", lambda program, platforms: b"")
    monkeypatch.setattr(as_cascade.as_stablehlo, "load", lambda path: None)
    monkeypatch.setattr(as_cascade, "write_verified", lambda path, data, *_: path.write_bytes(data))
    for name in ("segment_0.stablehlo", "segment_2.stablehlo", "segment_10.onnx", "segment_notes.txt"):
        (tmp_path / name).write_text("earlier")
    export.cascade(cascade, tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["cascade.json", "segment_0.stablehlo", "segment_1.stablehlo", "segment_notes.txt"]
    assert (tmp_path / "segment_0.stablehlo").read_text() == ""


def test_what_cannot_be_exported_is_refused(cascade, tmp_path):
    (tmp_path / "file").write_text("")
    gated = dynamic.create("sar", **dynamic.tiny("sar"), num_classes=3, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="has gates"):
        export.stablehlo(gated, tmp_path / "a")
    for model, folder, options, message in (
        (cascade.networks[0], "a", {}, "has no exits"),
        (gated, "a", {}, "has gates"),
        (cascade, "a", {"format": "onyx"}, "onnx"),
        (cascade, "a", {"class_names": ("a",)}, "1 class names for 3 classes"),
        (cascade, "a", {"batch_size": 0}, "not all from 1"),
        (cascade, "file", {}, "is a file"),
    ):
        with pytest.raises(UserError, match=message):
            export.cascade(model, tmp_path / folder, **options)
    assert not (tmp_path / "a").exists()
