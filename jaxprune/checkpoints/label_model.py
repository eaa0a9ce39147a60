"""Opens the frozen masked autoencoder for a ranker's labels, from a run directory or a published file."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from jaxprune.checkpoints.card import Card
from jaxprune.checkpoints.run import build, load_model
from jaxprune.errors import UserError
from jaxprune.mim import Pixels
from jaxprune.nn.params import Split, merge, split
from jaxprune.preprocessing import Preprocessing
from jaxprune.ranking.removals import token_decoder
from jaxprune.weights.read import load_pretrained

_log = logging.getLogger(__name__)


def open_label_model(
    origin: str | Path,
    published: Mapping[str, Any],
    preprocessing: Preprocessing,
    *,
    dtype: str = "float32",
    expects: str = "full",
) -> Split:
    """Returns the autoencoder, and warns if its training differs from LTRP's.

    Args:
      origin: a run directory of pre-training, or a file of published weights.
      published: of a file, the name and the arguments of its framework.
      preprocessing: of the ranker's images, which the autoencoder reads too.
      dtype: compute dtype.
      expects: the expected kind of reconstruction in its training.

    Raises:
      UserError: it is not a masked autoencoder that labels can be made with, or was trained on pixels normalised in
        another way.
    """
    origin = Path(origin)
    if origin.is_dir():
        card = Card.read(origin).require("mim", origin)
        _require_normalisation(card.preprocessing, preprocessing, origin)
        arguments, loaded = card.arguments, split(load_model(origin))
    else:
        arguments = published
        framework = build("mim", arguments, rngs=nnx.Rngs(0))
        # A checkpoint of LTRP's training contains the ranker and the autoencoder.
        loaded = split(load_pretrained(framework, origin, ignored=("score_net.*",)))
    # The same weights, in the precision that this run computes with.
    graph = split(nnx.eval_shape(lambda: build("mim", arguments, dtype=dtype, rngs=nnx.Rngs(0)))).graph
    parts = Split(graph, loaded.params, loaded.rest)
    framework = abstract(parts)
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
    return parts


def abstract(parts: Split) -> Any:
    """Returns the module of a split network without its arrays, for its sizes and settings."""
    return nnx.eval_shape(lambda: merge(parts.graph, parts.params, parts.rest))


def _require_normalisation(theirs: Preprocessing, ours: Preprocessing, origin: Path) -> None:
    for name in ("mean", "std"):
        if getattr(theirs, name) != getattr(ours, name):
            raise UserError(
                f"{origin} was trained on pixels with {name} {getattr(theirs, name)}, and config.data.{name} is "
                f"{getattr(ours, name)}: give the same."
            )
