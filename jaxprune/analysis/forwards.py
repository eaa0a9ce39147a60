"""The forward functions of analyses, for `evaluate.run_over`: all read a batch's `image`, pixels from 0 to 255."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from jaxprune.bench.contestants import Contestant
from jaxprune.data.augment import normalize
from jaxprune.evaluate import Forward
from jaxprune.nn.params import merge, split
from jaxprune.scoring import Scorer


def probabilities(model: Any, mean: Sequence[float], std: Sequence[float]) -> Forward:
    """Returns what computes a classifier's probabilities, (b, c).

    Args:
      model: the classifier.
      mean, std: of its pixels.
    """
    parts = split(model)

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        return jax.nn.softmax(merge(parts.graph, arrays, {})(normalize(batch["image"], mean, std))[0])

    return Forward(call, {**parts.params, **parts.rest})


def under_plan(contestant: Contestant, mean: Sequence[float], std: Sequence[float]) -> Forward:
    """Returns what computes a contestant's `logits`, (b, c), and `assign` of each step of its plan, each (b, p)."""

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        logits, aux = contestant.call(arrays, normalize(batch["image"], mean, std))
        return {"logits": logits, "assign": aux.assign}

    return Forward(call, contestant.arrays)


def patch_scores(
    scorers: Mapping[str, Scorer], mean: Sequence[float], std: Sequence[float], *, seed: int, stride: int = 1
) -> Forward:
    """Returns what computes {name: scores (b, p)} of all scorers in one program.

    A network that several scorers read is there once, and runs once.

    Args:
      scorers: by name.
      mean, std: of the pixels that they get.
      seed: of the scorers that draw at random.
      stride: their draws differ by the batch's `number` times this.
    """
    parts = split(nnx.List(list(scorers.values())))

    def call(arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        images = normalize(batch["image"], mean, std)
        key = jax.random.fold_in(jax.random.key(seed), batch["number"][0] * stride)
        opened = merge(parts.graph, arrays, {})
        return {name: scorer(images, key=key) for name, scorer in zip(scorers, opened, strict=True)}

    return Forward(call, {**parts.params, **parts.rest})
