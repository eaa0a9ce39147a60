"""Opens a network from any origin."""

from typing import Any

from flax import nnx

from jaxprune import models
from jaxprune.checkpoints.run import backbone, carries_card, load_card, load_model
from jaxprune.errors import UserError
from jaxprune.open.origin import Origin, Published, Random, Run
from jaxprune.weights.open_published import open_published


def open_network(origin: Origin, *, img_size: int | tuple[int, int] | None = None, seed: int = 0) -> Any:
    """Returns a network, with or without a classifier; of a pre-training framework or a ranker the part with features.

    >>> from jaxprune.open import Random
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2)
    >>> open_network(Random("vit", tuple(sizes.items())), img_size=32).grid
    (8, 8)

    Args:
      img_size: for images of another size; see `load_model`.
      seed: of random weights.

    Raises:
      UserError: there is no such network, or its files do not fit.
    """
    match origin:
        case Run():
            return backbone(load_model(origin.path, img_size=img_size))
        case Random():
            return _untrained(origin, img_size, seed)
        case _:
            return _published(origin, img_size)


def open_ranker(origin: Origin, *, img_size: int | tuple[int, int] | None = None) -> Any:
    """Returns a ranker of patches: that of a run, or a published network with one output per patch.

    Raises:
      UserError: the run is of something else, or there is none.
    """
    if isinstance(origin, Run):
        load_card(origin.path).require("ranker", origin.path)
        return load_model(origin.path, img_size=img_size)
    return open_network(origin, img_size=img_size)


def _published(origin: Published, img_size: int | tuple[int, int] | None) -> Any:
    weights = origin.weights
    if carries_card(weights):
        raise UserError(f"{weights} was written by save_model and describes its own network: give it as a run.")
    if not origin.name:
        raise UserError(
            f"{weights} does not say which network it belongs to: name the network, such as vit_base_patch16_224."
        )
    return open_published(weights, origin.name, img_size=img_size)


def _untrained(origin: Random, img_size: int | tuple[int, int] | None, seed: int) -> Any:
    arguments = {**dict(origin.arguments), **models.size_argument(origin.name, img_size)}
    network = models.create(origin.name, **arguments, rngs=nnx.Rngs(seed))
    if img_size is not None:
        network.preprocessing = network.preprocessing.with_size(img_size)
    return network
