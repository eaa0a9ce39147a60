"""Dynamic Perceiver: latents that read a ConvNet stage by stage, and classify before it ends (Han et al., 2023)."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dynamic.parts.convnext_stage import ConvNeXtStage
from jaxprune.dynamic.parts.feature_branch import convnext_branch, resnet_branch
from jaxprune.dynamic.parts.perceiver import CrossAttention, SelfAttention
from jaxprune.dynamic.parts.significance import Prunable
from jaxprune.dynamic.segments import Loss, Pixels, Segment, Segmented, State
from jaxprune.errors import UserError, unknown
from jaxprune.flops.traced import multiply_accumulates
from jaxprune.losses import distilled_exit_loss
from jaxprune.models.resnet import max_pool
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.nn.drop_path import require_key
from jaxprune.nn.dropout import apply_dropout
from jaxprune.nn.images import as_input
from jaxprune.nn.linear import normal_02
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.optional_key import fold_in
from jaxprune.nn.tensor_rules import LAYERS, Rule, batch_norm, convolution, convolution_back
from jaxprune.ops.adaptive_average import adaptive_average
from jaxprune.preprocessing import Preprocessing

_BLOCKS = (3, 3, 9, 3)  # self-attention layers of a stage, times its depth factor
_READ = 7  # side of the pooled map that the latents read

_BATCH_NORMS = ("{batch_norm}", "cnn_stem.1", "isc3.1", "isc4.1", "classifier_merge.0")
_RULES = (
    *(rule for place in _BATCH_NORMS for rule in batch_norm(place, place)),
    *(
        Rule(f"{kind}.{index}.0.weight", f"{kind}.{index}.0.scale")
        for kind in ("token_mixer", "token_expander")
        for index in range(len(_BLOCKS) - 1)
    ),
    LAYERS[0],
    Rule("{any}.weight", "{any}.kernel", convolution, convolution_back),
    Rule("{any}", "{any}"),
)

_FORMS = ("resnet", "convnext")
# Sizes for tests and smoke runs.
TINY = {"img_size": 32, "bottleneck": False, "layers": (1,) * 4, "width": 8, "num_latents": 8}
TINY["depth_factor"] = (0, 0, 0, 1)  # 3 of 18 layers of self-attention
_CONVNEXT_RULES = (
    Rule("{norm}.weight", "{norm}.scale"),
    Rule("{any}.downsample.0.weight", "{any}.downsample.0.scale"),
    Rule("{any}.downsample.1.weight", "{any}.downsample.1.kernel", convolution, convolution_back),
)


class DynPerceiver(Segmented, Prunable):
    """A ConvNet and a set of latents that read it, with four exits: two of the latents, the ConvNet's, and a joint one.

    >>> import jax, numpy as np
    >>> sizes = dict(img_size=32, width=8, bottleneck=False, layers=(1, 1, 1, 1), num_latents=8, num_classes=3)
    >>> jax.eval_shape(DynPerceiver(**sizes, rngs=nnx.Rngs(0)), np.zeros((2, 32, 32, 3), np.uint8)).shape
    (4, 2, 3)

    The exits are trained jointly with `losses.distilled_exit_loss(model(pixels, train=True), targets)`.

    Args:
      img_size: side of the images in pixels.
      form: "resnet" or "convnext": the ConvNet. The second is not published; its stem and stages are ConvNeXt's.
      bottleneck, layers, width: of the ResNet, see `models.resnet.ResNet`; a ConvNeXt has `layers` blocks and `width`,
        which each stage doubles.
      num_latents: rows of the latents, a multiple of 8; each stage after the first halves them.
      num_heads: of the latents' self-attention, one a stage.
      depth_factor: multiplies the 3, 3, 9 and 3 self-attention layers of the stages; 0 leaves out those of a stage.
      widening: hidden width of their MLPs over their width.
      transfer: whether the logits of an exit enter the classifier of a later one.
      drop_path_rate: stochastic depth rate of the ConvNet's last block; rates rise linearly from 0.
      drop_rate: of dropout before the ConvNet's classifier.
      preprocessing: how images are prepared; by default with ImageNet's mean and deviation.

    Raises:
      UserError: the form is unknown, or the latents cannot be halved three times.
    """

    def __init__(
        self,
        *,
        form: str = "resnet",
        img_size: int = 224,
        bottleneck: bool = True,
        layers: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        num_latents: int = 128,
        num_heads: tuple[int, ...] = (1, 2, 4, 8),
        depth_factor: tuple[int, ...] = (1, 1, 1, 1),
        widening: int = 4,
        num_classes: int = 1000,
        transfer: bool = True,
        drop_path_rate: float = 0.0,
        drop_rate: float = 0.0,
        preprocessing: Preprocessing | None = None,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if form not in _FORMS:
            raise unknown("form", form, _FORMS)
        if num_latents % 8 or num_latents < 8:
            raise UserError(f"num_latents={num_latents} cannot be halved three times: use a multiple of 8.")
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.num_classes, self.transfer, self.dtype = num_classes, transfer, dtype
        self.form, self.drop_rate, self.pruning = form, drop_rate, nnx.data(None)
        self.preprocessing = preprocessing or Preprocessing((img_size, img_size))
        plain = form == "convnext" or not bottleneck
        outputs = [width * 2**stage * (1 if plain else 4) for stage in range(4)]
        inputs = [width, *outputs[:-1]]
        self.latent = nnx.Param(normal_02(rngs.params(), (num_latents, width), jnp.float32))
        bodies = {"resnet": resnet_branch, "convnext": convnext_branch}
        rates = iter(np.linspace(0, drop_path_rate, sum(layers)).tolist())
        drop_paths = [[next(rates) for _ in range(count)] for count in layers]
        self.cnn_stem, bodies_of = bodies[form](width, drop_paths, bottleneck=bottleneck, dtype=dtype, rngs=rngs)
        for stage, channels in enumerate(inputs):
            self._add(f"cnn_body_stage{stage + 1}", bodies_of[stage])
            name = f"{stage + 1}"
            depthwise = {"depthwise": True, "use_bias": True, "dtype": dtype, "rngs": rngs}
            self._add(f"dwc{name}_x2z", Conv(channels, channels, 7, **depthwise))
            self._add(
                f"cross_att{name}_x2z", CrossAttention(channels, channels, channels, positions=_READ**2, **common)
            )
            if stage:
                self._add(f"cross_att{name}_z2x", CrossAttention(channels, channels, channels // 8, **common))
            depth = _BLOCKS[stage] * depth_factor[stage]
            layers_of = [SelfAttention(channels, num_heads[stage], widening, **common) for _ in range(depth)]
            self._add(f"self_att{name}", nnx.List(layers_of))
        self.last_cross_att_z2x = CrossAttention(outputs[-1], inputs[-1], outputs[-1] // 8, **common)
        rows = [num_latents // 2**stage for stage in range(4)]
        pair = lambda old, new: nnx.List([LayerNorm(old, eps=1e-5), Linear(old, new, **common)])
        self.token_mixer = nnx.List([pair(rows[stage], rows[stage + 1]) for stage in range(3)])
        self.token_expander = nnx.List([pair(inputs[stage], inputs[stage + 1]) for stage in range(3)])
        self._add_classifiers(inputs, outputs, num_classes, common)
        self.stage_costs = self._costs()

    def _add(self, name: str, module: Any) -> None:
        setattr(self, name, module)

    def _add_classifiers(self, inputs: list[int], outputs: list[int], classes: int, common: dict[str, Any]) -> None:
        latent, pooled = inputs[-1], outputs[-1]
        extra = latent if self.transfer else 0
        self.early_classifier3 = Linear(inputs[2], classes, **common)
        self.classifier_att = Linear(latent + extra, classes, **common)
        self.classifier_cnn = Linear(pooled, classes, **common)
        merged = pooled + latent + extra
        self.classifier_merge = nnx.List([BatchNorm(merged), Linear(merged, classes, **common)])
        fkt = lambda: nnx.List([Linear(classes, latent, **common), BatchNorm(latent)] if self.transfer else [])
        self.isc3, self.isc4 = fkt(), fkt()

    def begin(self, pixels: Pixels) -> State:
        """See `Segmented`; the state has the pixels, later the map, the latents and the logits of an exit."""
        return {"pixels": jnp.asarray(pixels)}

    def segments(self) -> tuple[Segment, ...]:
        """See `Segmented`: up to the third stage's latents, up to the fourth's, the ResNet's end, and both together."""
        return tuple(Segment(step, cost) for step, cost in zip(_STEPS, self.stage_costs, strict=True))

    def _costs(self) -> tuple[float, ...]:
        pixels = jax.ShapeDtypeStruct((1, *self.preprocessing.sides, 3), jnp.uint8)
        entering, costs = {"pixels": pixels}, []
        for step in _STEPS:
            macs, (entering, _) = multiply_accumulates(self, step, entering)
            costs.append(macs / 1e9)
        return tuple(costs)

    def __call__(
        self, pixels: Pixels, *, train: bool = False, key: PRNGKeyArray | None = None
    ) -> Float[Array, "m b c"]:
        """See `Segmented`.

        Args:
          train: normalises by the statistics of the batch, and updates the running ones.
          key: for stochastic depth and dropout, in training.

        Raises:
          UserError: there is one of them, and no key.
        """
        if train:
            require_key(self, key, drop_rate=self.drop_rate)
        state, logits = self.begin(pixels), []
        for step in _STEPS:
            state, values = step(self, state, train=train, key=key if train else None)
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
        """See `Segmented`: weighted cross-entropies, and the distance of the other exits from the last."""
        logits = self(images, train=True, key=key)
        return Loss(distilled_exit_loss(logits, targets), logits, {})

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of the published files; there are none of the ConvNeXt form."""
        return _RULES if self.form == "resnet" else (*_CONVNEXT_RULES, *_RULES)

    def body(
        self,
        stage: int,
        maps: Float[Array, "b h w c"],
        *,
        train: bool,
        key: PRNGKeyArray | None = None,
        significance: Float[Array, "b i j"] | None = None,
    ) -> Float[Array, "b i j d"]:
        """Runs a stage of the ConvNet, from 1.

        Args:
          significance: the scorer's map, if the network is pruned.
        """
        blocks, key = getattr(self, f"cnn_body_stage{stage}"), fold_in(key, stage)
        if isinstance(blocks, ConvNeXtStage):
            pruning = self.pruning
            kept = None if pruning is None or significance is None else lambda grid: pruning.ids(significance, grid)
            return blocks(maps, kept=kept, train=train, key=key)
        for index, block in enumerate(blocks):
            maps = block(maps, train=train, key=fold_in(key, index))
        return maps

    def stem(self, images: Float[Array, "b H W c"], *, train: bool) -> Float[Array, "b h w d"]:
        """What is before the first stage."""
        first, norm = self.cnn_stem
        if self.form == "resnet":
            return max_pool(jax.nn.relu(norm(first(images), train=train)))
        rows, columns = (side // first.size for side in images.shape[1:3])
        return norm(first(images)).reshape(images.shape[0], rows, columns, -1)

    def pruned(self, scorer: Any, keep_rate: float) -> Self:
        """See `Prunable`.

        Raises:
          UserError: see there, or the ConvNet is a ResNet, whose places cannot be left out.
        """
        if self.form != "convnext" and keep_rate != 1:
            raise UserError(f"PaPr leaves out places of a ConvNeXt, not of form={self.form!r}: use form='convnext'.")
        network = super().pruned(scorer, keep_rate)
        network.stage_costs = network._costs()
        return network

    def mixed(self, stage: int, latents: Float[Array, "b n c"]) -> Float[Array, "b m d"]:
        """The latents of the next stage: half as many, of its width."""
        (norm, mix), (outer, expand) = self.token_mixer[stage - 1], self.token_expander[stage - 1]
        return expand(outer(mix(norm(latents.swapaxes(1, 2))).swapaxes(1, 2)))

    def informed(
        self, stage: int, maps: Float[Array, "b h w c"], latents: Float[Array, "b n c"]
    ) -> tuple[Float[Array, "b h w c"], Float[Array, "b n c"]]:
        """A stage's exchange: its map reads the latents (after the first), they read the map, then each other."""
        if stage > 1:
            maps = reading(getattr(self, f"cross_att{stage}_z2x"), maps, latents)
        pooled_maps = adaptive_average(maps + getattr(self, f"dwc{stage}_x2z")(maps), _READ)
        latents = getattr(self, f"cross_att{stage}_x2z")(
            latents, pooled_maps.reshape(pooled_maps.shape[0], _READ**2, -1)
        )
        for layer in getattr(self, f"self_att{stage}"):
            latents = layer(latents)
        return maps, latents

    def known(self, parts: list[Array], transfer: Any, logits: Float[Array, "b c"], *, train: bool) -> Array:
        """Features of a classifier, with what an earlier exit predicts if there is transfer."""
        if self.transfer:
            layer, norm = transfer
            parts = [*parts, jax.nn.relu(norm(layer(logits), train=train))]
        return jnp.concatenate(parts, axis=-1)


def reading(
    attention: CrossAttention, maps: Float[Array, "b h w c"], latents: Float[Array, "b n d"]
) -> Float[Array, "b h w c"]:
    """Returns maps whose places have read the latents."""
    b, height, width, channels = maps.shape
    return attention(maps.reshape(b, height * width, channels), latents).reshape(maps.shape)


def _to_third(model: DynPerceiver, state: State, *, train: bool = False, key: Any = None) -> tuple[State, jax.Array]:
    images = as_input(state["pixels"], model.preprocessing).astype(model.dtype or jnp.float32)
    passed = {} if model.pruning is None else {"significance": model.pruning.significance(images)}
    maps = model.stem(images, train=train)
    first = model.latent[...].astype(maps.dtype)
    latents = jnp.broadcast_to(first[None], (maps.shape[0], *first.shape))
    for stage in (1, 2, 3):
        maps, latents = model.informed(stage, maps, latents)
        if stage < 3:
            maps = model.body(stage, maps, train=train, key=key, **passed)
            latents = model.mixed(stage, latents)
    logits = model.early_classifier3(latents.mean(1))
    return {"maps": maps, "latents": latents, "logits": logits, **passed}, logits


def _passed(state: State) -> State:
    return {name: value for name, value in state.items() if name == "significance"}


def _to_fourth(model: DynPerceiver, state: State, *, train: bool = False, key: Any = None) -> tuple[State, jax.Array]:
    maps = model.body(3, state["maps"], train=train, key=key, **_passed(state))
    maps, latents = model.informed(4, maps, model.mixed(3, state["latents"]))
    logits = model.classifier_att(model.known([latents.mean(1)], model.isc3, state["logits"], train=train))
    return {"maps": maps, "latents": latents, "logits": logits, **_passed(state)}, logits


def _convolutional(
    model: DynPerceiver, state: State, *, train: bool = False, key: Any = None
) -> tuple[State, jax.Array]:
    maps = model.body(4, state["maps"], train=train, key=key, **_passed(state))
    pooled = maps.mean((1, 2))
    return {**state, "maps": maps}, model.classifier_cnn(apply_dropout(pooled, model.drop_rate, fold_in(key, 0)))


def _merged(model: DynPerceiver, state: State, *, train: bool = False, key: Any = None) -> tuple[State, jax.Array]:
    merge: Any = model.classifier_merge
    latents, (norm, classify) = state["latents"], merge
    pooled = reading(model.last_cross_att_z2x, state["maps"], latents).mean((1, 2))
    features = model.known([pooled, latents.mean(1)], model.isc4, state["logits"], train=train)
    return {"logits": state["logits"]}, classify(norm(features, train=train))


_STEPS = (_to_third, _to_fourth, _convolutional, _merged)
