"""The names of the image towers of Qwen3-VL and Qwen3.5 in Hugging Face's transformers."""

import re

import numpy as np

from jaxprune.weights.sources import Published, Tensors, inside, renamed

_PATCHES = r"((?:.+\.)?)patch_embed\.proj\.weight"
_NAMES = (
    (r"pos_embed\.weight", "pos_embed"),
    (r"(blocks\.\d+\.mlp)\.linear_(fc[12])\.(weight|bias)", r"\1.\2.\3"),
)
# The projectors to the language model, and a table that is computed.
_BESIDE = r"(?:merger|deepstack_merger_list|rotary_pos_emb)\..+"


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and the names of the others; None if these are other files.

    Patches of two frames are read as those of an image, which is shown as two equal frames: the kernels add up.
    """
    places = [match[1] for name in tensors if (match := re.fullmatch(_PATCHES, name))]
    places = [place for place in places if f"{place}blocks.0.mlp.linear_fc1.weight" in tensors]
    if len(places) != 1:
        return None
    tower, rest = inside(tensors, places[0])
    named: Tensors = {}
    for name, (published, tensor) in tower.items():
        if re.fullmatch(_BESIDE, name):
            rest.append(published)
            continue
        if name == "patch_embed.proj.weight" and np.ndim(tensor) == 5:
            tensor = np.asarray(tensor).astype(np.float64).sum(2).astype(np.float32)
        elif name == "pos_embed.weight" and np.ndim(tensor) == 2:
            tensor = np.asarray(tensor)[None]
        named[renamed(name, _NAMES) or name] = Published(published, tensor)
    return named, rest
