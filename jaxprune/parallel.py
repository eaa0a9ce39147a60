"""Placement of arrays: the device mesh, the parameters' shardings by name, and the batch.

Data parallelism is the default: every device holds all parameters and a part of the batch. A mesh with an `fsdp` axis
also shards the parameters; the batch is then split over both axes. The devices of an axis `tensor` share images, and
each computes some heads and hidden units of every block (`ops.tensor_parallel`).
"""

import contextlib
import contextvars
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxprune.errors import UserError, quoted
from jaxprune.ops import tensor_parallel
from jaxprune.text import split_items

BATCH_AXES = ("data", "fsdp")
TENSOR = tensor_parallel.AXIS

# What of a block is split over `tensor`, by name: columns of first layers, rows of second ones.
_TENSOR_RULES = (
    ("*attn.qkv.kernel", (TENSOR, None)),  # stored by rows, computed by head
    ("*attn.proj.kernel", (TENSOR, None)),
    ("*mlp.fc1.kernel", (None, TENSOR)),
    ("*mlp.fc1.bias", (TENSOR,)),
    ("*mlp.fc2.kernel", (TENSOR, None)),
)

# Sharding an array smaller than this costs more in gathering than it saves in memory (biases, norms, tokens).
_SMALLEST_FSDP_ARRAY = 2**12
# So do filters of depthwise convolutions: split by channel, they make XLA gather the maps of the whole batch.
_LARGEST_FILTER = 128  # numbers a channel

Rules = Sequence[tuple[str, Sequence[str | None]]]
_described: contextvars.ContextVar[Sequence[Any] | None] = contextvars.ContextVar("devices", default=None)


@contextlib.contextmanager
def on_devices(devices: Sequence[Any]) -> Iterator[None]:
    """Makes `devices` the default of meshes inside the context, such as described ones to compile for."""
    token = _described.set(devices)
    try:
        yield
    finally:
        _described.reset(token)


def make_mesh(axes: Mapping[str, int] | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh over `devices` (all of them by default, or those of `on_devices`) with the named axis sizes.

    Slices of TPUs, which only the network of the data centre joins, follow each other along the first axis whose size
    they divide: on a mesh such as data=2,fsdp=-1 gradients cross that network, and gathered parameters do not. The
    devices of the axis `tensor`, which read the same images, are of one process where that fits.

    Args:
      axes: {axis name: size}, `{"data": -1}` by default; one size may be -1, which takes the remaining devices.
      devices: the devices to use, each exactly once.

    Raises:
      UserError: the sizes do not multiply to the number of devices.
    """
    devices = list(_described.get() or jax.devices()) if devices is None else list(devices)
    axes = dict(axes or {"data": -1})
    num_assigned = math.prod(size for size in axes.values() if size != -1)
    wildcards = [name for name, size in axes.items() if size == -1]
    sensible = all(size >= 1 or size == -1 for size in axes.values()) and len(wildcards) <= 1
    if sensible and wildcards and len(devices) % num_assigned == 0:
        axes[wildcards[0]] = len(devices) // num_assigned
    if not sensible or math.prod(axes.values()) != len(devices):
        raise UserError(
            f"The mesh {_sizes(axes)} does not fit {len(devices)} device(s): the sizes must multiply to the number of "
            "devices; at most one of them may be -1, which takes the remaining devices."
        )
    types = (AxisType.Auto,) * len(axes)
    within = _within_a_process(axes, devices) if axes.get(TENSOR, 1) > 1 else None
    if within is not None:
        across = [size // local for size, local in zip(axes.values(), within, strict=True)]
        placed = mesh_utils.create_hybrid_device_mesh(within, across, devices, process_is_granule=True)
        return Mesh(placed, tuple(axes), axis_types=types)
    slices = len({getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"})
    if slices > 1:
        return Mesh(_by_slice(devices, axes, slices), tuple(axes), axis_types=types)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types, devices=devices)


def _within_a_process(axes: Mapping[str, int], devices: Sequence[Any]) -> list[int] | None:
    """The part of each axis inside of a process, with all of the tensor axis; None if that does not fit, or for one."""
    processes = len({device.process_index for device in devices})
    left, parts = len(devices) // processes, {}
    # Behind the tensor axis from the last on, so that a process has shares in a row.
    for name in (TENSOR, *(name for name in reversed(axes) if name != TENSOR)):
        parts[name] = math.gcd(axes[name], left)
        left //= parts[name]
    fits = processes > 1 and left == 1 and parts[TENSOR] == axes[TENSOR] and len(devices) % processes == 0
    return [parts[name] for name in axes] if fits else None


def _by_slice(devices: Sequence[Any], axes: Mapping[str, int], slices: int) -> np.ndarray:
    """The devices of several slices, in the shape of a mesh."""
    between = next((name for name, size in axes.items() if size % slices == 0), None)
    if between is None:
        raise UserError(
            f"The mesh {_sizes(axes)} has no axis that {slices} slices can share: write a multiple of {slices} for "
            f"one, such as data={slices},fsdp=-1."
        )
    across = [slices if name == between else 1 for name in axes]
    within = [size // count for size, count in zip(axes.values(), across, strict=True)]
    return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)


def mesh_from_text(text: str) -> Mesh:
    """Returns a mesh over all devices, parsed from a text such as "data=-1", "data=2,fsdp=4" or "data=-1,tensor=2".

    Raises:
      UserError: the text is not a mesh, or its sizes do not multiply to the number of devices.
    """
    axes = {}
    for name, size in list(split_items(text)) or [("", None)]:
        if name not in (*BATCH_AXES, TENSOR) or not re.fullmatch(r"-1|\d+", size or ""):
            raise UserError(
                f"mesh={quoted(text)} is not a mesh: write axes with their sizes, 'data=-1', 'data=2,fsdp=4' or "
                "'data=-1,tensor=2'; -1 takes the remaining devices."
            )
        axes[name] = int(size or 0)
    mesh = make_mesh(axes)
    if any(len({device.process_index for device in share}) > 1 for share in _by_share(mesh)):
        processes = len({device.process_index for device in mesh.devices.flat})
        raise UserError(
            f"On the mesh {_sizes(mesh.shape)} processes would have to read the same images: give {TENSOR} a size that "
            f"divides the {mesh.devices.size // processes} devices of a process."
        )
    return mesh


def _by_share(mesh: Mesh) -> np.ndarray:
    """The devices that have the same images, a row for each share of a batch."""
    last = (*_batch_axes(mesh), *(axis for axis in mesh.shape if axis not in BATCH_AXES))
    order = [tuple(mesh.shape).index(axis) for axis in last]
    return mesh.devices.transpose(order).reshape(batch_parts(mesh), -1)


def rules_from_texts(texts: Sequence[str]) -> Rules:
    """Returns rules of `param_shardings`, parsed from texts such as "*.mlp.fc1.kernel=-,tensor".

    >>> rules_from_texts(["head.*=fsdp", "*.mlp.fc1.kernel=-,tensor"])
    [('head.*', ('fsdp',)), ('*.mlp.fc1.kernel', (None, 'tensor'))]

    Raises:
      UserError: a text is not a rule.
    """
    rules = []
    for text in texts:
        pattern, _, spec = text.partition("=")
        axes = tuple(None if axis == "-" else axis for axis in spec.split(","))
        named = [axis for axis in axes if axis is not None]
        if not pattern or not {*named} <= {*BATCH_AXES, TENSOR} or len({*named}) < len(named):
            raise UserError(
                f"{quoted(text)} is not a sharding: write a pattern of parameters' names and, for each dimension, an "
                "axis of the mesh, each once, or - for a whole one, such as '*.mlp.fc1.kernel=-,tensor'."
            )
        rules.append((pattern, axes))
    return rules


def param_shardings(mesh: Mesh, params: Mapping[str, Any], rules: Rules = ()) -> dict[str, NamedSharding]:
    """Returns the sharding of every parameter.

    Args:
      mesh: the mesh.
      params: {dotted name: array, or anything with a shape}.
      rules: (pattern of the dotted name, one axis name or None per dimension); the first match wins. Without a match
        heads and hidden units of blocks are split over the mesh's `tensor` axis, and a parameter over `fsdp` along its
        largest other divisible dimension; it is replicated over the axes that divide nothing. Small arrays and the
        filters of depthwise convolutions are not split over `fsdp`.

    Raises:
      UserError: a rule matches no parameter, or names an axis that the mesh lacks or that does not divide a shape.
    """
    for pattern, _ in rules:
        if not any(fnmatchcase(name, pattern) for name in params):
            raise UserError(
                f"The sharding rule {quoted(pattern)} matches no parameter: their names are such as "
                f"{', '.join(sorted(params)[:3])}."
            )
    return {name: NamedSharding(mesh, _spec(mesh, name, value.shape, rules)) for name, value in params.items()}


def batch_parts(mesh: Mesh) -> int:
    """Returns the number of devices that a batch is split over."""
    return math.prod(mesh.shape[axis] for axis in _batch_axes(mesh))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: its leading axis over the mesh's data axes."""
    return NamedSharding(mesh, PartitionSpec(_batch_axes(mesh) or None))


def place_batch(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Returns this process's rows of a batch as global arrays, split over the mesh's data axes.

    Raises:
      UserError: the rows cannot be split evenly over the devices.
    """
    parts = batch_parts(mesh)
    sharding = batch_sharding(mesh)
    for name, value in batch.items():
        rows = len(value) * jax.process_count()
        if rows % parts:
            raise UserError(
                f"A batch of {rows} rows ({name!r}) cannot be shared evenly by {parts} devices ({_sizes(mesh.shape)}): "
                f"choose a batch size divisible by {parts}, or another mesh."
            )
    return {name: jax.make_array_from_process_local_data(sharding, value) for name, value in batch.items()}


def pad_batch(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pads this process's rows of a batch so that its devices share them evenly.

    Args:
      mesh: the devices.
      batch: `valid` (b,) becomes False on the added rows; all other columns repeat the last row.
    """
    parts = batch_parts(mesh)
    share = parts // math.gcd(parts, jax.process_count())
    missing = -len(batch["valid"]) % share
    if not missing:
        return dict(batch)
    padded = {name: np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]) for name, rows in batch.items()}
    padded["valid"][-missing:] = False
    return padded


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Returns a pytree's arrays with a full copy on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def _spec(mesh: Mesh, name: str, shape: tuple[int, ...], rules: Rules) -> PartitionSpec:
    for pattern, spec in rules:
        if fnmatchcase(name, pattern):
            _check_rule(mesh, name, shape, pattern, tuple(spec))
            return PartitionSpec(*spec)
    axes: list[str | None] = [None] * len(shape)
    if mesh.shape.get(TENSOR, 1) > 1:
        split = next((spec for pattern, spec in _TENSOR_RULES if fnmatchcase(name, pattern)), ())
        for i, axis in enumerate(split):
            axes[i] = axis if axis and shape[i] % mesh.shape[axis] == 0 else None
    is_filter = len(shape) > 2 and math.prod(shape[:-1]) < _LARGEST_FILTER
    if mesh.shape.get("fsdp", 1) > 1 and math.prod(shape) >= _SMALLEST_FSDP_ARRAY and not is_filter:
        divisible = [i for i, size in enumerate(shape) if axes[i] is None and size % mesh.shape["fsdp"] == 0]
        if divisible:
            axes[max(divisible, key=lambda i: shape[i])] = "fsdp"
    while axes and axes[-1] is None:
        axes.pop()
    return PartitionSpec(*axes)


def _check_rule(mesh: Mesh, name: str, shape: tuple[int, ...], pattern: str, spec: tuple) -> None:
    absent = [axis for axis in spec if axis is not None and axis not in mesh.shape]
    if absent:
        raise UserError(
            f"The sharding rule {pattern!r} names the axis {absent[0]!r}; the mesh has {_sizes(mesh.shape)}."
        )
    fits = len(spec) <= len(shape) and all(
        size % mesh.shape[axis] == 0 for size, axis in zip(shape, spec, strict=False) if axis is not None
    )
    if not fits:
        raise UserError(
            f"The sharding rule {pattern!r} = {spec} does not divide {name!r} of shape {shape} on the mesh "
            f"{_sizes(mesh.shape)}; give None for the dimensions that stay whole."
        )


def _batch_axes(mesh: Mesh) -> tuple[str, ...]:
    return tuple(axis for axis in BATCH_AXES if axis in mesh.shape)


def _sizes(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in axes.items())
