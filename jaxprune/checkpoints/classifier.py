"""One way to open a classifier: from a run directory, from a file of `save_model`, or from published weights."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxprune.checkpoints.network import open_file
from jaxprune.checkpoints.run import load_card, load_model
from jaxprune.errors import UserError
from jaxprune.models.class_names import imagenet1k


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
    run: str | os.PathLike = "",
    weights: str | os.PathLike = "",
    name: str = "",
    *,
    class_names: str | os.PathLike | Sequence[str] = (),
    img_size: int | tuple[int, int] | None = None,
    ema: bool = False,
) -> Classifier:
    """Opens a classifier.

    >>> import os, tempfile; import jaxprune; from flax import nnx
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> jaxprune.checkpoints.save_model(model, path)
    >>> open_classifier(path, class_names=("cat", "dog")).class_names
    ('cat', 'dog')

    Args:
      run: a run directory, or a file that `save_model` wrote.
      weights: published weights (see `read_tensors`), instead of `run`. They determine the number of classes, and
        whether patches are pooled.
      name: name of the network of `weights`, such as "vit_base_patch16_224"; images are prepared as in timm.
      class_names: a text file with one name per line, or the names; by default those of the run, of published weights
        for a thousand classes ImageNet-1k's, else "0", "1", ….
      img_size: for images of another size; see `load_model`.
      ema: take the averaged weights of a run.

    Raises:
      UserError: there is no classifier, or there are two, or the number of names differs from that of its classes.
    """
    if bool(run) == bool(weights):
        what = f"{run} and {weights} are both named: open one of them" if run else "No classifier is named"
        raise UserError(
            f"{what}. Give --config.run=RUN, the run directory of a classifier or a file of save_model, or "
            "--config.model.weights=FILE with --config.model.name=NAME, a published file."
        )
    if run:
        card = load_card(run).require("model", run)
        model, known = load_model(run, ema=ema, img_size=img_size), card.class_names
    else:
        model, known = _published(weights, name, img_size), ()
    origin = str(run or weights)
    if not model.num_classes:
        raise UserError(f"{origin} holds a network without a classifier: fine-tune it first.")
    if not run and model.num_classes == 1000:
        known = imagenet1k()
    names = _names(class_names) or known or tuple(map(str, range(model.num_classes)))
    if len(names) != model.num_classes:
        raise UserError(f"{len(names)} classes are named, and {origin} has {model.num_classes}: name these.")
    return Classifier(model, tuple(names), origin)


def _published(weights: str | os.PathLike, name: str, img_size: int | tuple[int, int] | None) -> Any:
    model = open_file(weights, name, img_size=img_size)
    if not model.num_classes:
        raise UserError(f"{weights} has no classifier for {name}: give a file of a trained one, or fine-tune it first.")
    return model


def _names(class_names: str | os.PathLike | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(class_names, (str, os.PathLike)):
        return tuple(class_names)
    if not class_names:
        return ()
    try:
        lines = Path(class_names).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file of class names {class_names} cannot be read: {error}.") from error
    return tuple(line.strip() for line in lines if line.strip())
