"""A network by its name, filled from a file of published weights."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from jaxprune import models
from jaxprune.checkpoints.read import by_timm, load_pretrained, read_tensors
from jaxprune.checkpoints.rules import to_ours
from jaxprune.nn.params import unfilled, variables


def open_published(
    weights: str | os.PathLike | Mapping[str, Any],
    name: str,
    *,
    img_size: int | tuple[int, int] | None = None,
    key: str | None = None,
    ignored: Sequence[str] = (),
) -> Any:
    """Returns the network called `name` with as many classes as the file has: 0 of one without a classifier.

    A file with `fc_norm` is of a network that pools over its patches.

    Args:
      weights: see `load_pretrained`.
      name: see `models.create`.
      img_size: for images of another size, of a network that has one: positions are resampled.
      key, ignored: see `load_pretrained`.

    Raises:
      UserError: the file cannot be read, or is of another network.
    """
    read = weights if isinstance(weights, Mapping) else read_tensors(weights, key)
    tensors = by_timm(read, ignored)
    arguments: dict[str, Any] = {}
    if img_size is not None and models.takes(name, "img_size"):
        arguments["img_size"] = img_size
    style = models.arguments(name).get("style", "vit")
    if "fc_norm.weight" in tensors and models.takes(name, "global_pool") and style in ("vit", "timm"):
        arguments["global_pool"] = "avg"
    make = lambda **head: models.create(name, **arguments, **head, rngs=nnx.Rngs(0))
    whole, bare = nnx.eval_shape(make), nnx.eval_shape(lambda: make(num_classes=0))
    found = to_ours(tensors, whole)
    head = sorted(found.keys() & (variables(whole).keys() - variables(bare).keys()))
    num_classes = found[head[0]].tensor.shape[-1] if head else 0
    model = load_pretrained(unfilled(lambda: make(num_classes=num_classes)), read, ignored=ignored)
    if img_size is not None:
        model.preprocessing = model.preprocessing.with_size(img_size)
    return model
