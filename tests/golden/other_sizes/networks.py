"""Networks of images and clips under the names of timm, torchvision, pytorchvideo and Hugging Face."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from support import nhwc

from jaxprune import models
from jaxprune.weights.write_names import spelled
from other_sizes import Arrays, Family, chosen, computed, differentiated, images, prefixed, published


def vits() -> dict[str, Arrays]:
    sizes = {"img_size": 24, "patch_size": 4, "embed_dim": 20, "depth": 2, "num_heads": 5, "num_classes": 7}
    pictures, labels, files = images(3, 3, 24, 24), np.array([6, 0, 3]), {}
    for name, pool in (("cls", "token"), ("gap", "avg")):
        model, tensors = published(models.create, "vit", **sizes, mlp_ratio=3.0, global_pool=pool)

        def loss(model):
            logits, aux = model(jnp.asarray(nhwc(pictures)))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), (logits, aux.tokens.x)

        ce, (logits, features), gradients = differentiated(model, loss)
        file = {"cfg": np.array(list(sizes.values())), "mlp_ratio": 3.0, "imgs": pictures, "labels": labels, "ce": ce}
        file |= chosen(gradients, ("pos_embed", "blocks.1.attn.qkv.weight", "head.weight"), "grad/")
        files[f"mim/timm_vit_{name}"] = file | {"logits": logits, "features": features, **prefixed(tensors)}
    return files | {"mim/deit_distilled": distilled(sizes, pictures), "mim/timm_swin": swin()}


def distilled(sizes: dict[str, int], pictures: np.ndarray) -> Arrays:
    model, tensors = published(models.create, "vit", **sizes, dist_token=True)
    logits, aux = computed(model, lambda model, x: model(x), jnp.asarray(nhwc(pictures)))
    file = {"cfg": np.array(list(sizes.values())), "imgs": pictures, "features": aux.tokens.x, "logits_eval": logits}
    return file | {"logits_cls": aux.head_logits[0], "logits_dist": aux.head_logits[1], **prefixed(tensors)}


def swin() -> Arrays:
    sizes = {"img_size": 36, "patch_size": 3, "embed_dim": 12, "window_size": 3, "num_classes": 7}
    stages = {"depths": (1, 2), "num_heads": (3, 6), "mlp_ratio": 3.0}
    model, tensors = published(models.create, "swin", **sizes, **stages)
    pictures = images(3, 3, 36, 36)
    logits, _ = computed(model, lambda model, x: model(x), jnp.asarray(nhwc(pictures)))
    file = {"cfg": np.array(list(sizes.values())), "imgs": pictures, "logits": logits, "mlp_ratio": 3.0}
    return file | {"depths": (1, 2), "heads": (3, 6), **prefixed(tensors)}


def intermediates() -> dict[str, Arrays]:
    config = {"img_size": [24, 40], "patch_size": 8, "embed_dim": 20, "depth": 3, "num_heads": 5, "num_classes": 7}
    config |= {"reg_tokens": 2}
    model, tensors = published(models.create, "vit", **{**config, "img_size": (24, 40)})
    pictures = images(3, 3, 24, 40)
    calls = {"all": {}, "last_1": {"indices": 1}, "1_and_2": {"indices": [1, 2]}}
    calls["stop_at_0"] = {"indices": [0], "stop_early": True}

    def call(model: Any, x: Any) -> Any:
        final, found = model.forward_intermediates(x, return_prefix_tokens=True, output_fmt="NCHW")
        normed = model.forward_intermediates(x, norm=True, return_prefix_tokens=True, output_fmt="NCHW")[1]
        early = model.forward_intermediates(x, **calls["stop_at_0"])[0]
        return final, early, model(x)[0], found, normed

    final, early, logits, *both = computed(model, call, jnp.asarray(nhwc(pictures)))
    file: Arrays = {"config": np.array(json.dumps(config | {"model_name": "vit"})), "images": pictures}
    file |= {"features": final, "stop_at_0/final": early, "logits": logits, **prefixed(tensors)}
    for name, found in zip(("raw", "norm"), both, strict=True):
        maps, prefix = zip(*found, strict=True)
        file |= {f"{name}/maps": np.stack(maps), f"{name}/prefix": np.stack(prefix)}
    blocks = {"all": [0, 1, 2], "last_1": [2], "1_and_2": [1, 2], "stop_at_0": [0]}
    return {"models/intermediates_other": file | {f"{name}/blocks": np.array(ids) for name, ids in blocks.items()}}


SIZES = {"embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 7}
STAGED = {"embed_dim": 12, "depths": (1, 2, 1), "num_heads": (3, 3, 6), "num_classes": 7, "window_size": 3}
HOSTS = {
    "dinov3": ("vit_small_patch16_dinov3", {**SIZES, "img_size": (48, 64)}),
    "siglip": ("vit_base_patch16_siglip_224", {**SIZES, "img_size": 64}),
    "beit": ("beit_base_patch16_224", {**SIZES, "img_size": (64, 32)}),
    "clip": ("vit_base_patch16_clip_224", {**SIZES, "img_size": 64}),
    "aimv2": ("aimv2_large_patch14_224", {**SIZES, "img_size": 56}),
    "swin": ("swin_tiny_patch4_window7_224", {**STAGED, "img_size": (48, 60)}),
    "convnext": ("convnext_tiny", {"depths": (2, 1, 1, 1), "dims": (6, 8, 12, 20), "num_classes": 7}),
    "hiera": (
        "hiera_tiny_224",
        {"embed_dim": 6, "num_heads": 1, "stages": (1, 2, 1, 1), "num_classes": 7, "img_size": (64, 128)},
    ),
}


def hosts() -> dict[str, Arrays]:
    return {f"hosts/{name}": host(*case) for name, case in HOSTS.items()} | {"hosts/hf_vit": hugging_face()}


def host(name: str, options: dict[str, Any]) -> Arrays:
    model, tensors = published(models.create, name, **options)
    size = options.get("img_size", 64)
    pictures = images(2, 3, *(size if isinstance(size, tuple) else (size, size)))

    def call(model: Any, x: Any) -> Any:
        maps = model.forward_intermediates(x, output_fmt="NCHW", intermediates_only=True)
        return model(x)[0], model.forward_features(x)[0].x, maps

    logits, features, maps = computed(model, call, jnp.asarray(nhwc(pictures)))
    file = {"name": np.array(name), "options": np.array(repr(options)), "images": pictures, **prefixed(tensors)}
    return file | {"logits": logits, "features": features} | {f"map_{index}": value for index, value in enumerate(maps)}


def hugging_face() -> Arrays:
    options = {**SIZES, "img_size": 40, "patch_size": 8}
    model, _ = published(models.create, "vit", **options)
    pictures = images(3, 3, 40, 40)
    logits, tokens = computed(
        model, lambda model, x: (model(x)[0], model.forward_features(x)[0].x), jnp.asarray(nhwc(pictures))
    )
    file = {"name": np.array("vit"), "options": np.array(repr(options)), "images": pictures}
    return file | {"pooled": logits, "features": tokens, **prefixed(spelled(model, "hugging_face"))}


def convnets() -> dict[str, Arrays]:
    stages = ((2, 5, 1, 1, 6), (1, 3, 2, 3, 10), (2, 3, 2, 2, 12))
    cases = {
        "resnet_basic": ("resnet", {"bottleneck": False, "layers": (1, 2, 1, 1), "width": 6}),
        "resnet_bottleneck": ("resnet", {"bottleneck": True, "layers": (1, 1, 1, 2), "width": 2}),
        "efficientnet_lite": ("efficientnet_lite", {"stages": stages, "stem": 10, "features": 18}),
        "video_x3d": ("x3d", {"layers": (2, 1, 1, 1), "width": 6, "hidden": 10}),
        "video_slow_only": ("slow_only", {"layers": (1, 1, 1, 1), "width": 6}),
    }
    return {f"convnets/{name}": convnet(*case, clips=name.startswith("video")) for name, case in cases.items()}


def convnet(name: str, options: dict[str, Any], *, clips: bool) -> Arrays:
    model, tensors = published(models.create, name, **options, num_classes=7)
    x = images(2, 3, 4, 38, 41) if clips else images(2, 3, 40, 53)
    logits, aux = computed(model, lambda model, x: model(x), jnp.asarray(np.moveaxis(x, 1, -1)))
    file = {"x": x, "features": np.moveaxis(aux.features, -1, 1), **prefixed(tensors)}
    return file | {"logits" if clips else "logits_f64": np.float64(logits)}


FAMILIES = {
    "vits": Family(
        ("mim/timm_*", "mim/deit_distilled"),
        vits,
        (
            "models/test_vit.py::test_matches_timm_forward_and_gradients",
            "models/test_vit.py::test_matches_distilled_deit",
            "models/test_hierarchical.py::test_the_published_small_swin",
            "weights/test_write.py::test_published_weights_come_out_as_they_went_in",
        ),
    ),
    "intermediates": Family(("models/intermediates_*",), intermediates, ("nn/test_host.py",)),
    "hosts": Family(
        tuple(f"hosts/{name}" for name in (*HOSTS, "hf_vit")),
        hosts,
        (
            *(f"models/test_timm_networks.py::test_matches_timm[{name}]" for name in HOSTS),
            "models/test_hugging_face_vits.py::test_matches_transformers[hf_vit]",
            "models/test_positions.py::test_another_layout_of_the_angles_is_another_network",
            *(
                f"weights/test_sources.py::test_the_names_of_a_repository_stand_for_timms[{name}]"
                for name in ("clip", "dinov3", "aimv2", "siglip", "siglip stacked")
            ),
            "weights/test_write_names.py::test_names_of_a_repository[big_vision]",
            "weights/test_guess_network.py",
        ),
    ),
    "convnets": Family(
        ("convnets/*",),
        convnets,
        (
            "models/test_resnet.py::test_matches_torchvision",
            "models/test_efficientnet_lite.py::test_matches_timm",
            "models/test_video_convnets.py::test_matches_pytorchvideo",
            "models/test_video_convnets.py::test_files_of_mmaction2_have_a_norm_more",
            "models/test_video_convnets.py::test_slow_only_of_mmaction2",
        ),
    ),
}
