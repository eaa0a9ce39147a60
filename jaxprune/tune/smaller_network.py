"""The next smaller dense network, a baseline for plans."""

from typing import Any

import jax
from flax import nnx

from jaxprune import models
from jaxprune.models.vit_names import SIZES
from jaxprune.nn.around_host import host_of


def in_words(network: Any) -> str:
    """Returns the size of a network in words: "192 wide, 12 blocks, 5.5 M parameters"."""
    sites = host_of(network).sites(network.preprocessing.img_size)
    widths = dict.fromkeys(site.embed_dim for site in sites)
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network, nnx.Param)))
    return f"{' to '.join(map(str, widths))} wide, {len(sites)} blocks, {count / 1e6:.3g} M parameters"


def next_smaller(model: Any) -> Any:
    """Returns the network of the same family with the next smaller width and random weights, to measure its cost.

    For a network narrower than all named ones, one of half the width. None if there is no such network.

    Args:
      model: a network from `models.create`.
    """
    recipe = getattr(model, "recipe", None)
    if recipe is None or recipe.kind != "model":
        return None
    arguments = recipe.as_dict()
    name = arguments.pop("name")
    stands_for = {**models.arguments(name), **arguments}
    if not {"embed_dim", "depth", "num_heads"} <= set(stands_for):
        return None
    width, heads, depth = (stands_for[size] for size in ("embed_dim", "num_heads", "depth"))
    below = [size for size in SIZES.values() if size["embed_dim"] < width]
    if not below and (heads % 2 or width % heads):
        return None
    halved = {"embed_dim": width // 2, "num_heads": heads // 2, "depth": depth}
    size = max(below, key=lambda size: size["embed_dim"], default=halved)
    network = models.create(name, **{**arguments, **size, "depth": min(size["depth"], depth)}, rngs=nnx.Rngs(0))
    network.preprocessing = model.preprocessing
    return network
