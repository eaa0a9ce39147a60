"""A hierarchical transformer in small, after Swin: attention inside windows, so rows stay and skip the MLP only."""

import math

import jax.numpy as jnp
from flax import nnx

from jaxprune.nn import Attended, Block, BlockRunner, Host, LayerNorm, Linear, Overhead, PatchEmbed, Site, Tokens
from jaxprune.nn.attention import Heads, self_attention
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.tokens import all_present, coordinates


def windows(x, grid, window):
    """Rows of a map in raster order (b, …, n, c), window by window: (b · windows, …, rows of a window, c)."""
    b, *between, _, c = x.shape
    down, across = grid[0] // window, grid[1] // window
    cells = x.reshape(b, -1, down, window, across, window, c).transpose(0, 2, 4, 1, 3, 5, 6)
    return cells.reshape(b * down * across, *between, window * window, c)


def whole(x, grid, window):
    """The inverse of `windows`."""
    _, *between, _, c = x.shape
    down, across = grid[0] // window, grid[1] // window
    cells = x.reshape(-1, down, across, math.prod(between), window, window, c).transpose(0, 3, 1, 4, 2, 5, 6)
    return cells.reshape(cells.shape[0], *between, grid[0] * grid[1], c)


class WindowBlock(Block):
    """A block whose tokens attend inside their window; what it reports is laid out on the whole map."""

    def __init__(self, dim, num_heads, *, window, **options):
        super().__init__(dim, num_heads, num_prefix_tokens=0, removable=False, **options)
        self.window = window

    def attend(self, heads, *, needs=frozenset(), grid=None, **options):
        inside = Heads(*(windows(part, grid, self.window) for part in heads))
        gathered, seen = self_attention(inside, needs=needs, num_prefix_tokens=0)
        fields = {}
        for name in needs:
            field = getattr(seen, name)
            per_row = field.ndim == 3  # one number a row: attention, not keys and values
            laid_out = whole(field[..., None] if per_row else field, grid, self.window)
            fields[name] = laid_out[..., 0] if per_row else laid_out
        return whole(gathered, grid, self.window), Attended(**fields)

    def cost(self, grid=None):
        return super().cost(grid)._replace(keys=self.window**2)


class Windowed(Host):
    """Stages of blocks; between two, four neighbours merge to one token of twice the width."""

    num_prefix_tokens = 0
    prunes_input = False

    def __init__(
        self,
        *,
        img_size=32,
        patch_size=4,
        embed_dim=16,
        depths=(2, 1),
        window=4,
        head_dim=8,
        num_classes=3,
        dtype=None,
        rngs,
    ):
        super().__init__()
        common = {"kernel_init": nnx.initializers.normal(0.3), "dtype": dtype, "rngs": rngs}
        self.patch_embed = PatchEmbed(img_size, patch_size, 3, embed_dim, **common)
        rows, columns = self.patch_embed.grid
        self.grids = tuple((rows >> stage, columns >> stage) for stage in range(len(depths)))
        self.widths = tuple(embed_dim << stage for stage in range(len(depths)))
        self.dtype, self.depths, self.head_dim = dtype, depths, head_dim
        self.stages = nnx.List(
            nnx.List(WindowBlock(width, width // head_dim, window=window, **common) for _ in range(depth))
            for depth, width in zip(depths, self.widths, strict=True)
        )
        self.merges = nnx.List(Linear(4 * width, 2 * width, **common) for width in self.widths[:-1])
        self.norm = LayerNorm(self.widths[-1])
        self.head = Linear(self.widths[-1], num_classes, rngs=rngs, kernel_init=nnx.initializers.normal(0.3))

    def sites(self, img_size=None):
        places = [(stage, index) for stage, depth in enumerate(self.depths) for index in range(depth)]
        return tuple(
            Site(
                layer,
                f"stages.{s}.{i}",
                self.grids[s],
                0,
                self.widths[s],
                self.widths[s] // self.head_dim,
                removable=False,
            )
            for layer, (s, i) in enumerate(places)
        )

    def overhead(self, img_size=None):
        merging = (linear_flops(m, math.prod(g)) for m, g in zip(self.merges, self.grids[1:], strict=True))
        return Overhead(linear_flops(self.patch_embed.proj, 1), linear_flops(self.head, 1), sum(merging))

    def intermediate_layers(self):
        return tuple(sum(self.depths[: stage + 1]) - 1 for stage in range(len(self.depths)))

    def run_blocks(self, images, *, taps=None, stop=None, train=False, key=None):
        x = self.patch_embed(images.astype(self.dtype or images.dtype))
        scores = self.guiding_scores(images, key)
        runner = BlockRunner(on_map(x, self.grids[0]), 0, taps=taps, scores=scores, train=train, key=key)
        ends = self.intermediate_layers()
        for site in self.sites()[:stop]:
            if site.layer - 1 in ends:
                stage = ends.index(site.layer - 1)
                merged = self.merges[stage](neighbours(runner.tokens.x, self.grids[stage]))
                runner.tokens = on_map(merged, site.grid)
            runner.run(self.block(site), site.grid)
        return runner

    def final_norm(self, x):
        return self.norm(x)

    def forward_head(self, tokens: Tokens):
        return self.head(tokens.x.astype(jnp.float32).mean(1)), ()


def on_map(x, grid):
    """Tokens of a whole map without prefix."""
    return all_present(x, 0, jnp.asarray(coordinates(grid))[None])


def neighbours(x, grid):
    """Four neighbours side by side, (b, n, d) to (b, n / 4, 4 d)."""
    b, _, d = x.shape
    cells = x.reshape(b, grid[0] // 2, 2, grid[1] // 2, 2, d).transpose(0, 1, 3, 2, 4, 5)
    return cells.reshape(b, -1, 4 * d)
