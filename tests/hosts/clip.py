"""A video transformer in small: tubelets, one CLS token, plain blocks, and rows that leave."""

import math

import jax.numpy as jnp
from flax import nnx

from jaxprune.nn import Block, BlockRunner, Host, LayerNorm, Linear, Overhead, Site, Tokens
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.tokens import all_present, coordinates
from jaxprune.ops.patches import gather_tokens


def tubelets(clips, size):
    """Cuts clips (b, frames, height, width, c) into rows of pixels (b, tubelets, values), in raster order."""
    b, *sides, c = clips.shape
    (t, h, w), (dt, dh, dw) = grid_of(sides, size), size
    cells = clips.reshape(b, t, dt, h, dh, w, dw, c).transpose(0, 1, 3, 5, 2, 4, 6, 7)
    return cells.reshape(b, t * h * w, -1)


def grid_of(sides, size):
    return tuple(side // step for side, step in zip(sides, size, strict=True))


class Clip(Host):
    """A ViT on tubelets of a clip (b, frames, height, width, 3)."""

    num_prefix_tokens = 1

    def __init__(
        self,
        *,
        img_size=(4, 16, 16),
        patch_size=(2, 4, 4),
        embed_dim=16,
        depth=3,
        num_heads=2,
        num_classes=3,
        dtype=None,
        rngs,
    ):
        super().__init__()
        common = {"kernel_init": nnx.initializers.normal(0.3), "dtype": dtype, "rngs": rngs}
        self.img_size, self.patch_size, self.dtype = img_size, patch_size, dtype
        self.embed_dim, self.num_heads, self.num_classes = embed_dim, num_heads, num_classes
        self.proj = Linear(3 * math.prod(patch_size), embed_dim, **common)
        tokens = 1 + math.prod(grid_of(img_size, patch_size))
        self.cls_token = nnx.Param(jnp.zeros((1, 1, embed_dim)))
        self.pos_embed = nnx.Param(nnx.initializers.normal(0.3)(rngs.params(), (1, tokens, embed_dim)))
        self.blocks = nnx.List(Block(embed_dim, num_heads, **common) for _ in range(depth))
        self.norm = LayerNorm(embed_dim)
        self.head = Linear(embed_dim, num_classes, kernel_init=nnx.initializers.normal(0.3), rngs=rngs)

    def sites(self, img_size=None):
        grid = grid_of(self.img_size if img_size is None else img_size, self.patch_size)
        return tuple(
            Site(layer, f"blocks.{layer}", grid, 1, self.embed_dim, self.num_heads) for layer in range(len(self.blocks))
        )

    def overhead(self, img_size=None):
        return Overhead(linear_flops(self.proj, 1), linear_flops(self.head, 1))

    def embed(self, images, ids_keep=None):
        positions = self.pos_embed[...].astype(self.dtype or images.dtype)
        patches = tubelets(images.astype(positions.dtype), self.patch_size)
        if ids_keep is None:
            x = self.proj(patches) + positions[:, 1:]
        else:
            x = self.proj(gather_tokens(patches, ids_keep)) + positions[0, 1:][ids_keep]
        cls = self.cls_token[...].astype(x.dtype) + positions[:, :1]
        return jnp.concatenate([jnp.broadcast_to(cls, (x.shape[0], *cls.shape[1:])), x], axis=1)

    def run_blocks(self, images, *, taps=None, stop=None, train=False, key=None):
        sites = self.sites()
        x, ids_keep, selection = self.embed_kept(images, key)
        position = jnp.asarray(coordinates(sites[0].grid))
        tokens = all_present(x, 1, position[None] if ids_keep is None else position[ids_keep])
        runner = BlockRunner(tokens, 1, taps=taps, selection=selection, train=train, key=key)
        for site in sites[:stop]:
            runner.run(self.block(site), site.grid)
        return runner

    def final_norm(self, x):
        return self.norm(x)

    def forward_head(self, tokens: Tokens):
        return self.head(tokens.x[:, 0].astype(jnp.float32)), ()
