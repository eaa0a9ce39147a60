"""Scorers: images to one score per patch, higher = keep; one file each."""

from typing import Any

from flax import nnx

from jaxprune.nn.recipe import remember
from jaxprune.scoring.parts.base import Scorer


def methods() -> dict[str, type[Scorer]]:
    """Returns {name: class} of every scorer, found by module or entry point."""
    import jaxprune.scoring as family
    from jaxprune import plugins

    return plugins.methods(family, Scorer)


def create(name: str, *, rngs: nnx.Rngs | None = None, **arguments: Any) -> Scorer:
    """Builds a scorer.

    Args:
      name: of a module of this package, such as "papr", or of an entry point.
      rngs: initialises the scorer's own parameters, if it has any.
      arguments: `proposal`, `grid` and `normalised`, as in `Scorer`, and the scorer's own options.

    Raises:
      UserError: the scorer or an argument is unknown, or does not fit the network.
    """
    import jaxprune.scoring as family
    from jaxprune import plugins

    cls = plugins.find(family, Scorer, name)
    always: Any = {"rngs": rngs} if "rngs" in plugins.parameters(cls) else {}
    return remember(plugins.build(cls, arguments, **always), "scorer", {"name": name, **arguments})


__all__ = ["Scorer", "create", "methods"]
