"""The dense classifier that a network learns from: `config.teacher`."""

from typing import Any

from jaxprune.checkpoints.run import load_card, load_model
from jaxprune.commands.shared import inputs
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.nn.params import Split, split


def open_teacher(config: Config, examples: Any) -> Split | None:
    """Returns the teacher of a config; None if it has none.

    Args:
      examples: the data, or whatever has their `num_classes` and `class_names`.

    Raises:
      UserError: it is not a dense classifier of these classes.
    """
    if not config.teacher:
        return None
    card = load_card(config.teacher)
    if card.kind != "model" or card.networks:
        raise UserError(f"config.teacher={config.teacher} holds no classifier: give the run of a dense classifier.")
    if card.plan is not None:
        raise UserError(
            f"config.teacher={config.teacher} is under the plan {card.plan}: give the run of a dense classifier."
        )
    teacher: Any = load_model(config.teacher)
    inputs.require_classes(examples, teacher.num_classes, config.teacher, card.class_names)
    return split(teacher)
