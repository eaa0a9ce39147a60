"""Parses the text of a patch scorer, such as "papr:model=NAME,weights=FILE"; opens nothing."""

from typing import Any, NamedTuple

from jaxprune import scoring
from jaxprune.errors import UserError, unknown
from jaxprune.open.network_cache import nothing_to_read
from jaxprune.open.origin import File, Origin, Package, Random, at, named
from jaxprune.text import parse_items
from jaxprune.weights.packaged import published_weights


class ScorerText(NamedTuple):
    """The parsed text of a scorer.

    Attributes:
      name: of the scorer.
      origin: of the network that it reads; None where the text does not say.
      options: the scorer's own.
    """

    name: str
    origin: Origin | None
    options: dict[str, Any]


def parse_scorer(text: str) -> ScorerText:
    """Parses the text of a scorer, such as "papr:model=NAME,weights=FILE,with_fc=true".

    >>> parse_scorer("papr:model=resnet18,with_fc=true")
    ScorerText(name='papr', origin=Random(name='resnet18', arguments=()), options={'with_fc': True})

    Raises:
      UserError: there is no such scorer, an item is not `name=value`, or it names two networks.
    """
    name, _, rest = text.partition(":")
    options = parse_items(rest, f"scorer {text!r}", texts=("run", "weights", "model"))
    run, weights, model = (options.pop(part, "") for part in ("run", "weights", "model"))
    if name not in (methods := scoring.methods()):
        raise unknown("scoring method", name, methods)
    origin = Random(model) if model else None
    if run or weights:
        origin = named(run, weights, model, settings=("run", "weights", "model"))
    return ScorerText(name, at(weights, model) if isinstance(origin, File) else origin, options)


def require_network(text: str, *, host: bool, proposal: Origin | None) -> None:
    """Raises for a scorer without a network; opens nothing.

    Args:
      host: whether there is a ViT or ranker that scorers read by default.
      proposal: see `NetworkCache`.

    Raises:
      UserError: its text names no network, and there is none by default.
    """
    name, origin, options = parse_scorer(text)
    cls = scoring.methods()[name]
    if origin is not None or cls.reads in ("nothing", "optional"):
        return
    if cls.reads in ("vit", "ranker"):
        if not host:
            raise nothing_to_read(name, cls.reads)
    elif proposal is None:
        raise nothing_to_read(name, cls.reads)
    elif len(cls.published_networks) > 1 and not options:
        raise UserError(
            f"{name} reads networks that were trained with it: write {name}:model=NAME,weights=FILE with its file."
        )
    elif isinstance(proposal, Package):
        published_weights(proposal.name)  # raises where the package is not installed
