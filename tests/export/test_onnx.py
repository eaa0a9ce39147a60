"""An ONNX file computes what the network does, in ONNX Runtime."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quickly

from export.networks import FAMILIES, GROUPS, dense, of_family, reduced
from jaxprune import export
from jaxprune.checkpoints import load_model, save_model
from jaxprune.errors import UserError
from jaxprune.export import as_onnx, verify
from jaxprune.nn.images import normalize
from jaxprune.preprocessing import Preprocessing
from jaxprune.recover import recover
from jaxprune.reduction import At

packages = pytest.mark.skipif(
    any(as_onnx.importlib.util.find_spec(name) is None for name in as_onnx.NEEDED), reason="needs jaxprune[export]"
)
slow = pytest.mark.slow


def test_without_the_packages_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(as_onnx, "NEEDED", ("jax2onnx_that_is_not_there",))
    with pytest.raises(UserError, match=r'needs jax2onnx_that_is_not_there: pip install "jaxprune\[export\]"'):
        export.onnx(None, tmp_path / "a.onnx")


@pytest.mark.parametrize(("method", "names"), [("atc", ["atc"]), ("divprune", ["divprune"]), ("tome", [])])
def test_methods_that_go_row_by_row_are_warned_of_before_their_loops_are_unrolled(
    method, names, monkeypatch, tmp_path, caplog
):
    def converts(*arguments):
        raise UserError("here it would convert")

    monkeypatch.setattr(as_onnx, "NEEDED", ())
    monkeypatch.setattr(as_onnx, "converted", converts)
    monkeypatch.setattr(as_onnx, "describe", lambda *arguments: {"input": {"shape": [0]}})
    with pytest.raises(UserError, match="here it would convert"), caplog.at_level("WARNING", logger="jaxprune"):
        export.onnx(reduced(At(1, method, keep_rate=0.6)), tmp_path / "a.onnx")
    warned = [record.getMessage() for record in caplog.records]
    assert [f"a.onnx: {name} goes row by row" for name in names] == [line.partition(", in")[0] for line in warned]


@slow
def test_nothing_imports_the_packages_before_they_are_needed():
    packages = set(as_onnx.NEEDED)
    code = f"import sys, jaxprune; jaxprune.export.onnx; print(sorted({packages} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["[]"], done.stderr


@slow
@packages
@pytest.mark.parametrize("group", GROUPS)
def test_one_file_of_every_method_serves_all_batches_without_control_flow(group, tmp_path):
    import onnx
    import onnxruntime

    model, path = reduced(*GROUPS[group]), tmp_path / "a.onnx"
    found = export.onnx(model, path, class_names=("cat", "dog", "eel"))
    assert found.difference <= verify.TOLERANCE and found.ties == 0
    file = onnx.load(path)
    assert not {node.op_type for node in file.graph.node} & {"If", "Loop", "Scan"}
    (sides,) = ([side.dim_param or side.dim_value for side in i.type.tensor_type.shape.dim] for i in file.graph.input)
    assert isinstance(sides[0], str) and sides[1:] == [16, 16, 3]
    assert not any(side.dim_param for out in file.graph.output for side in out.type.tensor_type.shape.dim[1:])
    session = onnxruntime.InferenceSession(str(path))
    about = json.loads(session.get_modelmeta().custom_metadata_map["jaxprune"])
    assert about["plan"] == model.plan.text and about["outputs"] == [out.name for out in session.get_outputs()]
    run = quickly(model, lambda model, images: (lambda logits, aux: (logits, *aux.kept))(*model(images)))
    for batch in (1, 3, 8):
        images = np.random.default_rng(batch).integers(0, 256, (batch, 16, 16, 3), np.uint8)
        logits, *kept = session.run(None, {"images": images})
        fed = jnp.asarray(normalize(jnp.asarray(images), model.preprocessing.mean, model.preprocessing.std))
        expected, *kept_here = run(fed)
        np.testing.assert_allclose(logits, expected, atol=1e-5 * np.abs(expected).max())
        for ours, theirs in zip(kept_here, kept, strict=True):
            np.testing.assert_array_equal(np.sort(theirs), np.sort(ours))


@slow
@packages
@pytest.mark.parametrize("name", FAMILIES)
def test_networks_of_other_families_serve_all_batches_without_control_flow(name, tmp_path):
    import onnx

    model, path = of_family(name), tmp_path / "a.onnx"
    # Batches of 1, 3 and 8: logits to 1e-5 of the largest, and the same rows kept.
    found = export.onnx(model, path)
    assert found.difference <= verify.TOLERANCE and found.ties <= 2
    nodes = [node.op_type for node in onnx.load(path).graph.node]
    assert not set(nodes) & {"If", "Loop", "Scan"}
    # A depth-wise convolution is one operator, and not a sum of 49 shifted maps.
    assert name != "convnext_tiny" or nodes.count("Conv") == 4


class Unwritable(nnx.Module):
    """A network with a function that ONNX does not have."""

    preprocessing = Preprocessing((4, 4))

    def __init__(self, function):
        self.function = function

    def __call__(self, images):
        return self.function(images.mean(3)[:, 0])[:, :2], None


@slow
@packages
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: jax.lax.linalg.tridiagonal_solve(x, x, x, x[:, :, None])[:, :, 0], "jax2onnx cannot write"),
        (lambda x: jax.lax.random_gamma_grad(x, x), "has loops"),
    ],
    ids=["unknown", "loop"],
)
def test_what_cannot_be_written_is_refused_in_one_sentence(function, why, tmp_path):
    with pytest.raises(UserError, match=rf"{why}.*use export\.stablehlo\.$"):
        export.onnx(Unwritable(function), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


@slow
@packages
def test_a_file_for_one_batch_and_a_damaged_one(tmp_path, monkeypatch):
    model, path = dense(depth=1), tmp_path / "a.onnx"
    assert export.onnx(model, path, batch_size=2, inputs="normalized").images == 8
    assert as_onnx.load(path)(np.zeros((2, 16, 16, 3), np.float32))[0].shape == (2, 3)
    before = path.read_bytes()
    converted = as_onnx.converted

    def damaged(*args):
        file = converted(*args)
        weights = max(file.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        weights.raw_data = weights.raw_data[:-1] + bytes([weights.raw_data[-1] ^ 0x40])
        return file

    monkeypatch.setattr(as_onnx, "converted", damaged)
    with pytest.raises(UserError, match=r"a\.onnx was removed after a check.*logits"):
        export.onnx(model, path)
    # What was there before stays.
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@slow
@packages
def test_a_healed_file_is_written_and_verified(tmp_path, caplog):
    images = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3)).astype(np.uint8)
    model = reduced(At(1, "tome", keep_rate=0.5))
    teacher = dense()
    healed = recover(model, images, teacher=teacher, minutes=0, steps=3, batch_size=4, learning_rate=1e-5)
    assert not np.array_equal(healed.head.kernel[...], model.head.kernel[...])
    save_model(healed, tmp_path / "healed.safetensors")
    reloaded = load_model(tmp_path / "healed.safetensors")
    with caplog.at_level("INFO", logger="jaxprune.export"):
        written = export.onnx(reloaded, tmp_path / "a.onnx")
    # Each of its stages, which take long, begins with a line.
    lines = [record.message for record in caplog.records if record.name.startswith("jaxprune.export")]
    tracing, reading, *batches = lines
    assert tracing == "a.onnx: tracing the network and converting it." and "comparing it with the network" in reading
    assert batches == [f"Comparing in batches of {size}." for size in verify.BATCHES]
    assert written.difference <= verify.TOLERANCE and reloaded.plan == model.plan
