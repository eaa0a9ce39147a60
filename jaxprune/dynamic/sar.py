"""SAR: a ResNet in which a coarse branch decides which cells of its maps are refined (Han et al., 2021)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxprune.dynamic.parts.gated import GatedNetwork, GatedOutput, Ledger
from jaxprune.dynamic.parts.gates import Draws, exponential
from jaxprune.dynamic.parts.sar_module import BranchBlock, SarModule
from jaxprune.dynamic.segments import Loss, Pixels
from jaxprune.errors import UserError, unknown
from jaxprune.losses import exit_losses, refinement_loss
from jaxprune.models.resnet import max_pool
from jaxprune.nn import BatchNorm, Conv, Linear
from jaxprune.preprocessing import Preprocessing

_STEMS = ("imagenet", "cifar")
_WIDTHS = {"imagenet": (64, 64, 128, 256, 512), "cifar": (16, 16, 32, 64)}  # of the stem and of the stages
# Sizes for tests and smoke runs.
TINY = {"img_size": 32, "stem": "cifar", "bottleneck": False, "layers": (2,) * 3, "mask_size": (4, 4, 2), "width": 0.5}
_PLAIN_WIDTH = 512  # of ImageNet's last stage, whatever the width


class SAR(GatedNetwork):
    """Spatially adaptive ResNet: three stages of a base and a refining branch, then a plain one.

    >>> import jax, numpy as np
    >>> sizes = dict(img_size=32, stem="cifar", bottleneck=False, layers=(2, 2, 2), mask_size=(4, 4, 2))
    >>> model = SAR(**sizes, num_classes=3, rngs=nnx.Rngs(0))
    >>> output = jax.eval_shape(model.gated, np.zeros((2, 32, 32, 3), np.uint8))
    >>> output.logits.shape, jax.eval_shape(model.image_macs, output).shape
    ((2, 3), (2,))

    `model(pixels)` takes the more probable decisions; the published evaluation draws noise as well, see `gated`. The
    loss is the cross-entropy plus `losses.refinement_loss(gates)`.

    Args:
      img_size: side of the images in pixels.
      stem: "imagenet" (7×7 convolution, max pooling, a fourth plain stage) or "cifar" (3×3, three stages).
      bottleneck, layers: as of a ResNet; a stage of n blocks has n - 1 in each branch and one that fuses.
      width: multiplies the channels.
      groups: of consecutive channels of a refining block, with a mask each.
      mask_size: cells along a side of a mask, one number a stage.
      alpha, beta: the base branch has 1/alpha of a stage's channels, the refining one beta times them.
      base_scale: 2 or 4 a stage: by how much the base branch's maps are smaller.
      target_rate, rate_weight: of `loss`: the share of cells to refine, and the weight of its distance.
      temperatures: at the start of the training, and at `annealed` of it and later.
      annealed: share of the training in which the temperature falls; the published runs of 200 epochs stop after 160.
      preprocessing: how images are prepared; by default with ImageNet's mean and deviation.

    Raises:
      UserError: the stem is unknown, a stage has fewer than two blocks, or sizes do not fit the stages.
    """

    def __init__(
        self,
        *,
        img_size: int = 224,
        stem: str = "imagenet",
        bottleneck: bool = True,
        layers: tuple[int, ...] = (3, 4, 6, 3),
        width: float = 1.0,
        num_classes: int = 1000,
        groups: int = 2,
        mask_size: tuple[int, ...] = (7, 7, 2),
        alpha: int = 2,
        beta: tuple[float, ...] = (1, 1, 1),
        base_scale: tuple[int, ...] = (2, 2, 2),
        target_rate: float = 0.4,
        rate_weight: float = 10.0,
        temperatures: tuple[float, float] = (1.0, 0.01),
        annealed: float = 0.8,
        preprocessing: Preprocessing | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        if stem not in _STEMS:
            raise unknown("stem", stem, _STEMS)
        _require_stages(stem, layers, mask_size=mask_size, beta=beta, base_scale=base_scale)
        self.stem, self.img_size, self.num_classes, self.dtype = stem, img_size, num_classes, dtype
        self.target_rate, self.rate_weight = target_rate, rate_weight
        self.temperatures, self.annealed = tuple(temperatures), annealed
        self.preprocessing = preprocessing or Preprocessing((img_size, img_size))
        common = {"dtype": dtype, "rngs": rngs}
        large, expansion = stem == "imagenet", 4 if bottleneck else 1
        first, *stages = _WIDTHS[stem]
        inputs = int(first * width) if large else first
        self.conv1 = Conv(3, inputs, 7 if large else 3, stride=2 if large else 1, **common)
        self.bn1 = BatchNorm(inputs)
        zero_init = bottleneck or not large
        for stage in range(len(mask_size)):
            outputs = int(stages[stage] * width) * expansion
            module = SarModule(
                inputs,
                outputs,
                layers[stage],
                stride=1 if stage == len(mask_size) - 1 else 2,
                bottleneck=bottleneck,
                groups=groups,
                mask_size=mask_size[stage],
                alpha=alpha,
                beta=beta[stage],
                base_scale=base_scale[stage],
                zero_init=zero_init,
                **common,
            )
            setattr(self, f"layer{stage + 1}", module)
            inputs = outputs
        self.num_stages = len(mask_size)
        plain: list[BranchBlock] = []
        for index in range(layers[-1] if large else 0):
            outputs, stride = _PLAIN_WIDTH * expansion, 1 if index else 2
            plain.append(
                BranchBlock(inputs, outputs, stride=stride, bottleneck=bottleneck, zero_init=zero_init, **common)
            )
            inputs = outputs
        self.layer4 = nnx.List(plain)
        self.fc = Linear(inputs, num_classes, **common)

    @property
    def _stages(self) -> list[SarModule]:
        return [getattr(self, f"layer{stage}") for stage in range(1, self.num_stages + 1)]

    def of_images(
        self, images: Float[Array, "b h w c"], draws: Draws, temperature: float | Array, *, train: bool
    ) -> GatedOutput:
        """See `GatedNetwork`; densities are those of the masks, in the order of the blocks."""
        x = jax.nn.relu(self.bn1(self.conv1(images), train=train))
        x = max_pool(x) if self.stem == "imagenet" else x
        gates = {}
        for number, stage in enumerate(self._stages, start=1):
            x, decided = stage(x, draws, temperature, train=train)
            gates |= {f"layer{number}.mask_gen.{index}": gate for index, gate in enumerate(decided)}
        for block in self.layer4:
            x = block(x, train=train)
        densities = tuple(gate.density for gate in gates.values())
        return GatedOutput(self.fc(x.mean((1, 2))), gates, densities)

    def loss(
        self,
        images: Pixels,
        targets: Float[Array, "b c"],
        *,
        key: PRNGKeyArray | None = None,
        progress: float | Array = 0.0,
    ) -> Loss:
        """See `Segmented`: cross-entropy, and the distance of the masks' densities from the target."""
        temperature = exponential(progress / self.annealed, *self.temperatures)
        output = self.gated(images, key=key, temperature=temperature, train=True)
        logits, opens = output.logits[None], [gate.open for gate in output.gates.values()]
        rate = refinement_loss(opens, self.target_rate, self.rate_weight)
        shares = {"loss_rate": rate, "refined": jnp.stack([gate.mean() for gate in opens]).mean()}
        return Loss(exit_losses(logits, targets).sum() + rate, logits, shares)

    def macs(self, densities: tuple[Float[Array, "*b"], ...]) -> Ledger:
        """See `GatedNetwork`: the convolutions of refining blocks are proportional to the density of their mask."""
        fixed, masked = self._account()
        dense = jnp.asarray(masked, jnp.float32)
        return Ledger(jnp.stack([d * macs for d, macs in zip(densities, masked, strict=True)]), dense, fixed)

    @property
    def dense_macs(self) -> float:
        """See `GatedNetwork`."""
        fixed, masked = self._account()
        return float(fixed + sum(masked))

    def _account(self) -> tuple[int, list[int]]:
        """The multiply-accumulates beside the masked convolutions, and those of each of these."""
        kernel, side = self.conv1.kernel.shape, -(-self.img_size // self.conv1.stride)
        fixed = kernel[0] ** 2 * kernel[2] * kernel[3] * side**2
        if self.stem == "imagenet":
            side = -(-side // 2)
            fixed += 9 * kernel[3] * side**2
        masked = []
        for stage in self._stages:
            macs = stage.macs(side)
            fixed, masked, side = fixed + macs.fixed, masked + macs.masked, macs.side
        for block in self.layer4:
            fixed, side = fixed + sum(block.macs(side)) + block.pool_macs(side), block.side(side)
        features, classes = self.fc.kernel.shape
        return fixed + features * side**2 + features * classes, masked


def _require_stages(stem: str, layers: tuple[int, ...], **sizes: tuple[Any, ...]) -> None:
    count = len(_WIDTHS[stem]) - 1
    if len(layers) != count or min(layers[:3]) < 2:
        raise UserError(
            f"layers={tuple(layers)} does not fit stem={stem!r}: give {count} numbers, at least 2 for the first three."
        )
    for name, numbers in sizes.items():
        if len(numbers) != 3:
            raise UserError(
                f"{name}={tuple(numbers)} has {len(numbers)} numbers: give one for each of the 3 stages with masks."
            )
