"""Pure functions on arrays: no modules, no files, no configs."""

from jaxprune.ops.depthwise import depthwise_conv2d, depthwise_conv3d
from jaxprune.ops.patch_sampling import (
    furthest_retained,
    furthest_sampling,
    furthest_sampling_host,
    num_thrown,
    num_visible,
    random_masking,
    random_retained,
)
from jaxprune.ops.patches import gather_tokens, normalize_patches, patchify, scatter_tokens, unpatchify
from jaxprune.ops.posembed import resample, sincos_2d
from jaxprune.ops.resize import resize, resize_3d
from jaxprune.ops.unmerge import unmerge

__all__ = [
    "depthwise_conv2d",
    "depthwise_conv3d",
    "furthest_retained",
    "furthest_sampling",
    "furthest_sampling_host",
    "gather_tokens",
    "normalize_patches",
    "num_thrown",
    "num_visible",
    "patchify",
    "random_masking",
    "random_retained",
    "resample",
    "resize",
    "resize_3d",
    "scatter_tokens",
    "sincos_2d",
    "unmerge",
    "unpatchify",
]
