"""The names of X3D and SlowOnly in mmaction2, converted to those of pytorchvideo."""

import re

from jaxprune.weights.sources import Tensors, renamed

_X3D, _SLOW = "backbone.conv1_s.conv.weight", "backbone.conv1.conv.weight"
_NORM = r"\.bn\.(weight|bias|running_mean|running_var)"
_WEIGHT = r"\.conv\.weight"


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by pytorchvideo's names, and no others; None if these are other networks."""
    if _X3D not in tensors and (_SLOW not in tensors or "backbone.layer4.0.conv3.conv.weight" not in tensors):
        return None
    table = _x3d() if _X3D in tensors else _slow_only()
    return {_name(name, table): entry for name, entry in tensors.items()}, []


def _name(name: str, table: tuple[tuple[str, str], ...]) -> str:
    """Renames by the table; mmaction2 counts stages from 1, like pytorchvideo the blocks after the stem."""
    block = re.fullmatch(r"backbone\.layer(\d+)\.(\d+)\.(.+)", name)
    if block is None:
        return renamed(name, table) or name
    inside = renamed(block[3], table)
    return name if inside is None else f"blocks.{block[1]}.res_blocks.{block[2]}.{inside}"


def _in_block(norm_b: str) -> tuple[tuple[str, str], ...]:
    letters = {1: "a", 2: "b", 3: "c"}
    norms = {"a": "norm_a", "b": norm_b, "c": "norm_c"}
    return (
        *((rf"conv{number}{_WEIGHT}", f"branch2.conv_{letter}.weight") for number, letter in letters.items()),
        *((rf"conv{number}{_NORM}", rf"branch2.{norms[letter]}.\1") for number, letter in letters.items()),
        (rf"downsample{_WEIGHT}", "branch1_conv.weight"),
        (rf"downsample{_NORM}", r"branch1_norm.\1"),
    )


def _x3d() -> tuple[tuple[str, str], ...]:
    return (
        # pytorchvideo calls the convolution in space `conv_t`.
        (rf"backbone\.conv1_s{_WEIGHT}", "blocks.0.conv.conv_t.weight"),
        (rf"backbone\.conv1_t{_WEIGHT}", "blocks.0.conv.conv_xy.weight"),
        (rf"backbone\.conv1_t{_NORM}", r"blocks.0.norm.\1"),
        *_in_block("norm_b.0"),
        (r"se_module\.fc1\.(weight|bias)", r"branch2.norm_b.1.block.0.\1"),
        (r"se_module\.fc2\.(weight|bias)", r"branch2.norm_b.1.block.2.\1"),
        (rf"backbone\.conv5{_WEIGHT}", "blocks.5.pool.pre_conv.weight"),
        (rf"backbone\.conv5{_NORM}", r"blocks.5.pool.pre_norm.\1"),
        (r"cls_head\.fc1\.weight", "blocks.5.pool.post_conv.weight"),
        (r"cls_head\.fc2\.(weight|bias)", r"blocks.5.proj.\1"),
    )


def _slow_only() -> tuple[tuple[str, str], ...]:
    return (
        (rf"backbone\.conv1{_WEIGHT}", "blocks.0.conv.weight"),
        (rf"backbone\.conv1{_NORM}", r"blocks.0.norm.\1"),
        *_in_block("norm_b"),
        (r"cls_head\.fc_cls\.(weight|bias)", r"blocks.5.proj.\1"),
    )
