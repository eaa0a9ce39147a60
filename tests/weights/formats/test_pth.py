"""Files of PyTorch: read to the bit, and nothing in them is run."""

import os
import pickle
import shutil

import ml_dtypes
import numpy as np
import pytest
import torch_files
from support import GOLDEN

from jaxprune.checkpoints import read_tensors
from jaxprune.errors import UserError

BASE = np.arange(24, dtype=np.float32).reshape(4, 6) / 8
SIX = np.arange(6).reshape(2, 3)
KINDS = ("float64", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "complex64")
# What tests/golden/pth/README.md put into the files.
WRITTEN = {
    "float32": BASE,
    **{kind: SIX.astype(kind) for kind in KINDS},
    "bfloat16": SIX.astype(ml_dtypes.bfloat16),
    "bool": np.array([True, False, True]),
    "transposed": BASE.T,
    "shared": BASE[1:3, ::2],
    "expanded": np.full((3, 2), 1.5, np.float32),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 3), np.float32),
    "parameter": np.arange(3, dtype=np.float32),
    "tagged": np.arange(4, dtype=np.float32),
}
FORMATS = ("zip", "legacy")


@pytest.mark.parametrize("form", FORMATS)
def test_reads_what_pytorch_wrote(form, tmp_path):
    found = read_tensors(GOLDEN / f"pth/{form}.pth")
    assert set(found) == set(WRITTEN)
    for name, expected in WRITTEN.items():
        assert found[name].dtype == expected.dtype, name
        np.testing.assert_array_equal(found[name], expected, strict=True)
    teacher = read_tensors(GOLDEN / f"pth/{form}.pth", key="teacher")
    np.testing.assert_array_equal(teacher["float32"], np.ones(2))
    shutil.copy(GOLDEN / f"pth/{form}.pth", tmp_path / "checkpoint.pth.tar")
    assert set(read_tensors(tmp_path / "checkpoint.pth.tar")) == set(WRITTEN)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        ({"a": 1.0}, None, "a"),
        ({"epoch": 3, "model": {"b": 1.0}}, None, "b"),
        ({"optimizer": {"o": 1.0}, "state_dict": {"module": {"c": 1.0}}}, None, "c"),
        ({"student": {"s": 1.0}, "teacher": {"t": 1.0}, "loss": 1.0}, None, "t"),
        ({"student": {"s": 1.0}, "teacher": {"t": 1.0}}, "student", "s"),
        ({"model": {"m": 1.0}, "ema": {"state_dict": {"e": 1.0}}}, "ema", "e"),
        ({"model": "vit_tiny", "a": 1.0}, None, "a"),
    ],
)
def test_finds_the_weights_among_other_things(value, key, expected, legacy, tmp_path):
    def filled(value):
        if isinstance(value, dict):
            return {name: filled(entry) for name, entry in value.items()}
        return np.full((1, 2), value, np.float32) if isinstance(value, float) else value

    path = torch_files.write(tmp_path / "weights.pt", filled(value), legacy=legacy)
    found = read_tensors(path, key)
    assert list(found) == [expected]
    np.testing.assert_array_equal(found[expected], np.ones((1, 2), np.float32))


@pytest.mark.parametrize(
    ("value", "key", "message"),
    [
        (
            {"model": {"w": SIX}},
            "modle",
            r"no tensors under 'modle'. Did you mean 'model'\? It has: model \(dict of 1\)",
        ),
        ({"weights": {"w": SIX}, "epoch": 3}, None, r"choose with key=. It has: weights \(dict of 1\), epoch \(int\)"),
        (SIX, None, "contains one tensor and no names"),
        ({}, None, "It has: nothing"),
    ],
)
def test_a_file_without_weights_tells_what_it_has(value, key, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_tensors(torch_files.write(tmp_path / "weights.ckpt", value), key)


class Evil:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("form", [*FORMATS, "pickle"])
def test_code_in_a_pickle_is_refused_by_name_and_not_run(form, protocol, tmp_path):
    trap = tmp_path / "trap"
    path, evil = tmp_path / "evil.pth", pickle.dumps({"w": Evil(trap)}, protocol)
    if form == "pickle":
        path.write_bytes(evil)
    else:
        inside = torch_files.Raw(evil[2:-1] if protocol > 1 else evil[:-1])
        torch_files.write(path, {"model": {"w": SIX}, "args": inside}, legacy=form == "legacy")
    with pytest.raises(UserError, match=r"evil.pth contains posix.mkdir, .* refused, .* torch.save"):
        read_tensors(path)
    assert not trap.exists()
    pickle.loads(evil)
    assert trap.exists()  # it would have been run


@pytest.mark.parametrize(
    ("instructions", "named"),
    [
        (b"ctimm.models.vision_transformer\nVisionTransformer\n)\x81", "timm.models.vision_transformer.VisionTransf"),
        (b"cbuiltins\neval\n", "builtins.eval"),
        (b"ctorch.storage\n_load_from_bytes\n", "torch.storage._load_from_bytes"),
        (b"ccollections\nOrderedDict.fromkeys\n", "collections.OrderedDict.fromkeys"),
        (b"(S'true'\nios\nsystem\n", "the pickle instruction INST"),
        (b"(cos\nsystem\nS'true'\no", "os.system"),
        (b"Ppath\n", "the pickle instruction PERSID"),
        (b"\x82\x01", "the pickle instruction EXT1"),
        (b"ctorch\nfloat32\n)R", "a call of torch.float32"),
        (b"}(K\x01tR", "a call of dict of 0"),
        (b"(X\x06\x00\x00\x00module}tQ", "a whole module"),
        (b"cnumpy\ndtype\n(X\x01\x00\x00\x00OtR", r"numpy.dtype\('O'\)"),
    ],
)
def test_whatever_is_no_data_is_refused(instructions, named, tmp_path):
    path = torch_files.write(tmp_path / "evil.pth", {"w": SIX, "x": torch_files.Raw(instructions)})
    with pytest.raises(UserError, match=rf"contains {named}.*refused"):
        read_tensors(path)


@pytest.mark.parametrize("form", FORMATS)
def test_a_truncated_file_is_named(form, tmp_path):
    data = (GOLDEN / f"pth/{form}.pth").read_bytes()
    path = tmp_path / "cut.pth"
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"cut.pth cannot be read .*truncated"):
            read_tensors(path)


def test_a_flipped_bit_is_noticed(tmp_path):
    data = bytearray((GOLDEN / "pth/zip.pth").read_bytes())
    data[data.index(np.float32([0.125, 0.25]).tobytes())] ^= 1
    (tmp_path / "flipped.pth").write_bytes(data)
    with pytest.raises(UserError, match=r"flipped.pth cannot be read \(Bad CRC"):
        read_tensors(tmp_path / "flipped.pth")


OTHER_KINDS = {
    b"": "cannot be read .* not a PyTorch file",
    b"<!DOCTYPE html>": "is a web page and not weights",
    b"version https://git-lfs": "is a pointer of Git LFS and not the weights",
    b"PK\x03\x04": "cannot be read .* not a PyTorch file",
    pickle.dumps({}): "cannot be read .* not a PyTorch file",
}


@pytest.mark.parametrize("data", OTHER_KINDS)
def test_another_kind_of_file_is_named(data, tmp_path):
    (tmp_path / "page.bin").write_bytes(data)
    with pytest.raises(UserError, match=rf"page.bin {OTHER_KINDS[data]}"):
        read_tensors(tmp_path / "page.bin")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        {"size": 6, "shape": (4, 2), "strides": (2, 1)},
        {"size": 6, "shape": (2,), "strides": (1,), "offset": 5},
        {"size": 6, "shape": (2,), "strides": (-1,), "offset": 3},
        {"size": 6, "shape": (2,), "strides": (1, 1)},
        {"size": 9, "shape": (9,), "strides": (1,)},
    ],
    ids=["shape", "offset", "stride", "rank", "storage"],
)
def test_no_tensor_reaches_beyond_its_storage(view, legacy, tmp_path):
    storages = {"0": np.arange(6, dtype=np.float32)}
    value = {"w": torch_files.tensor("0", **view)}
    with pytest.raises(UserError, match=r"weights.pth cannot be read"):
        read_tensors(torch_files.write(tmp_path / "weights.pth", value, legacy=legacy, storages=storages))


def test_a_value_that_contains_itself_ends_in_an_error(tmp_path):
    weights = torch_files.constant("w") + torch_files.tensor("0", 6, (6,), (1,)) + b"s"
    own = torch_files.Raw(b"}q\x09" + torch_files.constant("model") + b"h\x09s" + weights)
    with pytest.raises(UserError, match=r"loop.pth cannot be read"):
        read_tensors(torch_files.write(tmp_path / "loop.pth", own, storages={"0": SIX.astype(np.float32)}))


def test_only_files_of_pytorch_have_entries(tmp_path):
    np.savez(tmp_path / "w.npz", w=SIX)
    with pytest.raises(UserError, match="key='model'"):
        read_tensors(tmp_path / "w.npz", key="model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="load_model"):
        read_tensors(tmp_path / "empty")
