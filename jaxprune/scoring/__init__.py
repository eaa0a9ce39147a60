"""Scorers: images to one score a patch, larger = keep; a file each."""

import inspect
from typing import Any

from flax import nnx

from jaxprune.nn.recipe import remember
from jaxprune.scoring.base import Scorer


def methods() -> dict[str, type[Scorer]]:
    """Returns {name: class} of every scorer, found by file."""
    import jaxprune.scoring as family
    from jaxprune import plugins

    return plugins.methods(family, Scorer)


def create(name: str, *, rngs: nnx.Rngs | None = None, **arguments: Any) -> Scorer:
    """Builds a scorer.

    Args:
      name: a module of this package, such as "papr".
      rngs: initialises the parameters of scorers that have any.
      arguments: of the scorer's class: `proposal`, the network that it reads; `grid`, the patches (rows, columns) that
        it scores, by default those of a ViT that it reads; `normalised`; and its own options.

    Raises:
      UserError: the scorer or an argument is unknown, or does not fit the network.
    """
    import jaxprune.scoring as family
    from jaxprune import plugins

    cls = plugins.find(family, Scorer, name)
    always = {"rngs": rngs} if "rngs" in inspect.signature(cls.__init__).parameters else {}
    return remember(plugins.build(cls, arguments, **always), "scorer", {"name": name, **arguments})


__all__ = ["Scorer", "create", "methods"]
