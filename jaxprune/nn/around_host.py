"""A network around a host: a plan reduces the host inside, and everything after it reads maps that are dense again."""

from typing import Any

from flax import nnx

from jaxprune.nn.host import Host


class AroundHost(nnx.Module):
    """Base class of networks that read the maps of a host.

    Attributes:
      encoder: the host; `reduction.apply` exchanges it for one that follows a plan.
      training_images: see `Host`.
    """

    encoder: Host
    training_images: Any = None

    def follow(self, encoder: Host) -> None:
        """Takes another form of the host, one that follows a plan; `reduction.apply` calls it."""
        self.encoder = encoder

    @property
    def plan(self) -> Any:
        """The plan that the host follows, or None."""
        return self.encoder.plan

    @property
    def pruner(self) -> Any:
        """The host's scorer in front of the blocks, or None."""
        return self.encoder.pruner


def host_of(model: Any) -> Any:
    """The host of a network around one; any other network is its own."""
    return model.encoder if isinstance(model, AroundHost) else model
