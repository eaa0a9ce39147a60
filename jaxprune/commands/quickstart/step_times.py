"""Times a training step of PR-MIM and of the same framework in its full form."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from jaxprune.bench.timing import Turn, interleaved
from jaxprune.checkpoints.build import build
from jaxprune.commands.pretrain.run import arguments_of
from jaxprune.config import Config
from jaxprune.nn.params import merge, split
from jaxprune.ops.host_random import host_generator

PR_MIM, FULL = "PR-MIM", "full form"


def step_times(config: Config, rounds: int) -> dict[str, list[Turn]]:
    """Returns the turns of the loss and its gradient, on a batch of random pixels; see `interleaved`.

    Args:
      config: of pre-training, with a reconstruction that is not full.
      rounds: timing rounds.
    """
    full = ConfigDict(config.to_dict())
    full.mim.update(reconstruction="full", throw_ratio=0.0)
    return interleaved({PR_MIM: _step(config), FULL: _step(full)}, rounds)


def _step(config: Config) -> Callable[[], Any]:
    framework = build("mim", arguments_of(config), dtype=config.dtype, rngs=nnx.Rngs(config.seed))
    parts, size = split(framework), framework.encoder.patch_embed.img_size
    shape = (config.batch_size, *size, 3)
    pixels = jax.numpy.asarray(host_generator(config.seed).normal(size=shape), jax.numpy.float32)

    @jax.jit
    def gradient(params: Any, rest: Any, pixels: jax.Array, key: jax.Array) -> Any:
        loss = lambda params: merge(parts.graph, params, rest).training_loss(pixels, key)
        return jax.value_and_grad(loss)(params)

    arguments = (parts.params, parts.rest, pixels, jax.random.key(config.seed))
    return lambda: jax.block_until_ready(functools.partial(gradient, *arguments)())
