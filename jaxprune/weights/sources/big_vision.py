"""Google's `.npz` files: the ViTs of AugReg, and networks of big_vision such as SigLIP's image tower."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxprune.errors import UserError, shortened
from jaxprune.weights.sources import Arrays, Published, Tensors, inside, rename, split_attention

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
        f"MAPHead_0/MlpBlock_0/Dense_{layer}/{parameter}": f"attn_pool.mlp.fc{layer + 1}.{timm}"
        for layer in (0, 1)
        for parameter, timm in (("kernel", "weight"), ("bias", "bias"))
    },
}


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors in timm's names and layouts, and the names of the others; None if these are other files.

    Raises:
      UserError: a tensor has the wrong rank for its name.
    """
    places = [match[1] for name in tensors if (match := re.fullmatch(_PATCHES, name))]
    if len(places) != 1:
        return None
    tower, rest = inside({name: _real(entry) for name, entry in tensors.items()}, places[0])
    named: Tensors = {}
    for name, entry in tower.items():
        if name.startswith("pre_logits/"):
            rest.append(entry.name)  # of pre-training; timm and the files for fine-tuning have none
            continue
        try:
            for timm, tensor in _translated(name, np.asarray(entry.tensor)):
                named[timm] = Published(entry.name, tensor)
        except (ValueError, IndexError) as error:
            raise UserError(
                f"{entry.name} has shape {np.shape(entry.tensor)}, which does not fit a ViT: {shortened(error)}."
            ) from None
    return _pooling(named), rest


def _real(entry: Published) -> Published:
    """Reads bfloat16, which NumPy stores as raw bytes."""
    tensor = np.asarray(entry.tensor)
    raw = tensor.dtype.kind == "V" and tensor.dtype.itemsize == 2
    return entry._replace(tensor=tensor.view(ml_dtypes.bfloat16).astype(np.float32)) if raw else entry


def _translated(name: str, tensor: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if block := re.fullmatch(_BLOCK, name):
        number, rest = block.groups()
        if number is not None:
            return [_in_block(int(number), rest, tensor)]
        # One tensor for all blocks.
        return [_in_block(index, rest, part) for index, part in enumerate(tensor)]
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
    """Converts (d, heads, e) or (heads, e, d) to a linear layer's (out, in), and flattens biases."""
    if kind == "bias":
        return tensor.reshape(-1)
    flat: Callable[[np.ndarray], np.ndarray] = lambda t: t.reshape(len(t), -1)
    return flat(tensor).T if layer != "out" else tensor.reshape(-1, tensor.shape[-1]).T


def _pooling(tensors: Tensors) -> Tensors:
    """Joins keys and values of attention pooling, as timm stores them."""
    for kind in ("weight", "bias"):
        k, v = (tensors.pop(f"attn_pool.{letter}.{kind}", None) for letter in "kv")
        if k is not None and v is not None:
            kv = np.concatenate([np.asarray(k.tensor), np.asarray(v.tensor)])
            tensors[f"attn_pool.kv.{kind}"] = Published(f"{k.name}, {v.name}", kv)
    return tensors


def write(tensors: Mapping[str, np.ndarray], network: Any) -> Arrays:
    """Renames tensors from timm's to Google's names: AugReg's with a CLS token, SigLIP's without."""
    augreg = "cls_token" in tensors
    split = split_attention(tensors)
    for kind in ("weight", "bias"):
        if f"attn_pool.kv.{kind}" in split:
            k, v = np.split(split.pop(f"attn_pool.kv.{kind}"), 2)
            split |= {f"attn_pool.k.{kind}": k, f"attn_pool.v.{kind}": v}
    layouts = {
        name: _layout(name, tensor, network.num_heads)
        for name, tensor in rename(split, _back(augreg), "big_vision").items()
    }
    return layouts if augreg else {f"params/img/{name}": tensor for name, tensor in layouts.items()}


def _back(augreg: bool) -> list[tuple[str, str]]:
    """The table from timm's names; AugReg numbers the parts of a block consecutively."""
    second, attention, mlp = (2, 1, 3) if augreg else (1, 0, 0)
    position = "Transformer/posembed_input/pos_embedding" if augreg else "pos_embedding"
    names = {timm: name for name, timm in _AROUND.items()} | {"pos_embed": position}
    table = [(re.escape(timm), name) for timm, name in names.items()]
    kinds = (("weight", "kernel"), ("bias", "bias"))
    places = (
        (r"blocks\.(\d+)\.attn", rf"Transformer/encoderblock_\1/MultiHeadDotProductAttention_{attention}"),
        (r"attn_pool()", r"MAPHead_0/MultiHeadDotProductAttention_0"),
    )
    for timm, kind in kinds:
        for before, place in places:
            for layer_name, letter in (*_LETTERS.items(), ("out", "proj")):
                table.append((rf"{before}\.{letter}\.{timm}", f"{place}/{layer_name}/{kind}"))
        for layer in (1, 2):
            block = rf"Transformer/encoderblock_\1/MlpBlock_{mlp}/Dense_{layer - 1}/{kind}"
            table.append((rf"blocks\.(\d+)\.mlp\.fc{layer}\.{timm}", block))
    for timm, kind in (("weight", "scale"), ("bias", "bias")):
        for layer, number in ((1, 0), (2, second)):
            block = rf"Transformer/encoderblock_\1/LayerNorm_{number}/{kind}"
            table.append((rf"blocks\.(\d+)\.norm{layer}\.{timm}", block))
    return table


def _layout(name: str, tensor: np.ndarray, heads: int) -> np.ndarray:
    """Converts timm's layout to that of a name, the inverse of `read`."""
    if attention := re.search(rf"{_ATTENTION}$", name):
        layer, kind = attention.groups()
        if kind == "bias":
            return tensor if layer == "out" else tensor.reshape(heads, -1)
        return (
            tensor.T.reshape(heads, -1, len(tensor)) if layer == "out" else tensor.T.reshape(len(tensor.T), heads, -1)
        )
    if name == "embedding/kernel":
        return tensor.transpose(2, 3, 1, 0)
    return tensor.T if name.endswith("/kernel") else tensor
