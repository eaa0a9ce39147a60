"""Writes `intermediates_<name>.npz`: what timm's `forward_intermediates` returns for tiny random vision transformers.

Run with PyTorch 2.13.0 (CPU) and timm 1.0.31; the package itself needs neither:

    python tests/golden/models/make_forward_intermediates.py

README.md, in this folder, describes the layout of the files.
"""

import json
from pathlib import Path

import numpy as np
import timm
import torch

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 5}
VIT, DISTILLED = "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"
NETWORKS = {
    "cls": (VIT, {}),
    "fc_norm": (VIT, {"global_pool": "avg", "class_token": True}),
    "no_cls": (VIT, {"global_pool": "avg", "class_token": False}),
    "registers": (VIT, {"reg_tokens": 3, "init_values": 0.1, "no_embed_class": True}),
    "distilled": (DISTILLED, {}),
    "non_square": (VIT, {"img_size": (32, 48)}),
}
# Arguments of a call, and the blocks that it takes.
CALLS = {
    "all": ({"indices": None}, [0, 1, 2, 3]),
    "last_2": ({"indices": 2}, [2, 3]),
    "0_and_2": ({"indices": [0, 2]}, [0, 2]),
    "stop_at_1": ({"indices": [1], "stop_early": True}, [1]),
}


def coarse(values: np.ndarray) -> torch.Tensor:
    """Rounds to multiples of 1/128, which are exact in float32 and compress well."""
    return torch.from_numpy((np.round(values * 128) / 128).astype(np.float32))


def randomise(model: torch.nn.Module, rng: np.random.Generator) -> None:
    """Draws every parameter, so that no layer is close to the identity."""
    state = {}
    for name, value in model.state_dict().items():
        noise = rng.standard_normal(value.shape)
        if name.endswith(("pos_embed", "_token")):
            state[name] = coarse(0.5 * noise)
        elif name.endswith(".gamma"):  # LayerScale
            state[name] = coarse(0.5 + 0.2 * noise)
        elif "norm" in name and name.endswith(".weight"):
            state[name] = coarse(1 + 0.2 * noise)
        else:
            state[name] = coarse(0.2 * noise)
    model.load_state_dict(state)


def intermediates(model: torch.nn.Module, images: torch.Tensor, **call) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the final features of one call, and its maps and prefix tokens; its other output formats must agree."""
    call["return_prefix_tokens"] = True
    final, taken = model.forward_intermediates(images, **call)
    tokens = model.forward_intermediates(images, **call, output_fmt="NLC", intermediates_only=True)
    found = {}
    if model.num_prefix_tokens:
        taken, prefix = zip(*taken, strict=True)
        tokens, same_prefix = zip(*tokens, strict=True)
        found["prefix"] = torch.stack(prefix)  # (blocks, batch, prefix tokens, channels)
        assert torch.equal(torch.stack(same_prefix), found["prefix"])
    found["maps"] = torch.stack(list(taken))  # (blocks, batch, channels, height, width)
    assert torch.equal(torch.stack(list(tokens)), found["maps"].flatten(3).mT)
    return final, found


@torch.no_grad()
def record(seed: int, model_name: str, overrides: dict) -> dict[str, np.ndarray]:
    """Returns everything that the file of one network holds."""
    rng = np.random.default_rng(seed)
    config = {**TINY, **overrides}
    model = timm.create_model(model_name, pretrained=False, **config).eval()
    randomise(model, rng)
    images = coarse(rng.standard_normal((2, 3, *np.broadcast_to(config["img_size"], 2))))
    arrays = {f"w/{name}": value.clone() for name, value in model.state_dict().items()}
    arrays["images"] = images

    single = model.forward_features(images)
    model, images = model.double(), images.double()
    features = model.forward_features(images)
    print(f"  float32 is off by {(single - features).abs().max():.1e} at most, of {features.abs().max():.1f}")
    arrays |= {"features": features, "logits": model(images)}
    for norm in (False, True):
        kind = "norm" if norm else "raw"
        final, every_block = intermediates(model, images, norm=norm)
        assert torch.equal(final, features)
        arrays |= {f"{kind}/{key}": value for key, value in every_block.items()}
        # Calls that take fewer blocks return the same numbers, so that the file need not repeat them.
        for call_name, (call, blocks) in CALLS.items():
            final, found = intermediates(model, images, norm=norm, **call)
            assert all(torch.equal(found[key], every_block[key][blocks]) for key in every_block)
            if call.get("stop_early"):
                assert torch.equal(final, arrays.setdefault(f"{call_name}/final", final))
            else:
                assert torch.equal(final, features)
    arrays = {key: value.float().numpy() for key, value in arrays.items()}
    arrays |= {f"{call_name}/blocks": np.array(blocks) for call_name, (_, blocks) in CALLS.items()}
    arrays["config"] = np.array(json.dumps({"model_name": model_name, **config}))
    return arrays


def main() -> None:
    torch.set_num_threads(1)
    for seed, (name, (model_name, overrides)) in enumerate(NETWORKS.items()):
        print(name)
        path = Path(__file__).with_name(f"intermediates_{name}.npz")
        np.savez_compressed(path, **record(seed, model_name, overrides))


if __name__ == "__main__":
    main()
