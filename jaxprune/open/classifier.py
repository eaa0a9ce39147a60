"""Opens a classifier from any origin."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune.checkpoints.run import load_card, load_model
from jaxprune.errors import UserError, shortened
from jaxprune.files import read_text
from jaxprune.models.class_names import imagenet1k
from jaxprune.open.network import open_network
from jaxprune.open.origin import Origin, Random, Run


class Classifier(NamedTuple):
    """A network with a head.

    Attributes:
      model: the network, with `model.preprocessing`.
      class_names: names of its classes, in the order of its logits.
      origin: where it comes from: a run directory or a file.
    """

    model: Any
    class_names: tuple[str, ...]
    origin: str


def open_classifier(
    origin: Origin,
    *,
    class_names: str | os.PathLike | Sequence[str] = (),
    img_size: int | tuple[int, int] | None = None,
    ema: bool = False,
    seed: int = 0,
    features: bool = False,
) -> Classifier:
    """Opens a classifier.

    >>> import os, tempfile; import jaxprune; from flax import nnx; from jaxprune.open import Run
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> jaxprune.checkpoints.save_model(model, path)
    >>> open_classifier(Run(path), class_names=("cat", "dog")).class_names
    ('cat', 'dog')

    Args:
      origin: where it comes from. Published weights determine the number of classes, and whether patches are pooled;
        images are prepared as in timm.
      class_names: a text file with one name per line, or the names; by default those of the run, of published weights
        for a thousand classes ImageNet-1k's, else "0", "1", ….
      img_size: for images of another size; see `load_model`.
      ema: take the averaged weights of a run.
      seed: of random weights.
      features: take a network without a classifier as well, which returns its pooled features; it has no class names.

    Raises:
      UserError: there is no classifier, or the number of names differs from that of its classes.
    """
    recorded: Sequence[str] = ()
    if isinstance(origin, Run):
        recorded = load_card(origin.path).require("model", origin.path).class_names
        model = load_model(origin.path, ema=ema, img_size=img_size)
        headless = f"{origin} holds a network without a classifier: fine-tune it first."
    else:
        model = open_network(origin, img_size=img_size, seed=seed)
        recorded = imagenet1k() if model.num_classes == 1000 and not isinstance(origin, Random) else ()
        headless = f"{origin} has no classifier for {origin.name}: give a file of a trained one, or fine-tune it first."
    if not model.num_classes:
        if features:
            return Classifier(model, (), str(origin))
        raise UserError(headless)
    names = _names(class_names) or recorded or tuple(map(str, range(model.num_classes)))
    if len(names) != model.num_classes:
        raise UserError(f"{len(names)} classes are named, and {origin} has {model.num_classes}: name these.")
    return Classifier(model, tuple(names), str(origin))


def _names(class_names: str | os.PathLike | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(class_names, (str, os.PathLike)):
        return tuple(class_names)
    if not class_names:
        return ()
    try:
        lines = read_text(Path(class_names).expanduser()).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"The file of class names {class_names} cannot be read: {shortened(error)}.") from error
    return tuple(line.strip() for line in lines if line.strip())
