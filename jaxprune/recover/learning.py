"""Which parameters of a network learn: all, norms and biases, the last blocks, or low-rank changes of its layers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxprune.errors import UserError, quoted
from jaxprune.nn.around_host import AroundHost
from jaxprune.ops.host_random import host_generator
from jaxprune.train.encoder_rates import layers

Params = Mapping[str, jax.Array]
FORMS = ("all", "norms", "last:K", "lora:R")
_DOWN, _UP = ".lora_down", ".lora_up"


class Learning(NamedTuple):
    """The parameters that a run trains, and how the network's own follow from them.

    Attributes:
      trained: their initial values, {name: array}.
      frozen: the network's parameters that it reads besides, {dotted name: array}.
    """

    trained: dict[str, jax.Array]
    frozen: dict[str, jax.Array]

    @staticmethod
    def params(trained: Params, frozen: Params) -> dict[str, jax.Array]:
        """Returns the network's parameters: low-rank changes are folded into the matrices that they change."""
        params = {**frozen, **{name: array for name, array in trained.items() if not name.endswith((_DOWN, _UP))}}
        for name, down in trained.items():
            if name.endswith(_DOWN):
                matrix = name.removesuffix(_DOWN)
                params[matrix] = frozen[matrix] + (down @ trained[matrix + _UP]).reshape(frozen[matrix].shape)
        return params


def learning(text: str, model: Any, params: Params, seed: int = 0) -> Learning:
    """Returns what learns in a network.

    >>> import jaxprune; from flax import nnx; from jaxprune.nn.params import split
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=3, num_heads=2)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> sorted({name.split(".")[0] for name in learning("last:1", model, split(model).params).trained})
    ['blocks', 'head', 'norm']

    Args:
      text: "all"; "norms": scales of norms and all biases; "last:K": the last K blocks and what follows them; "lora:R":
        low-rank changes, of rank R, of the matrices in the blocks (Hu et al., 2022).
      model: the network, a `Host` or one around it.
      params: its parameters, by dotted name.
      seed: of the low-rank factors.

    Raises:
      UserError: the text is none of these, or nothing would learn.
    """
    kind, number = parse(text)
    if kind == "lora":
        return _low_rank(model, params, number, seed)
    layer_of = _layers(model, params)
    first = max(layer_of.values(), default=0) - number
    learns = {
        "all": lambda name: True,
        "norms": lambda name: params[name].ndim == 1,
        "last": lambda name: layer_of[name] >= first,
    }[kind]
    trained = {name: array for name, array in params.items() if learns(name)}
    if not trained:
        raise UserError(f"trainable={text!r} leaves nothing to train: use all.")
    return Learning(trained, {name: array for name, array in params.items() if name not in trained})


def parse(text: str) -> tuple[str, int]:
    """Returns the form of what learns and its number, 0 for a form without one.

    Raises:
      UserError: the text is none of `FORMS`.
    """
    kind, _, number = str(text).partition(":")
    if (kind in ("all", "norms")) == bool(number) or kind not in ("all", "norms", "last", "lora"):
        raise UserError(f"trainable={quoted(text)} is none of {', '.join(FORMS)}: write for example 'last:4'.")
    if number and not (number.isdigit() and int(number)):
        raise UserError(f"trainable={text!r} needs a whole number above 0 after the colon: write for example {kind}:4.")
    return kind, int(number or 0)


def _layers(model: Any, params: Params) -> Mapping[str, int]:
    """The layer of each parameter."""
    return layers(model, list(params)) if isinstance(model, AroundHost) else model.parameter_layers(params)


def _low_rank(model: Any, params: Params, rank: int, seed: int) -> Learning:
    layer_of = _layers(model, params)
    behind = max(layer_of.values(), default=0)
    rng, trained = host_generator(seed), {}
    for name, array in sorted(params.items()):
        if array.ndim == 2 and 0 < layer_of[name] < behind and min(array.shape) > rank:
            rows, columns = array.shape
            trained[name + _DOWN] = jnp.asarray(rng.normal(0, rows**-0.5, (rows, rank)), array.dtype)
            trained[name + _UP] = jnp.zeros((rank, columns), array.dtype)
    if not trained:
        raise UserError(f"No matrix of the blocks is larger than rank {rank}: use a lower rank, such as lora:4.")
    return Learning(trained, dict(params))
