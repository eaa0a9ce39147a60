"""The function of an exported file: images to logits and the rows that each step keeps, in float32."""

import functools
import json
import math
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

import jaxprune
from jaxprune.dense import Detector
from jaxprune.dynamic import Segmented
from jaxprune.dynamic.parts.gated import GatedNetwork
from jaxprune.errors import UserError, unknown
from jaxprune.mim import Framework
from jaxprune.models.class_names import require_class_names
from jaxprune.nn.around_host import host_of
from jaxprune.nn.images import normalize
from jaxprune.nn.params import copied, variables
from jaxprune.nn.recipe import Recipe

FORMAT = 1  # version of the metadata
IMAGES = "images"  # name of the input
LOGITS, KEPT = "logits", "kept_{}"  # names of the outputs
# The inputs of a file: dtype and meaning of the values.
INPUTS = {
    "uint8": ("uint8", "pixels from 0 to 255, RGB, resized and cropped"),
    "float32": ("float32", "pixels from 0 to 255, RGB, resized and cropped"),
    "normalized": ("float32", "(pixels / 255 - mean) / std, RGB, resized and cropped"),
}
LARGEST = 2**31 - 2**24  # in bytes: both formats are limited to 2 GiB


class Program(NamedTuple):
    """A network as a function of images only.

    Attributes:
      call: maps images to (logits, rows that the first step keeps, …), or to the logits of every pixel alone; the
        weights are constants.
      normalized: the same for normalised images.
      inputs: the kind of input of `call`, one of `INPUTS`.
      shape: (height, width, 3) of an image, or (frames, height, width, 3) of a clip.
      outputs: the names of the outputs.
      leaves: of a segment of a network with exits, what `call` takes in place of images: (name, shape, dtype) of each.
    """

    call: Callable[[Array], tuple[Array, ...]]
    normalized: Callable[[Array], tuple[Array, ...]]
    inputs: str
    shape: tuple[int, ...]
    outputs: tuple[str, ...]
    leaves: tuple[tuple[str, tuple[int, ...], Any], ...] = ()

    @property
    def dtype(self) -> Any:
        """The dtype of the images."""
        return np.dtype(INPUTS[self.inputs][0])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays that `call` takes."""
        return tuple(name for name, _, _ in self.leaves) or (IMAGES,)

    def specs(self, batch: Any) -> list[jax.ShapeDtypeStruct]:
        """The shapes of these arrays for a batch size, a number or a symbol."""
        arrays = self.leaves or ((IMAGES, self.shape, self.dtype),)
        return [jax.ShapeDtypeStruct((batch, *shape), dtype) for _, shape, dtype in arrays]


def exact(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function whose products are traced in whole float32: GPUs and TPUs would round their operands."""

    @functools.wraps(call)
    def traced(*arrays: Array) -> Any:
        with jax.default_matmul_precision("highest"):
            return call(*arrays)

    return traced


def require_no_gates(model: Any) -> None:
    """Checks that a network is not one with gates (SAR, LAUDNet).

    Raises:
      UserError: it is.
    """
    if isinstance(model, GatedNetwork):
        raise UserError(
            f"A {type(model).__name__} has gates and no exits, so that no image leaves early: it cannot be exported."
        )


def program(model: Any, inputs: str) -> Program:
    """Makes a function of images only from a network, dense or reduced.

    Args:
      model: a network from `models.create`, `load_model` or `reduction.apply`; it is not changed.
      inputs: one of `INPUTS`.

    Raises:
      UserError: `inputs` is unknown, the model is not a network for images, has no logits, spends by image, or is too
        large for a file.
    """
    if inputs not in INPUTS:
        raise unknown("inputs", inputs, INPUTS)
    record = getattr(model, "preprocessing", None)
    if not isinstance(model, nnx.Module) or record is None:
        raise UserError(
            f"A {type(model).__name__} cannot be exported: give a network of models.create or checkpoints.load_model."
        )
    require_no_gates(model)
    if isinstance(model, Segmented):
        raise UserError(
            f"A {type(model).__name__} spends by image: a network with exits is exported by export.cascade."
        )
    if isinstance(model, Detector | Framework):
        raise UserError(
            f"A {type(model).__name__} has no logits of classes, which a file returns: give a classifier, a network "
            "for features, or a segmentation network."
        )
    model = in_float32(model)
    require_fits(model)
    graph, state = nnx.split(model)

    @exact
    def normalized(images: Array) -> tuple[Array, ...]:
        outputs = nnx.merge(graph, state)(images)
        if isinstance(outputs, jax.Array):  # a segmentation network's logits of every pixel
            return (outputs,)
        logits, aux = outputs
        return logits, *(getattr(aux, "kept", ()))

    def call(images: Array) -> tuple[Array, ...]:
        if inputs == "normalized":
            return normalized(images)
        frames = images.reshape(-1, *images.shape[-3:])
        return normalized(normalize(frames, record.mean, record.std).reshape(images.shape))

    shape = image_shape(model)
    shapes = jax.eval_shape(normalized, jax.ShapeDtypeStruct((1, *shape), jnp.float32))
    outputs = (LOGITS, *(KEPT.format(step) for step in range(len(shapes) - 1)))
    return Program(call, normalized, inputs, shape, outputs)


def require_fits(model: Any) -> None:
    """Checks that the weights of a network fit into a file.

    Raises:
      UserError: they do not.
    """
    size = 4 * sum(math.prod(variable[...].shape) for variable in variables(model).values())
    if size > LARGEST:
        raise UserError(
            f"The weights of this network take {size / 2**30:.1f} GiB, and a file of either format holds 2 GiB: export "
            "a smaller one."
        )


def in_float32(model: Any) -> Any:
    """The network with the same arrays, but with float32 as its compute dtype."""
    copy = copied(model)
    for _, node in nnx.iter_graph(copy):
        if isinstance(node, nnx.Module) and getattr(node, "dtype", None) is not None:
            node.dtype = None  # pyright: ignore[reportAttributeAccessIssue]
    return copy


def image_shape(model: Any) -> tuple[int, ...]:
    """The shape of the images or clips that a network reads."""
    record = model.preprocessing
    embed = getattr(host_of(model), "patch_embed", None)
    sides = getattr(embed, "sides", None) or getattr(embed, "img_size", None) or record.sides
    return (*map(int, sides), len(record.mean))


def describe(model: Any, exported: Program, class_names: Sequence[str], packages: Sequence[str]) -> dict[str, Any]:
    """Metadata of a file, as plain values: network, plan, preprocessing, inputs, outputs, versions.

    Args:
      class_names: class names of a classifier.
      packages: packages whose versions are recorded.

    Raises:
      UserError: there are more or fewer names than classes.
    """
    require_class_names(class_names, getattr(model, "num_classes", 0))
    plan, pruner = getattr(model, "plan", None), getattr(model, "pruner", None)
    dtype, values = INPUTS[exported.inputs]
    return {
        "format": FORMAT,
        "architecture": _recipe(model),
        "plan": None if plan is None else plan.text,
        "scorer": None if pruner is None else _recipe(pruner.scorer),
        "preprocessing": model.preprocessing.as_dict(),
        "input": {"name": IMAGES, "dtype": dtype, "shape": ["batch", *exported.shape], "values": values},
        "outputs": list(exported.outputs),
        "class_names": list(class_names),
        "versions": {"jaxprune": jaxprune.__version__, **{name: metadata.version(name) for name in packages}},
    }


def _recipe(module: Any) -> dict[str, Any]:
    recipe = getattr(module, "recipe", None)
    return recipe.as_dict() if isinstance(recipe, Recipe) else {"name": type(module).__name__}


def as_text(described: dict[str, Any]) -> str:
    """The metadata as JSON."""
    return json.dumps(described, indent=2)
