"""Writes weights for PyTorch, and converts any weights file or run to such a file."""

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save

from jaxprune import mim, models, processes
from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.families import likeness
from jaxprune.checkpoints.files import write_atomically
from jaxprune.checkpoints.naming import PATCHES
from jaxprune.checkpoints.published import open_published
from jaxprune.checkpoints.read import by_timm, load_pretrained, read_tensors
from jaxprune.checkpoints.run import build, is_ours, load_model
from jaxprune.checkpoints.spelled import TIMM, spelled, suffix
from jaxprune.checkpoints.spellings import Published
from jaxprune.errors import UserError


def save_pretrained(model: Any, path: str | os.PathLike, *, names: str = TIMM, overwrite: bool = False) -> None:
    """Writes a network's weights as `.safetensors`, under the names and in the layouts that other code expects.

    Those are timm's; of a pre-training framework (position tables included) and of a token-reduction method the names
    that were published with it. `load_pretrained` reads the file back to the same bits.

    Args:
      names: whose names: "timm", "hugging_face", "openai_clip" (OpenAI, OpenCLIP, Perception Encoder: the image tower),
        or of a repository: "dinov2", "dinov3", "eva02", "aimv2", "swin", "convnext", "efficientnet_lite", "big_vision"
        (Google's, with its layouts, as `.npz`).

    Raises:
      UserError: the file exists, or its name is not a `.safetensors`; or the names do not fit the network.
    """
    path = _writable(path, overwrite, names)
    tensors = spelled(model, names)
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **tensors)
        write_atomically(path, buffer.getvalue())
    else:
        # Loaders of Hugging Face refuse a file that does not name the framework of its layouts.
        write_atomically(path, save(tensors, metadata={"format": "pt"}))


WEIGHTS = "model.safetensors"  # of a run directory whose checkpoints are not the weights of its network


def leave_network(model: Any, workdir: str | os.PathLike, class_names: Sequence[str] = ()) -> None:
    """Writes a dense network into a run directory whose checkpoints are not its weights, once in all processes.

    The weights are in `model.safetensors`, as `save_pretrained` writes them. `load_model` reads the directory.

    Args:
      class_names: of a classifier.
    """
    if processes.leads():
        # The card comes last: a directory with one is whole.
        save_pretrained(model, Path(workdir) / WEIGHTS, overwrite=True)
        Card.of(model, class_names, weights=WEIGHTS).write(workdir)


def _of_framework(source: str | os.PathLike, key: str | None, ignored: Sequence[str]) -> bool:
    tensors = by_timm(read_tensors(source, key), ignored)
    return mim.recognise({name: np.shape(entry.tensor) for name, entry in tensors.items()}) is not None


def _writable(path: str | os.PathLike, overwrite: bool, names: str) -> Path:
    path, kind = Path(path), suffix(names)
    if path.suffix != kind:
        raise UserError(f"{path} would not be a {kind}: that is the one format written here for the names {names!r}.")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already: choose another name, or overwrite it.")
    if not path.parent.is_dir():
        raise UserError(f"There is no directory {path.parent} to write {path.name} to: create it.")
    return path


def convert(
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    model: str | None = None,
    key: str | None = None,
    ignored: Sequence[str] = (),
    names: str = TIMM,
    overwrite: bool = False,
) -> Any:
    """Reads weights strictly and writes them with `save_pretrained`.

    Args:
      source: any file that `read_tensors` reads, or a run directory.
      model: name of a model that they are of, such as "vit_base_patch16_224"; by default as their shapes show. Of a
        masked autoencoder, the encoder's.
      key: see `read_tensors`.
      ignored: see `load_pretrained`.
      names: see `save_pretrained`.

    Returns:
      The network. If it is read from a file, the number of heads is a guess unless `model` is given.

    Raises:
      UserError: the weights belong to no known network, or not to `model`.
    """
    _writable(output, overwrite, names)
    if is_ours(source):
        if given := [what for what, value in (("model", model), ("key", key), ("ignored", ignored)) if value]:
            raise UserError(f"{source} is a run, which describes its own network: leave out {' and '.join(given)}.")
        network = load_model(source)
    elif model is not None and not _of_framework(source, key, ignored):
        network = open_published(source, model, key=key, ignored=ignored)
    else:
        tensors = read_tensors(source, key)
        kind, arguments = architecture(by_timm(tensors, ignored), str(source))
        if model is not None:
            arguments |= {name: value for name, value in models.arguments(model).items() if name in arguments}
        network = build(kind, arguments, rngs=nnx.Rngs(0))
        load_pretrained(network, tensors, ignored=ignored)
    save_pretrained(network, output, names=names, overwrite=overwrite)
    return network


# What the sizes of a vision transformer are read from.
_NEEDED = {PATCHES, "pos_embed", "blocks.0.mlp.fc1.weight"}
_RANKS = dict.fromkeys(("pos_embed", "cls_token", "dist_token", "reg_token"), 3) | {
    PATCHES: 4,
    **dict.fromkeys(("blocks.0.mlp.fc1.weight", "head.weight", "decoder_embed.weight"), 2),
    **dict.fromkeys(("agg.weight", "agg.conv_dw.weight"), 4),
}


def architecture(tensors: Mapping[str, Published], what: str) -> tuple[str, dict[str, Any]]:
    """Returns the kind and the arguments (see `run.build`) of the network that weights under timm's names are of.

    Shapes do not depend on the number of heads: one is assumed.

    Args:
      what: name of the weights in error messages.

    Raises:
      UserError: they are of no ViT and no pre-training framework, or made for a grid that is not square.
    """
    shapes = {name: entry.tensor.shape for name, entry in tensors.items()}
    width = shapes.get(PATCHES, (0,))[:1]
    # The shapes are indexed below. A width that a block does not share would be a network far beyond the file.
    known = all(len(shapes[name]) == rank and min(shapes[name]) > 0 for name, rank in _RANKS.items() if name in shapes)
    framework = mim.recognise(shapes) if known else None
    if framework is not None and "embed_dim" in framework:
        return "mim", framework  # with its encoder
    if not known or not shapes.keys() >= _NEEDED or shapes["blocks.0.mlp.fc1.weight"][1:] != width:
        names = ", ".join(list(shapes)[:3])
        of_another = f": {likeness(tensors)}; name its network with model=" if PATCHES in shapes else ""
        raise UserError(
            f"{what} holds no plain vision transformer by the names of timm, MAE, DINO or Hugging Face "
            f"({names}, …){of_another}."
        )
    if any(name.startswith(("norm_pre.", "attn_pool.", "patch_embed.norm.")) for name in shapes) or (
        "blocks.0.attn.q_bias" in shapes or "blocks.0.mlp.norm.weight" in shapes
    ):
        raise UserError(f"{what} are weights of no plain vision transformer: {likeness(tensors)}; name it with model=.")
    width, channels, *patch_size = shapes[PATCHES]
    arguments = {
        "patch_size": tuple(patch_size),
        "in_chans": channels,
        "embed_dim": width,
        "depth": _count(shapes, "blocks"),
        "num_heads": 1,
        # The half keeps the product with the width from being rounded to one less.
        "mlp_ratio": (shapes["blocks.0.mlp.fc1.weight"][0] + 0.5) / width,
    }
    prefix = sum(shapes[name][1] for name in ("cls_token", "dist_token", "reg_token") if name in shapes)
    rows = shapes["pos_embed"][1]
    no_embed_class = math.isqrt(rows) ** 2 == rows
    patches = rows if no_embed_class else rows - prefix
    side = math.isqrt(max(patches, 0))
    if side**2 != patches:
        raise UserError(
            f"{what} has positions for {patches} patches, which make no square grid: load it into a network of its "
            "img_size, and save that with save_pretrained."
        )
    arguments |= {
        "img_size": (side * patch_size[0], side * patch_size[1]),
        "class_token": "cls_token" in shapes,
        "dist_token": "dist_token" in shapes,
        "reg_tokens": shapes.get("reg_token", (0, 0))[1],
        "no_embed_class": no_embed_class,
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "init_values": 1.0 if "blocks.0.ls1.gamma" in shapes else None,
    }
    if framework is not None:
        return "mim", arguments | framework
    return "model", arguments | {
        "name": "vit",
        "num_classes": shapes.get("head.weight", (0,))[0],
        "global_pool": "avg" if "fc_norm.weight" in shapes or "cls_token" not in shapes else "token",
        "fc_norm": "fc_norm.weight" in shapes,
    }


def _count(shapes: Mapping[str, Any], blocks: str) -> int:
    return len({match[1] for name in shapes if (match := re.match(rf"{blocks}\.(\d+)\.", name))})
