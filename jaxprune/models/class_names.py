"""Names of the classes that published networks were trained on."""

from pathlib import Path


def imagenet1k() -> tuple[str, ...]:
    """Returns the names of ImageNet-1k's classes in the order of their synset ids: WordNet's first lemma of each.

    >>> imagenet1k()[:2], len(imagenet1k())
    (('tench', 'goldfish'), 1000)
    """
    return tuple((Path(__file__).parent / "imagenet1k.txt").read_text(encoding="utf-8").splitlines())
