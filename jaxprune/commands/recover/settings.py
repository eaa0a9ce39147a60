"""The settings of `recover`."""

from collections.abc import Iterator
from typing import Any

from jaxprune import recover
from jaxprune.commands.shared import inspection, several_networks, train_first
from jaxprune.commands.shared.settings import like, number, record, refused, setting
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
    keep_rates: tuple[float, ...] = like(
        recover.Settings, "keep_rates", "one network for several rates, one drawn a step"
    )
    rivals: tuple[str, ...] = setting(
        (AUTO,), 'healed likewise: auto (at the FLOPs of plans), "img_size=182", "patch_size=16", "depth=9", a network'
    )
    minutes: float = like(recover.Settings, "minutes", "training time of each; 0: steps")
    steps: int = like(recover.Settings, "steps", "steps of each, instead of minutes")
    batch_size: int = like(recover.Settings, "batch_size", "images a step")
    learning_rate: float = like(recover.Settings, "learning_rate", "highest rate of AdamW; 0: from the first gradients")
    weight_decay: float = like(recover.Settings, "weight_decay", "decoupled")
    trainable: str = setting("all", "what learns: all, norms, last:K blocks, or lora:R", parse)
    features: float = like(
        recover.Weights, "features", "weight of the distance of pooled features, relative to the dense ones"
    )
    patches: float = like(recover.Weights, "patches", "weight of the distance of patch tokens, likewise")
    logits: float = like(recover.Weights, "logits", "weight of the KL divergence of the classes, with a head")
    easing: float = like(recover.Settings, "easing", "share of the steps in which a plan sets in; 0: from the start")
    stages: int = like(recover.Settings, "stages", "plans on the way, each compiled")
    crop_scale: tuple[float, float] = like(recover.Settings, "crop_scale", "area of the random crops")
    flip: bool = setting(True, "horizontal flips")
    evaluations: int = like(
        recover.Settings, "evaluations", "evaluations on held-out images, of which the best is kept"
    )
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
        """Yields what is wrong with the rivals and with settings together, and that there is nothing to heal."""
        yield from refused(lambda: settings_of(config))
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
