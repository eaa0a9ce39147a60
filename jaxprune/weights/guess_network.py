"""Guesses the named network of a weights file: the one with the most tensor names in common."""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxprune import models
from jaxprune.errors import shortened
from jaxprune.models.vit_names import variants
from jaxprune.weights.rules import published_names
from jaxprune.weights.sources import Published

# Arguments that change sizes, but not the set of tensors.
_SIZES = ("embed_dim", "depth", "num_heads", "patch_size", "img_size", "mlp_ratio", "norm_eps", "num_classes")


class NetworkSimilarity(NamedTuple):
    """The comparison of a file with the most similar named network.

    Attributes:
      names: of the networks whose tensors have these names and the file's width, depth and patches; of those of the
        nearest family where there are none. Several differ in what tensors do not show, such as the activation.
      missing: tensors of the network that the file lacks, once for all blocks.
      besides: additional tensors of the file.
    """

    names: tuple[str, ...]
    missing: tuple[str, ...]
    besides: tuple[str, ...]

    def __str__(self) -> str:
        nearest = " or ".join(self.names[:4]) + (" or others" if len(self.names) > 4 else "")
        differences = (("lacks", self.missing), ("has besides", self.besides))
        differs = [
            f"{verb} {', '.join(map(shortened, names[:4]))}{', …' if len(names) > 4 else ''}"
            for verb, names in differences
            if names
        ]
        return f"nearest is {nearest}{', but the file ' + ' and '.join(differs) if differs else ''}"


def network_similarity(tensors: Mapping[str, Published]) -> NetworkSimilarity:
    """Compares tensors by timm's names with the named vision transformers; nothing is computed."""
    present = patterns(tensors)
    families: dict[Any, list[str]] = {}
    for name, arguments in variants().items():
        if "." not in name:
            kind = tuple(sorted((key, repr(value)) for key, value in arguments.items() if key not in _SIZES))
            families.setdefault(kind, []).append(name)
    differing = []
    for names in families.values():
        expected = _expected(names[0], 2 if "head.weight" in tensors else 0)
        differing.append((expected - present, present - expected, names))
    fewest = min(len(missing) + len(besides) for missing, besides, _ in differing)
    nearest = [difference for difference in differing if len(difference[0]) + len(difference[1]) == fewest]
    alike = [name for *_, names in nearest for name in names]
    of_size = [name for name in alike if _sizes(models.arguments(name)) == _sizes_of(tensors)]
    missing, besides, _ = nearest[0]
    return NetworkSimilarity(tuple(of_size or alike), tuple(sorted(missing)), tuple(sorted(besides)))


@functools.cache
def _expected(name: str, num_classes: int) -> set[str]:
    make = lambda: models.create(name, num_classes=num_classes, **_TINY, rngs=nnx.Rngs(0))
    return patterns(published_names(nnx.eval_shape(make)))


_TINY = {"embed_dim": 64, "depth": 1, "num_heads": 1, "mlp_ratio": 4.0, "img_size": 32, "patch_size": 16}


def patterns(names: Iterable[str]) -> set[str]:
    """Returns names of tensors with `N` for the number of a block."""
    return {re.sub(r"blocks\.\d+\.", "blocks.N.", name) for name in names}


def _sizes(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(arguments.get(key) for key in ("embed_dim", "depth", "patch_size"))


def _sizes_of(tensors: Mapping[str, Published]) -> tuple[Any, ...]:
    patches = np.shape(tensors["patch_embed.proj.weight"].tensor) if "patch_embed.proj.weight" in tensors else ()
    blocks = {match[1] for name in tensors if (match := re.match(r"blocks\.(\d+)\.", name))}
    return (patches[0], len(blocks), patches[-1]) if patches else ()
