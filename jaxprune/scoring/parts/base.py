"""The Scorer protocol: images in, one score per patch out."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxprune.errors import UserError, unknown
from jaxprune.nn import Host
from jaxprune.nn.images import renormalized_for, require_float
from jaxprune.nn.tensor_rules import Rule
from jaxprune.preprocessing import Normalisation, trained_on
from jaxprune.reduction.parts.keep_rows import best


class Scorer(nnx.Module):
    """Ranks the patches of images. A scorer is a module, so the weights it reads are arguments of a jitted program.

    To write one, subclass this class, set `reads`, and define `__call__`, which runs under jit and scores each image
    independently of the rest of its batch. A constructor is needed only for options: it names them, passes the
    remaining keywords on to `super().__init__`, and may then use or replace `self.proposal`. If it has a parameter
    `rngs`, `create` supplies it. Override `select` or `num_keep` to change which or how many patches are kept.

    >>> import jax.numpy as jnp; from flax import nnx; from jaxprune import models, scoring
    >>> from jaxprune.scoring.parts.maps import to_grid; from jaxprune.scoring.parts.networks import feature_map
    >>> class Peak(scoring.Scorer):
    ...     reads = "any"
    ...     def __init__(self, *, power: float = 1.0, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.power = power
    ...     def __call__(self, images, *, key=None):
    ...         features = feature_map(self.proposal, self.prepared(images))
    ...         return to_grid(features.max(-1) ** self.power, self.grid)
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2)
    >>> peak = Peak(proposal=models.create("vit", **sizes, rngs=nnx.Rngs(0)), power=2.0)
    >>> peak(jnp.zeros((1, 16, 16, 3))).shape
    (1, 16)

    `create` finds a scorer in a module of this package, by the module's name, or by an entry point in the group
    "jaxprune.scoring" (see `jaxprune.plugins`).

    Args:
      proposal: the network whose features, attention or gradients rank the patches.
      grid: the patches to score, (rows, columns), or (frames, rows, columns) of a video; defaults to the grid of
        `proposal` if it has one.
      normalised: (mean, std) per channel with which the pixels, from 0 to 1, were normalised. `prepared` then converts
        them to those of `proposal` (`trained_on`). With None it leaves them unchanged; `reduction.apply` then fills in
        those of the network that is pruned.

    Attributes:
      reads: the kind of network that `proposal` must be: "vit" (any `Host`), "convnet", "any" (either), "ranker",
        "optional" (either or None) or "nothing" (None).
      needs_sequence: whether a `Host` must have one sequence of tokens in all blocks, as a ViT has and Swin has not.
      needs_cls: whether it must have a CLS token.
      needs_classes: whether it must have a classifier.
      own_patches: whether it scores the patches of that `Host`, so that `grid` must be the host's.
      differentiable: whether its scores have a gradient with respect to its weights, so that they can be trained.
      dims: numbers of dimensions that its grid may have: 2, patches of images, or 3, tubes of NTHWC clips.
      proposal, grid, normalised: the arguments above.
      num_patches: the number of patches in `grid`.
      published_rules: the tensor names of published weights of the scorer's own parts, if it has any.
      published_networks: {prefix of their names in such a file: attribute} of its networks.
      published_entries: the entries of a PyTorch file that hold them; () = the one that `read_tensors` takes.

    Raises:
      UserError: the grid is missing or another than the network's, or the network is of the wrong kind.
    """

    reads: ClassVar[str] = "nothing"
    needs_sequence: ClassVar[bool] = False
    needs_cls: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False
    own_patches: ClassVar[bool] = False
    differentiable: bool = True
    dims: ClassVar[tuple[int, ...]] = (2, 3)
    published_rules: ClassVar[tuple[Rule, ...]] = ()
    published_networks: ClassVar[Mapping[str, str]] = {"": "proposal"}
    published_entries: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        proposal: Any = None,
        grid: tuple[int, ...] | None = None,
        normalised: Normalisation | None = None,
    ):
        name = type(self).__name__
        _check_proposal(type(self), proposal)
        if grid is None:
            grid = getattr(proposal, "grid", None)
        if grid is None:
            raise UserError(f"{name} has no patch grid: pass grid=(rows, columns), such as (14, 14).")
        if self.own_patches and tuple(grid) != (own_grid := tuple(proposal.sites()[0].grid)):
            raise UserError(
                f"{name} scores the patches of its own {type(proposal).__name__}, {own_grid}, not "
                f"grid={tuple(grid)}: open that network at an image size with this grid, or score by papr or norm."
            )
        if len(grid) not in self.dims:
            grids = " or ".join({2: "(rows, columns)", 3: "(frames, rows, columns)"}[sides] for sides in self.dims)
            raise UserError(f"{name} scores a grid of {grids}, not grid={tuple(grid)}: choose another scorer or grid.")
        prepared = getattr(proposal, "preprocessing", None)
        if prepared is not None and bool(prepared.num_frames) != (len(grid) == 3):
            network_reads, scored = ("clips", "images") if prepared.num_frames else ("images", "clips")
            remedy = (
                "an X3D or SlowOnly, or score by static_tubes, norm or centre" if scored == "clips" else "another one"
            )
            raise UserError(
                f"{name} of a grid of {tuple(grid)} scores {scored}, and its {type(proposal).__name__} reads "
                f"{network_reads}: pass {remedy}."
            )
        if normalised is not None and trained_on(proposal) is None:
            raise UserError(
                f"{name} cannot convert pixels from normalised={normalised}, because it has no network that "
                "has a preprocessing: leave normalised out, or build the network with models.create."
            )
        self.proposal = nnx.data(proposal)
        self.grid: Any = tuple(int(side) for side in grid)
        self.num_patches = math.prod(self.grid)
        self.normalised = normalised

    def __call__(self, images: Float[Array, "b *sides c"], *, key: PRNGKeyArray | None = None) -> Float[Array, "b p"]:
        """Scores the patches of normalised images, in raster order; a higher score means keep.

        Args:
          key: for scorers that draw random numbers; without one they are deterministic.
        """
        raise NotImplementedError

    @classmethod
    def recognise(cls, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Infers the scorer's options from the names and shapes of published tensors, as far as possible."""
        return {}

    def select(self, scores: Float[Array, "b p"], num_keep: int) -> Int[Array, "b k"]:
        """The indices of the patches to keep, best first; ties go to the lower index."""
        return best(scores, num_keep)

    def native_scores(
        self, images: Float[Array, "b *sides c"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "b p"], tuple[int, ...]]:
        """The scores and their grid before they are resized, for networks whose blocks have maps of several sizes.

        Such a network resizes them to each of its maps. By default they are those of `grid`.
        """
        return self(images, key=key), tuple(self.grid)

    def num_keep(self, keep_rate: float, num_prefix_tokens: int) -> int:
        """The number of patches at a keep rate: the product in double precision, truncated."""
        return int(self.num_patches * keep_rate)

    def prepared(self, images: Float[Array, "b *sides c"]) -> Float[Array, "b *sides c"]:
        """The images as `proposal` expects them: renormalised from `normalised` to its own mean and std.

        Every scorer calls this before its network reads the images; they are not converted anywhere else.
        """
        require_float(images)
        return renormalized_for(self.proposal, images, self.normalised)


def is_host(network: Any) -> bool:
    """Whether a network is a `Host`, a transformer that exposes its tokens and attention."""
    return isinstance(network, Host)


def _check_proposal(cls: type[Scorer], proposal: Any) -> None:
    name, reads, is_network, host = cls.__name__, cls.reads, proposal is not None, is_host(proposal)
    kinds = {
        "vit": (host, "a ViT"),
        "convnet": (is_network and not host, "a ConvNet such as efficientnet_lite0"),
        "any": (is_network, "a ConvNet or a ViT"),
        "ranker": (is_network, "a ranker"),
        "nothing": (not is_network, "None"),
        "optional": (True, ""),
    }
    if reads not in kinds:
        raise unknown(f"{name}.reads", reads, kinds)
    fits, required = kinds[reads]
    if not fits:
        got = f"a {type(proposal).__name__}" if is_network else "None"
        raise UserError(f"{name} requires proposal= to be {required}, but got {got}.")
    if cls.needs_sequence and not all(site.removable for site in proposal.sites()):
        raise UserError(
            f"{name} requires proposal= to be a ViT, with one sequence of tokens in all blocks, but got a "
            f"{type(proposal).__name__}, whose blocks read maps: use papr or norm, which read the maps of any network."
        )
    if cls.needs_cls and not proposal.block(proposal.sites()[0]).num_cls_tokens:
        raise UserError(f"{name} requires a ViT with a CLS token, but this {type(proposal).__name__} has none.")
    if cls.needs_classes:
        require_classes(proposal, name)


def require_classes(proposal: Any, name: str) -> None:
    """Checks that a network predicts classes, which the scorer called `name` explains.

    Raises:
      UserError: it has no classifier.
    """
    if not (proposal.num_classes if is_host(proposal) else getattr(proposal, "classifier", None) is not None):
        raise UserError(
            f"{name} explains the class that its network predicts, and this {type(proposal).__name__} has none: open "
            "it with its classifier, or use a scorer that does without, such as papr."
        )
