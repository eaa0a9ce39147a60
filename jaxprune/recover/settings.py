"""How a network is healed."""

import dataclasses

from jaxprune.errors import UserError, quoted
from jaxprune.number_bounds import bounded, require_bounded
from jaxprune.recover.distance import Weights


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a network is healed.

    Attributes:
      minutes: training time; 0 leaves the network as it is, if `steps` is 0 too.
      steps: number of steps, instead of `minutes`.
      batch_size: images a step.
      learning_rate: highest rate of AdamW; it rises over a twentieth of the steps and falls along a cosine to 0. 0:
        from the first gradients, the rate at which a step would undo the loss, to first order.
      weight_decay: decoupled.
      trainable: what learns, see `learning.learning`.
      features, patches, logits: weights of the losses, see `distance.Weights`.
      easing: share of the steps over which the plan sets in, from all patches; 0: it holds from the start.
      stages: number of plans on the way, each of which is compiled.
      keep_rates: one network for several rates: every step draws one of them, instead of easing.
      crop_scale: area of the random crops.
      flip: whether half of the images are flipped.
      evaluations: number of evaluations on the held-out images; the best of them is the result.
      seed: of all randomness.

    Raises:
      UserError: a number is outside its interval.
    """

    minutes: float = bounded(30.0, at_least=0)
    steps: int = bounded(0, at_least=0)
    batch_size: int = bounded(32, at_least=1)
    learning_rate: float = bounded(0.0, at_least=0)
    weight_decay: float = bounded(0.0, at_least=0)
    trainable: str = "all"
    features: float = 1.0
    patches: float = 1.0
    logits: float = 1.0
    easing: float = bounded(0.3, at_least=0, at_most=1)
    stages: int = bounded(2, at_least=0)
    keep_rates: tuple[float, ...] = bounded((), above=0, at_most=1, example=(0.7, 0.5))
    crop_scale: tuple[float, float] = bounded((0.5, 1.0), above=0, at_most=1)
    flip: bool = True
    evaluations: int = bounded(8, at_least=1)
    seed: int = 0

    def __post_init__(self) -> None:
        require_bounded(self)
        if self.crop_scale[0] > self.crop_scale[1]:
            raise UserError(f"crop_scale={quoted(self.crop_scale)} must not fall: use for example (0.5, 1.0).")
        _ = self.weights  # which checks them

    @property
    def weights(self) -> Weights:
        """The weights of the losses."""
        return Weights(self.features, self.patches, self.logits)
