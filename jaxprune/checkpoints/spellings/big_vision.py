"""Google's `.npz` files: those of the ViTs of AugReg, and those of big_vision, SigLIP's image tower among them."""

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np

from jaxprune.checkpoints.spellings import Published, Tensors, inside
from jaxprune.errors import UserError

_PATCHES = r"((?:.+/)?)embedding/kernel"
_BLOCK = r"Transformer/encoderblock(?:_(\d+))?/(.+)"
_ATTENTION = r"MultiHeadDotProductAttention_\d/(query|key|value|out)/(kernel|bias)"
_IN_BLOCK = ((r"MlpBlock_\d/Dense_0/", "mlp.fc1."), (r"MlpBlock_\d/Dense_1/", "mlp.fc2."), (r"LayerNorm_0/", "norm1."))
_LETTERS = {"query": "q", "key": "k", "value": "v"}
_AROUND = {
    "embedding/kernel": "patch_embed.proj.weight",
    "embedding/bias": "patch_embed.proj.bias",
    "cls": "cls_token",
    "pos_embedding": "pos_embed",
    "Transformer/posembed_input/pos_embedding": "pos_embed",
    "Transformer/encoder_norm/scale": "norm.weight",
    "Transformer/encoder_norm/bias": "norm.bias",
    "head/kernel": "head.weight",
    "head/bias": "head.bias",
    "MAPHead_0/probe": "attn_pool.latent",
    "MAPHead_0/LayerNorm_0/scale": "attn_pool.norm.weight",
    "MAPHead_0/LayerNorm_0/bias": "attn_pool.norm.bias",
    **{
        f"MAPHead_0/MlpBlock_0/Dense_{layer}/{theirs}": f"attn_pool.mlp.fc{layer + 1}.{timm}"
        for layer in (0, 1)
        for theirs, timm in (("kernel", "weight"), ("bias", "bias"))
    },
}


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names and layouts and the names of the others; None if they are not of big_vision.

    Raises:
      UserError: a tensor has not the rank that its name asks for.
    """
    places = [match[1] for name in tensors if (match := re.fullmatch(_PATCHES, name))]
    if len(places) != 1:
        return None
    tower, others = inside({name: _real(entry) for name, entry in tensors.items()}, places[0])
    found: Tensors = {}
    for name, entry in tower.items():
        if name.startswith("pre_logits/"):
            others.append(entry.name)  # of pre-training; timm and the files for fine-tuning have none
            continue
        try:
            for timm, tensor in _translated(name, np.asarray(entry.tensor)):
                found[timm] = Published(entry.name, tensor)
        except (ValueError, IndexError) as error:
            raise UserError(
                f"{entry.name} has shape {np.shape(entry.tensor)}, which a ViT's has not: {error}."
            ) from None
    return _pooling(found), others


def _real(entry: Published) -> Published:
    """numpy stores bfloat16 as raw bytes."""
    tensor = np.asarray(entry.tensor)
    raw = tensor.dtype.kind == "V" and tensor.dtype.itemsize == 2
    return entry._replace(tensor=tensor.view(ml_dtypes.bfloat16).astype(np.float32)) if raw else entry


def _translated(name: str, tensor: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if block := re.fullmatch(_BLOCK, name):
        number, rest = block.groups()
        if number is not None:
            return [_in_block(int(number), rest, tensor)]
        # All blocks in one tensor.
        return [_in_block(index, rest, each) for index, each in enumerate(tensor)]
    if pooling := re.fullmatch(rf"MAPHead_0/{_ATTENTION}", name):
        layer, kind = pooling.groups()
        timm = "proj" if layer == "out" else _LETTERS[layer]
        return [(f"attn_pool.{timm}.{_kind(kind)}", _attention(layer, kind, tensor))]
    timm = _AROUND.get(name)
    if timm is None:
        return [(name, tensor)]
    if timm == "patch_embed.proj.weight":
        return [(timm, tensor.transpose(3, 2, 0, 1))]
    if timm == "pos_embed" and tensor.ndim == 2:
        return [(timm, tensor[None])]
    return [(timm, tensor.T if name.endswith("/kernel") else tensor)]


def _in_block(index: int, rest: str, tensor: np.ndarray) -> tuple[str, np.ndarray]:
    before = f"blocks.{index}."
    if attention := re.fullmatch(_ATTENTION, rest):
        layer, kind = attention.groups()
        timm = "proj" if layer == "out" else _LETTERS[layer]
        return f"{before}attn.{timm}.{_kind(kind)}", _attention(layer, kind, tensor)
    # The second norm has the number 1 or 2.
    for pattern, timm in (*_IN_BLOCK, (r"LayerNorm_[12]/", "norm2.")):
        if match := re.fullmatch(rf"{pattern}(kernel|bias|scale)", rest):
            return f"{before}{timm}{_kind(match[1])}", tensor.T if match[1] == "kernel" else tensor
    return before + rest, tensor


def _kind(kind: str) -> str:
    return "bias" if kind == "bias" else "weight"


def _attention(layer: str, kind: str, tensor: np.ndarray) -> np.ndarray:
    """(d, heads, e) or (heads, e, d) to a linear layer's (out, in); biases flat."""
    if kind == "bias":
        return tensor.reshape(-1)
    flat: Callable[[np.ndarray], np.ndarray] = lambda t: t.reshape(len(t), -1)
    return flat(tensor).T if layer != "out" else tensor.reshape(-1, tensor.shape[-1]).T


def _pooling(tensors: Tensors) -> Tensors:
    """Puts keys and values of attention pooling together, as timm stores them."""
    for kind in ("weight", "bias"):
        k, v = (tensors.pop(f"attn_pool.{letter}.{kind}", None) for letter in "kv")
        if k is not None and v is not None:
            whole = np.concatenate([np.asarray(k.tensor), np.asarray(v.tensor)])
            tensors[f"attn_pool.kv.{kind}"] = Published(f"{k.name}, {v.name}", whole)
    return tensors
