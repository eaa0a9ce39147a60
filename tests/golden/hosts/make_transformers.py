"""Makes the `hf_*.npz` files beside it: tiny random networks of Hugging Face's transformers, and what they compute.

Run by hand with torch and transformers 5.23.0, which the project does not depend on:
python tests/golden/hosts/make_transformers.py, with names of files to make only those.

A file holds `name` and `options` (of our `models.create`, as text), `w/<their name>` in float32, `images` (b, c, h, w;
of clips b, frames, c, h, w),
and in float64 `features` (`last_hidden_state`, normalised where the network ends with a norm on all tokens) and, where
there is one, `pooled` (logits, or what the network pools).

`hf_names.json` has the names of the tensors in the files that each of these networks, and a DeiT and a ViTMAE, is saved
in, which are not always those in memory: python tests/golden/hosts/make_transformers.py names
"""

import json
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers as hf
from safetensors.numpy import load_file

HERE = Path(__file__).parent
TINY = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
PIXELS = {"image_size": 48, "patch_size": 16}
OURS = {"img_size": 48, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2}
LAYER_NORM = {"layer_norm_eps": 1e-6}
CASES = {
    "hf_vit": (
        lambda: hf.ViTForImageClassification(
            hf.ViTConfig(**TINY, **PIXELS, **LAYER_NORM, intermediate_size=96, num_labels=5)
        ),
        "vit",
        {"num_classes": 5},
    ),
    "hf_dinov2": (
        lambda: hf.Dinov2Model(hf.Dinov2Config(**TINY, **PIXELS, mlp_ratio=4)),
        "vit_small_patch14_dinov2",
        {},
    ),
    "hf_dinov2_registers": (
        lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**TINY, **PIXELS, num_register_tokens=4)),
        "vit_small_patch14_reg4_dinov2",
        {},
    ),
    "hf_dinov2_giant": (
        lambda: hf.Dinov2Model(hf.Dinov2Config(**TINY, **PIXELS, mlp_ratio=4, use_swiglu_ffn=True)),
        "vit_giant_patch14_dinov2",
        {"mlp_ratio": 128 / 24},
    ),
    "hf_pixio": (
        lambda: hf.PixioModel(hf.PixioConfig(**TINY, **PIXELS, n_cls_tokens=8)),
        "pixio_vitb16",
        {"num_cls_tokens": 8},
    ),
    "hf_dinov3": (
        lambda: hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(**TINY, **PIXELS, intermediate_size=96, num_register_tokens=4, layer_norm_eps=1e-5)
        ),
        "vit_small_patch16_dinov3_qkvb",
        {},
    ),
    "hf_dinov3_plus": (
        lambda: hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(
                **TINY, **PIXELS, intermediate_size=96, num_register_tokens=4, use_gated_mlp=True, hidden_act="silu"
            )
        ),
        "vit_small_plus_patch16_dinov3_qkvb",
        {},
    ),
    "hf_siglip": (
        lambda: hf.SiglipVisionModel(
            hf.SiglipVisionConfig(**TINY, **PIXELS, **LAYER_NORM, intermediate_size=96, hidden_act="gelu_pytorch_tanh")
        ),
        "vit_so400m_patch16_siglip_256",
        {"mlp_ratio": 4.0},
    ),
    "hf_clip": (
        lambda: hf.CLIPVisionModelWithProjection(
            hf.CLIPVisionConfig(**TINY, **PIXELS, intermediate_size=96, projection_dim=5, hidden_act="quick_gelu")
        ),
        "vit_base_patch16_clip_quickgelu_224",
        {"num_classes": 5},
    ),
    "hf_beit": (
        lambda: hf.BeitForImageClassification(
            hf.BeitConfig(
                **TINY, **PIXELS, **LAYER_NORM, intermediate_size=96, num_labels=5, use_relative_position_bias=True
            )
        ),
        "beit_base_patch16_224",
        {"num_classes": 5},
    ),
    "hf_videomae": (
        lambda: hf.VideoMAEForVideoClassification(
            hf.VideoMAEConfig(
                **TINY, **LAYER_NORM, image_size=32, patch_size=8, num_frames=6, intermediate_size=96, num_labels=5
            )
        ),
        "videomae_small_patch16_224",
        {"img_size": 32, "patch_size": 8, "num_frames": 6, "num_classes": 5},
    ),
    "hf_vjepa2": (
        lambda: hf.VJEPA2Model(
            hf.VJEPA2Config(
                **{**TINY, "hidden_size": 32},
                crop_size=24,
                patch_size=8,
                frames_per_clip=6,
                pred_hidden_size=12,
                pred_num_attention_heads=2,
                pred_num_hidden_layers=1,
                pred_num_mask_tokens=2,
            )
        ),
        "vjepa2_vitl_fpc64_256",
        {"img_size": 24, "patch_size": 8, "num_frames": 6, "embed_dim": 32},
    ),
    "hf_aimv2": (
        lambda: hf.Aimv2VisionModel(
            hf.Aimv2VisionConfig(**TINY, **PIXELS, intermediate_size=66, rms_norm_eps=1e-5, use_head=False)
        ),
        "aimv2_large_patch14_224",
        {},
    ),
}


BESIDES = {
    "hf_deit": lambda: hf.DeiTForImageClassificationWithTeacher(
        hf.DeiTConfig(**TINY, **PIXELS, intermediate_size=96, num_labels=5)
    ),
    "hf_vitmae": lambda: hf.ViTMAEForPreTraining(
        hf.ViTMAEConfig(
            **TINY,
            **PIXELS,
            intermediate_size=96,
            decoder_hidden_size=16,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=2,
            decoder_intermediate_size=64,
        )
    ),
}

# The first files had the number of their place as a seed, later ones have one from their name.
_LATER = {"hf_pixio"}


def names() -> None:
    found = {}
    # A Pixio is saved under other names than the published files have; both are read.
    built = {case: build for case, (build, *_) in CASES.items() if case != "hf_pixio"}
    for case, build in {**built, **BESIDES}.items():
        with tempfile.TemporaryDirectory() as directory:
            build().save_pretrained(directory)
            found[case] = sorted(load_file(f"{directory}/model.safetensors"))
    (HERE / "hf_names.json").write_text(json.dumps(found, indent=1) + "\n")


def make(case: str, build, name: str, options: dict) -> None:
    torch.manual_seed(zlib.crc32(case.encode()) if case in _LATER else sorted(CASES.keys() - _LATER).index(case))
    network = build().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(parameter + 0.2 * torch.randn_like(parameter))
    weights = {key: tensor.clone() for key, tensor in network.state_dict().items() if tensor.is_floating_point()}
    sides = {"hf_videomae": (6, 3, 32, 32), "hf_vjepa2": (6, 3, 24, 24)}.get(case, (3, 48, 48))
    images = torch.randn(2, *sides)
    with torch.no_grad():
        found = network.double()(images.double(), output_hidden_states=True)
    arrays = {}
    for key in ("logits", "image_embeds", "pooler_output"):
        if getattr(found, key, None) is not None:
            arrays["pooled"] = getattr(found, key).numpy()
            break
    if getattr(found, "last_hidden_state", None) is not None:
        arrays["features"] = found.last_hidden_state.numpy()
    stored = {f"w/{key}": tensor.numpy() for key, tensor in weights.items()}
    np.savez_compressed(
        HERE / f"{case}.npz", name=name, options=repr({**OURS, **options}), images=images.numpy(), **stored, **arrays
    )
    print(case, name, {key: value.shape for key, value in arrays.items()})


if __name__ == "__main__" and sys.argv[1:] == ["names"]:
    names()
elif __name__ == "__main__":
    for case, arguments in CASES.items():
        if case in sys.argv[1:] or not sys.argv[1:]:
            make(case, *arguments)
