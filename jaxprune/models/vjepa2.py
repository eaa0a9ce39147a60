"""V-JEPA 2: the video encoder, with rotary positions on three axes (Assran et al., 2025)."""

from typing import Any

from jaxprune.models.video_vit import VideoTransformer
from jaxprune.preprocessing import Preprocessing

SIZES = {
    "vitl": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
    "vith": {"embed_dim": 1280, "depth": 32, "num_heads": 16},
    "vitg": {"embed_dim": 1408, "depth": 40, "num_heads": 22, "mlp_ratio": 48 / 11},
}


def variants() -> dict[str, dict[str, Any]]:
    """Returns {name: constructor arguments} of Meta's encoders for clips of 64 frames; there is no classifier."""
    clips = {"num_frames": 64, "num_classes": 0}
    common = {**clips, "style": "vjepa2", "pos_embed": "none", "qkv_bias": True, "fc_norm": False}
    sized = [*((size, 256) for size in SIZES), ("vitg", 384)]
    named = {f"vjepa2_{size}_fpc64_{side}": {**SIZES[size], **common, "img_size": side} for size, side in sized}
    return {"vjepa2": {**common, "img_size": 256}, **named}


def preprocessing(name: str, arguments: dict[str, Any]) -> Preprocessing:
    """Returns how the frames of clips are prepared."""
    side = arguments.get("img_size", 256)
    height, width = (side, side) if isinstance(side, int) else side[-2:]
    frames = arguments.get("num_frames", 64)
    return Preprocessing((height, width), interpolation="bilinear", num_frames=frames, frame_stride=0)


class VJEPA2(VideoTransformer):
    """A `VideoTransformer` with arguments from `variants`; it pools the mean of its normalised tokens.

    The attentive pooler of the published classifiers is not included.
    """


NETWORK = VJEPA2
