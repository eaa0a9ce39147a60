"""DToP (Tang et al., 2023): a head at each of several depths; tokens that are sure of their class leave there."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxprune.dense.parts.base import SegmentationLoss, map_features
from jaxprune.dense.parts.exits import ExitSegmenter
from jaxprune.dense.parts.mask_decoder import MaskDecoder
from jaxprune.dense.parts.mask_losses import mask_losses
from jaxprune.dense.parts.published import decoder, query_rules
from jaxprune.dense.parts.token_exits import confident, left_aligned, lowest, without
from jaxprune.dense.parts.vit_pyramid import default_indices
from jaxprune.dense.segvit import STAGES
from jaxprune.errors import UserError, unknown
from jaxprune.nn import BlockRunner, Host, Linear
from jaxprune.nn.block_cost import linear_flops
from jaxprune.nn.images import require_float
from jaxprune.nn.linear import normal_02
from jaxprune.nn.optional_key import fold_in, split_key
from jaxprune.nn.params import copied
from jaxprune.nn.tensor_rules import Rule
from jaxprune.nn.tokens import Tokens
from jaxprune.ops.label_maps import IGNORED
from jaxprune.ops.resize import resize
from jaxprune.ops.unmerge import unmerge

EXITS = ("confidence", "scores")


class StageState(NamedTuple):
    """The state between two heads; every array has the batch first.

    Attributes:
      tokens: the tokens; those that left are absent (`policy` 0) and stay in their places, or are gone.
      waiting: rows that a plan dropped and brings back before the last block.
      masks: mask logits of each class, by patch: those of the last head that saw it.
      ranking: the scorer's score of each patch, for exits by scores.
    """

    tokens: Tokens
    waiting: tuple[Tokens, ...]
    masks: Float[Array, "b k p"]
    ranking: Float[Array, "b p"] | None


class StageOutput(NamedTuple):
    """The outputs of a stage: what its head predicts, and which tokens have left.

    Attributes:
      class_logits: whether each class is present, or absent.
      masks: mask logits by patch, those of earlier heads where a token had left.
      exited: patches whose token has left by now.
      num_tokens: number of tokens that the head saw, by image.
      blocks: the tokens after each block of this stage; those that left before it are 0.
    """

    class_logits: Float[Array, "b k 2"]
    masks: Float[Array, "b k p"]
    exited: Bool[Array, "b p"]
    num_tokens: Int[Array, "b"]
    blocks: tuple[Float[Array, "b n d"], ...]

    @property
    def scores(self) -> Float[Array, "b k p"]:
        """The probability that a class is present, times its mask."""
        return _present(self.class_logits)[:, :, None] * jax.nn.sigmoid(self.masks)


class _Head(nnx.Module):
    """Class queries of its own, a decoder, and a layer that says for each class whether it is present."""

    def __init__(
        self, width: int, num_classes: int, features: int, heads: int, layers: int, dropout: float, **common: Any
    ):
        self.decoder = MaskDecoder(width, features, heads, layers, dropout, **common)
        self.queries = nnx.Param(normal_02(common["rngs"].params(), (num_classes, features)))
        self.class_embed = Linear(features, 2, **common)

    def __call__(
        self, tokens: Float[Array, "b n d"], present: Bool[Array, "b n"], key: PRNGKeyArray | None = None
    ) -> tuple[Array, Array]:
        """(Class logits (b, k, 2), mask logits (b, k, n))."""
        queries = jnp.broadcast_to(self.queries[...][None], (tokens.shape[0], *self.queries.shape))
        queries, masks = self.decoder(queries.astype(tokens.dtype), tokens, present, key)
        return self.class_embed(queries).astype(jnp.float32), masks.astype(jnp.float32)

    def flops(self, rows: int) -> int:
        """Multiply-accumulates for that many tokens."""
        queries = self.queries.shape[0]
        return self.decoder.flops(queries, rows) + linear_flops(self.class_embed, queries)


class DToP(ExitSegmenter):
    """SegViT's decoders as independent heads; what leaves at one keeps its mask logits, and the rest does not see it.

    Exits by "confidence": a token leaves if its best score (presence of the class times mask) exceeds the head's
    threshold, unless it is among the `keep_per_class` best of the class that it predicts. Training removes tokens too.
    Exits by "scores" put a scorer such as PaPr in its place: apply a plan with a step at the input, and after each
    head the tokens with its highest scores go on, `keep_rates` of all patches.

    Trained on features of a frozen encoder (`head_logits`), the heads see all tokens, and exits act in the test alone.

    A call masks what has left, so that its shapes are static; with exits by scores it removes it.
    `dense.TokenEngine` removes it in any case and is faster by as much. All give equal numbers.

    >>> import jax, jax.numpy as jnp, jaxprune
    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2, features=8, head_heads=2)
    >>> seg = jaxprune.dense.create("dtop", encoder="vit", num_classes=5, **sizes, rngs=nnx.Rngs(0))
    >>> jax.eval_shape(seg, jnp.zeros((1, 32, 32, 3))).shape
    (1, 32, 32, 5)

    Args:
      encoder: a network whose rows can be removed, such as a ViT.
      indices: the blocks with a head; by default after 1/2, 2/3 and all blocks.
      exits: "confidence" or "scores".
      thresholds: of each head but the last, or one number for all; 1 lets nothing leave.
      keep_per_class: see `parts.token_exits.confident`.
      keep_rates: for exits by scores, the share of all patches after each head but the last.
      features, head_heads, layers, dropout: see `SegViT`.
      absent_weight, class_weight, mask_weight, dice_weight: see `SegViT`; all heads count alike.

    Raises:
      UserError: the encoder cannot remove rows, or the numbers do not fit the heads.
    """

    def __init__(
        self,
        encoder: Host,
        *,
        num_classes: int = 150,
        indices: Sequence[int] | None = None,
        exits: str = "confidence",
        thresholds: float | int | Sequence[float] = 0.95,
        keep_per_class: int = 5,
        keep_rates: float | int | Sequence[float] = 1.0,
        features: int | None = None,
        head_heads: int = 12,
        layers: int = 3,
        dropout: float = 0.1,
        absent_weight: float = 0.1,
        class_weight: float = 1.0,
        mask_weight: float = 20.0,
        dice_weight: float = 1.0,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        depth = len(encoder.intermediate_layers())
        super().__init__(encoder, num_classes, default_indices(depth, STAGES) if indices is None else indices)
        if not all(site.removable for site in encoder.sites()):
            raise UserError("Tokens cannot leave this encoder between its blocks: use a ViT, or another head.")
        if exits not in EXITS:
            raise unknown("exits", exits, EXITS)
        if keep_per_class < 0:
            raise UserError(f"keep_per_class={keep_per_class} is not a number of tokens: use 0 or more.")
        if list(self.indices) != sorted(set(self.indices)) or self.indices[-1:] != (depth - 1,):
            raise UserError(f"indices {self.indices}: heads are at rising blocks, the last at block {depth - 1}.")
        self.exits, self.keep_per_class = exits, keep_per_class
        self.thresholds = self._of_heads("thresholds", thresholds)
        self.keep_rates = self._of_heads("keep_rates", keep_rates)
        widths = map_features(encoder, self.indices)
        features = widths[-1] // 2 if features is None else features
        sizes = (num_classes, features, head_heads, layers, dropout)
        self.heads = nnx.List([_Head(width, *sizes, dtype=dtype, rngs=rngs) for width in widths])
        self.absent_weight = absent_weight
        self.weights = (class_weight, mask_weight, dice_weight)
        self.follow(self.encoder)

    def _of_heads(self, name: str, values: float | int | Sequence[float]) -> tuple[float, ...]:
        count = len(self.indices) - 1
        numbers = tuple(values) if isinstance(values, Sequence) else (values,) * count
        if len(numbers) != count or not all(0 < number <= 1 for number in numbers):
            raise UserError(
                f"{name}={values}: give {count} numbers above 0 and up to 1, one for each head but the last."
            )
        return tuple(map(float, numbers))

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The published names: the last head is the main one, the others are auxiliary."""
        names = [f"auxiliary_head.{i}." for i in range(len(self.heads) - 1)] + ["decode_head."]
        return tuple(
            rule
            for i, name in enumerate(names)
            for rule in (*query_rules(name, f"heads.{i}."), *decoder(f"{name}{{}}", f"heads.{i}.decoder"))
        )

    def follow(self, encoder: Host) -> None:
        """Takes a host with a plan, whose steps must be over before the first head.

        Raises:
          UserError: rows would be removed after a head, which tells by itself what leaves.
        """
        for site in encoder.sites():
            block = encoder.block(site)
            if site.layer > self.indices[0] and block.reducer is not None:
                raise UserError(
                    f"Behind its first head, at block {self.indices[0]}, a DToP's heads say what leaves, and the plan "
                    f"has a step at block {site.layer}: let it reduce up to block {self.indices[0]}."
                )
            block.has_absent |= site.layer > self.indices[0]
        self.encoder = encoder

    def begin(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> StageState:
        """Embeds images.

        Raises:
          UserError: the images are of an integer dtype, or exits by scores have no scorer.
        """
        require_float(images)
        runner = self.encoder.run_blocks(images, stop=0, train=train, key=key)
        b, patches = runner.tokens.assign.shape
        ranking = None
        if self.exits == "scores" and min(self.keep_rates, default=1.0) < 1:
            if self.encoder.pruner is None:
                raise UserError(
                    "exits='scores' need a scorer: reduction.apply(network, Plan('from_scores', keep_rate=1.0), "
                    "scorer=…)."
                )
            ranking = self.encoder.pruner.scorer(images, key=key)
        waiting = tuple(rows for how, rows in runner.aside if how == "fuse")
        return StageState(runner.tokens, waiting, jnp.zeros((b, self.num_classes, patches)), ranking)

    def advance(
        self, state: StageState, stage: int, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> tuple[StageState, StageOutput]:
        """Runs the blocks up to the next head, the head, and lets tokens leave."""
        prefix = self.encoder.num_prefix_tokens
        keys = split_key(fold_in(key, stage))
        runner = BlockRunner(state.tokens, prefix, train=train, key=keys[0], all_patches=False)
        runner.aside = [("fuse", rows) for rows in state.waiting]
        present_x = lambda tokens: tokens.x * (tokens.policy > 0)[:, :, None].astype(tokens.x.dtype)
        for site in self.sites_of(stage):
            runner.run(self.encoder.block(site), site.grid)
        tokens = runner.tokens
        present = tokens.policy[:, prefix:] > 0
        drop_key = keys[1] if train else None
        class_logits, row_masks = self.heads[stage](present_x(tokens)[:, prefix:], present, drop_key)
        held = unmerge(present[:, :, None], tokens.assign)[:, :, 0]
        of_patches = unmerge(row_masks.swapaxes(1, 2), tokens.assign).swapaxes(1, 2)
        masks = jnp.where(held[:, None, :], of_patches, state.masks)
        left = self._without_leaving(tokens, stage, class_logits, row_masks, state.ranking)
        exited = ~(unmerge((left.policy > 0)[:, prefix:, None], left.assign)[:, :, 0])
        output = StageOutput(class_logits, masks, exited, present.sum(1), tuple(map(present_x, runner.block_outputs)))
        waiting = tuple(rows for _, rows in runner.aside)
        return StageState(left, waiting, masks, state.ranking), output

    def _without_leaving(
        self, tokens: Tokens, stage: int, class_logits: Array, masks: Array, ranking: Array | None
    ) -> Tokens:
        if stage == len(self.heads) - 1:
            return tokens
        prefix = self.encoder.num_prefix_tokens
        present = tokens.policy[:, prefix:] > 0
        if self.exits == "confidence":
            scores = _present(class_logits)[:, :, None] * jax.nn.sigmoid(masks)
            leaving = confident(scores, present, self.thresholds[stage], self.keep_per_class)
        elif ranking is None:
            return tokens
        else:
            leaving = lowest(ranking, tokens.assign, present, self.num_keep(stage))
        return without(tokens, leaving, prefix)

    def num_keep(self, stage: int) -> int:
        """For exits by scores, the number of tokens that go on after a head."""
        return max(int(self.encoder.sites()[0].num_patches * self.keep_rates[stage]), 1)

    def stages(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> list[StageOutput]:
        """What every head says, with static shapes."""
        keys = split_key(key)
        state, outputs = self.begin(images, train=train, key=keys[0]), []
        for stage in range(len(self.heads)):
            state, output = self.advance(state, stage, train=train, key=keys[1])
            outputs.append(output)
            prefix = self.encoder.num_prefix_tokens
            if state.ranking is not None and stage < len(self.heads) - 1:
                count = min(self.num_keep(stage), state.tokens.x.shape[1] - prefix)
                state = state._replace(tokens=left_aligned(state.tokens, count, prefix))
        return outputs

    def head_logits(
        self, maps: Sequence[Float[Array, "b h w _"]], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> list[StageOutput]:
        """What every head says of the maps at its depth, where no token has left: as `without_exits` says it."""
        outputs = []
        keys = split_key(key if train else None, len(self.heads))
        for head, x, drop_key in zip(self.heads, maps, keys, strict=True):
            rows = x.reshape(x.shape[0], -1, x.shape[-1])
            present = jnp.ones(rows.shape[:2], bool)
            class_logits, masks = head(rows, present, drop_key)
            outputs.append(StageOutput(class_logits, masks, ~present, present.sum(1), ()))
        return outputs

    def without_exits(self) -> "DToP":
        """The same network, all of whose tokens go on to the last head; it shares the arrays."""
        network = copied(self)
        network.thresholds, network.keep_rates = (1.0,) * len(self.thresholds), (1.0,) * len(self.keep_rates)
        return network

    def segment(self, output: StageOutput, shape: tuple[int, int]) -> Float[Array, "b H W k"]:
        """The scores of a head at a size in pixels; bilinear, of scores by patch."""
        grid = self.encoder.sites()[-1].grid
        maps = output.scores.swapaxes(1, 2).reshape(output.scores.shape[0], *grid, -1)
        return resize(maps, shape, "bilinear")

    def __call__(
        self, images: Float[Array, "b h w c"], *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "b h w k"]:
        """Returns the score of each class at every pixel, by the last head."""
        return self.segment(self.stages(images, train=train, key=key)[-1], (images.shape[1], images.shape[2]))

    def loss(
        self,
        images: Float[Array, "b h w c"],
        labels: Int[Array, "b h w"],
        *,
        ignored: int = IGNORED,
        valid_only: bool = False,
        train: bool = True,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, ""], SegmentationLoss]:
        """The sum of the weighted losses of all heads; exits have no gradient, mask logits of what left have."""
        stages = self.stages(images, train=train, key=key)
        return self.loss_of(stages, labels, ignored=ignored, valid_only=valid_only)

    def loss_of(
        self,
        logits: Sequence[StageOutput],
        labels: Int[Array, "b h w"],
        *,
        ignored: int = IGNORED,
        valid_only: bool = False,
    ) -> tuple[Float[Array, ""], SegmentationLoss]:
        """The loss of what `stages` returned; see `mask_losses`."""
        grid = self.encoder.sites()[-1].grid
        stages = [(out.class_logits, out.masks.reshape(*out.masks.shape[:2], *grid)) for out in logits]
        return mask_losses(
            stages, labels, self.weights, absent_weight=self.absent_weight, ignored=ignored, valid_only=valid_only
        )


def _present(class_logits: Float[Array, "b k 2"]) -> Float[Array, "b k"]:
    return jax.nn.softmax(class_logits, axis=-1)[..., 0]
