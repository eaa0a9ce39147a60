"""Makes the `.npz` files beside it: tiny random networks of timm, their images and what timm computes of them.

Run by hand with torch and timm 1.0.31, which the project does not depend on: python tests/golden/hosts/make_timm.py,
with names of files to make only those.

A file holds `name`, `options` (of timm's `create_model`, as text), `w/<timm's name>` in float32, `images` (b, c, h,
w), and in float64 `logits`, `features` (`forward_features`) and `map_<i>` (`forward_intermediates`, before the final
norm). With `resized`, the weights are those of a network for images of 48 by 48 pixels, loaded into the one that
`options` makes, as timm loads files.
"""

import sys
import zlib
from pathlib import Path

import numpy as np
import timm
import torch
from timm.models import beit, deit, eva, vision_transformer

HERE = Path(__file__).parent
FILTERS = {
    "Eva": eva.checkpoint_filter_fn,
    "Beit": beit.checkpoint_filter_fn,
    "VisionTransformer": vision_transformer.checkpoint_filter_fn,
    "VisionTransformerDistilled": deit.checkpoint_filter_fn,
}
TINY = {"embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
WIDE, TALL, SQUARE = (32, 48), (48, 32), 48  # (height, width) in pixels
CASES = {
    "dinov2": ("vit_small_patch14_dinov2", {"img_size": (28, 42)}),
    "dinov2_reg4": ("vit_small_patch14_reg4_dinov2", {"img_size": (42, 28)}),
    "dinov2_giant": ("vit_giant_patch14_reg4_dinov2", {"img_size": 28}),
    "tipsv2": ("vit_base_patch14_reg1_tipsv2", {"img_size": 28}),
    "dinov3": ("vit_small_patch16_dinov3", {"img_size": WIDE}),
    "dinov3_token": ("vit_small_patch16_dinov3", {"img_size": TALL, "global_pool": "token"}),
    "dinov3_qkvb": ("vit_base_patch16_dinov3_qkvb", {"img_size": SQUARE}),
    "dinov3_plus": ("vit_small_plus_patch16_dinov3", {"img_size": SQUARE}),
    "dinov3_7b": ("vit_7b_patch16_dinov3", {"img_size": TALL}),
    "siglip": ("vit_base_patch16_siglip_224", {"img_size": WIDE}),
    "siglip_tanh": ("vit_so400m_patch16_siglip_256", {"img_size": SQUARE}),
    "siglip_gap": ("vit_base_patch16_siglip_gap_224", {"img_size": TALL}),
    "map_registers": ("vit_so150m_patch16_reg4_map_256", {"img_size": SQUARE}),
    "clip": ("vit_base_patch16_clip_224", {"img_size": WIDE}),
    "clip_quickgelu": ("vit_base_patch16_clip_quickgelu_224", {"img_size": SQUARE}),
    "eva_giant": ("eva_giant_patch14_224", {"img_size": 28}),
    "eva02_tiny": ("eva02_tiny_patch14_224", {"img_size": (28, 42)}),
    "eva02_base": ("eva02_base_patch14_448", {"img_size": (42, 28)}),
    "eva02_clip": ("eva02_base_patch16_clip_224", {"img_size": WIDE}),
    "pe_core": ("vit_pe_core_base_patch16_224", {"img_size": WIDE}),
    "pe_core_gigantic": ("vit_pe_core_gigantic_patch14_448", {"img_size": (42, 28)}),
    "pe_lang": ("vit_pe_lang_large_patch14_448", {"img_size": (28, 42)}),
    "pe_spatial": ("vit_pe_spatial_base_patch16_512", {"img_size": SQUARE}),
    "aimv2": ("aimv2_large_patch14_224", {"img_size": (28, 42)}),
    "beit": ("beit_base_patch16_224", {"img_size": WIDE}),
    "beitv2": ("beitv2_large_patch16_224", {"img_size": SQUARE}),
    "beit3": ("beit3_base_patch16_224", {"img_size": TALL}),
    "deit3": ("deit3_small_patch16_224", {"img_size": WIDE}),
    "deit_distilled": ("deit_tiny_distilled_patch16_224", {"img_size": WIDE}),
    "gap": ("vit_medium_patch16_gap_256", {"img_size": SQUARE}),
    "gap_registers": ("vit_medium_patch16_reg4_gap_256", {"img_size": WIDE}),
    "rope_gap": ("vit_medium_patch16_rope_reg1_gap_256", {"img_size": WIDE}),
    "rope_axial": ("vit_small_patch16_rope_224", {"img_size": TALL}),
    "rope_ape": ("vit_small_patch16_rope_ape_224", {"img_size": SQUARE}),
    "intern": ("vit_intern300m_patch14_448", {"img_size": 28}),
    "radio": ("vit_base_patch16_radio_v3", {"img_size": SQUARE}),
    "eva02_enormous": ("eva02_enormous_patch14_clip_224", {"img_size": (28, 42)}),
    "post_norm": ("vit_base_patch16_rpn_224", {"img_size": WIDE}),
    "rope_mixed": ("vit_small_patch16_rope_mixed_224", {"img_size": WIDE}),
    "rope_mixed_ape": ("vit_small_patch16_rope_mixed_ape_224", {"img_size": TALL}),
    "siglip_384": ("vit_so400m_patch14_siglip_384", {"img_size": (31, 45)}),
    "test_vit3": ("test_vit3", {"img_size": WIDE}),
    "test_vit4": ("test_vit4", {"img_size": TALL}),
    "sapiens2": ("vit_base_patch16_sapiens2", {"img_size": WIDE, "num_kv_heads": 2}),
    "naflex_gap": ("naflexvit_base_patch16_gap", {"img_size": WIDE}),
    "naflex_map": ("naflexvit_base_patch16_map", {"img_size": SQUARE}),
    "naflex_aspect_resized": ("naflexvit_base_patch16_par_gap", {"img_size": (64, 32)}),
    "naflex_radio_resized": ("naflexvit_large_patch16_radio_v3", {"img_size": (32, 64)}),
    "naflex_corners_resized": ("naflexvit_base_patch16_radio_v3", {"img_size": (64, 32)}),
    "qwen3": ("qwen3_vit_88m", {"img_size": SQUARE}),
    "qwen3_resized": ("qwen3_vit_88m", {"img_size": (64, 32)}),
    "naflex_siglip_resized": ("naflexvit_base_patch16_siglip", {"img_size": WIDE}),
    "naflex_gap_resized": ("naflexvit_base_patch16_gap", {"img_size": 64}),
    "deit3_resized": ("deit3_small_patch16_224", {"img_size": (64, 32)}),
    "clip_resized": ("vit_base_patch16_clip_224", {"img_size": (32, 64)}),
    "siglip_resized": ("vit_base_patch16_siglip_224", {"img_size": 64}),
    "eva02_resized": ("eva02_base_patch16_clip_224", {"img_size": 64}),
    "beit_resized": ("beit_base_patch16_224", {"img_size": (64, 32)}),
}


# The first files had the number of their place as a seed, later ones have one from their name.
_LATER = ("eva02_enormous", "naflex_gap", "naflex_gap_resized", "naflex_map", "naflex_siglip_resized", "post_norm")
_LATER += ("rope_mixed", "rope_mixed_ape", "sapiens2", "siglip_384", "test_vit3", "test_vit4")
_LATER += ("naflex_aspect_resized", "naflex_radio_resized", "naflex_corners_resized", "qwen3", "qwen3_resized")
_FIRST = sorted(CASES.keys() - set(_LATER))

STAGED = {"embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
HIERA = {"embed_dim": 8, "num_heads": 1, "stages": (1, 1, 2, 1), "num_classes": 5}
CONV = {"depths": (1, 2, 1, 1), "dims": (8, 16, 24, 32), "num_classes": 5}
STAGES = {
    "swin": ("swin_tiny_patch4_window7_224", {**STAGED, "img_size": (32, 48), "window_size": 4}),
    "swin_padded": ("swin_tiny_patch4_window7_224", {**STAGED, "img_size": (36, 60), "window_size": 4}),
    "swin_clamped": ("swin_tiny_patch4_window7_224", {**STAGED, "img_size": 16, "window_size": 4, "num_heads": (2, 2)}),
    "swin_sides": ("swin_tiny_patch4_window7_224", {**STAGED, "img_size": (32, 48), "window_size": (2, 6)}),
    "swinv2": ("swinv2_tiny_window8_256", {**STAGED, "img_size": (32, 48), "window_size": 4}),
    "swinv2_padded": ("swinv2_tiny_window8_256", {**STAGED, "img_size": (36, 60), "window_size": 4}),
    "swinv2_finetuned": (
        "swinv2_base_window12to16_192to256",
        {**STAGED, "img_size": 64, "window_size": 8, "pretrained_window_sizes": (6, 3)},
    ),
    "convnext": ("convnext_tiny", {**CONV, "img_size": (64, 96)}),
    "convnext_odd": ("convnext_tiny", {**CONV, "img_size": (78, 101)}),
    "convnext_pico": ("convnext_pico", {**CONV, "img_size": (64, 64)}),
    "convnextv2": ("convnextv2_tiny", {**CONV, "img_size": (64, 96)}),
    "hiera": ("hiera_tiny_224", {**HIERA, "img_size": (64, 96)}),
    "hiera_two_heads": ("hiera_base_plus_224", {**HIERA, "img_size": 64, "num_heads": 2, "stages": (2, 2, 1, 1)}),
    "hiera_abswin": ("hiera_base_abswin_256", {**HIERA, "img_size": (96, 64), "global_pos_size": (7, 7)}),
    "hiera_concat": ("hiera_small_abswin_256", {**HIERA, "img_size": 64, "global_pos_size": (5, 6)}),
    "convnextv2_atto": ("convnextv2_atto", {**CONV, "img_size": (64, 64)}),
    "convnext_xxlarge": ("convnext_xxlarge", {**CONV, "img_size": (64, 64)}),
    "swin_s3": (
        "swin_s3_tiny_224",
        {**STAGED, "img_size": (32, 48), "depths": (1, 2, 1), "num_heads": (2, 4, 4), "window_size": (2, 4, 3)},
    ),
    "hiera_units": ("hiera_tiny_224", {**HIERA, "img_size": (96, 64)}),
}
# Mask units that stay, of two images.
UNITS = {"hiera_units": [[1, 0, 1, 0, 1, 0], [0, 1, 1, 0, 0, 1]]}


def make(name: str, model: str, options: dict) -> None:
    torch.manual_seed(_FIRST.index(name) if name in _FIRST else zlib.crc32(name.encode()))
    options = {**options} if name in STAGES else {**TINY, **options}
    of_images = options.pop("img_size") if model.startswith("convnext") else options["img_size"]
    resized = name.endswith("_resized")
    resamples = model.startswith(("naflexvit", "qwen3"))  # its table for each image
    if resamples:
        height, width = (48, 48) if resized or of_images == SQUARE else of_images
        grid = (height // 16, width // 16)
        of_network = {"pos_embed_grid_size": grid[0] if model.startswith("qwen3") else grid}
        first = timm.create_model(
            model, **{key: value for key, value in options.items() if key != "img_size"}, **of_network
        )
    else:
        first = timm.create_model(model, **{**options, **({"img_size": 48} if resized else {})})
    with torch.no_grad():
        for parameter in first.parameters():
            # Fresh norms, biases and tables are ones and zeros.
            parameter.copy_(parameter + 0.2 * torch.randn_like(parameter))
    weights = {key: tensor.clone() for key, tensor in first.state_dict().items()}
    network = first
    if resized and not resamples:
        network = timm.create_model(model, **options)
        network.load_state_dict(FILTERS[type(network).__name__](dict(weights), network), strict=False)
    network = network.double().eval()
    height, width = of_images if isinstance(of_images, tuple) else (of_images,) * 2
    images = torch.randn(2, 3, height, width)
    with torch.no_grad():
        wide = images.double()
        _, maps = network.forward_intermediates(wide)
        arrays = {"logits": network(wide), "features": network.forward_features(wide)}
        if name in UNITS:
            mask = torch.tensor(UNITS[name]).bool()
            features = network.forward_features(wide, mask=mask)
            units = network.forward_intermediates(wide, mask=mask, output_fmt="NHWC", intermediates_only=True)
            arrays |= {"units": mask, "masked_features": features, "masked_logits": network.forward_head(features)}
            arrays |= {f"masked_map_{index}": tensor for index, tensor in enumerate(units)}
    options.pop("num_kv_heads", None)  # of a name's own, for a network of another size
    np.savez_compressed(
        HERE / f"{name}.npz",
        name=model,
        options=repr(options),
        images=images.numpy(),
        **{f"w/{key}": tensor.numpy() for key, tensor in weights.items()},
        **{key: tensor.numpy() for key, tensor in arrays.items()},
        **{f"map_{index}": tensor.numpy() for index, tensor in enumerate(maps)},
    )


if __name__ == "__main__":
    wanted = sys.argv[1:]  # by default all
    for name, (model, options) in {**CASES, **STAGES}.items():
        if wanted and name not in wanted:
            continue
        make(name, model, options)
        print(name)
