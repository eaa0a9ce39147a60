"""The names of timm's classes and of DINOv2, DINOv3, EVA and BEiT: converts them to one form, and back to timm's.

The common form is that of timm's `VisionTransformer`, with queries, keys and values in one tensor, and gate and value
of a SwiGLU in one.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxprune.errors import UserError
from jaxprune.weights.sources import Published, Tensors, renamed

RELATIVE = "relative_position_bias_table"
SHARED = f"rel_pos_bias.{RELATIVE}"  # if all blocks share one
_REGISTERS = "reg_token"
_FREQS = "rope.freqs"
_KIND = r"\.(weight|bias)"
_NAMES = (
    (r"(.*)gamma_([12])", r"\1ls\2.gamma"),
    (r"(?:storage_tokens|register_tokens)", _REGISTERS),
    (rf"(.*attn\.)([qkv])_proj{_KIND}", r"\1\2.\3"),
    (rf"(.*attn\.)query{_KIND}", r"\1q.\2"),
    (rf"(.*attn\.)key{_KIND}", r"\1k.\2"),
    (rf"(.*attn\.)value{_KIND}", r"\1v.\2"),
    (rf"(.*attn)\.inner_attn_ln{_KIND}", r"\1.norm.\2"),
    (rf"(.*mlp)\.ffn_ln{_KIND}", r"\1.norm.\2"),
    (rf"(.*)dge\.router\.gate{_KIND}", r"\1router.\2"),
    (rf"(.*mlp)\.w12{_KIND}", r"\1.fc1.\2"),
    (rf"(.*mlp)\.w1{_KIND}", r"\1.fc1_g.\2"),
    (rf"(.*mlp)\.w2{_KIND}", r"\1.fc1_x.\2"),
    (rf"(.*mlp)\.w3{_KIND}", r"\1.fc2.\2"),
)
# Tensors of training only, or computed here.
_UNUSED = (
    r".+\.bias_mask",
    r".+\.dge\.splits",
    r"rope_embed\.periods",
    r"local_cls_norm\..+",
    r"projectors\..+",
    r".+\.attn\.rope(?:_reg)?\.freqs",  # ViT-5's
    r".+\.rope\.freqs_(?:cos|sin)|rope\.freqs_(?:cos|sin)",
    r".+\.(?:relative_position_index|relative_coords_table|attn_mask)",
    r"hog_enc\.\d+\.conv\.weight",  # LocalMIM's Sobel filters
)


def read(tensors: Tensors) -> tuple[Tensors, list[str]]:
    """Returns the tensors in the common form, and the names of those that only training needs."""
    named: Tensors = {}
    unused = []
    for name, entry in tensors.items():
        # DINO's mask token, which is not used, has two axes; that of a masked autoencoder has three.
        if any(re.fullmatch(pattern, name) for pattern in _UNUSED) or (
            name == "mask_token" and np.ndim(entry.tensor) == 2
        ):
            unused.append(entry.name)
        elif (pair := re.fullmatch(rf"(blocks\.\d+\.attn\.)kv{_KIND}", name)) and len(np.shape(entry.tensor)) > 0:
            for letter, half in zip("kv", np.array_split(np.asarray(entry.tensor), 2), strict=True):
                named[f"{pair[1]}{letter}.{pair[2]}"] = entry._replace(tensor=half)
        else:
            named[renamed(name, _NAMES) or name] = entry
    return _registers(dict(_joined(_rope(_swin(_naflex(named)))))), unused


def _naflex(tensors: Tensors) -> Tensors:
    """Converts timm's `NaFlexVit`, which projects patches as flat (row, column, channel) with positions on a grid."""
    converted: Tensors = {}
    for name, (published, tensor) in tensors.items():
        layout = np.asarray(tensor) if name.startswith("embeds.") else tensor
        if name == "embeds.proj.weight" and np.ndim(layout) == 2:
            side = math.isqrt(layout.shape[1] // 3)  # of a patch with three colours; the check of shapes names others
            if side and 3 * side * side == layout.shape[1]:
                layout = layout.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
        elif name == "embeds.pos_embed" and np.ndim(layout) == 4:
            layout = layout.reshape(1, -1, layout.shape[-1])
        converted[re.sub(r"^embeds\.(proj\.)?", lambda m: "patch_embed.proj." if m[1] else "", name)] = Published(
            published, layout
        )
    return converted


def _rope(tensors: Tensors) -> Tensors:
    """Splits learned frequencies of rotary positions, one tensor for all blocks, by block."""
    frequencies = tensors.get(_FREQS)
    if frequencies is None or np.ndim(frequencies.tensor) != 4:
        return tensors
    parts = np.moveaxis(np.asarray(frequencies.tensor), 1, 0)
    rest = {name: entry for name, entry in tensors.items() if name != _FREQS}
    return {**rest, **{f"blocks.{i}.rope_freqs": frequencies._replace(tensor=part) for i, part in enumerate(parts)}}


def _swin(tensors: Tensors) -> Tensors:
    """Moves Swin's patch merging from the end of a stage to the start of the next, as in timm."""
    if "layers.0.downsample.reduction.weight" not in tensors:
        return tensors
    moved: Tensors = {}
    for name, entry in tensors.items():
        if match := re.fullmatch(r"layers\.(\d+)\.downsample\.(.+)", name):
            name = f"layers.{int(match[1]) + 1}.downsample.{match[2]}"
        moved[re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)] = entry
    return moved


def _registers(tensors: Tensors) -> Tensors:
    """Adds the position of the CLS token to the token itself, in files of DINOv2's networks with registers.

    As in timm's conversion. Under timm's name for the registers no token of the prefix has a position.
    """
    cls, table, registers = (tensors.get(name) for name in ("cls_token", "pos_embed", _REGISTERS))
    if cls is None or table is None or registers is None or registers.name.rpartition(".")[2] == _REGISTERS:
        return tensors
    token, positions = np.asarray(cls.tensor), np.asarray(table.tensor)
    if positions.ndim != 3 or token.shape != positions[:, :1].shape:
        return tensors  # the strict check that follows reports it
    return {
        **tensors,
        "cls_token": cls._replace(tensor=token + positions[:, :1]),
        "pos_embed": table._replace(tensor=positions[:, 1:]),
    }


# Parts of one tensor: (pattern of the first part, names of all parts, name of the whole).
_PARTS = (
    (rf"((?!.*multihead_attn).*attn\.)q{_KIND}", ("q", "k", "v"), "qkv"),  # attention to other tokens stays apart
    (rf"(.*mlp\.)fc1_g{_KIND}", ("fc1_g", "fc1_x"), "fc1"),
)


def _joined(tensors: Tensors) -> Iterator[tuple[str, Published]]:
    """Joins tensors that are parts of one; queries and values may have biases where keys have none."""
    groups: dict[str, list[str]] = {}
    for name in tensors:
        for pattern, parts, joint in _PARTS:
            if match := re.fullmatch(pattern, name):
                names = [f"{match[1]}{part}.{match[2]}" for part in parts]
                shapes = {np.shape(tensors[part].tensor) if part in tensors else () for part in names}
                # If a part is missing or has another shape, the strict check that follows reports it.
                if len(shapes) == 1 and () not in shapes:
                    groups[f"{match[1]}{joint}.{match[2]}"] = names
    joined = {part for names in groups.values() for part in names}
    for name, entry in tensors.items():
        if name not in joined:
            lone = re.fullmatch(r"(.*attn\.)([qv])\.bias", name)
            # Cross-attention has keys and values in one tensor, and a bias for all of them.
            of_pair = lone is not None and not {f"{lone[1]}k.bias", f"{lone[1]}kv.bias"} & tensors.keys()
            yield (f"{lone[1]}{lone[2]}_bias" if lone is not None and of_pair else name), entry
    for name, names in groups.items():
        sources = [tensors[part] for part in names]
        joint = np.concatenate([np.asarray(source.tensor) for source in sources])
        yield name, Published(", ".join(source.name for source in sources), joint)


def write(tensors: Mapping[str, np.ndarray], names: Sequence[str], grid: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Returns tensors of the common form under the names of one of timm's classes.

    Args:
      grid: grid of patches, (rows, columns), for "naflex".
      names: how the class differs: "gamma" (other names of LayerScale), "split_qkv" (separate queries, keys and
        values), "split_mlp" (separate gate and value), "shared_bias" (one table of relative positions for all blocks),
        "merging_last" (Swin's merging is at the end of the previous stage), "mixed_rope" (one tensor of learned
        frequencies of rotary positions for all blocks), "naflex" (a separate module for the embedding), "dge" (queries
        separate from keys and values, and a router in each block), "encoder" (all but the classifier in `encoder`).
    """
    written: dict[str, np.ndarray] = {}
    if "mixed_rope" in names:
        blocks = [f"blocks.{i}.rope_freqs" for i in range(sum(name.endswith(".rope_freqs") for name in tensors))]
        written[_FREQS] = np.stack([tensors[name] for name in blocks], axis=1)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in blocks}
    if "naflex" in names:
        tensors = _to_naflex(tensors, grid)
    for name, tensor in tensors.items():
        if "gamma" in names and (scale := re.fullmatch(r"(blocks\.\d+\.)ls([12])\.gamma", name)):
            written[f"{scale[1]}gamma_{scale[2]}"] = tensor
        elif "split_qkv" in names and (qkv := re.fullmatch(rf"(blocks\.\d+\.attn\.)qkv{_KIND}", name)):
            parts = zip("qkv", np.split(tensor, 3), strict=True)
            written.update({f"{qkv[1]}{letter}_proj.{qkv[2]}": part for letter, part in parts})
        elif "split_qkv" in names and (bias := re.fullmatch(r"(blocks\.\d+\.attn\.)([qv])_bias", name)):
            written[f"{bias[1]}{bias[2]}_proj.bias"] = tensor
        elif "dge" in names and (qkv := re.fullmatch(rf"(blocks\.\d+\.attn\.)qkv{_KIND}", name)):
            q, k, v = np.split(tensor, 3)
            written |= {f"{qkv[1]}q.{qkv[2]}": q, f"{qkv[1]}kv.{qkv[2]}": np.concatenate([k, v])}
        elif "dge" in names and (router := re.fullmatch(rf"(blocks\.\d+\.)router{_KIND}", name)):
            written[f"{router[1]}dge.router.gate.{router[2]}"] = tensor
            written[f"{router[1]}dge.splits"] = np.array([4, 2, 1])
        elif "shared_bias" in names and name == f"blocks.0.attn.{RELATIVE}":
            written[SHARED] = tensor
        elif "merging_last" in names and (merging := re.fullmatch(r"layers\.(\d+)\.downsample\.(.+)", name)):
            written[f"layers.{int(merging[1]) - 1}.downsample.{merging[2]}"] = tensor
        elif "split_mlp" in names and (gate := re.fullmatch(rf"(blocks\.\d+\.mlp\.)fc1{_KIND}", name)):
            parts = zip(("fc1_g", "fc1_x"), np.split(tensor, 2), strict=True)
            written.update({f"{gate[1]}{layer}.{gate[2]}": part for layer, part in parts})
        else:
            written[name] = tensor
    if "encoder" in names:
        written = {name if name.startswith("head.") else f"encoder.{name}": part for name, part in written.items()}
    return written


def _to_naflex(tensors: Mapping[str, np.ndarray], grid: tuple[int, ...]) -> dict[str, np.ndarray]:
    written = dict(tensors)
    kernel = written.pop("patch_embed.proj.weight")
    written["embeds.proj.weight"] = kernel.transpose(0, 2, 3, 1).reshape(len(kernel), -1)
    written["embeds.proj.bias"] = written.pop("patch_embed.proj.bias")
    for name in ("cls_token", "reg_token", "pos_embed"):
        if name in written:
            written[f"embeds.{name}"] = written.pop(name)
    positions = written["embeds.pos_embed"]
    if prefix_rows := positions.shape[1] - math.prod(grid):
        raise UserError(
            f"NaFlexVit has no name for pos_embed with {prefix_rows} rows before those of the patches: build the "
            "network with no_embed_class=True."
        )
    written["embeds.pos_embed"] = positions.reshape(1, *grid, -1)
    return written
