"""Writes `video_*.npz`: small random networks of clips by pytorchvideo 0.1.5, and what they compute in float64.

    python make_video.py    # needs torch and pytorchvideo

Each file: `w/<published name>` (float32), `x` (NCTHW, float32, sides that strides do not divide), `features` (the map
that PaPr reads: X3D's behind `pre_act` of its head, SlowOnly's behind the last stage) and `logits`, both float64.
"""

from pathlib import Path

import numpy as np
import torch
from pytorchvideo.models import resnet, x3d
from torch import nn

FRAMES, HEIGHT, WIDTH, CLASSES = 5, 37, 44, 5


def randomised(network: nn.Module) -> nn.Module:
    """Every weight and running statistic drawn at random, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in network.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        drawn = torch.randn(tensor.shape, generator=generator)
        if name.endswith("running_var"):
            drawn = drawn.abs() + 0.5
        elif tensor.ndim == 1:
            drawn = 0.3 * drawn + (1.0 if name.endswith("weight") else 0.0)
        else:
            drawn = drawn * (1.5 / tensor[0].numel()) ** 0.5
        tensor.copy_(drawn)
    return network.eval()


def write(name: str, network: nn.Module, last: nn.Module) -> None:
    randomised(network)
    seen = {}
    last.register_forward_hook(lambda module, given, made: seen.update(features=made.detach().clone()))
    clips = torch.randn((2, 3, FRAMES, HEIGHT, WIDTH), generator=torch.Generator().manual_seed(1))
    weights = {f"w/{key}": tensor.numpy().copy() for key, tensor in network.state_dict().items()}
    with torch.no_grad():
        logits = network.double()(clips.double())
    arrays = {**weights, "x": clips.numpy(), "features": seen["features"].numpy(), "logits": logits.numpy()}
    np.savez_compressed(Path(__file__).parent / f"video_{name}.npz", **arrays)


def small_x3d() -> nn.Module:
    return x3d.create_x3d(
        input_clip_length=FRAMES,
        input_crop_size=WIDTH,
        model_num_class=CLASSES,
        dropout_rate=0.0,
        width_factor=1.0,
        depth_factor=0.4,
        stem_dim_in=8,
        head_dim_out=12,
        head_activation=None,
    )


def small_slow() -> nn.Module:
    resnet._MODEL_STAGE_DEPTH[8] = (1, 2, 1, 1)
    return resnet.create_resnet(
        model_depth=8,
        model_num_class=CLASSES,
        dropout_rate=0.0,
        stem_dim_out=4,
        stem_conv_kernel_size=(1, 7, 7),
        head_pool_kernel_size=(FRAMES, 2, 2),
    )


for name, network in (("x3d", small_x3d()), ("slow_only", small_slow())):
    write(name, network, network.blocks[-1].pool.pre_act if name == "x3d" else network.blocks[-2])
