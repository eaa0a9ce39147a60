"""Dense prediction: networks that read the maps of any host, full or reduced, one file each.

What they are made of (heads, necks, decoders, inference) is in `dense.parts`.
"""

from typing import Any

from flax import nnx

from jaxprune import plugins
from jaxprune.dense.parts.base import DenseNetwork, SegmentationLoss, Segmenter
from jaxprune.dense.parts.detector import DetectionLoss, Detections, Detector, Objects, Sampling
from jaxprune.dense.parts.exits import ExitSegmenter
from jaxprune.dense.parts.inference import mirrored, probabilities, sliding, whole
from jaxprune.dense.parts.token_engine import TokenEngine
from jaxprune.nn import Host
from jaxprune.nn.images import require_buildable
from jaxprune.nn.recipe import remember

__all__ = [
    "DetectionLoss",
    "Detections",
    "Detector",
    "ExitSegmenter",
    "Objects",
    "Sampling",
    "SegmentationLoss",
    "Segmenter",
    "TokenEngine",
    "create",
    "detectors",
    "methods",
    "mirrored",
    "probabilities",
    "sliding",
    "whole",
]


def methods() -> dict[str, type[Segmenter]]:
    """Returns {name: class} of every network that classifies pixels, found by its file."""
    return _of_kind(Segmenter)


def detectors() -> dict[str, type[Detector]]:
    """Returns {name: class} of every network that finds objects, found by its file."""
    return _of_kind(Detector)


def _of_kind(base: type) -> dict[str, Any]:
    import jaxprune.dense as family

    return {name: cls for name, cls in plugins.methods(family, DenseNetwork).items() if issubclass(cls, base)}


def create(name: str, *, encoder: str | Host, rngs: nnx.Rngs, **arguments: Any) -> Any:
    """Builds a dense network, freshly initialised.

    >>> from flax import nnx
    >>> sizes = dict(img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2)
    >>> create("upernet", encoder="vit", num_classes=5, features=8, **sizes, rngs=nnx.Rngs(0)).indices
    (0, 1, 2, 3)

    Args:
      name: a module of this package, such as "upernet".
      encoder: a model name such as "vit_base_patch16_224", whose arguments can be overridden; or a host.
      arguments: those of the network's class, and those of the encoder if it is a name.

    Raises:
      UserError: the network, the encoder or an argument is unknown, or of another type.
    """
    import jaxprune.dense as family
    from jaxprune import models

    require_buildable(arguments.get("dtype"), rngs)
    cls: Any = plugins.find(family, DenseNetwork, name)
    own_names = plugins.parameters(cls) - {"encoder", "rngs"}
    host_names = models.parameters(encoder) - cls.excludes if isinstance(encoder, str) else set()
    plugins.check_arguments(cls, arguments, own_names | host_names)
    options = {key: value for key, value in arguments.items() if key in own_names}
    plugins.check_kinds(cls, options)
    of_host = {key: value for key, value in arguments.items() if key in host_names}
    built = models.create(encoder, num_classes=0, **of_host, rngs=rngs) if isinstance(encoder, str) else encoder
    network = cls(built, **options, rngs=rngs)
    network.preprocessing = built.preprocessing
    if not isinstance(encoder, str):
        return network
    return remember(network, "dense", {"name": name, "encoder": encoder, **arguments})
