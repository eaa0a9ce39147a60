"""Runs the blocks of a network one after the other, and tracks the effects of a plan on the tokens."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError
from jaxprune.nn.block import run_block
from jaxprune.nn.drop_path import require_key
from jaxprune.nn.reducible import Reducible
from jaxprune.nn.restore import joined
from jaxprune.nn.tokens import Attended, Tokens, all_present, coordinates
from jaxprune.ops.resize import resize, resize_3d
from jaxprune.ops.unmerge import unmerge


class HostOutput(NamedTuple):
    """The outputs of a forward pass besides the logits; unused fields are not computed under jit.

    Attributes:
      tokens: the tokens after the last block and the final norm, if any; with sizes and the patches they hold.
      features: the tokens after each block, before the final norm.
      assign: per step of the plan, the row that holds each original patch (-1 = dropped). If rows cannot be removed,
        the row whose work each token of the site shares (-1 = it skips the work).
      kept: per step, the original patch of each row; -1 = a row that is not a single patch.
      steps: per step, the method's whole report (`reduction.StepReport`).
      attended: {layer: reports of its attention}, for the layers and fields in `taps`.
      head_logits: for a distilled model, the logits of the class head and of the distillation head.
      waiting: the rows that the plan dropped, without a prefix, and that maps bring back (`reduction.Plan`, restore);
        None if there are none.
    """

    tokens: Tokens
    features: tuple[Array, ...]
    assign: tuple[Int[Array, "b p"], ...]
    kept: tuple[Int[Array, "b k"], ...]
    steps: tuple[Any, ...]
    attended: dict[int, Attended]
    head_logits: tuple[Array, ...] = ()
    waiting: Tokens | None = None


class BlockRunner:
    """Runs a host's blocks one after the other and tracks the effects of a plan on the tokens.

    Args:
      tokens: the tokens that enter the first block.
      num_prefix_tokens: CLS, distillation and register tokens in front.
      taps: {layer: fields of `Attended` to report}.
      selection: the report of a reducer that dropped patches before these tokens were embedded.
      restore: what becomes of those patches, see `reduction.Plan`.
      scores: (scores of patches, their grid), for steps that read them if rows cannot be removed.
      train, key: see `Host.forward_features`.
      all_patches: whether the tokens are all patches, in raster order.
      remat: see `run_block`.

    Attributes:
      tokens: the tokens after the last block run; a host sets it if it changes tokens between stages.
      block_inputs, block_outputs: the tokens that enter each block, and those that leave it.
      waiting: the rows that were dropped up to each block and wait aside, or None.
      aside: the rows that wait, each with how they come back; another runner may go on with them.
    """

    def __init__(
        self,
        tokens: Tokens,
        num_prefix_tokens: int,
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        selection: Any = None,
        restore: str = "zero",
        scores: tuple[Array, tuple[int, ...]] | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
        all_patches: bool = True,
        remat: bool = False,
    ):
        self._all_patches = all_patches and selection is None
        self.tokens, self._prefix, self._taps = tokens, num_prefix_tokens, taps or {}
        self._train, self._key, self._remat, self._scores = train, key, remat, scores
        self._attended = Attended()
        self._reduced: Any = None  # the report of a reducer that acted after the previous block's attention
        self._origin: Any = tokens.assign
        self._merged = False  # rows of a map that is whole otherwise, until its stage ends
        self.block_inputs: list[Tokens] = []
        self.block_outputs: list[Tokens] = []
        self.waiting: list[Tokens | None] = []
        self.aside: list[tuple[str, Tokens]] = []
        self._assign, self._kept, self._steps = [], [], []
        self._attended_by_layer: dict[int, Attended] = {}
        if selection is not None:
            self.tokens, self._origin = tokens._replace(assign=selection.row_map), selection.kept
            self._assign, self._kept, self._steps = [selection.row_map], [selection.kept], [selection]
            self._set_aside(selection, restore)

    def run(self, block: Reducible, grid: tuple[int, ...] | None = None) -> None:
        """Runs the next block.

        Args:
          grid: token grid at this block, for blocks that depend on it and for steps that read scores.

        Raises:
          UserError: the plan was made for images of another size, or stochastic depth has no key.
        """
        if self._train:
            require_key(block, self._key)
        if grid is not None and block.reduces_where() == "skip":
            self.unmerge(grid)
        _check_count(block, (self.tokens.x.shape[1] - self._prefix) // block.pooled)
        layer = len(self.block_outputs)
        key = None if self._key is None else jax.random.fold_in(self._key, layer)
        taps, attended = frozenset(self._taps.get(layer, ())), self._attended
        if self._reduced is not None and _reads_block_before(block):
            attended = _of_reduced(attended, self._reduced.row_map, self.tokens.x.shape[1], self._prefix)
        if "scores" in block.needs and self._scores is not None and grid is not None:
            attended = attended._replace(scores=on_grid(*self._scores, grid))
        if "entered" in block.needs:
            attended = attended._replace(entered=self.tokens.x)
        if block.fuses:
            for waiting in self._coming_back("fuse"):
                self.tokens = joined(self.tokens, waiting, self._prefix)
        self.block_inputs.append(self.tokens)
        self.tokens, self._attended, report = run_block(
            block,
            self.tokens,
            attended,
            grid=grid if self._all_patches else None,
            taps=taps,
            train=self._train,
            key=key,
            remat=self._remat,
        )
        self.block_outputs.append(self.tokens)
        if taps:
            if any(getattr(self._attended, name) is None for name in taps):
                raise UserError(
                    f"Block {layer} has no attention to report {', '.join(sorted(taps))}: use a block of a "
                    "network with attention."
                )
            self._attended_by_layer[layer] = Attended(**{name: getattr(self._attended, name) for name in taps})
        read_before = report is not None and block.removable and block.reducer.where not in ("before", "anew")
        self._reduced = report if read_before else None
        if report is not None:
            self._account(block, report)
            self._set_aside(report, block.reducer.step.restore)
        self.waiting.append(_together([rows for _, rows in self.aside]))

    def _set_aside(self, report: Any, restore: str) -> None:
        if report.dropped is not None:
            self.aside.append((restore, report.dropped))

    def _coming_back(self, restore: str) -> list[Tokens]:
        """The waiting rows that come back in this way; they wait no longer."""
        coming = [rows for how, rows in self.aside if how == restore]
        self.aside = [(how, rows) for how, rows in self.aside if how != restore]
        return coming

    def whole(self, layer: int) -> Tokens:
        """The tokens that leave a block, and behind them all rows that wait aside at that depth."""
        tokens, waiting = self.block_outputs[layer], self.waiting[layer]
        return tokens if waiting is None else joined(tokens, waiting, self._prefix)

    def unmerge(self, grid: tuple[int, ...]) -> None:
        """Gives every token of the map the row that holds it, if rows have merged; a host calls this after each stage.

        Args:
          grid: grid of the map.
        """
        if self._merged:
            rows = unmerge(self.tokens.x[:, self._prefix :], self.tokens.assign)
            x = jnp.concatenate([self.tokens.x[:, : self._prefix], rows], axis=1)
            self.tokens = self.block_outputs[-1] = all_present(x, self._prefix, jnp.asarray(coordinates(grid))[None])
            self._merged = False

    def _account(self, block: Reducible, report: Any) -> None:
        if not block.removable and block.reducer.merged_in_place:
            self._origin = _follow(self._origin, report.kept) if self._merged else report.kept
            self._merged |= block.reducer.num_tokens() < block.reducer.step.tokens_in
            self._assign.append(self.tokens.assign)
            self._kept.append(self._origin)
        elif block.removable:
            self._all_patches = False
            rows = self.tokens.x.shape[1] - self._prefix
            unknown = jnp.full((self.tokens.x.shape[0], rows), -1, jnp.int32)
            self._origin = unknown if report.kept is None else _follow(self._origin, report.kept)
            self._assign.append(self.tokens.assign)
            self._kept.append(self._origin)
        else:
            self._assign.append(report.row_map)
            new = jnp.full((self.tokens.x.shape[0], block.reducer.num_tokens()), -1, jnp.int32)
            self._kept.append(new if report.kept is None else report.kept)
        self._steps.append(report)

    def output(self) -> HostOutput:
        """Everything reported so far."""
        features = tuple(tokens.x for tokens in self.block_outputs)
        return HostOutput(
            self.tokens,
            features,
            tuple(self._assign),
            tuple(self._kept),
            tuple(self._steps),
            dict(self._attended_by_layer),
            waiting=self.waiting[-1] if self.waiting else None,
        )


def _together(rows: list[Tokens]) -> Tokens | None:
    """Rows that wait, of all steps."""
    return functools.reduce(lambda first, second: joined(first, second, 0), rows) if rows else None


def _reads_block_before(block: Reducible) -> bool:
    return (
        block.reducer is not None and block.removable and block.reducer.where == "before" and bool(block.reducer.needs)
    )


def _of_reduced(attended: Attended, row_map: Int[Array, "b n"], num_tokens: int, prefix: int) -> Attended:
    """The reports of a block's attention for the tokens that its reducer left; merged ones sum the received attention.

    Keys and values of merged tokens are averaged.
    """
    num_patches = num_tokens - prefix

    def add_up(field: Float[Array, "h n *e"], row_map: Int[Array, "r"]) -> Array:
        by_row = jnp.moveaxis(field[:, prefix:], 1, 0)
        # A dropped token is mapped past the end, where it is ignored.
        sums = jax.ops.segment_sum(by_row, jnp.where(row_map < 0, num_patches, row_map), num_patches)
        return jnp.concatenate([field[:, :prefix], jnp.moveaxis(sums, 0, 1)], axis=1)

    def reduced(field: Array | None) -> Array | None:
        if field is None or field.ndim == 3:
            return None if field is None else jax.vmap(add_up)(field, row_map)
        counts = jax.vmap(add_up)(jnp.ones(field.shape[:3], field.dtype), row_map)
        return jax.vmap(add_up)(field, row_map) / jnp.maximum(counts, 1)[..., None]

    return Attended(*map(reduced, attended._replace(scores=None, normed=None, entered=None)))


def _check_count(block: Reducible, arriving: int) -> None:
    if block.reducer is None or block.removable or block.reducer.step.tokens_in == arriving:
        return
    raise UserError(
        f"The plan was applied for {block.reducer.step.tokens_in} tokens at a block that now receives {arriving}: use "
        "reduction.apply(…, img_size=) with the size of these images."
    )


def on_grid(scores: Float[Array, "b p"], grid: tuple[int, ...], target: tuple[int, ...]) -> Float[Array, "b q"]:
    """Resizes scores to another grid, bicubic (trilinear for clips) with aligned corners, as in PaPr."""
    if grid == target:
        return scores
    maps = scores.reshape(scores.shape[0], *grid, 1)
    shape: Any = target
    if len(target) == 3:
        resized = resize_3d(maps, shape, "trilinear", align_corners=True)
    else:
        resized = resize(maps, shape, "bicubic", align_corners=True)
    return resized.reshape(scores.shape[0], int(np.prod(target)))


def _follow(origin: Int[Array, "b n"], kept: Int[Array, "b k"]) -> Int[Array, "b k"]:
    def one(origin, kept):
        return jnp.where(kept < 0, -1, origin[jnp.maximum(kept, 0)])

    return jax.vmap(one)(origin, kept)
