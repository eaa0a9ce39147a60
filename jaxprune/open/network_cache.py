"""The networks that scorers share, each opened once."""

from typing import Any

from flax import nnx

from jaxprune import models
from jaxprune.errors import UserError
from jaxprune.open.network import open_network
from jaxprune.open.origin import Origin


class NetworkCache:
    """The networks that scorers read; each is opened on first use.

    Args:
      host: the ViT or ranker that scorers read by default: its origin, or the network itself; None = there is none.
      shape: the name of the ViT whose patches are ranked where no ViT is open; "" = there is none.
      proposal: the origin of the ConvNet that scorers read by default; None = there is none.
      seed: of random weights.
    """

    def __init__(self, *, host: Any = None, shape: str = "", proposal: Origin | None = None, seed: int = 0):
        self._host, self._shape, self._proposal, self._seed = host, shape, proposal, seed
        self._opened: dict[Origin, Any] = {}

    def open(self, origin: Origin) -> Any:
        """Returns the network of an origin."""
        if origin not in self._opened:
            self._opened[origin] = open_network(origin, seed=self._seed)
        return self._opened[origin]

    def default_for(self, scorer: str, reads: str) -> Any:
        """Returns the network that a scorer reads when its text names none, or None.

        Args:
          scorer: the name of the scorer.
          reads: what it has to be; see `Scorer`.

        Raises:
          UserError: the scorer needs a ViT or a ranker, and there is no default one.
        """
        if reads in ("any", "convnet"):
            return None if self._proposal is None else self.open(self._proposal)
        if reads not in ("vit", "ranker"):
            return None
        network = self.host()
        if network is None:
            raise nothing_to_read(scorer, reads)
        return network

    def host(self) -> Any:
        """Returns the default ViT or ranker, or None."""
        return self.open(self._host) if isinstance(self._host, Origin) else self._host

    def shape(self) -> Any:
        """Returns the ViT called `shape`, without weights, or None."""
        return nnx.eval_shape(lambda: models.create(self._shape, rngs=nnx.Rngs(0))) if self._shape else None


def nothing_to_read(scorer: str, reads: str) -> UserError:
    """The error for a scorer whose text names no network where there is no default one; see `default_for`."""
    if reads in ("vit", "ranker"):
        kind = "a ViT" if reads == "vit" else "a ranker"
        return UserError(f"{scorer} reads {kind}: write {scorer}:run=RUN with a run directory that has one.")
    kind = "a ConvNet" if reads == "convnet" else "a ConvNet or a ViT"
    return UserError(f"{scorer} reads {kind}: write {scorer}:model=NAME,weights=FILE, or name a proposal.")
