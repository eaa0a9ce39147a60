"""What a network makes of images before it classifies them: CLS tokens, pooled vectors, maps of patches."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxprune.analysis.forwards import pixels
from jaxprune.errors import UserError
from jaxprune.evaluate import Forward
from jaxprune.nn.host import Host
from jaxprune.nn.params import merge, split

FEATURES = {
    "cls": "the CLS token behind the final norm",
    "pooled": "what the classifier reads, or would read",
    "patches": "the map of patches behind the final norm",
}
# The final norm is none where a network normalises what it pools instead (`fc_norm`), as in `forward_features`.


def require(model: Any, what: Sequence[str], origin: str) -> None:
    """Refuses what a network does not have.

    Args:
      model: the network.
      what: of `FEATURES`.
      origin: where the network comes from.

    Raises:
      UserError: it has no CLS token, or does not say what it pools.
    """
    has_cls = getattr(model, "cls_token", None) is not None
    others = "'pooled' or 'patches'"
    if "cls" in what and not has_cls:
        raise UserError(f"config.what={tuple(what)!r}: {origin} has no CLS token: write {others}.")
    if "pooled" not in what or not isinstance(model, Host):
        return
    if not hasattr(model, "pool"):
        raise UserError(f"config.what={tuple(what)!r}: {type(model).__name__} has no `pool`: write 'patches'.")
    if getattr(model, "global_pool", "") == "token" and not has_cls:
        raise UserError(f"config.what={tuple(what)!r}: {origin} pools a CLS token, which it has not: write 'patches'.")


def features(model: Any, what: Sequence[str]) -> Forward:
    """Returns what computes {name: float32 (b, d), of "patches" (b, rows, columns, d)} of what is asked for.

    Under a plan, maps are dense again: every patch has the row that holds it, a dropped one zeros.

    Args:
      model: a host of plans, such as a ViT, or a ConvNet; `model.preprocessing` is how its images are prepared.
      what: of `FEATURES`.
    """
    parts, record = split(model), model.preprocessing

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        network, images = merge(parts.graph, arrays, {}), pixels(batch["image"], record)
        found = _of_host(network, images, what) if isinstance(network, Host) else _of_convnet(network, images)
        return {name: found[name].astype(jnp.float32) for name in what}

    return Forward(call, {**parts.params, **parts.rest})


def _of_host(network: Any, images: jax.Array, what: Sequence[str]) -> dict[str, jax.Array]:
    tokens, _ = network.forward_features(images)
    make = {
        "cls": lambda: tokens.x[:, 0],
        "pooled": lambda: network.pool(tokens),
        "patches": lambda: network.patch_maps(tokens, images.shape[1:-1]),
    }
    return {name: make[name]() for name in what}


def _of_convnet(network: Any, images: jax.Array) -> dict[str, jax.Array]:
    maps = network.forward_features(images)
    return {"pooled": maps.astype(jnp.float32).mean((1, 2)), "patches": maps}
