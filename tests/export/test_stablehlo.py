"""A StableHLO file computes what the network does, in plain JAX, and a wrong one never gets its name."""

import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export as jax_export
from PIL import Image
from support import quick_compile, quickly

from export.networks import GROUPS, dense, of_family, reduced
from jaxprune import dynamic, export, mim, models
from jaxprune.commands.export.comparison import comparison_images
from jaxprune.errors import UserError
from jaxprune.export import as_stablehlo, verify
from jaxprune.export.segment_programs import segment_programs
from jaxprune.nn.images import normalize
from jaxprune.reduction import At

TOPK = (At(1, "topk", keep_rate=0.5),)
NAMES = ("cat", "dog", "eel")


def write(model, path, **options):
    return export.stablehlo(model, path, **{"platforms": ("cpu",), **options})


def network(model):
    """The network as a function of normalised images: logits and the rows that its steps keep."""
    return quickly(model, lambda model, images: (lambda logits, aux: (logits, *aux.kept))(*model(images)))


def pixels(images, model):
    return jnp.asarray(normalize(jnp.asarray(images), model.preprocessing.mean, model.preprocessing.std))


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """A pruned network, the folder with its file, and how well they agree."""
    model, path = reduced(*TOPK), tmp_path_factory.mktemp("export") / "pruned.stablehlo"
    return model, path, write(model, path, class_names=NAMES)


@pytest.mark.slow
def test_a_file_serves_any_batch_of_pixels_and_says_what_it_is(pruned):
    model, path, found = pruned
    assert 0 <= found.difference <= verify.TOLERANCE and (found.images, found.ties) == (8, 0)
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), np.uint8)
    run = jax.jit(jax_export.deserialize(bytearray(path.read_bytes())).call, compiler_options=quick_compile())
    logits, kept = run(images)
    expected, ids = network(model)(pixels(images, model))
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_array_equal(kept, ids)
    about = json.loads(path.with_name("pruned.stablehlo.json").read_text())
    assert about["plan"] == model.plan.text and about["class_names"] == list(NAMES)
    assert about["architecture"]["embed_dim"] == 16 and about["preprocessing"] == model.preprocessing.as_dict()
    assert about["input"]["shape"] == ["batch", 16, 16, 3] and about["input"]["dtype"] == "uint8"
    assert about["outputs"] == ["logits", "kept_0"] and about["versions"]["jax"] == jax.__version__
    assert sorted(file.name for file in path.parent.iterdir()) == ["pruned.stablehlo", "pruned.stablehlo.json"]


def precisions(jaxpr):
    """The precisions of all matrix products and convolutions of a traced function."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            found.add(equation.params["precision"])
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    found |= precisions(getattr(inner, "jaxpr", inner))
    return found


@pytest.mark.parametrize("kind", ["plan", "segment"])
def test_products_are_those_of_whole_float32_on_every_device(kind):
    if kind == "plan":
        programs = [as_stablehlo.program(reduced(*TOPK), "uint8")]
    else:
        programs = segment_programs(dynamic.create("dvt", **dynamic.tiny("dvt"), num_classes=3, rngs=nnx.Rngs(0)))[0]
    whole = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
    for made in programs:
        with jax.default_matmul_precision("default"):
            assert precisions(jax.make_jaxpr(made.call)(*made.specs(2)).jaxpr) == {whole}
            images = jax.ShapeDtypeStruct((2, *made.shape), jnp.float32)
            assert precisions(jax.make_jaxpr(made.normalized)(images).jaxpr) in ({whole}, set())


def flipped(data: bytes, model) -> bytes:
    """The file with the exponent of one number of the head changed."""
    weight = np.asarray(model.head.kernel[...])
    at = data.index(weight.tobytes())
    return data[: at + 3] + bytes([data[at + 3] ^ 0x40]) + data[at + 4 :]


@pytest.mark.slow
def test_a_file_with_a_wrong_weight_is_refused_and_removed(pruned, tmp_path, monkeypatch):
    model, path, _ = pruned
    monkeypatch.setattr(as_stablehlo.export, "export", lambda *_, **__: lambda *_: Whole(path.read_bytes(), model))
    with pytest.raises(UserError, match=r"vit\.stablehlo was removed after a check.* logits .* differ"):
        write(model, tmp_path / "vit.stablehlo")
    assert not list(tmp_path.iterdir())


class Whole:
    """An exported program whose bytes are damaged on their way to the file."""

    def __init__(self, data, model):
        self.data = flipped(data, model)

    def serialize(self):
        return self.data


@pytest.mark.slow
def test_rows_that_differ_are_refused_unless_the_network_itself_cannot_decide(pruned):
    model, _, _ = pruned
    made = as_stablehlo.program(model, "uint8")
    images = verify.pixels(None, made.shape, model.preprocessing)
    run = jax.jit(made.call, compiler_options=quick_compile())

    def other_rows(images):
        logits, kept = run(images)
        return logits, (kept + 1) % 16

    with pytest.raises(UserError, match="it keeps other rows"):
        verify.verify(other_rows, made, images, model.preprocessing, batches=(8,))


@pytest.mark.slow
def test_a_tie_of_the_network_itself_is_no_difference():
    model = reduced(*TOPK)
    model.pos_embed[...] = model.pos_embed[...] * 0
    made = as_stablehlo.program(model, "normalized")
    images = verify.pixels(None, made.shape, model.preprocessing)
    run = network(model)
    # Of two equal patches of four images the one is the last that stays, the other the first that leaves.
    for image, kept in zip(images[:4], run(pixels(images, model))[1], strict=False):
        last, first = divmod(int(kept[-1]), 4), divmod(int(np.setdiff1d(np.arange(16), kept)[0]), 4)
        (y, x), (v, u) = last, first
        image[4 * v : 4 * v + 4, 4 * u : 4 * u + 4] = image[4 * y : 4 * y + 4, 4 * x : 4 * x + 4]
    fed, call = pixels(images, model), jax.jit(made.call)
    # Rounding decides which of the two stays, so it differs between processors: the first noise that changes a choice.
    for seed in range(100):
        noise = np.random.default_rng(seed).normal(scale=1e-6, size=fed.shape).astype(np.float32)
        other = int((np.sort(call(fed)[1]) != np.sort(run(fed + noise)[1])).any(1).sum())
        if other:
            break
    moved = lambda fed: run(jnp.asarray(fed + noise))
    assert 0 < other <= 4
    assert verify.verify(moved, made, images, model.preprocessing, batches=(8,)).ties == other


@pytest.mark.parametrize("inputs", ["float32", "normalized"])
def test_what_is_read_is_a_choice(inputs):
    model = dense(depth=1)
    made = as_stablehlo.program(model, inputs)
    images = verify.pixels(None, made.shape, model.preprocessing)
    record = model.preprocessing
    fed = normalize(images, record.mean, record.std) if inputs == "normalized" else images.astype(np.float32)
    assert made.dtype == np.float32
    (logits,) = jax.jit(made.call, compiler_options=quick_compile())(fed)
    np.testing.assert_allclose(logits, network(model)(pixels(images, model))[0], atol=1e-6)


def test_half_precision_is_exported_as_float32():
    exact, half = (as_stablehlo.program(dense(depth=1, dtype=dtype), "normalized") for dtype in (None, "bfloat16"))
    spec = jax.ShapeDtypeStruct((1, 16, 16, 3), np.float32)
    assert str(jax.make_jaxpr(exact.call)(spec)) == str(jax.make_jaxpr(half.call)(spec))


def test_files_are_compared_on_all_pictures_of_a_folder(tmp_path):
    for number in range(3):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{number}.png")
    config = SimpleNamespace(images=str(tmp_path), num_images=0, seed=0)
    assert len(comparison_images(config, dense(depth=1))) == 3


def test_bad_requests_are_refused(tmp_path):
    model = dense(depth=1)
    for options, message in (
        ({"inputs": "uint16"}, "Did you mean 'uint8'"),
        ({"class_names": ("one",)}, "1 class names for 3 classes"),
        ({"images": []}, "no images for the comparison"),
        ({"images": [np.zeros((16, 16, 3))]}, "give files, or uint8"),
        ({"platforms": ("gpu",)}, "Unknown platform 'gpu'"),
        ({"platforms": ("cuda", "tpu")}, "leaves out this machine's, cpu, on which the file is compared"),
        ({"platforms": ()}, "leaves out this machine's"),
    ):
        with pytest.raises(UserError, match=message):
            write(model, tmp_path / "a.stablehlo", **options)
    with pytest.raises(UserError, match="There is no directory"):
        write(model, tmp_path / "nowhere" / "a.stablehlo")
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
    framework = mim.create("mae", **sizes, decoder_embed_dim=8, decoder_depth=1, decoder_num_heads=1, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="A MAE has no logits of classes"):
        write(framework, tmp_path / "a.stablehlo")
    with pytest.raises(UserError, match=r"spends by image: .* exported by export\.cascade"):
        write(dynamic.create("cascade", networks=[model]), tmp_path / "a.stablehlo")
    with pytest.raises(UserError, match="A function cannot be exported"):
        write(lambda images: images, tmp_path / "a.stablehlo")
    assert not list(tmp_path.iterdir())


def test_a_network_of_one_channel_is_compared_on_grey_scenes():
    record = dense(depth=1, in_chans=1).preprocessing
    images = verify.pixels(None, (16, 16, 1), record)
    assert images.shape == (8, 16, 16, 1) and images.dtype == np.uint8 and images.std() > 1


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_method_is_written(group, tmp_path):
    found = write(reduced(*GROUPS[group]), tmp_path / "a.stablehlo")
    assert found.difference <= verify.TOLERANCE and found.ties == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vit_small_patch16_dinov3", "vit_base_patch16_siglip_224", "swin_tiny_patch4_window7_224", "convnext_tiny"]
)
def test_networks_of_other_families_are_written(name, tmp_path):
    found = write(of_family(name), tmp_path / "a.stablehlo")
    assert found.difference <= verify.TOLERANCE and found.ties <= 2


@pytest.mark.slow
def test_a_convnet_is_written(tmp_path):
    model = models.create("resnet18", num_classes=3, width=4, layers=(1, 1, 1, 1), rngs=nnx.Rngs(0))
    model.preprocessing = model.preprocessing.with_size(32)
    assert write(model, tmp_path / "a.stablehlo").difference <= verify.TOLERANCE


@pytest.mark.slow
def test_a_convnet_of_clips_is_written(tmp_path):
    sizes = {"layers": (1, 1), "width": 4, "clip_size": (4, 32, 32)}
    model = models.create("x3d", num_classes=3, **sizes, rngs=nnx.Rngs(0))
    model.preprocessing = dataclasses.replace(model.preprocessing, num_frames=4)
    assert write(model, tmp_path / "a.stablehlo").difference <= verify.TOLERANCE


@pytest.mark.slow
def test_a_file_runs_without_this_package(pruned, tmp_path):
    _, path, _ = pruned
    np.save(tmp_path / "images.npy", np.zeros((3, 16, 16, 3), np.uint8))
    code = f"""
import sys
sys.modules["jaxprune"] = sys.modules["flax"] = None
import jax, numpy
logits, kept = jax.export.deserialize(open({str(path)!r}, "rb").read()).call(numpy.load("images.npy"))
assert logits.shape == (3, 3) and kept.shape == (3, 8)
"""
    code = code.replace("import jax,", "import jax.export,")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_stage_is_announced(tmp_path, caplog):
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 2}
    with caplog.at_level("INFO", logger="jaxprune"):
        model = models.create("vit", **sizes, rngs=nnx.Rngs(0))
        export.stablehlo(model, tmp_path / "vit.stablehlo", platforms=("cpu",))
    tracing, reading, *batches = (record.message for record in caplog.records)
    assert "tracing the network" in tracing and "reading the file" in reading
    assert batches == [f"Comparing in batches of {size}." for size in verify.BATCHES]
