"""Learning rates by layer of a network of encoder and head, as BEiT and ViTDet are trained."""

from collections.abc import Sequence
from typing import Any

from jaxprune.nn.host import Host
from jaxprune.train.optimizer import layer_scales

_ENCODER = "encoder."


def rate_scales(network: Any, names: Sequence[str], decay: float) -> dict[str, float]:
    """Returns the learning-rate scale of every parameter: by layer within the encoder, 1 everywhere else.

    Args:
      network: with an `encoder`.
      names: dotted names of the network's parameters.
      decay: factor from one layer to the layer below; 0.65 in BEiT, in ViTDet 0.7 for ViT-B and 0.8 for ViT-L.
    """
    depth = _depth(network.encoder)
    return layer_scales(layers(network, names), depth, decay)


def layers(network: Any, names: Sequence[str]) -> dict[str, int]:
    """Returns the layer of every parameter: its own within the encoder, that after the last block everywhere else.

    Args:
      network, names: see `rate_scales`.
    """
    encoder = network.encoder
    inner = [name.removeprefix(_ENCODER) for name in names if name.startswith(_ENCODER)]
    within = {f"{_ENCODER}{name}": layer for name, layer in encoder.parameter_layers(inner).items()}
    return {name: within.get(name, _depth(encoder) + 1) for name in names}


def _depth(encoder: Any) -> int:
    return len(encoder.sites()) if isinstance(encoder, Host) else 0
