"""Every wrong file that a user may give ends in one line that says what to do."""

import numpy as np
import pytest
import torch_files
from flax import nnx
from safetensors.numpy import save_file

from jaxprune import models
from jaxprune.errors import UserError
from jaxprune.models import vit
from jaxprune.weights.open_published import open_published
from jaxprune.weights.rules import to_published

NAME = "vit_small_patch16_224"
SIZES = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2}


@pytest.fixture(scope="module")
def tiny():
    """Makes the networks of this file small."""
    known = vit.variants()
    names = (NAME, "vit_small_patch16_dinov3", "vit_base_patch16_siglip_224")
    small = {name: {**known[name], **SIZES} for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vit, "variants", lambda: {**known, **small})
        yield


@pytest.fixture(scope="module")
def right(tiny):
    """A file that fits: the tensors."""
    return network()


def network(name=NAME, **changed):
    return to_published(models.create(name, num_classes=5, **changed, rngs=nnx.Rngs(0)))


def replaced(**tensors):
    names = {
        "patches": "patch_embed.proj.weight",
        "bias": "norm.bias",
        "positions": "pos_embed",
        "registers": "reg_token",
    }
    return lambda right: {**right, **{names[name]: np.asarray(value, np.float32) for name, value in tensors.items()}}


def twice(right):
    return {f"{network}.{name}": tensor for network in ("teacher", "student") for name, tensor in right.items()}


LORA = {"base_model.model.blocks.0.attn.qkv.lora_A.weight": np.zeros((2, 24), np.float32)}
TEXT = {"text_model.embeddings.token_embedding.weight": np.zeros((9, 4), np.float32)}
BERT = {"bert.encoder.layer.0.attention.self.query.weight": np.zeros((4, 4), np.float32)}
# What is in the file, the network it is opened as, and what the line says.
TENSORS = {
    "dinov3": (lambda _: network("vit_small_patch16_dinov3"), NAME, r"nearest is vit_small_patch16_dinov3"),
    "siglip": (lambda _: network("vit_base_patch16_siglip_224"), NAME, r"nearest is .*siglip"),
    "plain": (lambda right: right, "vit_small_patch16_dinov3", rf"nearest is {NAME}"),
    "a ConvNet": (
        lambda right: right,
        "resnet18",
        r"of another network: none of their \d+ tensors .* belongs to this ResNet",
    ),
    "other patches": (replaced(patches=np.zeros((24, 3, 14, 14))), NAME, r"another shape .*patch_embed\.proj\.weight"),
    "grey": (replaced(patches=np.zeros((24, 1, 16, 16))), NAME, r"another shape .*patch_embed\.proj\.weight"),
    "wider": (lambda _: network(embed_dim=32), NAME, r"width 32 and 2 blocks against width 24 and 2 blocks"),
    "deeper": (lambda _: network(depth=3), NAME, r"width 24 and 3 blocks against width 24 and 2 blocks"),
    "half": (lambda right: {n: t for n, t in right.items() if "blocks.1" not in n}, NAME, r"24 and 1 blocks against"),
    "registers": (replaced(registers=np.zeros((1, 4, 24))), NAME, r"the file has besides reg_token"),
    "positions": (replaced(positions=np.zeros((1, 8, 24))), NAME, r"pos_embed has 8 rows, .*build the network with"),
    "not finite": (replaced(bias=np.full(24, np.nan)), NAME, r"not finite: norm\.bias.*take an earlier checkpoint"),
    "adapters": (lambda _: LORA, NAME, r"of another network: none of their 1 tensors"),
    "a text tower": (lambda _: TEXT, NAME, r"of another network: none of their 1 tensors"),
    "a language model": (lambda _: BERT, NAME, r"of another network: none of their 1 tensors"),
    "no tensors": (lambda _: {}, NAME, r"hold no tensors at all: fetch or save the weights again"),
    "quantised": (
        lambda right: {**right, "blocks.0.attn.qkv.SCB": np.ones(72, np.float32)},
        NAME,
        r"has besides blocks\.N\.attn\.qkv\.SCB",
    ),
    "transposed": (
        lambda right: {**right, "blocks.0.mlp.fc1.weight": right["blocks.0.mlp.fc1.weight"].T},
        NAME,
        r"another shape .*blocks\.0\.mlp\.fc1\.weight \(96, 24\)",
    ),
    "another language": (
        lambda right: {name.replace(".", "/"): tensor for name, tensor in right.items()},
        NAME,
        r"left over .*blocks/0/attn/proj/bias",
    ),
    "two networks": (twice, NAME, r"There are 2 networks, under .*leave all but one out"),
}


QUICK = ("dinov3", "registers", "wider", "positions", "two networks")


@pytest.mark.parametrize("what", [pytest.param(w, marks=() if w in QUICK else pytest.mark.slow) for w in TENSORS])
def test_the_weights_of_something_else(what, right, tmp_path):
    make, name, message = TENSORS[what]
    path = tmp_path / "weights.safetensors"
    save_file({key: np.ascontiguousarray(tensor) for key, tensor in make(right).items()}, path)
    with pytest.raises(UserError, match=message) as error:
        open_published(path, name)
    assert "\n" not in str(error.value)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BYTES = {
    "weights.safetensors": {
        "lfs": (LFS, r"pointer of Git LFS and not the weights: fetch them with git lfs pull"),
        "page": (
            b"<!DOCTYPE html><html><body>404</body></html>",
            r"is a web page and not weights: the download failed",
        ),
        "empty": (b"", r"cannot be read .*fetch it again"),
        "noise": (b"\x08" * 1000, r"cannot be read .*fetch it again"),
    },
    "weights.pth": {"lfs": (LFS, r"pointer of Git LFS"), "empty": (b"", r"fetch it again")},
    "weights.onnx": {"other": (b"\x08\x07", r"is neither \.safetensors nor \.npz")},
    "weights.gguf": {"other": (b"GGUF", r"is neither \.safetensors nor \.npz")},
    "model-00001-of-00002.safetensors": {
        "shard": (None, r"is one of several files: give their directory, with its index")
    },
}


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, kinds in BYTES.items() for what in kinds])
def test_what_is_no_weights_file(name, what, right, tmp_path):
    content, message = BYTES[name][what]
    if content is None:
        save_file({key: np.ascontiguousarray(tensor) for key, tensor in right.items()}, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        open_published(tmp_path / name, NAME)
    assert "\n" not in str(error.value)


def test_one_kind_of_file_under_the_name_of_another(right, tmp_path):
    array = np.zeros(1, np.float32)
    torch_files.write(tmp_path / "a.pth", {"norm.bias": array})
    (tmp_path / "a.pth").rename(tmp_path / "a.safetensors")
    save_file({"norm.bias": array}, tmp_path / "b.pth")
    (tmp_path / "b.pth").rename(tmp_path / "c.pt")
    np.savez(tmp_path / "d.npz", x=np.array([{}], dtype=object))
    for name in ("a.safetensors", "c.pt", "d.npz"):
        with pytest.raises(UserError, match=rf"{name} cannot be read .*fetch it again"):
            open_published(tmp_path / name, NAME)


def test_a_truncated_file(right, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({key: np.ascontiguousarray(tensor) for key, tensor in right.items()}, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"cannot be read .*it may be truncated; fetch it again"):
        open_published(path, NAME)
