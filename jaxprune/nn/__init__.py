"""Building blocks of networks: modules that depend on shapes only, not on models, tasks or files."""

from jaxprune.nn.attention import Attention
from jaxprune.nn.batch_norm import BatchNorm
from jaxprune.nn.block import Block
from jaxprune.nn.conv import Conv, Conv3d
from jaxprune.nn.drop_path import DropPath
from jaxprune.nn.host import Host, Overhead
from jaxprune.nn.linear import Linear
from jaxprune.nn.mlp import Mlp
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.patch_embed import PatchEmbed
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.run_blocks import BlockRunner, HostOutput
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import Attended, Tokens

__all__ = [
    "Attended",
    "Attention",
    "BatchNorm",
    "Block",
    "BlockRunner",
    "Conv",
    "Conv3d",
    "DropPath",
    "Host",
    "HostOutput",
    "LayerNorm",
    "Linear",
    "Mlp",
    "Overhead",
    "PatchEmbed",
    "Reducible",
    "Site",
    "Tokens",
]
