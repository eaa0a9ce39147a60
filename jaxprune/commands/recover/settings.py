"""The settings of `recover`."""

from collections.abc import Iterator
from typing import Any

from jaxprune import recover
from jaxprune.commands.shared import inspection, several_networks, train_first
from jaxprune.commands.shared.settings import number, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.open import rivals
from jaxprune.open.rivals import AUTO, is_rival
from jaxprune.recover.learning import parse


@record()
class Settings(inspection.OnlyPlans, inspection.Plans, inspection.NetworkInspection):
    """A network, plans to heal it under, and rivals to heal for the same time."""

    FIRST = (
        *("run", "model.weights", "model.name", "plans", "keep_rates"),
        *("minutes", "rivals", "trainable", "data.source", "data.path"),
    )

    plans: tuple[str, ...] = setting(("tome:rounds=2", "random"), "token-reduction plans, each healed")
    keep_rates: tuple[float, ...] = number((), "one network for several rates, one drawn a step", above=0, at_most=1)
    rivals: tuple[str, ...] = setting(
        (AUTO,), 'healed likewise: auto (at the FLOPs of plans), "img_size=182", "patch_size=16", "depth=9", a network'
    )
    minutes: float = number(30.0, "training time of each; 0: steps", at_least=0)
    steps: int = number(0, "steps of each, instead of minutes", at_least=0)
    batch_size: int = number(32, "images a step", at_least=1)
    learning_rate: float = number(0.0, "highest rate of AdamW; 0: from the first gradients", at_least=0)
    weight_decay: float = number(0.0, "decoupled", at_least=0)
    trainable: str = setting("all", "what learns: all, norms, last:K blocks, or lora:R", parse)
    features: float = number(1.0, "weight of the distance of pooled features, relative to the dense ones", at_least=0)
    patches: float = number(1.0, "weight of the distance of patch tokens, likewise", at_least=0)
    logits: float = number(1.0, "weight of the KL divergence of the classes, with a head", at_least=0)
    easing: float = number(0.3, "share of the steps in which a plan sets in; 0: from the start", at_least=0, at_most=1)
    stages: int = number(2, "plans on the way, each compiled", at_least=0)
    crop_scale: tuple[float, float] = number((0.5, 1.0), "area of the random crops", above=0, at_most=1)
    flip: bool = setting(True, "horizontal flips")
    evaluations: int = number(8, "evaluations on held-out images, of which the best is kept", at_least=1)
    num_images: int = number(0, "images to compare on; 0: all held-out images", at_least=0)
    rounds: int = number(7, "timing rounds", at_least=2)
    timed_batch: int = number(8, "images a batch when speed is measured", at_least=1)

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns that there is no network, no images, or no network of the scorer."""
        lacking = inspection.without_network((config.scorer,), host=True)
        return [*lacking, *train_first.missing(config)]

    @staticmethod
    def check(config: Config, prefix: str) -> Iterator[str]:
        """Yields what is wrong with the rivals, and that there is nothing to heal."""
        if not config.plans and set(config.rivals) <= {AUTO}:
            yield f"{prefix}plans and {prefix}rivals are empty: give a plan, such as ('tome:rounds=2',)."
        if not (config.minutes or config.steps):
            yield f"{prefix}minutes and {prefix}steps are both 0: give one of them."
        for text in config.rivals:
            yield from refused(lambda text=text: check_rival(text, f"{prefix}rivals"))


def check_rival(text: str, name: str) -> None:
    """Refuses a text that is neither a change of the network nor another one.

    Raises:
      UserError: see above.
    """
    if is_rival(text):
        try:
            rivals.parse(text)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
    elif text != AUTO:
        several_networks.check_name(text, name)


def settings_of(config: Config, *, plain: bool = False) -> recover.Settings:
    """How networks are healed.

    Args:
      plain: for a network without a plan, which has no keep rates.
    """
    values: dict[str, Any] = {name: config[name] for name in recover.Settings.__dataclass_fields__}
    return recover.Settings(**{**values, "keep_rates": ()} if plain else values)
