"""A host: a network that plans reduce. It says where (`Site`), at what cost, and runs its blocks by one `Walk`."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.nn.block import run_block
from jaxprune.nn.flops import BlockCost
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.tokens import Attended, Tokens
from jaxprune.ops.resize import resize, resize_3d
from jaxprune.ops.tokens import unmerge

OUTPUT_FORMATS = ("NHWC", "NCHW", "NLC")


class Site(NamedTuple):
    """One block of a host, as a plan sees it; all Python values.

    Attributes:
      layer: its number, from 0.
      path: of the block in the host, such as "blocks.3" or "stages.1.blocks.0".
      grid: tokens at this place: (rows, columns), or (frames, rows, columns).
      num_prefix_tokens: CLS, distillation and register tokens in front.
      embed_dim: width of a token.
      num_heads: attention heads; 0 = there is no attention to read.
      leaves: whether rows can leave the sequence here. Otherwise the map stays whole, and rows only skip work.
    """

    layer: int
    path: str
    grid: tuple[int, ...]
    num_prefix_tokens: int
    embed_dim: int
    num_heads: int
    leaves: bool = True

    @property
    def num_patches(self) -> int:
        """Tokens of the grid."""
        return math.prod(self.grid)


class Overhead(NamedTuple):
    """What a host costs beside its blocks, in multiply-accumulates of an image.

    Attributes:
      embed: each patch that is embedded.
      head: the classifier.
      between: whatever else there is (a stem, layers between stages).
    """

    embed: int
    head: int
    between: int = 0


class Forward(NamedTuple):
    """What a forward pass reports besides its logits; what nobody reads is not computed under jit.

    Attributes:
      tokens: behind the last block and, where there is one, the final norm; with sizes and the patches they hold.
      features: the tokens behind each block, before the final norm.
      assign: per step of the plan, for each original patch the row that holds it (-1 = dropped). Where rows cannot
        leave, for each token of the site the row whose work it shares (-1 = it skips the work).
      kept: per step, for each row the original patch it is; -1 = a row that is no single patch.
      steps: per step, the method's whole report (`reduction.StepReport`).
      attended: {layer: what its attention saw}, for the layers and fields that were asked for by `taps`.
      head_logits: of a distilled model, the logits of the class head and of the distillation head.
    """

    tokens: Tokens
    features: tuple[Array, ...]
    assign: tuple[Int[Array, "b p"], ...]
    kept: tuple[Int[Array, "b k"], ...]
    steps: tuple[Any, ...]
    attended: dict[int, Attended]
    head_logits: tuple[Array, ...] = ()


class Walk:
    """Runs a host's blocks one after the other and keeps the account of what a plan does to the tokens.

    Args:
      tokens: that enter the first block.
      num_prefix_tokens: CLS, distillation and register tokens in front.
      taps: {layer: fields of `Attended` to report}.
      chosen: the report of a reducer that left out patches before these tokens were embedded.
      scores: (scores of patches, their grid), for steps that read them where rows cannot leave.
      train, key: see `Host.forward_features`.
      remat: see `run_block`.

    Attributes:
      tokens: behind the last block that was run; a host sets it where it changes them itself, between stages.
    """

    def __init__(
        self,
        tokens: Tokens,
        num_prefix_tokens: int,
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        chosen: Any = None,
        scores: tuple[Array, tuple[int, ...]] | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
        remat: bool = False,
    ):
        self.tokens, self._prefix, self._taps = tokens, num_prefix_tokens, taps or {}
        self._train, self._key, self._remat, self._scores = train, key, remat, scores
        self._attended = Attended()
        self._reduced: Any = None  # the report of a reducer that acted behind the attention of the block before
        self._origin: Any = tokens.assign
        self.entered: list[Tokens] = []  # the tokens that enter each block
        self.left: list[Tokens] = []  # and those that leave it
        self._assign, self._kept, self._steps = [], [], []
        self._seen: dict[int, Attended] = {}
        if chosen is not None:
            self.tokens, self._origin = tokens._replace(assign=chosen.row_map), chosen.kept
            self._assign, self._kept, self._steps = [chosen.row_map], [chosen.kept], [chosen]

    def run(self, block: Reducible, grid: tuple[int, ...] | None = None) -> None:
        """Runs the next block.

        Args:
          grid: of the tokens at this place, for blocks that depend on it and for steps that read scores.

        Raises:
          UserError: the plan was made for images of another size.
        """
        _check_rows(block, self.tokens.x.shape[1] - self._prefix)
        layer = len(self.left)
        key = None if self._key is None else jax.random.fold_in(self._key, layer)
        taps, attended = frozenset(self._taps.get(layer, ())), self._attended
        if self._reduced is not None and _reads_block_before(block):
            attended = _of_rows_left(attended, self._reduced.row_map, self.tokens.x.shape[1], self._prefix)
        if "scores" in block.needs and self._scores is not None and grid is not None:
            attended = attended._replace(scores=_on_grid(*self._scores, grid))
        self.entered.append(self.tokens)
        self.tokens, self._attended, report = run_block(
            block, self.tokens, attended, grid=grid, taps=taps, train=self._train, key=key, remat=self._remat
        )
        self.left.append(self.tokens)
        if taps:
            if any(getattr(self._attended, name) is None for name in taps):
                raise UserError(
                    f"Block {layer} has no attention that could report {', '.join(sorted(taps))}: read a block of a "
                    "network with attention."
                )
            self._seen[layer] = Attended(**{name: getattr(self._attended, name) for name in taps})
        self._reduced = report if report is not None and block.leaves and block.reducer.where != "before" else None
        if report is not None:
            self._account(block, report)

    def _account(self, block: Reducible, report: Any) -> None:
        if block.leaves:
            rows = self.tokens.x.shape[1] - self._prefix
            unknown = jnp.full((self.tokens.x.shape[0], rows), -1, jnp.int32)
            self._origin = unknown if report.kept is None else _follow(self._origin, report.kept)
            self._assign.append(self.tokens.assign)
            self._kept.append(self._origin)
        else:
            self._assign.append(report.row_map)
            new = jnp.full((self.tokens.x.shape[0], block.reducer.num_rows()), -1, jnp.int32)
            self._kept.append(new if report.kept is None else report.kept)
        self._steps.append(report)

    def forward(self) -> Forward:
        """Everything there is to report so far."""
        features = tuple(tokens.x for tokens in self.left)
        return Forward(
            self.tokens, features, tuple(self._assign), tuple(self._kept), tuple(self._steps), dict(self._seen)
        )


class Host(nnx.Module):
    """A network that plans reduce: subclass it, and plans, scorers, costs and intermediates work.

    A subclass has `num_prefix_tokens`, calls `super().__init__()`, and defines `sites`, `overhead`, `walk` and
    `forward_head`, and `embed` where it prunes its input. Its blocks are `Reducible`.

    Images are (b, height, width, c), clips (b, frames, height, width, c); an `img_size` has the same sides.

    Attributes:
      prunes_input: whether patches can be left out before any is embedded; otherwise a scorer guides every block.
      pruner: the reducer that scores images before the first block (`from_scores`), or None; set by `reduction.apply`.
      plan: the plan that it follows, or None; set by `reduction.apply`.
    """

    prunes_input: bool = True
    num_prefix_tokens: int

    def __init__(self):
        self.pruner: Any = nnx.data(None)
        self.plan: Any = None

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks in their order, as a plan sees them.

        Args:
          img_size: sides of the images; by default those the network was built for.
        """
        raise NotImplementedError

    def overhead(self, img_size: int | Sequence[int] | None = None) -> Overhead:
        """What the network costs beside its blocks, on images of `img_size`."""
        raise NotImplementedError

    def walk(
        self,
        images: Float[Array, "b *sides c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> Walk:
        """Embeds images and runs the first `stop` blocks (all by default), without the final norm."""
        raise NotImplementedError

    def embed(self, images: Float[Array, "b *sides c"], ids_keep: Int[Array, "b k"] | None = None) -> Array:
        """Embeds patches (all, or `ids_keep` in that order) and puts the prefix tokens in front."""
        raise NotImplementedError

    def embed_chosen(
        self, images: Float[Array, "b *sides c"], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b n d"], Int[Array, "b k"] | None, Any]:
        """Embeds the patches that the plan's scorer keeps, for a `walk` whose rows can leave.

        Returns:
          (embedded tokens, the patches they are (None = all), the scorer's report for `Walk`; None without a scorer).
        """
        if self.pruner is None:
            return self.embed(images), None, None
        sites = self.sites(images.shape[1:-1])
        chosen = self.pruner.choose(images, _key_of_scorer(key, sites))
        ids_keep = chosen.kept if self.pruner.num_rows() < sites[0].num_patches else None
        return self.pruner.with_gradient(self.embed(images, ids_keep), chosen), ids_keep, chosen

    def guiding_scores(
        self, images: Float[Array, "b *sides c"], key: PRNGKeyArray | None = None
    ) -> tuple[Array, tuple[int, ...]] | None:
        """What the plan's scorer makes of images and its grid, for a `Walk` whose rows cannot leave; None without."""
        if self.pruner is None:
            return None
        return self.pruner.scores(images, _key_of_scorer(key, self.sites(images.shape[1:-1])))

    def final_norm(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        """The norm behind the last block; the tokens as they are where there is none."""
        return x

    def forward_head(self, tokens: Tokens) -> tuple[Float[Array, "b k"], tuple[Array, ...]]:
        """Tokens behind the final norm to logits in float32, and to those of each head where there are two."""
        raise NotImplementedError

    def block(self, site: Site) -> Any:
        """The block that a site stands for."""
        return at_path(self, site.path)

    def block_cost(self, site: Site) -> BlockCost:
        """What the block at a site costs."""
        return self.block(site).cost(site.grid)

    def intermediate_layers(self) -> tuple[int, ...]:
        """The blocks whose outputs are the network's intermediates: all of them, or the last of each stage."""
        return tuple(range(len(self.sites())))

    def forward_features(
        self,
        images: Float[Array, "b *sides c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Tokens, Forward]:
        """Images to the tokens behind the last block and the final norm.

        Args:
          taps: {layer: fields of `Attended`} to report in `Forward.attended`, of any set of layers in one pass.
          train: turns DropPath on and reducers to their training form; then `key` is needed.
        """
        forward = self.walk(images, taps=taps, train=train, key=key).forward()
        tokens = forward.tokens._replace(x=self.final_norm(forward.tokens.x))
        return tokens, forward._replace(tokens=tokens)

    def __call__(
        self, images: Float[Array, "b *sides c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b classes"], Forward]:
        """Classifies normalised images.

        Args:
          train: turns DropPath on and reducers to their training form; then `key` is needed.
        """
        tokens, forward = self.forward_features(images, train=train, key=key)
        logits, head_logits = self.forward_head(tokens)
        return logits, forward._replace(head_logits=head_logits)

    def forward_intermediates(
        self,
        images: Float[Array, "b *sides c"],
        indices: int | np.integer | Sequence[int] | None = None,
        *,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NHWC",
        intermediates_only: bool = False,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> Any:
        """What several depths of the network make of images, with timm's arguments and meaning.

        Under a plan the maps are dense again: every patch gets the row that holds it, a dropped patch zeros;
        `__call__`'s `aux.assign` says which.

        Args:
          indices: which intermediates (blocks of a ViT, stages of a hierarchical network): a list, negative ones from
            the end; an int is the last so many; None is all.
          return_prefix_tokens: makes each intermediate a pair (map, prefix tokens) where there are prefix tokens.
          norm: applies the final norm to each; of a hierarchical network to the last stage, whose norm it is.
          stop_early: runs no block behind the last one asked for.
          output_fmt: "NHWC" (b, *grid, d), "NCHW" (b, d, *grid) or "NLC" (b, patches, d).
          intermediates_only: leaves out the final tokens.

        Returns:
          (final tokens behind the final norm (b, n, d), list of intermediates), or the list alone.

        Raises:
          UserError: there is no such intermediate or format.
        """
        if output_fmt not in OUTPUT_FORMATS:
            raise unknown("output_fmt", output_fmt, OUTPUT_FORMATS)
        ends = self.intermediate_layers()
        chosen = [ends[i] for i in intermediate_indices(indices, len(ends))]
        walk = self.walk(images, stop=max(chosen) + 1 if stop_early else None, train=train, key=key)
        size = images.shape[1:-1]
        sites = self.sites(size)
        thinned = _first_reduction(self, sites)
        found = []
        for layer in chosen:
            tokens, site = walk.left[layer], sites[layer]
            # Earlier stages have another width and grid, and no norm of their own.
            x = self.final_norm(tokens.x) if norm and _alike(site, sites[-1]) else tokens.x
            prefix, rows = x[:, : site.num_prefix_tokens], x[:, site.num_prefix_tokens :]
            patches = unmerge(rows, tokens.assign) if layer >= thinned else rows
            shaped = _formatted(patches, site.grid, output_fmt)
            found.append((shaped, prefix) if return_prefix_tokens and site.num_prefix_tokens else shaped)
        return found if intermediates_only else (self.final_norm(walk.tokens.x), found)


def at_path(module: Any, path: str) -> Any:
    """The part of a module at a dotted path such as "blocks.3"."""
    step = lambda part, name: part[int(name)] if name.isdigit() else getattr(part, name)
    return functools.reduce(step, path.split("."), module)


def intermediate_indices(indices: int | np.integer | Sequence[int] | None, count: int) -> list[int]:
    """The numbers of `count` intermediates that timm's `indices` stand for, in the order of the network.

    Raises:
      UserError: there are not so many.
    """
    if indices is None:
        return list(range(count))
    if isinstance(indices, (int, np.integer)):
        wanted = list(range(count - indices, count)) if 0 < indices <= count else []
    else:
        wanted = [int(i) for i in indices]
    if not wanted or not all(-count <= index < count for index in wanted):
        raise UserError(
            f"indices={indices} does not name intermediates of this network, which has {count}: use numbers from "
            f"{-count} to {count - 1}, or an int from 1 to {count} for the last so many."
        )
    return sorted({index % count for index in wanted})


def _first_reduction(host: Host, sites: Sequence[Site]) -> int:
    """The first layer behind which a row is not a patch; past the last where there is none."""
    if host.pruner is not None and host.prunes_input:
        return 0
    reducing = (s.layer for s in sites if s.leaves and host.block(s).reducer is not None)
    return min(reducing, default=len(sites))


def _reads_block_before(block: Reducible) -> bool:
    return block.reducer is not None and block.leaves and block.reducer.where == "before" and bool(block.reducer.needs)


def _of_rows_left(attended: Attended, row_map: Int[Array, "b n"], num_tokens: int, prefix: int) -> Attended:
    """What the attention of a block saw, by the rows that its reducer left: merged rows add up what they received.

    Keys and values of merged rows are averaged.
    """
    num_rows = num_tokens - prefix

    def add_up(field: Float[Array, "h n *e"], row_map: Int[Array, "r"]) -> Array:
        by_row = jnp.moveaxis(field[:, prefix:], 1, 0)
        # A dropped row goes past the end, where it does not count.
        sums = jax.ops.segment_sum(by_row, jnp.where(row_map < 0, num_rows, row_map), num_rows)
        return jnp.concatenate([field[:, :prefix], jnp.moveaxis(sums, 0, 1)], axis=1)

    def of_rows(field: Array | None) -> Array | None:
        if field is None or field.ndim == 3:
            return None if field is None else jax.vmap(add_up)(field, row_map)
        counts = jax.vmap(add_up)(jnp.ones(field.shape[:3], field.dtype), row_map)
        return jax.vmap(add_up)(field, row_map) / jnp.maximum(counts, 1)[..., None]

    return Attended(*map(of_rows, attended._replace(scores=None)))


def _alike(one: Site, other: Site) -> bool:
    return (one.grid, one.embed_dim) == (other.grid, other.embed_dim)


def _key_of_scorer(key: PRNGKeyArray | None, sites: Sequence[Site]) -> PRNGKeyArray | None:
    """Blocks take the keys of their numbers; the scorer takes the next."""
    return None if key is None else jax.random.fold_in(key, len(sites))


def _check_rows(block: Reducible, arriving: int) -> None:
    if block.reducer is None or block.leaves or block.reducer.step.rows_in == arriving:
        return
    raise UserError(
        f"The plan was applied for {block.reducer.step.rows_in} tokens at a block where {arriving} arrive: use "
        "reduction.apply(…, img_size=) with the size of these images."
    )


def _formatted(patches: Float[Array, "b p d"], grid: tuple[int, ...], output_fmt: str) -> Array:
    if output_fmt == "NLC":
        return patches
    maps = patches.reshape(patches.shape[0], *grid, patches.shape[2])
    return maps if output_fmt == "NHWC" else jnp.moveaxis(maps, -1, 1)


def _on_grid(scores: Float[Array, "b p"], grid: tuple[int, ...], wanted: tuple[int, ...]) -> Float[Array, "b q"]:
    """Scores of the patches of one grid, bicubic (of a clip trilinear) on another."""
    if grid == wanted:
        return scores
    maps = scores.reshape(scores.shape[0], *grid, 1)
    shape: Any = wanted
    resized = resize_3d(maps, shape, "trilinear") if len(wanted) == 3 else resize(maps, shape, "bicubic")
    return resized.reshape(scores.shape[0], int(np.prod(wanted)))


def _follow(origin: Int[Array, "b n"], kept: Int[Array, "b k"]) -> Int[Array, "b k"]:
    def one(origin, kept):
        return jnp.where(kept < 0, -1, origin[jnp.maximum(kept, 0)])

    return jax.vmap(one)(origin, kept)
