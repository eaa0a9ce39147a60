"""How a network is healed."""

import dataclasses

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
    """

    minutes: float = 30.0
    steps: int = 0
    batch_size: int = 32
    learning_rate: float = 0.0
    weight_decay: float = 0.0
    trainable: str = "all"
    features: float = 1.0
    patches: float = 1.0
    logits: float = 1.0
    easing: float = 0.3
    stages: int = 2
    keep_rates: tuple[float, ...] = ()
    crop_scale: tuple[float, float] = (0.5, 1.0)
    flip: bool = True
    evaluations: int = 8
    seed: int = 0

    @property
    def weights(self) -> Weights:
        """The weights of the losses."""
        return Weights(self.features, self.patches, self.logits)
