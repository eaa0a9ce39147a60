"""The dense classifier that a network learns from: `config.teacher`."""

from collections.abc import Sequence
from typing import Any

from jaxprune.checkpoints.run import load_card, load_model
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.nn.params import Split, split
from jaxprune.open.initialise import are_named


def open_teacher(config: Config, num_classes: int, class_names: Sequence[str] = ()) -> Split | None:
    """Returns the teacher of a config; None if it has none.

    Args:
      num_classes: number of classes of the data.
      class_names: their names; empty where they are not known.

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
    if teacher.num_classes != num_classes:
        raise UserError(
            f"config.teacher={config.teacher} knows {teacher.num_classes} classes, and the data have {num_classes}: "
            "give a classifier of the same classes."
        )
    if are_named(card.class_names) and are_named(class_names) and tuple(card.class_names) != tuple(class_names):
        pairs = enumerate(zip(card.class_names, class_names, strict=True))
        number, (there, here) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        raise UserError(
            f"config.teacher={config.teacher} knows other classes: class {number} is {there!r} there and {here!r} in "
            "the data. Give a classifier of the same classes in the same order."
        )
    return split(teacher)
