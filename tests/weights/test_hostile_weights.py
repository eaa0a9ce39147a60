"""Weights files that ask for far more than they hold, or hold what is not a weight: one line each, soon."""

import io
import time
import tracemalloc
import zipfile

import attacks
import chex
import numpy as np
import pytest
import torch_files
from attacks import pickles
from attacks import weights as weights_attacks
from flax import nnx
from safetensors.numpy import save_file
from torch_files import Raw, constant, tensor

from jaxprune import models
from jaxprune.checkpoints import load_model, load_pretrained, read_tensors, save_model
from jaxprune.checkpoints.store import CheckpointStore, load_params
from jaxprune.errors import UserError
from jaxprune.nn.params import unfilled, variables
from jaxprune.open import convert
from jaxprune.weights import read
from jaxprune.weights.formats import pickled
from jaxprune.weights.rules import to_published

ONE = {"0": np.ones(1, np.float32)}
W = constant("w") + tensor("0", 1, (1,), (1,)) + b"s"
SHARED = b")" + b"q\x01h\x01\x86" * 60  # a pair of a pair of a pair …, 2**60 of them
DEVICE = b"ctorch\ndevice\n("


def nested_dicts(levels):
    """Dicts that hold the one inside twice, under names that weights go by."""
    program = b"}"
    for _ in range(levels):
        program += b"q\x010}" + constant("model") + b"h\x01s" + constant("state_dict") + b"h\x01s"
    return program


def among_weights(instructions):
    """A dict with a weight and, under another name, what the instructions push."""
    return Raw(b"}" + W + constant("x") + instructions + b"s")


PROGRAMS = {
    "pairs of pairs as a key": among_weights(b"}" + SHARED + b"Ns"),
    "pairs of pairs in a set": among_weights(b"\x8f(" + SHARED + b"\x90"),
    "pairs of pairs as a name": Raw(b"}" + SHARED + tensor("0", 1, (1,), (1,)) + b"s"),
    "pairs of pairs in a call": among_weights(b"ccollections\nOrderedDict\n]" + SHARED + b"N\x86a\x85R"),
    "pairs of pairs of a device": among_weights(DEVICE + SHARED + b"tR"),
    "pairs of pairs as a storage": among_weights(SHARED + b"Q"),
    "pairs of pairs as a storage's name": among_weights(
        b"(" + constant("storage") + b"ctorch\nFloatStorage\n" + SHARED + constant("cpu") + constant(1) + b"tQ"
    ),
    "pairs of pairs as a type of numbers": among_weights(b"cnumpy\ndtype\n(" + SHARED + b"tR"),
    "dicts of dicts": Raw(b"}" + constant("model") + nested_dicts(60) + b"s"),
    "a deep key": among_weights(b"}" + b")" + b"\x85" * 200_000 + b"Ns"),
    "a list copied": among_weights(
        b"](" + b"N" * 20_000 + b"eq\x020" + b"ctorch\nSize\nq\x030" + b"(" + b"h\x03h\x02\x85R" * 20_000 + b"t"
    ),
    "a text copied": among_weights(
        constant("é" * 2**16)
        + b"q\x020c_codecs\nencode\nq\x030"
        + b"("
        + (b"h\x03h\x02" + constant("latin1") + b"\x86R") * 5000
        + b"t"
    ),
    "a call of itself": among_weights(
        b"ctorch._tensor\n_rebuild_from_type_v2\n](ctorch._tensor\n_rebuild_from_type_v2\nNeq\x02h\x02aNaR"
    ),
}  # fmt: skip


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_small_pickle_does_not_run_for_long(program, legacy, tmp_path):
    path = torch_files.write(tmp_path / "w.pth", program, legacy=legacy, storages=dict(ONE))
    start = time.process_time()
    with pytest.raises(UserError, match=r"w\.pth (cannot be read|contains|has no tensors)") as error:
        read_tensors(path)
    assert time.process_time() - start < 10 and len(str(error.value)) < 600


@pytest.mark.parametrize("legacy", [False, True])
def test_a_long_pickle_is_read_as_far_as_a_file_of_its_size_needs(legacy, tmp_path, monkeypatch):
    monkeypatch.setattr(pickled, "_STEPS", 2**14)
    more = b"s" + constant("x") + b"(" + b"N" * 2**15 + b"ts"
    small, large = (Raw(b"}" + constant("w") + tensor("0", size, (1,), (1,)) + more) for size in (1, 2**16))
    with pytest.raises(UserError, match="takes more steps than is plausible for a file of this size"):
        read_tensors(torch_files.write(tmp_path / "w.pth", small, legacy=legacy, storages=dict(ONE)))
    storages = {"0": np.ones(2**16, np.float32)}
    found = read_tensors(torch_files.write(tmp_path / "w.pth", large, legacy=legacy, storages=storages))
    assert found["w"].shape == (1,)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_tensor_does_not_repeat_a_number_without_end(legacy, tmp_path):
    huge = {"w": tensor("0", 1, (10**9,), (0,))}
    path = torch_files.write(tmp_path / "w.pth", huge, legacy=legacy, storages=dict(ONE))
    assert path.stat().st_size < 600
    tracemalloc.start()
    with pytest.raises(UserError, match=r"repeat what is stored"):
        read_tensors(path)
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    many = {f"w{i}": tensor("0", 1, (2**20, i + 1), (0, 0)) for i in range(16)}
    with pytest.raises(UserError, match=r"repeat what is stored"):
        read_tensors(torch_files.write(tmp_path / "w.pth", many, legacy=legacy, storages=dict(ONE)))
    small = {"w": tensor("0", 1, (1000, 10), (0, 0)), "again": tensor("0", 1, (1000, 10), (0, 0))}
    found = read_tensors(torch_files.write(tmp_path / "w.pth", small, legacy=legacy, storages=dict(ONE)))
    assert found["w"].shape == (1000, 10) and found["again"] is found["w"]


@pytest.mark.parametrize("member", ["data.pkl", "byteorder", "data/0"])
def test_a_compressed_member_is_refused(member, tmp_path):
    zeros = {"0": np.zeros(2**22, np.float32)}
    path = torch_files.write(tmp_path / "w.pth", {"w": tensor("0", 2**22, (2**22,), (1,))}, storages=zeros)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            compressed = name == f"w/{member}"
            archive.writestr(name, content, zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED)
    with pytest.raises(UserError, match=rf"w/{member} is compressed, which PyTorch does not do"):
        read_tensors(path)


def test_an_archive_of_zeros_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "w.npz", **{f"w{i}": np.zeros(2**19, np.uint8) for i in range(5)})
    assert len(read_tensors(tmp_path / "w.npz")) == 5
    monkeypatch.setattr(read, "_UNPACKED", 2**21)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"w\.npz unpacks to 2,622,080 bytes, .*np\.savez"):
        read_tensors(tmp_path / "w.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**19
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("|V0", (10**12,)), ("|S0", (10**12,)), ("<f4", (10**12,)), ("<f4", (3,)), ("<f4", (0,))],
    ids=str,
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_array_has_as_many_bytes_as_its_header_says(dtype, shape, version, tmp_path):
    header = io.BytesIO()
    write = np.lib.format.write_array_header_1_0 if version == 1 else np.lib.format.write_array_header_2_0
    write(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    content = bytearray(header.getvalue())
    content[6] = version
    with zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("patch_embed.proj.weight.npy", bytes(content))
    start = time.process_time()
    if shape == (0,):
        assert read_tensors(tmp_path / "w.npz")["patch_embed.proj.weight"].shape == (0,)
        return
    with pytest.raises(UserError, match=r"w\.npz cannot be read .*is not an array of the"):
        load_pretrained(vit(), tmp_path / "w.npz")
    assert time.process_time() - start < 5


def vit():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 3}
    return unfilled(lambda: models.create("vit", **sizes, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def weights():
    return to_published(vit())


def bad(tensor, value):
    """The tensor with one of its numbers replaced."""
    tensor = tensor.copy()
    tensor.flat[1] = value
    return tensor


CHANGES = {
    "nan": ("norm.weight", lambda t: bad(t, np.nan), "not finite: norm.weight"),
    "infinity": ("head.bias", lambda t: bad(t, -np.inf), "not finite: head.bias"),
    "beyond float32": ("head.bias", lambda t: bad(t.astype(np.float64), 1e300), "not finite: head.bias"),
    "text": ("head.bias", lambda t: t.astype(str), r"not of real numbers: head.bias \(<U\d+\)"),
    "complex": ("norm.bias", lambda t: t.astype(complex), r"not of real numbers: norm.bias \(complex128\)"),
    "objects": ("norm.bias", lambda t: t.astype(object), r"not of real numbers: norm.bias \(object\)"),
    "text of positions": ("pos_embed", lambda t: t[:, 1:].astype(str), r"not of real numbers: pos_embed"),
    "flat positions": ("pos_embed", lambda t: t.ravel(), r"another shape .*: pos_embed \(136,\)"),
    "one position": ("pos_embed", lambda t: t.mean(), r"another shape .*: pos_embed \(\)"),
    "two tables": ("pos_embed", lambda t: np.concatenate([t, t])[:, 1:], r"another shape .*: pos_embed \(2, 16, 8\)"),
    "nan positions": ("pos_embed", lambda t: bad(t[:, :10], np.nan), "not finite: pos_embed"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_weight_is_named_and_nothing_is_filled(change, weights):
    name, changed, message = CHANGES[change]
    model = vit()
    before = {name: np.array(variable[...]) for name, variable in variables(model).items()}
    with pytest.raises(UserError, match=message):
        load_pretrained(model, weights | {name: changed(weights[name])})
    chex.assert_trees_all_equal({name: variable[...] for name, variable in variables(model).items()}, before)


@pytest.mark.parametrize("name", ["pos_embed", "cls_token", "patch_embed.proj.weight", "head.weight"])
@pytest.mark.parametrize("rank", [0, 1])
def test_tensors_of_a_low_rank_are_of_no_network(name, rank, weights, tmp_path):
    save_file(weights | {name: np.ones((5,) * rank, np.float32)}, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"w\.safetensors|another shape"):
        convert(tmp_path / "w.safetensors", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_saved_networks_whose_weights_are_not_finite_are_refused(tmp_path):
    model = vit()
    save_model(model, tmp_path / "good.safetensors")
    load_model(tmp_path / "good.safetensors")
    model.norm.scale[...] = model.norm.scale[...].at[2].set(np.nan)
    save_model(model, tmp_path / "bad.safetensors")
    with pytest.raises(UserError, match=r"bad\.safetensors: tensors hold .* not finite: norm\.scale\. "):
        load_model(tmp_path / "bad.safetensors")
    with CheckpointStore(tmp_path / "checkpoints") as store:
        store.save(1, {"params": {"a": np.ones(2, np.float32), "b": np.array([1, np.inf], np.float32)}}, {})
    with pytest.raises(UserError, match=r"checkpoints/1: tensors hold .* not finite: b\. "):
        load_params(tmp_path)


ATTACKS = {
    "headers of safetensors": (weights_attacks.safetensors, 300, 700),
    "archives of arrays": (weights_attacks.archives, 300, 700),
    "indices of shards": (weights_attacks.indices, 300, 700),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_damaged_files_end_in_a_line(name, tmp_path):
    attack, count, longest = ATTACKS[name]
    outcome = attacks.run(attack(tmp_path, count, 0))
    assert not outcome.raw and not outcome.unnoticed and outcome.refused > count / 3
    assert outcome.longest < longest and outcome.seconds < 5 and not outcome.megabytes > 200


@pytest.mark.parametrize(
    "content",
    ["[" * 10**5, '{"weight_map": ' + "[" * 10**5, '{"weight_map": {"a": "' + "x" * 5000 + '"}}'],
    ids=["deep", "deep inside", "long"],
)
def test_an_index_that_is_deep_or_long_is_one_short_line(content, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match=r"index\.json (cannot be read|lists)") as error:
        read_tensors(tmp_path)
    assert len(str(error.value)) < 500


@pytest.mark.slow
def test_no_damaged_file_of_pytorch_runs_or_ends_raw(tmp_path):
    outcome = attacks.run(pickles.pickles(tmp_path, 300, 1))
    assert not outcome.raw and not outcome.unnoticed and outcome.refused > 150 and outcome.longest < 600


def test_control_characters_of_a_file_are_escaped_in_its_message(tmp_path):
    path = torch_files.write(tmp_path / "odd.pth", Raw(b"cos\x1b[2J\nsystem\r\n)R"))
    with pytest.raises(UserError, match="nothing of it was run") as error:
        read_tensors(path)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
@pytest.mark.parametrize("name", ["head.\x7feight", "head\n.weight", "\x1b[2J"])
def test_a_tensor_whose_name_cannot_be_seen_is_refused_in_one_line(name, ending, tmp_path):
    path = tmp_path / f"weights.{ending}"
    save_file({name: ONE["0"]}, path) if ending == "safetensors" else np.savez(path, **{name: ONE["0"]})
    for read_file in (read_tensors, load_model) if ending == "safetensors" else (read_tensors,):
        with pytest.raises(UserError) as error:
            read_file(path)
        assert str(error.value).isprintable()
    assert "letters that cannot be seen" in str(error.value) or read_file is load_model


def test_a_tensor_with_an_endless_name_is_shortened_in_every_message(tmp_path):
    network = models.create("vit", img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=1, rngs=nnx.Rngs(0))
    arrays = {name: np.asarray(array) for name, array in to_published(network).items()}
    endless = {"x" * 60_000: ONE["0"]}
    complex_numbers = {"y" * 60_000: np.ones(1, np.complex64)}
    for tensors in (endless, {**arrays, **endless}, {**arrays, **complex_numbers}):
        np.savez(tmp_path / "weights.npz", **tensors)  # safetensors writes complex numbers since 0.7 only
        with pytest.raises(UserError) as error:
            load_pretrained(network, tmp_path / "weights.npz")
        assert len(str(error.value)) < 1500
