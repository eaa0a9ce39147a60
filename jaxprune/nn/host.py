"""A host: a network that plans reduce. It says where (`Site`) and at what cost, and runs its blocks by one `Walk`."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import unknown
from jaxprune.nn.flops import BlockCost
from jaxprune.nn.images import require_float
from jaxprune.nn.intermediates import OUTPUT_FORMATS, dense_map, intermediate_indices
from jaxprune.nn.site import Site
from jaxprune.nn.tokens import Tokens
from jaxprune.nn.walk import Forward, Walk

# Parameters in front of the blocks, and those of a block.
_FRONT = re.compile(r"(cls_token|dist_token|reg_token|mask_token|pos_embed|patch_embed|norm_pre)(\.|$)")
_BLOCK = re.compile(r"blocks\.(\d+)\.")


class Overhead(NamedTuple):
    """What a host costs beside its blocks, in multiply-accumulates of an image.

    Attributes:
      embed: each patch that is embedded.
      head: the classifier.
      between: whatever else there is (a stem, layers between stages).
      pool: each token that is pooled, where pooling costs something.
    """

    embed: int
    head: int
    between: int = 0
    pool: int = 0


class Host(nnx.Module):
    """A network that plans reduce: subclass it, and plans, scorers, costs and intermediates work.

    A subclass has `num_prefix_tokens`, calls `super().__init__()`, and defines `sites`, `overhead`, `walk` and
    `forward_head`, and `embed` where it prunes its input. Its blocks are `Reducible`.

    Images are (b, height, width, c), clips (b, frames, height, width, c); an `img_size` has the same sides.

    Attributes:
      prunes_input: whether patches can be left out before any is embedded; otherwise a scorer guides every block.
      classifier_parts: how the names of parameters begin that a classifier of other classes, or pooled otherwise, has
        to itself.
      no_decay: patterns of parameters that weight decay leaves out besides vectors and biases.
      pruner: the reducer that scores images before the first block (`from_scores`), or None; set by `reduction.apply`.
      plan: the plan that it follows, or None; set by `reduction.apply`.
    """

    prunes_input: bool = True
    classifier_parts: tuple[str, ...] = ("head.", "head_dist.", "fc_norm.")
    no_decay: tuple[str, ...] = ("pos_embed", "cls_token", "dist_token", "reg_token")
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

    def entrance(self, img_size: int | Sequence[int] | None = None) -> Site:
        """What a scorer decides about before the first block: by default all patches, the tokens of the first block."""
        return self.sites(img_size)[0]

    def sites_behind(self, num_keep: int, img_size: int | Sequence[int] | None = None) -> tuple[Site, ...]:
        """The blocks where only `num_keep` places of the entrance enter, of a network whose rows leave nowhere else."""
        return self.sites(img_size)

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
        chosen = self.pruner.choose(images, key_of_scorer(key, sites))
        ids_keep = chosen.kept if self.pruner.num_rows() < sites[0].num_patches else None
        return self.pruner.with_gradient(self.embed(images, ids_keep), chosen), ids_keep, chosen

    def guiding_scores(
        self, images: Float[Array, "b *sides c"], key: PRNGKeyArray | None = None
    ) -> tuple[Array, tuple[int, ...]] | None:
        """What the plan's scorer makes of images and its grid, for a `Walk` whose rows cannot leave; None without."""
        if self.pruner is None:
            return None
        return self.pruner.scores(images, key_of_scorer(key, self.sites(images.shape[1:-1])))

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

    def parameter_layers(self, names: Iterable[str]) -> dict[str, int]:
        """The layer of each parameter for layer-wise decay: 0 embeds, block i is i + 1, and then comes the rest.

        It is BEiT's rule, which MAE and SimMIM follow.
        """
        after = len(self.sites()) + 1

        def layer_of(name: str) -> int:
            block = _BLOCK.match(name)
            return 0 if _FRONT.match(name) else int(block[1]) + 1 if block else after

        return {name: layer_of(name) for name in names}

    def intermediate_layers(self) -> tuple[int, ...]:
        """The blocks whose outputs are the network's intermediates: all of them, or the last of each stage."""
        return tuple(range(len(self.sites())))

    def step_grids(self, img_size: int | Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
        """What each step of the plan decides about: the patches of the image, or where rows stay those of its block."""
        sites = self.sites(img_size)
        front = (self.entrance(img_size).grid,) if self.pruner is not None and self.prunes_input else ()
        reducing = (site for site in sites if self.block(site).reducer is not None)
        return (*front, *(sites[0].grid if site.leaves else site.grid for site in reducing))

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

        Raises:
          UserError: the images are of an integer dtype.
        """
        require_float(images)
        forward = self.walk(images, taps=taps, train=train, key=key).forward()
        tokens = forward.tokens._replace(x=self.final_norm(forward.tokens.x))
        return tokens, forward._replace(tokens=tokens)

    def __call__(
        self, images: Float[Array, "b *sides c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b classes"], Forward]:
        """Classifies normalised images.

        Args:
          train: turns DropPath on and reducers to their training form; then `key` is needed.

        Raises:
          UserError: the images are of an integer dtype.
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
          UserError: there is no such intermediate or format, or the images are of an integer dtype.
        """
        require_float(images)
        if output_fmt not in OUTPUT_FORMATS:
            raise unknown("output_fmt", output_fmt, OUTPUT_FORMATS)
        ends = self.intermediate_layers()
        chosen = [ends[i] for i in intermediate_indices(indices, len(ends))]
        walk = self.walk(images, stop=max(chosen) + 1 if stop_early else None, train=train, key=key)
        sites = self.sites(images.shape[1:-1])
        thinned = self._first_reduction(sites)
        found = []
        for layer in chosen:
            tokens, site = walk.left[layer], sites[layer]
            # Earlier stages have another width and grid, and no norm of their own.
            alike = (site.grid, site.embed_dim) == (sites[-1].grid, sites[-1].embed_dim)
            x = self.final_norm(tokens.x) if norm and alike else tokens.x
            shaped = dense_map(x, tokens.assign if layer >= thinned else None, site, output_fmt)
            prefix = x[:, : site.num_prefix_tokens]
            found.append((shaped, prefix) if return_prefix_tokens and site.num_prefix_tokens else shaped)
        return found if intermediates_only else (self.final_norm(walk.tokens.x), found)

    def patch_maps(self, tokens: Tokens, img_size: int | Sequence[int] | None = None) -> Float[Array, "b *grid d"]:
        """The tokens of `forward_features` as maps, dense again under a plan as `forward_intermediates` makes them.

        Args:
          img_size: sides of the images, of a network that takes any.
        """
        sites = self.sites(img_size)
        reduced = self._first_reduction(sites) < len(sites)
        return dense_map(tokens.x, tokens.assign if reduced else None, sites[-1], "NHWC")

    def _first_reduction(self, sites: Sequence[Site]) -> int:
        """The first layer behind which a row is not a patch; past the last where there is none."""
        if self.pruner is not None and self.prunes_input:
            return 0
        reducing = (site.layer for site in sites if site.leaves and self.block(site).reducer is not None)
        return min(reducing, default=len(sites))


def at_path(module: Any, path: str) -> Any:
    """The part of a module at a dotted path such as "blocks.3"."""
    step = lambda part, name: part[int(name)] if name.isdigit() else getattr(part, name)
    return functools.reduce(step, path.split("."), module)


def key_of_scorer(key: PRNGKeyArray | None, sites: Sequence[Site]) -> PRNGKeyArray | None:
    """Blocks take the keys of their numbers; the scorer takes the next."""
    return None if key is None else jax.random.fold_in(key, len(sites))
