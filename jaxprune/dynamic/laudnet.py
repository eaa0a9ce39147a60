"""LAUDNet: a ResNet whose blocks compute some places, some channels, or nothing for an image (Han et al., 2023)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dynamic.parts.gated import GatedNetwork, GatedOutput, Ledger
from jaxprune.dynamic.parts.gated_residual import Densities, GatedResidual
from jaxprune.dynamic.parts.gates import Draws, exponential
from jaxprune.dynamic.segments import Loss, Pixels
from jaxprune.errors import UserError
from jaxprune.losses import budget_loss, exit_losses
from jaxprune.models.resnet import max_pool
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.nn.linear import torch_uniform
from jaxprune.preprocessing import Preprocessing

# Sizes for tests and smoke runs.
TINY = {"img_size": 32, "layers": (1,) * 4, "width": 8, "granularity": (4, 2, 1, 1)}


class LAUDNet(GatedNetwork):
    """Latency-aware unified dynamic network: a ResNet with gates in every block, of one kind in each stage.

    >>> import jax, numpy as np
    >>> sizes = dict(img_size=32, width=8, layers=(1, 1, 1, 1), granularity=(2, 2, 1, 1))
    >>> model = LAUDNet(**sizes, modes=("spatial", "channel", "both", "layer"), num_classes=3, rngs=nnx.Rngs(0))
    >>> output = jax.eval_shape(model.gated, np.zeros((2, 32, 32, 3), np.uint8))
    >>> output.logits.shape, jax.eval_shape(model.image_macs, output).shape
    ((2, 3), (2,))

    It is fine-tuned from a static ResNet, which is the teacher too: cross-entropy, plus ten times
    `losses.budget_loss`, plus half of T² `losses.kl_distillation` with temperature T of 4. `LayerSkipper` skips blocks
    of mode "layer" in fact; places and channels are masked and counted.

    Args:
      img_size: side of the images in pixels, a multiple of 32.
      layers: number of blocks in each stage.
      width: inner channels of the first stage; each stage doubles them.
      modes: of the gates: "spatial", "channel", "both" or "layer", one a stage.
      granularity: side of the cells that are skipped together, in places, one a stage.
      mask_groups: groups of channels with masks of places of their own, one a stage.
      channel_granularity: channels that are skipped together, one a stage.
      maskers, masker_layers, reduction: of the channels' gates, one a stage: "mlp" of one or two layers, or
        "conv_linear".
      target_rate, rate_weight: of `loss`: the share of the static network's cost, and the weight of its distance.
      temperatures: at the start of the training, and at its end.
      preprocessing: how images are prepared; by default with ImageNet's mean and deviation.

    Raises:
      UserError: sizes do not fit the stages, or a mode is unknown.
    """

    def __init__(
        self,
        *,
        img_size: int = 224,
        layers: tuple[int, ...] = (3, 4, 6, 3),
        width: int = 64,
        num_classes: int = 1000,
        modes: tuple[str, ...] = ("layer",) * 4,
        granularity: tuple[int, ...] = (1,) * 4,
        mask_groups: tuple[int, ...] = (1,) * 4,
        channel_granularity: tuple[int, ...] = (1,) * 4,
        maskers: tuple[str, ...] = ("mlp",) * 4,
        masker_layers: tuple[int, ...] = (1,) * 4,
        reduction: tuple[int, ...] = (16,) * 4,
        target_rate: float = 0.5,
        rate_weight: float = 10.0,
        temperatures: tuple[float, float] = (5.0, 0.1),
        preprocessing: Preprocessing | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        options = {
            "modes": modes,
            "granularity": granularity,
            "mask_groups": mask_groups,
            "channel_granularity": channel_granularity,
            "maskers": maskers,
            "masker_layers": masker_layers,
            "reduction": reduction,
        }
        _require_sizes(img_size, layers, options)
        self.num_classes, self.dtype, self.num_stages = num_classes, dtype, len(layers)
        self.target_rate, self.rate_weight, self.temperatures = target_rate, rate_weight, tuple(temperatures)
        self.preprocessing = preprocessing or Preprocessing((img_size, img_size))
        common = {"dtype": dtype, "rngs": rngs}
        self.conv1 = Conv(3, width, 7, stride=2, **common)
        self.bn1 = BatchNorm(width)
        inputs, self.img_size = width, img_size
        for stage, count in enumerate(layers):
            blocks = []
            for index in range(count):
                block = GatedResidual(
                    inputs,
                    width * 2**stage,
                    2 if stage and index == 0 else 1,
                    mode=modes[stage],
                    side=img_size // 2 ** (stage + 2),
                    granularity=granularity[stage],
                    mask_groups=mask_groups[stage],
                    channel_granularity=channel_granularity[stage],
                    masker=maskers[stage],
                    masker_layers=masker_layers[stage],
                    reduction=reduction[stage],
                    **common,
                )
                blocks.append(block)
                inputs = 4 * width * 2**stage
            setattr(self, f"layer{stage + 1}", nnx.List(blocks))
        self.fc = Linear(inputs, num_classes, kernel_init=torch_uniform(inputs), **common)

    @property
    def blocks(self) -> dict[str, GatedResidual]:
        """The blocks by their published names, in order."""
        stages = [(f"layer{stage}", getattr(self, f"layer{stage}")) for stage in range(1, self.num_stages + 1)]
        return {f"{name}.{index}": block for name, stage in stages for index, block in enumerate(stage)}

    def stem(self, images: Float[Array, "b H W c"], *, train: bool = False) -> Float[Array, "b h w d"]:
        """What is before the blocks."""
        return max_pool(jax.nn.relu(self.bn1(self.conv1(images), train=train)))

    def of_images(
        self, images: Float[Array, "b h w c"], draws: Draws, temperature: float | Array, *, train: bool
    ) -> GatedOutput:
        """See `GatedNetwork`; densities are a `Densities` a block."""
        x, gates, densities = self.stem(images, train=train), {}, []
        for name, block in self.blocks.items():
            x, decided, density = block.gated(x, draws, temperature, train=train)
            gates |= {f"{name}.{masker}": gate for masker, gate in decided.items()}
            densities.append(density)
        return GatedOutput(self.fc(x.mean((1, 2))), gates, tuple(densities))

    def loss(
        self,
        images: Pixels,
        targets: Float[Array, "b c"],
        *,
        key: PRNGKeyArray | None = None,
        progress: float | Array = 0.0,
    ) -> Loss:
        """See `Segmented`: cross-entropy, and the distance of the cost from the target, without a teacher's part."""
        output = self.gated(images, key=key, temperature=exponential(progress, *self.temperatures), train=True)
        ledger, logits = self.batch_macs(output), output.logits[None]
        target = {"full": self.static_macs, "target": self.target_rate}
        budget = self.rate_weight * budget_loss(ledger.total, ledger.shares, **target, progress=progress)
        shares = {"loss_budget": budget, "computed": ledger.total / self.static_macs}
        return Loss(exit_losses(logits, targets).sum() + budget, logits, shares)

    @property
    def static_macs(self) -> float:
        """Multiply-accumulates without gates."""
        return self.dense_macs - sum(block.always_macs() for block in self.blocks.values())

    def macs(self, densities: Sequence[Densities]) -> Ledger:
        """See `GatedNetwork`."""
        blocks = list(self.blocks.values())
        spent = jnp.stack([block.macs(share) for block, share in zip(blocks, densities, strict=True)])
        return Ledger(spent, jnp.asarray([_dense(block) for block in blocks], jnp.float32), self._fixed())

    @property
    def dense_macs(self) -> float:
        """See `GatedNetwork`."""
        return float(self._fixed() + sum(_dense(block) for block in self.blocks.values()))

    def _fixed(self) -> int:
        width, side = self.conv1.kernel.shape[3], self.img_size // 2
        features, classes = self.fc.kernel.shape
        stem = 3 * 49 * width * side**2 + 9 * width * (side // 2) ** 2
        return stem + features + features * classes


def _dense(block: GatedResidual) -> float:
    return float(block.macs(Densities(1.0, 1.0, 1.0, 1.0)))  # type: ignore[arg-type]


def _require_sizes(img_size: int, layers: tuple[int, ...], options: dict[str, tuple[Any, ...]]) -> None:
    for name, values in options.items():
        if len(values) != len(layers):
            raise UserError(
                f"{name}={tuple(values)} has {len(values)} entries: give one for each of {len(layers)} stages."
            )
    if img_size % 2 ** (len(layers) + 1):
        raise UserError(f"img_size={img_size} is not a multiple of {2 ** (len(layers) + 1)}: use one that is.")
    for stage, (side, mode) in enumerate(zip(options["granularity"], options["modes"], strict=True)):
        places = img_size // 2 ** (stage + 2)
        if side < 1 or (mode != "layer" and places % side):
            raise UserError(
                f"granularity={side} does not divide the {places} places along a side of stage {stage + 1}: use "
                "a divisor."
            )
