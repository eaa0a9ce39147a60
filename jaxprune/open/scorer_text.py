"""The text of a patch scorer, such as "papr:model=NAME,weights=FILE", and the networks that scorers read."""

from typing import Any, NamedTuple

from flax import nnx

from jaxprune import models, scoring
from jaxprune.errors import UserError, unknown
from jaxprune.open.network import open_network
from jaxprune.open.origin import File, Origin, Package, Random, at, named
from jaxprune.text import parse_items


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
    """Parses the text of a scorer; opens nothing.

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


class NetworkCache:
    """The networks that scorers read; each is opened once, on first use.

    Args:
      host: the ViT or ranker that scorers read by default: its origin, or the network itself; None = there is none.
      shape: the name of the ViT whose patches are ranked where no ViT is open; "" = there is none.
      proposal: the origin of the ConvNet that scorers read by default; None = there is none.
      seed: of random weights.
    """

    def __init__(self, *, host: Any = None, shape: str = "", proposal: Origin | None = None, seed: int = 0):
        self._host, self._shape, self._proposal, self._seed = host, shape, proposal, seed
        self._opened: dict[Origin, Any] = {}

    def open(self, origin: Any) -> Any:
        """Returns the network of an origin; a network, or None, as it is."""
        if not isinstance(origin, Origin):
            return origin
        if origin not in self._opened:
            self._opened[origin] = open_network(origin, seed=self._seed)
        return self._opened[origin]

    def origin_for(self, scorer: ScorerText) -> Any:
        """Returns the origin of what a scorer reads: what its text names, else the default; None if it reads nothing.

        Raises:
          UserError: the text names no network, and there is no default one.
        """
        cls = scoring.methods()[scorer.name]
        if scorer.origin is not None or cls.reads in ("nothing", "optional"):
            return scorer.origin
        if cls.reads in ("vit", "ranker"):
            if self._host is None:
                kind = "a ViT" if cls.reads == "vit" else "a ranker"
                remedy = f"write {scorer.name}:run=RUN with a run directory that has one."
                raise UserError(f"{scorer.name} reads {kind}: {remedy}")
            return self._host
        remedy = f"write {scorer.name}:model=NAME,weights=FILE"
        if self._proposal is None:
            kind = "a ConvNet" if cls.reads == "convnet" else "a ConvNet or a ViT"
            raise UserError(f"{scorer.name} reads {kind}: {remedy}, or name a proposal.")
        if len(cls.published_networks) > 1 and not scorer.options:
            raise UserError(f"{scorer.name} reads networks that were trained with it: {remedy} with its file.")
        return self._proposal

    def host(self) -> Any:
        """Returns the default ViT or ranker, or None."""
        return self.open(self._host)

    def shape(self) -> Any:
        """Returns the ViT called `shape`, without weights, or None."""
        return nnx.eval_shape(lambda: models.create(self._shape, rngs=nnx.Rngs(0))) if self._shape else None


def require_network(text: str, networks: NetworkCache) -> None:
    """Raises a `UserError` for a scorer whose text names no network, where there is none by default; opens nothing."""
    origin = networks.origin_for(parse_scorer(text))
    if isinstance(origin, Package):
        _ = origin.weights  # raises where the package is not installed
