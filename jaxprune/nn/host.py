"""A host: a network that plans can reduce. It defines sites and costs, and runs its blocks in one `BlockRunner`."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import unknown
from jaxprune.nn.block_cost import BlockCost
from jaxprune.nn.images import require_float
from jaxprune.nn.intermediates import OUTPUT_FORMATS, dense_map, intermediate_indices
from jaxprune.nn.optional_key import fold_in
from jaxprune.nn.restore import joined, set_aside
from jaxprune.nn.run_blocks import BlockRunner, HostOutput
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import Tokens, all_present, coordinates, take
from jaxprune.ops.posembed import Resampling

# Parameters in front of the blocks, and those of a block.
_FRONT = re.compile(r"(cls_token|dist_token|reg_token|mask_token|pos_embed|patch_embed|norm_pre)(\.|$)")
_BLOCK = re.compile(r"blocks\.(\d+)\.")


class Overhead(NamedTuple):
    """The cost of a host outside its blocks, in multiply-accumulates per image.

    Attributes:
      embed: per embedded patch.
      head: the classifier.
      between: everything else (a stem, layers between stages).
      pool: per pooled token, if pooling has a cost.
    """

    embed: int
    head: int
    between: int = 0
    pool: int = 0


class Host(nnx.Module):
    """Base class of networks that plans can reduce; it provides plans, scorers, costs and intermediates.

    A subclass sets `num_prefix_tokens`, calls `super().__init__()`, and defines `sites`, `overhead`, `run_blocks` and
    `forward_head`, and `embed` if it prunes its input. Its blocks are `Reducible`.

    Images are (b, height, width, c), clips (b, frames, height, width, c); an `img_size` has the same dimensions.

    Attributes:
      prunes_input: whether patches can be dropped before embedding; otherwise a scorer acts in every block.
      classifier_parts: prefixes of the parameters that depend on the number of classes or the pooling.
      no_decay: patterns of parameters without weight decay, besides vectors and biases.
      beside_pretraining: patterns of parameters that pre-trained networks of other kinds lack: they stay new.
      position_rule: how learned positions are resampled to another grid.
      pruner: the reducer that scores images before the first block (`from_scores`), or None; set by `reduction.apply`.
      plan: the plan of the network, or None; set by `reduction.apply`.
      num_classes: of its classifier; 0 without one.
      preprocessing: how its images are prepared, see `Preprocessing`; set by `models.create`.
      training_images: the images that healed it, as `measures.training_images` knows them again; None if unknown.
    """

    num_classes: int
    preprocessing: Any
    prunes_input: bool = True
    classifier_parts: tuple[str, ...] = ("head.", "head_dist.", "fc_norm.")
    no_decay: tuple[str, ...] = ("pos_embed", "cls_token", "dist_token", "reg_token", "*.rope_freqs")
    beside_pretraining: tuple[str, ...] = ()
    position_rule: Resampling = Resampling()
    training_images: Any = None
    num_prefix_tokens: int

    def __init__(self):
        self.pruner: Any = nnx.data(None)
        self.plan: Any = None

    def sites(self, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks in order, as seen by a plan.

        Args:
          img_size: size of the images; by default the one the network was built for.
        """
        raise NotImplementedError

    def entrance(self, img_size: int | Sequence[int] | None = None) -> Site:
        """The site where a scorer drops tokens before the first block: by default the patches of the first block."""
        return self.sites(img_size)[0]

    def sites_behind(self, num_keep: int, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks if only `num_keep` units of the entrance are kept, in a network that drops rows nowhere else."""
        return self.sites(img_size)

    def overhead(self, img_size: int | Sequence[int] | None = None) -> Overhead:
        """The cost of the network outside its blocks, for images of `img_size`."""
        raise NotImplementedError

    def run_blocks(
        self,
        images: Float[Array, "b *sides c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        stop: int | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> BlockRunner:
        """Embeds images and runs the first `stop` blocks (all by default), without the final norm."""
        raise NotImplementedError

    def embed(self, images: Float[Array, "b *sides c"], ids_keep: Int[Array, "b k"] | None = None) -> Array:
        """Embeds patches (all, or `ids_keep` in that order) and prepends the prefix tokens."""
        raise NotImplementedError

    def embed_kept(
        self, images: Float[Array, "b *sides c"], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b n d"], Int[Array, "b k"] | None, Any]:
        """Embeds the patches that the plan's scorer keeps, for a host that can remove rows.

        Returns:
          (embedded tokens, the ids of their patches (None = all), the scorer's report for `BlockRunner` (None without a
          scorer)).
        """
        if self.pruner is None:
            return self.embed(images), None, None
        sites = self.sites(images.shape[1:-1])
        selection = self.pruner.choose(images, key_of_scorer(key, sites))
        ids_keep = selection.kept if self.pruner.num_tokens() < sites[0].num_patches else None
        if self.restore_of_input != "zero" and ids_keep is not None:
            # Rows that come back have to be embedded.
            position, prefix = jnp.asarray(coordinates(sites[0].grid))[None], self.num_prefix_tokens
            tokens = all_present(self.embed(images), prefix, position)
            waiting = set_aside(tokens, selection.row_map, self.pruner.num_dropped(), prefix)
            x = self.pruner.with_gradient(take(tokens.x, ids_keep, prefix), selection)
            return x, ids_keep, selection._replace(dropped=waiting)
        return self.pruner.with_gradient(self.embed(images, ids_keep), selection), ids_keep, selection

    @property
    def restore_of_input(self) -> str:
        """What becomes of patches that a scorer drops before the first block, see `reduction.Plan`."""
        return "zero" if self.pruner is None else self.pruner.step.restore

    def guiding_scores(
        self, images: Float[Array, "b *sides c"], key: PRNGKeyArray | None = None
    ) -> tuple[Array, tuple[int, ...]] | None:
        """The scores of the plan's scorer and their grid, if rows cannot be removed; None without a scorer."""
        if self.pruner is None:
            return None
        return self.pruner.scores(images, key_of_scorer(key, self.sites(images.shape[1:-1])))

    def final_norm(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        """Applies the norm after the last block, if there is one."""
        return x

    def forward_head(self, tokens: Tokens) -> tuple[Float[Array, "b k"], tuple[Array, ...]]:
        """Maps tokens after the final norm to logits in float32, and to those of each head if there are two."""
        raise NotImplementedError

    def block(self, site: Site) -> Any:
        """The block of a site."""
        return at_path(self, site.path)

    def block_cost(self, site: Site) -> BlockCost:
        """The cost of the block at a site."""
        return self.block(site).cost(site.grid)

    def parameter_layers(self, names: Iterable[str]) -> dict[str, int]:
        """The layer of each parameter for layer-wise decay: 0 for embeddings, i + 1 for block i, then the rest.

        This is BEiT's rule, which MAE and SimMIM follow.
        """
        after = len(self.sites()) + 1

        def layer_of(name: str) -> int:
            block = _BLOCK.match(name)
            return 0 if _FRONT.match(name) else int(block[1]) + 1 if block else after

        return {name: layer_of(name) for name in names}

    def intermediate_layers(self) -> tuple[int, ...]:
        """The blocks whose outputs are the network's intermediates: all blocks, or the last of each stage."""
        return tuple(range(len(self.sites())))

    def step_grids(self, img_size: int | Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
        """The grid of each step of the plan: the patches of the image, or of its block if rows cannot be removed."""
        sites = self.sites(img_size)
        front = (self.entrance(img_size).grid,) if self.pruner is not None and self.prunes_input else ()
        reducing = (site for site in sites if self.block(site).reducer is not None)
        return (*front, *(sites[0].grid if site.removable else site.grid for site in reducing))

    def forward_features(
        self,
        images: Float[Array, "b *sides c"],
        *,
        taps: Mapping[int, frozenset[str]] | None = None,
        train: bool = False,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Tokens, HostOutput]:
        """Computes the tokens after the last block and the final norm.

        Args:
          taps: {layer: fields of `Attended`} to report in `HostOutput.attended`, for any layers in one pass.
          train: turns DropPath on and reducers to their training form; then `key` is needed.

        Raises:
          UserError: the images are of an integer dtype.
        """
        require_float(images)
        output = self.run_blocks(images, taps=taps, train=train, key=key).output()
        tokens = output.tokens._replace(x=self.final_norm(output.tokens.x))
        waiting = output.waiting
        if waiting is not None:
            waiting = waiting._replace(x=self.final_norm(waiting.x))
        return tokens, output._replace(tokens=tokens, waiting=waiting)

    def __call__(
        self, images: Float[Array, "b *sides c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b classes"], HostOutput]:
        """Classifies normalised images.

        Args:
          train: turns DropPath on and reducers to their training form; then `key` is needed.

        Raises:
          UserError: the images are of an integer dtype.
        """
        tokens, output = self.forward_features(images, train=train, key=key)
        logits, head_logits = self.forward_head(tokens)
        return logits, output._replace(head_logits=head_logits)

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
        """Returns features of several depths, with timm's arguments and semantics.

        Under a plan the maps are made dense: every patch gets the row that holds it, a dropped patch zeros (see
        `aux.assign` of `__call__`), or the value with which it left if the plan says so (`reduction.Plan`, restore).

        Args:
          indices: which intermediates (blocks of a ViT, stages of a hierarchical network): a list, negative ones from
            the end; an int n means the last n; None means all.
          return_prefix_tokens: return pairs (map, prefix tokens), if there are prefix tokens.
          norm: apply the final norm to each; in a hierarchical network only to the last stage.
          stop_early: do not run blocks after the last requested one.
          output_fmt: "NHWC" (b, *grid, d), "NCHW" (b, d, *grid) or "NLC" (b, patches, d).
          intermediates_only: do not return the final tokens.

        Returns:
          (final tokens after the final norm (b, n, d), list of intermediates), or the list alone.

        Raises:
          UserError: there is no such intermediate or format, or the images are of an integer dtype.
        """
        require_float(images)
        if output_fmt not in OUTPUT_FORMATS:
            raise unknown("output_fmt", output_fmt, OUTPUT_FORMATS)
        ends = self.intermediate_layers()
        layers = [ends[i] for i in intermediate_indices(indices, len(ends))]
        runner = self.run_blocks(images, stop=max(layers) + 1 if stop_early else None, train=train, key=key)
        sites = self.sites(images.shape[1:-1])
        first_reduced = self._first_reduction(sites)
        intermediates = []
        for layer in layers:
            tokens, site = runner.whole(layer), sites[layer]
            # Earlier stages have another width and grid, and no norm.
            of_last_stage = (site.grid, site.embed_dim) == (sites[-1].grid, sites[-1].embed_dim)
            x = self.final_norm(tokens.x) if norm and of_last_stage else tokens.x
            dense = dense_map(x, tokens.assign if layer >= first_reduced else None, site, output_fmt)
            prefix = x[:, : site.num_prefix_tokens]
            intermediates.append((dense, prefix) if return_prefix_tokens and site.num_prefix_tokens else dense)
        return intermediates if intermediates_only else (self.final_norm(runner.tokens.x), intermediates)

    def patch_maps(
        self, tokens: Tokens, img_size: int | Sequence[int] | None = None, waiting: Tokens | None = None
    ) -> Float[Array, "b *grid d"]:
        """The tokens of `forward_features` as maps, made dense as in `forward_intermediates`.

        Args:
          img_size: size of the images, for a network that takes any.
          waiting: `HostOutput.waiting`, with which dropped patches come back.
        """
        sites = self.sites(img_size)
        if waiting is not None:
            tokens = joined(tokens, waiting, sites[-1].num_prefix_tokens)
        reduced = self._first_reduction(sites) < len(sites)
        return dense_map(tokens.x, tokens.assign if reduced else None, sites[-1], "NHWC")

    def _first_reduction(self, sites: Sequence[Site]) -> int:
        """The first layer after which rows are no longer all patches; past the last layer if there is none."""
        if self.pruner is not None and self.prunes_input:
            return 0
        reducing = (site.layer for site in sites if site.removable and self.block(site).reducer is not None)
        return min(reducing, default=len(sites))


def at_path(module: Any, path: str) -> Any:
    """The part of a module at a dotted path such as "blocks.3"."""
    step = lambda part, name: part[int(name)] if name.isdigit() else getattr(part, name)
    return functools.reduce(step, path.split("."), module)


def key_of_scorer(key: PRNGKeyArray | None, sites: Sequence[Site]) -> PRNGKeyArray | None:
    """The scorer's key: blocks fold in their layer, the scorer the next number."""
    return fold_in(key, len(sites))
