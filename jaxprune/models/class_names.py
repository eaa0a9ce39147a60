"""Names of the classes that published networks were trained on."""

from collections.abc import Sequence
from pathlib import Path

from jaxprune.errors import UserError


def imagenet1k() -> tuple[str, ...]:
    """Returns the names of ImageNet-1k's classes in the order of their synset ids: WordNet's first lemma of each.

    >>> imagenet1k()[:2], len(imagenet1k())
    (('tench', 'goldfish'), 1000)
    """
    return tuple((Path(__file__).parent / "imagenet1k.txt").read_text(encoding="utf-8").splitlines())


def require_class_names(class_names: Sequence[str], num_classes: int) -> None:
    """Refuses more or fewer class names than classes; no names, or no classes, are fine.

    Raises:
      UserError: see above.
    """
    if class_names and num_classes and len(class_names) != num_classes:
        raise UserError(f"There are {len(class_names)} class names for {num_classes} classes: name each class.")
