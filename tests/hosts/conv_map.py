"""A convolutional network in small, after ConvNeXt: its point-wise layers are the work that rows can skip."""

import math

import jax.numpy as jnp
from flax import nnx

from jaxprune.nn import BlockRunner, Conv, Host, LayerNorm, Linear, Mlp, Overhead, Reducible, Site, Tokens
from jaxprune.nn.block_cost import BlockCost, linear_flops
from jaxprune.nn.patch_embed import grid_of
from jaxprune.nn.tokens import NOTHING, all_present, coordinates
from jaxprune.ops.patches import patchify


class ConvBlock(Reducible):
    """`x += mlp(norm(conv(x)))`, with a depth-wise 3×3 convolution of the map."""

    def __init__(self, dim, *, dtype=None, rngs):
        super().__init__(num_prefix_tokens=0, removable=False)
        self.conv = Conv(dim, dim, 3, depthwise=True, use_bias=True, dtype=dtype, rngs=rngs)
        self.norm = LayerNorm(dim)
        self.mlp = Mlp(dim, 4 * dim, kernel_init=nnx.initializers.normal(0.3), dtype=dtype, rngs=rngs)

    def __call__(self, tokens, attended=NOTHING, *, grid=None, taps=frozenset(), train=False, key=None):
        b, n, d = tokens.x.shape
        mixed = tokens._replace(x=self.conv(tokens.x.reshape(b, *grid, d)).reshape(b, n, d))
        branch, report = self.skip(mixed, attended, lambda x: self.mlp(self.norm(x)), train=train, key=key)
        return tokens._replace(x=tokens.x + branch), NOTHING, report

    def cost(self, grid=None):
        feed = linear_flops(self.mlp.fc1, 1) + linear_flops(self.mlp.fc2, 1)
        return BlockCost(project=0, pair=0, mix=0, feed=feed, fixed=math.prod(grid) * self.conv.kernel.size)


class ConvMap(Host):
    """A stem of patches, blocks on one map, and the mean of it for a classifier. Images may have any whole size."""

    num_prefix_tokens = 0
    prunes_input = False

    def __init__(self, *, img_size=16, patch_size=4, embed_dim=16, depth=3, num_classes=3, dtype=None, rngs):
        super().__init__()
        self.img_size, self.patch_size, self.embed_dim, self.dtype = img_size, patch_size, embed_dim, dtype
        self.stem = Linear(3 * patch_size**2, embed_dim, kernel_init=nnx.initializers.normal(0.3), rngs=rngs)
        self.blocks = nnx.List(ConvBlock(embed_dim, dtype=dtype, rngs=rngs) for _ in range(depth))
        self.norm = LayerNorm(embed_dim)
        self.head = Linear(embed_dim, num_classes, kernel_init=nnx.initializers.normal(0.3), rngs=rngs)

    def sites(self, img_size=None):
        grid = grid_of(self.img_size if img_size is None else img_size, self.patch_size)
        return tuple(
            Site(layer, f"blocks.{layer}", grid, 0, self.embed_dim, 0, removable=False)
            for layer in range(len(self.blocks))
        )

    def overhead(self, img_size=None):
        return Overhead(linear_flops(self.stem, 1), linear_flops(self.head, 1))

    def run_blocks(self, images, *, taps=None, stop=None, train=False, key=None):
        sites = self.sites(images.shape[1:-1])
        x = self.stem(patchify(images.astype(self.dtype or images.dtype), self.patch_size))
        tokens = all_present(x, 0, jnp.asarray(coordinates(sites[0].grid))[None])
        runner = BlockRunner(tokens, 0, taps=taps, scores=self.guiding_scores(images, key), train=train, key=key)
        for site in sites[:stop]:
            runner.run(self.block(site), site.grid)
        return runner

    def final_norm(self, x):
        return self.norm(x)

    def forward_head(self, tokens: Tokens):
        return self.head(tokens.x.astype(jnp.float32).mean(1)), ()
