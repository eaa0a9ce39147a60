"""A run's states: checkpoints and their card; with them the public names for loading and saving networks."""

import os
from typing import TYPE_CHECKING, Any

from jaxprune.checkpoints.hub import from_pretrained, push_to_hub
from jaxprune.checkpoints.run import load_card, load_model, save_model
from jaxprune.weights.read import load_pretrained, read_tensors
from jaxprune.weights.write import save_pretrained

if TYPE_CHECKING:
    from jaxprune.open import Classifier


def open_classifier(
    run: str | os.PathLike = "", weights: str | os.PathLike = "", name: str = "", **options: Any
) -> "Classifier":
    """Opens the classifier of a run, or of published weights: `open.open_classifier` by keywords.

    Args:
      run: a run directory, or a file that `save_model` wrote.
      weights, name: published weights (see `read_tensors`) instead, and the name of their network.
      options: `class_names`, `img_size` and `ema`; see `open.open_classifier`.

    Raises:
      UserError: there is no classifier, or there are two.
    """
    from jaxprune import open as door

    return door.open_classifier(door.named(run, weights, name, kind="classifier"), **options)


def __getattr__(name: str) -> Any:
    if name == "Classifier":
        from jaxprune.open import Classifier

        return Classifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Classifier",
    "from_pretrained",
    "load_card",
    "load_model",
    "load_pretrained",
    "open_classifier",
    "push_to_hub",
    "read_tensors",
    "save_model",
    "save_pretrained",
]
