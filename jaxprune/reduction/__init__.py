"""Token reduction: the methods of "Which Tokens to Use?" (Haurum et al., 2023) behind one protocol, a file each."""

from jaxprune.nn.tokens import Attended, Tokens
from jaxprune.reduction.base import Aux, Reducer, Stage
from jaxprune.reduction.plan import Plan, apply
from jaxprune.reduction.unmerge import unmerge

__all__ = ["Attended", "Aux", "Plan", "Reducer", "Stage", "Tokens", "apply", "methods", "standalone", "unmerge"]


def methods() -> dict[str, type[Reducer]]:
    """Returns {name: class} of every reduction method, found by file."""
    import jaxprune.reduction as family
    from jaxprune import families

    return families.methods(family, Reducer)


def standalone() -> tuple[str, ...]:
    """Returns the names of the methods that reduce by themselves, without a scorer in front."""
    return tuple(sorted(name for name, cls in methods().items() if cls.where != "embed"))
