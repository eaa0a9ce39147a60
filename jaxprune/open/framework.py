"""Opens a pre-training framework from any origin, such as the frozen autoencoder that makes a ranker's labels."""

import logging
from collections.abc import Mapping
from typing import Any

from flax import nnx

from jaxprune.checkpoints.build import build
from jaxprune.checkpoints.run import load_card, load_model
from jaxprune.errors import UserError
from jaxprune.mim import Pixels
from jaxprune.nn.params import Split, merge, split
from jaxprune.open.origin import Origin, Random, Run
from jaxprune.preprocessing import Preprocessing
from jaxprune.ranking.removals import token_decoder
from jaxprune.weights.read import load_pretrained

_log = logging.getLogger(__name__)


def open_framework(origin: Origin, arguments: Mapping[str, Any] | None = None, *, dtype: str | None = None) -> Any:
    """Returns a pre-training framework with its decoder.

    Args:
      arguments: name and arguments of the framework (see `mim.create`), where its origin does not describe it.
      dtype: compute dtype; None = as the run has it, else float32.

    Raises:
      UserError: it is of something else than a framework, or of another one.
    """
    if isinstance(origin, Run):
        card = load_card(origin.path).require("mim", origin.path)
        arguments, framework = card.arguments, load_model(origin.path)
    else:
        arguments = arguments or {}
        framework = build("mim", arguments, rngs=nnx.Rngs(0))
        if not isinstance(origin, Random):
            # A checkpoint of LTRP's training contains the ranker and the autoencoder.
            load_pretrained(framework, origin.weights, ignored=("score_net.*",))
    if dtype is None:
        return framework
    # The same weights, in the precision that the caller computes with.
    parts, record = split(framework), framework.preprocessing
    graph = split(nnx.eval_shape(lambda: build("mim", arguments, dtype=dtype, rngs=nnx.Rngs(0)))).graph
    framework = merge(graph, parts.params, parts.rest)
    framework.preprocessing = record
    return framework


def open_label_model(
    origin: Origin,
    arguments: Mapping[str, Any],
    preprocessing: Preprocessing,
    *,
    dtype: str = "float32",
    expects: str = "full",
) -> Split:
    """Returns the autoencoder for a ranker's labels, and warns if its training differs from LTRP's.

    Args:
      arguments: see `open_framework`.
      preprocessing: of the ranker's images, which the autoencoder reads too.
      dtype: compute dtype.
      expects: the expected kind of reconstruction in its training.

    Raises:
      UserError: it is not a masked autoencoder that labels can be made with, or was trained on pixels normalised in
        another way.
    """
    framework = open_framework(origin, arguments, dtype=dtype)
    if isinstance(origin, Run):
        _require_normalisation(framework.preprocessing, preprocessing, origin)
    token_decoder(framework)  # raises for an unsuitable decoder
    if framework.target.name != Pixels.name:
        _log.warning(
            "%s was trained on %s; LTRP makes its labels from raw pixels (norm_pix_loss=False).",
            origin,
            framework.target.name,
        )
    if framework.reconstruction != expects:
        _log.warning(
            "%s was trained with %s reconstruction, but %s was expected; LTRP's labels come from a decoder that was "
            "trained on all patches.",
            origin,
            framework.reconstruction,
            expects,
        )
    return split(framework)


def abstract(parts: Split) -> Any:
    """Returns the module of a split network without its arrays, for its sizes and settings."""
    return nnx.eval_shape(lambda: merge(parts.graph, parts.params, parts.rest))


def _require_normalisation(trained: Preprocessing, images: Preprocessing, origin: Run) -> None:
    for name in ("mean", "std"):
        if getattr(trained, name) != getattr(images, name):
            raise UserError(
                f"{origin} was trained on pixels with {name} {getattr(trained, name)}, and the ranker's images have "
                f"{getattr(images, name)}: give the same."
            )
