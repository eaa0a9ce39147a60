"""Dynamic Perceiver: latents that read a ConvNet stage by stage, and classify before it ends (Han et al., 2023)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, UInt8

from jaxprune.dynamic.parts.adaptive_average import adaptive_average
from jaxprune.dynamic.parts.perceiver import CrossAttention, SelfAttention
from jaxprune.dynamic.segments import Segment, Segmented, State
from jaxprune.errors import UserError
from jaxprune.flops.traced import multiply_accumulates
from jaxprune.models.resnet import Residual, max_pool
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.nn.images import normalize
from jaxprune.nn.linear import normal_02
from jaxprune.nn.norm import LayerNorm
from jaxprune.nn.tensor_rules import LAYERS, Rule, convolution, convolution_back
from jaxprune.preprocessing import Preprocessing

_BLOCKS = (3, 3, 9, 3)  # self-attention layers of a stage, times its depth factor
_READ = 7  # side of the pooled map that the latents read

_BATCH_NORMS = ("{batch_norm}", "cnn_stem.1", "isc3.1", "isc4.1", "classifier_merge.0")
_RULES = (
    *(
        Rule(f"{place}.{published}", f"{place}.{name}")
        for place in _BATCH_NORMS
        for published, name in (("weight", "scale"), ("running_mean", "mean"), ("running_var", "var"))
    ),
    *(
        Rule(f"{kind}.{index}.0.weight", f"{kind}.{index}.0.scale")
        for kind in ("token_mixer", "token_expander")
        for index in range(len(_BLOCKS) - 1)
    ),
    LAYERS[0],
    Rule("{any}.weight", "{any}.kernel", convolution, convolution_back),
    Rule("{any}", "{any}"),
)


class DynPerceiver(Segmented):
    """A ResNet and a set of latents that read it, with four exits: two of the latents, the ResNet's, and a joint one.

    >>> import numpy as np
    >>> sizes = dict(img_size=32, width=8, bottleneck=False, layers=(1, 1, 1, 1), num_latents=8, num_classes=3)
    >>> DynPerceiver(**sizes, rngs=nnx.Rngs(0))(np.zeros((2, 32, 32, 3), np.uint8)).shape
    (4, 2, 3)

    The exits are trained jointly with `losses.distilled_exit_loss(model(pixels, train=True), targets)`.

    Args:
      img_size: side of the images in pixels.
      bottleneck, layers, width: of the ResNet, see `models.resnet.ResNet`.
      num_latents: rows of the latents, a multiple of 8; each stage after the first halves them.
      num_heads: of the latents' self-attention, one a stage.
      depth_factor: multiplies the 3, 3, 9 and 3 self-attention layers of the stages.
      widening: hidden width of their MLPs over their width.
      transfer: whether the logits of an exit enter the classifier of a later one.
      preprocessing: how images are prepared; by default with ImageNet's mean and deviation.

    Raises:
      UserError: the latents cannot be halved three times.
    """

    def __init__(
        self,
        *,
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
        preprocessing: Preprocessing | None = None,
        kernel_init: Any = normal_02,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if num_latents % 8 or num_latents < 8:
            raise UserError(f"num_latents={num_latents} cannot be halved three times: use a multiple of 8.")
        common = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.num_classes, self.transfer, self.dtype = num_classes, transfer, dtype
        self.preprocessing = preprocessing or Preprocessing((img_size, img_size))
        outputs = [width * 2**stage * (4 if bottleneck else 1) for stage in range(4)]
        inputs = [width, *outputs[:-1]]
        self.latent = nnx.Param(normal_02(rngs.params(), (num_latents, width), jnp.float32))
        self.cnn_stem = nnx.List([Conv(3, width, 7, stride=2, dtype=dtype, rngs=rngs), BatchNorm(width)])
        for stage, (channels, count) in enumerate(zip(inputs, layers, strict=True)):
            blocks, entering = [], channels
            for index in range(count):
                stride = 2 if stage and index == 0 else 1
                blocks.append(
                    Residual(entering, width * 2**stage, stride, bottleneck=bottleneck, dtype=dtype, rngs=rngs)
                )
                entering = outputs[stage]
            self._add(f"cnn_body_stage{stage + 1}", nnx.List(blocks))
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

    def begin(self, pixels: UInt8[Array, "b *sides c"]) -> State:
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

    def __call__(self, pixels: UInt8[Array, "b *sides c"], *, train: bool = False) -> Float[Array, "m b c"]:
        """See `Segmented`.

        Args:
          train: normalises by the statistics of the batch, and updates the running ones.
        """
        state, logits = self.begin(pixels), []
        for step in _STEPS:
            state, values = step(self, state, train=train)
            logits.append(values)
        return jnp.stack(logits)

    @property
    def published_rules(self) -> tuple[Rule, ...]:
        """The tensor names of the published files."""
        return _RULES

    def body(self, stage: int, maps: Float[Array, "b h w c"], *, train: bool) -> Float[Array, "b i j d"]:
        """Runs a stage of the ResNet, from 1."""
        for block in getattr(self, f"cnn_body_stage{stage}"):
            maps = block(maps, train=train)
        return maps

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
        near = adaptive_average(maps + getattr(self, f"dwc{stage}_x2z")(maps), _READ)
        latents = getattr(self, f"cross_att{stage}_x2z")(latents, near.reshape(len(near), _READ**2, -1))
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


def _to_third(model: DynPerceiver, state: State, *, train: bool = False) -> tuple[State, jax.Array]:
    images = normalize(state["pixels"], model.preprocessing.mean, model.preprocessing.std).astype(
        model.dtype or jnp.float32
    )
    stem: Any = model.cnn_stem
    conv, norm = stem
    maps = max_pool(jax.nn.relu(norm(conv(images), train=train)))
    first = model.latent[...].astype(maps.dtype)
    latents = jnp.broadcast_to(first[None], (len(maps), *first.shape))
    for stage in (1, 2, 3):
        maps, latents = model.informed(stage, maps, latents)
        if stage < 3:
            maps, latents = model.body(stage, maps, train=train), model.mixed(stage, latents)
    logits = model.early_classifier3(latents.mean(1))
    return {"maps": maps, "latents": latents, "logits": logits}, logits


def _to_fourth(model: DynPerceiver, state: State, *, train: bool = False) -> tuple[State, jax.Array]:
    maps = model.body(3, state["maps"], train=train)
    maps, latents = model.informed(4, maps, model.mixed(3, state["latents"]))
    logits = model.classifier_att(model.known([latents.mean(1)], model.isc3, state["logits"], train=train))
    return {"maps": maps, "latents": latents, "logits": logits}, logits


def _convolutional(model: DynPerceiver, state: State, *, train: bool = False) -> tuple[State, jax.Array]:
    maps = model.body(4, state["maps"], train=train)
    return {**state, "maps": maps}, model.classifier_cnn(maps.mean((1, 2)))


def _merged(model: DynPerceiver, state: State, *, train: bool = False) -> tuple[State, jax.Array]:
    merge: Any = model.classifier_merge
    latents, (norm, classify) = state["latents"], merge
    pooled = reading(model.last_cross_att_z2x, state["maps"], latents).mean((1, 2))
    features = model.known([pooled, latents.mean(1)], model.isc4, state["logits"], train=train)
    return {"logits": state["logits"]}, classify(norm(features, train=train))


_STEPS = (_to_third, _to_fourth, _convolutional, _merged)
