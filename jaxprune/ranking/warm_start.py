"""Initialises a ranker with the encoder of the autoencoder that makes its labels."""

from collections.abc import Mapping
from typing import Any

from jaxprune.errors import UserError
from jaxprune.nn.params import variables


def begin_as_encoder(ranker: Any, framework: Mapping[str, Any]) -> None:
    """Copies an autoencoder's encoder into a ranker of the same sizes, except for the head.

    Args:
      ranker: changed in place.
      framework: {dotted name: array} of the autoencoder.

    Raises:
      UserError: the sizes differ.
    """
    for name, variable in variables(ranker).items():
        if name.startswith("head"):
            continue
        value = framework.get(f"encoder.{name}")
        if value is None or value.shape != variable.shape:
            theirs = "absent" if value is None else value.shape
            raise UserError(
                f"The ranker cannot be initialised with the autoencoder's encoder: {name} is {variable.shape} "
                f"here and {theirs} "
                "there. Give the ranker the encoder's sizes, or warm_start=False."
            )
        variable[...] = value
