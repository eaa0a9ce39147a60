"""DVT: three vision transformers for ever finer tokens; each reuses what the one before knows (Wang et al., 2021)."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dynamic.parts import reuse, tokens_to_token
from jaxprune.dynamic.parts.covering_patches import CoveringPatches
from jaxprune.dynamic.parts.reusing_stage import ReusingStage
from jaxprune.dynamic.parts.significance import Prunable
from jaxprune.dynamic.parts.tokens_to_token import TokensToToken
from jaxprune.dynamic.segments import Loss, Pixels, Segment, Segmented, State
from jaxprune.errors import UserError, unknown
from jaxprune.flops.traced import multiply_accumulates
from jaxprune.losses import exit_losses
from jaxprune.nn.drop_path import require_key
from jaxprune.nn.images import as_input
from jaxprune.nn.linear import normal_02
from jaxprune.nn.tensor_rules import LAYERS, Rule, patches, patches_back, within
from jaxprune.preprocessing import Preprocessing

# The names of the stages in the published files.
STAGES = ("less_less_token.", "less_token.", "normal_token.")
# (kernel, stride, padding) of the first windows of the T2T form, by the tokens along a side at 224 pixels.
_WINDOWS = {7: (14, 8, 3), 10: (11, 6, 5), 14: (7, 4, 2)}
_FORMS = ("deit", "t2t")
# Sizes for tests and smoke runs.
TINY = {"form": "deit", "img_size": 32, "sides": (2, 3, 4), "embed_dim": 16, "depth": 1, "num_heads": 2}


class DVT(Segmented, Prunable):
    """Dynamic vision transformer: 7×7, then 10×10, then 14×14 tokens of an image, with an exit after each stage.

    >>> import jax, numpy as np
    >>> sizes = dict(img_size=28, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    >>> jax.eval_shape(DVT(**sizes, rngs=nnx.Rngs(0)), np.zeros((2, 28, 28, 3), np.uint8)).shape
    (3, 2, 3)

    From the second stage on, blocks read features and relations of the stage before, see `FeatureReuse` and
    `RelationReuse`. The stages are trained jointly: `losses.exit_losses(model(pixels), targets).sum()`.

    Args:
      form: "deit" (patches, learned positions) or "t2t" (tokens to token by Performers, positions of sines).
      img_size: side of the images in pixels; the T2T form is for 224.
      sides: tokens along a side, one number a stage.
      qkv_bias: None is True for DeiT and False for T2T.
      feature_reuse, relation_reuse: which of the two there are.
      reuse_sizes: hidden width and width of the reused features.
      token_dim: width of the T2T form's Performers.
      drop_path_rate: stochastic depth rate of the last block of each stage; rates rise linearly from 0.
      preprocessing: how images are prepared; by default with ImageNet's mean and deviation.

    Raises:
      UserError: the form is unknown, the sides are not three ascending numbers, or do not fit the T2T form's windows.
    """

    def __init__(
        self,
        *,
        form: str = "deit",
        img_size: int = 224,
        sides: tuple[int, ...] = (7, 10, 14),
        embed_dim: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        num_classes: int = 1000,
        qkv_bias: bool | None = None,
        feature_reuse: bool = True,
        relation_reuse: bool = True,
        reuse_sizes: tuple[int, int] = (128, 48),
        token_dim: int = 64,
        drop_path_rate: float = 0.0,
        preprocessing: Preprocessing | None = None,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if form not in _FORMS:
            raise unknown("form", form, _FORMS)
        _require_sides(form, img_size, sides)
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.form, self.num_classes, self.dtype = form, num_classes, dtype
        self.feature_reuse, self.relation_reuse = feature_reuse, relation_reuse
        self.preprocessing = preprocessing or Preprocessing((img_size, img_size))
        stages = []
        for side, coarser in zip(sides, (None, *sides[:-1]), strict=True):
            embed: Any = (
                CoveringPatches(img_size, side, embed_dim, dtype=dtype, rngs=rngs)
                if form == "deit"
                else TokensToToken(img_size, _WINDOWS[side], embed_dim, token_dim=token_dim, **common)
            )
            stage = ReusingStage(
                embed,
                side,
                coarser,
                dim=embed_dim,
                depth=depth,
                heads=num_heads,
                hidden=int(embed_dim * mlp_ratio),
                num_classes=num_classes,
                qkv_bias=form == "deit" if qkv_bias is None else qkv_bias,
                eps=1e-6 if form == "deit" else 1e-5,
                reuse_sizes=reuse_sizes if feature_reuse else None,
                relation_reuse=relation_reuse,
                learned_positions=form == "deit",
                drop_path_rate=drop_path_rate,
                **common,
            )
            stages.append(stage)
        self.stages, self.pruning = nnx.List(stages), nnx.data(None)

    def begin(self, pixels: Pixels) -> State:
        """See `Segmented`; the state has the pixels, later also the features and relations of the last stage."""
        return {"pixels": jnp.asarray(pixels)}

    def segments(self) -> tuple[Segment, ...]:
        """See `Segmented`; there is one for each stage."""
        return tuple(Segment(_through(index), macs / 1e9) for index, macs in enumerate(self._macs()))

    def _macs(self) -> list[int]:
        pruning = self.pruning
        if pruning is None:
            return [stage.flops() for stage in self.stages]
        macs = [stage.flops(pruning.count(stage.side**2)) for stage in self.stages]
        images = jax.ShapeDtypeStruct((1, *self.preprocessing.sides, 3), jnp.float32)
        ranking, _ = multiply_accumulates(pruning, lambda pruning, images: pruning.significance(images), images)
        return [macs[0] + ranking, *macs[1:]]

    def __call__(
        self, pixels: Pixels, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "m b c"]:
        """See `Segmented`.

        Args:
          train: whether there is stochastic depth.
          key: for it.

        Raises:
          UserError: there is stochastic depth and no key.
        """
        if train:
            require_key(self, key)
        state, logits = self.begin(pixels), []
        for index in range(len(self.stages)):
            stage_key = None if key is None or not train else jax.random.fold_in(key, index)
            state, values = _through(index)(self, state, stage_key)
            logits.append(values)
        return jnp.stack(logits)

    def loss(
        self,
        images: Pixels,
        targets: Float[Array, "b c"],
        *,
        key: PRNGKeyArray | None = None,
        progress: float | Array = 0.0,
    ) -> Loss:
        """See `Segmented`: the sum of the three cross-entropies."""
        logits = self(images, train=True, key=key)
        return Loss(exit_losses(logits, targets).sum(), logits, {})

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of the published files."""
        rules: list[Rule] = []
        for index, (prefix, stage) in enumerate(zip(STAGES, self.stages, strict=True)):
            rules += within(prefix, f"stages.{index}.", _stage_rules(self.form, stage))
        return tuple(rules)


def _through(index: int) -> Any:
    def call(model: DVT, state: State, key: PRNGKeyArray | None = None) -> tuple[State, jax.Array]:
        images = as_input(state["pixels"], model.preprocessing).astype(model.dtype or jnp.float32)
        stage, passed, ids = model.stages[index], {"pixels": state["pixels"]}, None
        if model.pruning is not None:
            significance = state["significance"] if index else model.pruning.significance(images)
            passed["significance"] = significance
            ids = model.pruning.ids(significance, (stage.side, stage.side))
        output = stage(images, state.get("features"), state.get("relations"), ids=ids, key=key)
        if index + 1 < len(model.stages):
            passed |= {"features": output.features} if model.feature_reuse else {}
            passed |= {"relations": output.relations} if model.relation_reuse else {}
        return passed, output.logits

    return call


def _require_sides(form: str, img_size: int, sides: Sequence[int]) -> None:
    if len(sides) != len(STAGES) or any(fine <= coarse for coarse, fine in itertools.pairwise(sides)):
        raise UserError(f"sides={tuple(sides)} are not three ascending numbers: use (7, 10, 14).")
    if form == "t2t" and (img_size != 224 or not set(sides) <= set(_WINDOWS)):
        raise UserError(
            f"The T2T form has windows for sides of {', '.join(map(str, _WINDOWS))} tokens at 224 pixels, and not for "
            f"sides={tuple(sides)} at {img_size}: use these, or form='deit'."
        )


def _stage_rules(form: str, stage: ReusingStage) -> tuple[Rule, ...]:
    if form == "t2t":
        embed = within("tokens_to_token.", "patch_embed.", (*tokens_to_token.RULES, *LAYERS))
    else:
        size = stage.patch_embed.embed.patch_size
        back = lambda tensor, _: patches_back(tensor, size)
        embed = (
            Rule("patch_embed.proj.weight", "patch_embed.embed.proj.kernel", patches, back),
            Rule("patch_embed.proj.bias", "patch_embed.embed.proj.bias"),
        )
    return (*embed, *reuse.RULES, *LAYERS)
