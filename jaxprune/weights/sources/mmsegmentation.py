"""The names of SegViT and DToP, which are mmsegmentation's, converted to timm's; their decoders keep theirs."""

import re

from jaxprune.weights.sources import Published, Tensors, renamed

_PATCHES, _QUERIES = "backbone.patch_embed.projection.weight", "decode_head.q.weight"
_KIND = r"(weight|bias)"
_NAMES = (
    (rf"backbone\.patch_embed\.projection\.{_KIND}", r"patch_embed.proj.\1"),
    (rf"backbone\.layers\.(\d+)\.ln([12])\.{_KIND}", r"blocks.\1.norm\2.\3"),
    (rf"backbone\.layers\.(\d+)\.attn\.attn\.in_proj_{_KIND}", r"blocks.\1.attn.qkv.\2"),
    (rf"backbone\.layers\.(\d+)\.attn\.attn\.out_proj\.{_KIND}", r"blocks.\1.attn.proj.\2"),
    (rf"backbone\.layers\.(\d+)\.ffn\.layers\.0\.0\.{_KIND}", r"blocks.\1.mlp.fc1.\2"),
    (rf"backbone\.layers\.(\d+)\.ffn\.layers\.1\.{_KIND}", r"blocks.\1.mlp.fc2.\2"),
    (r"backbone\.(.+)", r"\1"),
)


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names, and those that the network does not use; None if these are other networks.

    The backbones add a CLS token for the sake of its position, and drop it before the first block.
    """
    if _PATCHES not in tensors or _QUERIES not in tensors:
        return None
    named, unused = {}, ["backbone.cls_token"] if "backbone.cls_token" in tensors else []
    for name, entry in tensors.items():
        if name in unused or re.search(r"loss_decode\.criterion\.empty_weight$", name):
            continue
        named[renamed(name, _NAMES) or name] = entry
    if unused and (table := named.get("pos_embed")) is not None:
        named["pos_embed"] = Published(table.name, table.tensor[:, 1:])
    return named, unused
