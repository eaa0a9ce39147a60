"""ViT, DeiT, ViTMAE, BEiT, DINOv2 and DINOv3 as Hugging Face's transformers names them, in all their spellings."""

import re

from jaxprune.checkpoints.spellings import Tensors, inside, renamed

PATCHES = r"((?:.+\.)?)embeddings\.patch_embeddings\.(?:projection\.)?weight"

_KIND = r"\.(weight|bias)"
_LAYER = r"(?:encoder\.|model\.)?layers?\.(\d+)\."
_DECODER = r"decoder\.(?:decoder_layers|decoder_encoder\.layer)\.(\d+)\."


def _in_layer(layer: str, block: str) -> tuple[tuple[str, str], ...]:
    """The names inside of a block, for an encoder's or a decoder's."""
    return (
        (rf"{layer}(?:layernorm_before|norm1){_KIND}", rf"{block}.\1.norm1.\2"),
        (rf"{layer}(?:layernorm_after|norm2){_KIND}", rf"{block}.\1.norm2.\2"),
        (rf"{layer}attention\.(?:attention\.query|q_proj){_KIND}", rf"{block}.\1.attn.q.\2"),
        (rf"{layer}attention\.(?:attention\.key|k_proj){_KIND}", rf"{block}.\1.attn.k.\2"),
        (rf"{layer}attention\.(?:attention\.value|v_proj){_KIND}", rf"{block}.\1.attn.v.\2"),
        (rf"{layer}attention\.(?:output\.dense|o_proj){_KIND}", rf"{block}.\1.attn.proj.\2"),
        (
            rf"{layer}(?:attention\.attention\.)?relative_position_bias\.relative_position_bias_table",
            rf"{block}.\1.attn.relative_position_bias_table",
        ),
        (rf"{layer}layer_scale([12])\.lambda1", rf"{block}.\1.ls\2.gamma"),
        (rf"{layer}lambda_([12])", rf"{block}.\1.ls\2.gamma"),
        (rf"{layer}mlp\.weights_in{_KIND}", rf"{block}.\1.mlp.fc1.\2"),
        (rf"{layer}mlp\.weights_out{_KIND}", rf"{block}.\1.mlp.fc2.\2"),
        (rf"{layer}mlp\.gate_proj{_KIND}", rf"{block}.\1.mlp.fc1_g.\2"),
        (rf"{layer}(?:intermediate\.dense|mlp\.fc1){_KIND}", rf"{block}.\1.mlp.fc1.\2"),
        (rf"{layer}(?:output\.dense|mlp\.fc2|mlp\.down_proj){_KIND}", rf"{block}.\1.mlp.fc2.\2"),
    )


_NAMES = (
    *_in_layer(_LAYER, "blocks"),
    *_in_layer(_DECODER, "decoder_blocks"),
    (r"embeddings\.patch_embeddings\.(?:projection\.)?(weight|bias)", r"patch_embed.proj.\1"),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.register_tokens", "reg_token"),
    (r"embeddings\.distillation_token", "dist_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (rf"pooler\.layernorm{_KIND}", r"fc_norm.\1"),
    (rf"(?:layernorm|norm){_KIND}", r"norm.\1"),
    (rf"(?:classifier|cls_classifier){_KIND}", r"head.\1"),
    (rf"distillation_classifier{_KIND}", r"head_dist.\1"),
    (r"decoder\.mask_token", "mask_token"),
    (r"decoder\.decoder_pos_embed", "decoder_pos_embed"),
    (rf"decoder\.(decoder_embed|decoder_norm|decoder_pred){_KIND}", r"\1.\2"),
)
_UNUSED = r"pooler\..+|embeddings\.mask_token"


def read(tensors: Tensors) -> tuple[Tensors, list[str]] | None:
    """Returns the tensors by timm's names and the names of those that only training needs; None if of none of these."""
    places = [match[1] for name in tensors if (match := re.fullmatch(PATCHES, name))]
    if len(places) != 1:
        return None
    # Classifiers are named beside the network, the decoder of ViTMAE too.
    network, others = inside(tensors, places[0])
    gated = any(re.fullmatch(rf"{_LAYER}mlp\.gate_proj\.weight", name) for name in network)
    up = (rf"{_LAYER}mlp\.up_proj{_KIND}", rf"blocks.\1.mlp.{'fc1_x' if gated else 'fc1'}.\2")
    found: Tensors = {}
    unused = []
    for name, entry in {**network, **{name: tensors[name] for name in others}}.items():
        timm = renamed(name, (up, *_NAMES))
        if timm is None and re.fullmatch(_UNUSED, name):
            unused.append(entry.name)
        else:
            found[timm or name] = entry
    return found, unused
