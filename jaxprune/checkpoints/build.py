"""Builds networks from plain values; from a file only those that its tensors can be the weights of."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxprune import dense, dynamic, mim, models, ranking
from jaxprune.errors import UserError, quoted, shortened
from jaxprune.nn.params import variables
from jaxprune.nn.patch_embed import pair

CREATE = {
    "dense": dense.create,
    "dynamic": dynamic.create,
    "mim": mim.create,
    "model": models.create,
    "ranker": ranking.create,
}

# What is larger than the number of tensors, or of numbers in them, only where it costs nothing.
_SIDE, _PATCHES, _TABLE, _DRAWS = 2**14, 2**22, 2**26, 16
_BESIDE = 1024  # tensors of what is around an encoder that a file holds alone


def build(kind: str, arguments: Mapping[str, Any], *, dtype: str = "float32", rngs: nnx.Rngs) -> Any:
    """Builds a network from plain values.

    Args:
      kind: "dense" for a segmentation network, "dynamic" for one that spends by image, "mim" for a pre-training
        framework, "model" for a network, "ranker" for one that ranks patches.
      arguments: `name` and the keyword arguments of that package's `create`.
      dtype: compute dtype.
    """
    compute = None if dtype == "float32" else jnp.dtype(dtype)
    return CREATE[kind](**arguments, dtype=compute, rngs=rngs)


def at_size(kind: str, arguments: Mapping[str, Any], img_size: int | tuple[int, int]) -> dict[str, Any]:
    """Returns the arguments of `build` for images of another size; see `models.at_size`.

    What a framework learns from grows alike where it must have as many patches (`Framework.aligned`).

    >>> teacher = {"name": "vit", "img_size": 28, "patch_size": 14}
    >>> tec = {"name": "tec", "img_size": 32, "patch_size": 16, "teacher": ("model", teacher)}
    >>> at_size("mim", tec, 64)["teacher"]
    ('model', {'name': 'vit', 'img_size': (56, 56), 'patch_size': 14})
    """
    host = _host(kind, arguments)
    sized = models.at_size(host, arguments, img_size) if host else {**arguments, "img_size": img_size}
    for name in mim.methods()[arguments["name"]].aligned if kind == "mim" else ():
        if arguments.get(name) is not None:
            within, inside, *normalised = arguments[name]
            inside = dict(inside)
            sides = zip(_size(within, inside), pair(img_size), _size(kind, arguments), strict=True)
            larger = tuple(round(side * after / before) for side, after, before in sides)
            sized[name] = (within, at_size(within, inside, larger), *normalised)
    return sized


def _host(kind: str, arguments: Mapping[str, Any]) -> str | None:
    """The name of the network that takes the images, if it has one."""
    host = arguments["name"] if kind == "model" else arguments.get("encoder")
    return host if isinstance(host, str) else None


def _size(kind: str, arguments: Mapping[str, Any]) -> tuple[int, int]:
    host = _host(kind, arguments)
    return pair({"img_size": 224, **(models.arguments(host) if host else {}), **arguments}["img_size"])


@contextlib.contextmanager
def from_card(source: Any) -> Iterator[None]:
    """Turns whatever damaged values raise within into an error that names their file.

    Raises:
      UserError: the values are damaged.
    """
    try:
        yield
    except (UserError, jax.errors.JaxRuntimeError, MemoryError):
        raise
    except Exception as error:  # a wrong value may fail anywhere in a constructor
        why = shortened(f"{type(error).__name__}: {error}")
        raise UserError(
            f"{source} describes no network that can be built ({why}): its card is damaged. Copy it from a run of the "
            "same config, or save the network again."
        ) from error


def require_no_larger(
    kind: str,
    arguments: Mapping[str, Any],
    tensors: Mapping[str, Any],
    source: Any,
    part: Callable[[Any], Any] | None = None,
) -> None:
    """Checks a description of a network against the tensors that are its weights, before anything is built.

    Args:
      kind, arguments: see `build`.
      tensors: {name: array}.
      source: name of the file in messages.
      part: takes from the network the part that the tensors are of; None for the whole.

    Raises:
      UserError: the network has more blocks or parameters than the file.
    """
    count, total = len(tensors), sum(math.prod(array.shape) for array in tensors.values())
    count += _BESIDE if part else 0
    for name, value in _numbers(arguments):
        most = count if "depth" in name else max(total, _SIDE)
        if not abs(value) <= most:  # nor NaN
            raise UserError(
                f"{source} describes a network with {name} {quoted(value)}, and holds {count} tensors of {total:,} "
                "numbers: its card is damaged. Copy it from a run of the same config, or save the network again."
            )
    settings = {**_defaults(kind, arguments), **arguments}
    patches = _patches(settings)
    width = max((value for name, value in _numbers(settings) if "dim" in name), default=1)
    if patches > _PATCHES or patches * width > max(_TABLE, 4 * total):
        raise UserError(
            f"{source} describes a network for images of {patches:,} patches, and holds {total:,} numbers: its card is "
            "damaged. Copy it from a run of the same config, or save the network again."
        )
    for kind_within, within in _networks_in(arguments):
        _shapes(kind_within, within, count, source)
    network = _shapes(kind, arguments, count, source, part)
    parameters = [math.prod(v.shape) for v in variables(network).values() if isinstance(v, nnx.Param)]
    if sum(parameters) > 2 * total + _TABLE // 64:  # a few that are missing are named when the network is filled
        raise UserError(
            f"{source} describes a network of {sum(parameters):,} parameters, and holds {total:,}: it is damaged, or "
            "was written by a version with a different network. Train or save it again."
        )


class _Draws(nnx.RngStream):
    """Random numbers of a network of shapes: always the same key, and at most `most` times."""

    def __init__(self, most: int, refusal: UserError):
        super().__init__(0, tag="default")
        self.left, self.refusal = most, refusal

    def __call__(self) -> jax.Array:
        if not self.left:
            raise self.refusal
        self.left -= 1
        return self.key[...]


def _shapes(
    kind: str, arguments: Mapping[str, Any], count: int, source: Any, part: Callable[[Any], Any] | None = None
) -> Any:
    """The network without values, if it has hardly more parameters than the file has tensors."""
    refusal = UserError(
        f"{source} describes a network of more than {count + _DRAWS} tensors, and holds {count}: its card is "
        "damaged. Copy it from a run of the same config, or save the network again."
    )

    def make() -> Any:
        rngs = nnx.Rngs(0)
        rngs.default = _Draws(count + _DRAWS, refusal)
        network = build(kind, arguments, rngs=rngs)
        return network if part is None else part(network)

    return nnx.eval_shape(make)


def _networks_in(values: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields kind and arguments of the networks that are arguments of others, see `mim.create`."""
    if isinstance(values, Mapping):
        values = list(values.values())
    elif not isinstance(values, (list, tuple)):
        return
    elif len(values) >= 2 and values[0] in tuple(CREATE) and isinstance(values[1], Mapping):
        yield values[0], values[1]
    for value in values:
        yield from _networks_in(value)


def _numbers(values: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """Yields the numbers in nested plain values with the name of the argument that they are in."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _numbers(value, str(key))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _numbers(value, name)
    elif isinstance(values, (int, float)) and not isinstance(values, bool):
        yield name, values


def _defaults(kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    name = arguments.get("name") if kind == "model" else arguments.get("encoder")
    try:
        return models.arguments(name) if isinstance(name, str) else {}
    except UserError:  # building it says what is wrong
        return {}


def _patches(arguments: Mapping[str, Any]) -> int:
    """Number of patches of an image, or of a clip, for a network of these arguments."""
    sides = lambda name, default: [value for _, value in _numbers(arguments.get(name), name)] or default
    image, patch = sides("img_size", [1]), sides("patch_size", [1])
    area = math.prod(image) if len(image) > 1 else image[0] ** 2
    area *= (arguments.get("num_frames") or 1) if isinstance(arguments.get("num_frames"), int) else 1
    return int(area / max(math.prod(patch) if len(patch) > 1 else patch[0] ** 2, 1))
