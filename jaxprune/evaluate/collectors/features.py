"""The features of a network: CLS tokens, pooled vectors, patch maps."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxprune.errors import UserError
from jaxprune.evaluate import Forward
from jaxprune.evaluate.forwards import pixels
from jaxprune.nn.host import Host

FEATURES = {
    "cls": "the CLS token after the final norm",
    "pooled": "the input of the classifier, or what it would be",
    "patches": "the map of patches after the final norm",
}
# Networks that normalise pooled features instead (`fc_norm`) have no final norm, as in `forward_features`.


def require(model: Any, names: Sequence[str], origin: str) -> None:
    """Checks that a network has the requested features.

    Args:
      model: the network.
      names: of `FEATURES`.
      origin: where the network comes from.

    Raises:
      UserError: it has no CLS token, or no `pool`.
    """
    has_cls = getattr(model, "cls_token", None) is not None
    if "cls" in names and not has_cls:
        raise UserError(f"features={tuple(names)!r}: {origin} has no CLS token: write 'pooled' or 'patches'.")
    if "pooled" not in names or not isinstance(model, Host):
        return
    if not hasattr(model, "pool"):
        raise UserError(f"features={tuple(names)!r}: {type(model).__name__} has no `pool`: write 'patches'.")
    if getattr(model, "global_pool", "") == "token" and not has_cls:
        raise UserError(f"features={tuple(names)!r}: {origin} pools a CLS token, but has none: write 'patches'.")


def features(model: Any, names: Sequence[str]) -> Forward:
    """Returns the forward function of features: {name: float32 (b, d), or (b, rows, columns, d) for "patches"}.

    Under a plan, maps are made dense: every patch gets the row that holds it, a dropped one zeros.

    Args:
      model: a `Host`, such as a ViT, or a ConvNet; `model.preprocessing` describes its images.
      names: of `FEATURES`.
    """
    record = model.preprocessing

    def call(network: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        images = pixels(batch["image"], record)
        by_name = _of_host(network, images, names) if isinstance(network, Host) else _of_convnet(network, images)
        return {name: by_name[name].astype(jnp.float32) for name in names}

    return Forward.of(model, call)


def _of_host(network: Any, images: jax.Array, names: Sequence[str]) -> dict[str, jax.Array]:
    tokens, aux = network.forward_features(images)
    make = {
        "cls": lambda: tokens.x[:, 0],
        "pooled": lambda: network.pool(tokens),
        "patches": lambda: network.patch_maps(tokens, images.shape[1:-1], aux.waiting),
    }
    return {name: make[name]() for name in names}


def _of_convnet(network: Any, images: jax.Array) -> dict[str, jax.Array]:
    maps = network.forward_features(images)
    return {"pooled": maps.astype(jnp.float32).mean((1, 2)), "patches": maps}
