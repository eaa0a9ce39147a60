"""A traced function in primitives that an ONNX converter supports: one flat list, without loops and scatters."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal

from jaxprune.errors import UserError

# Primitives that call inner functions, which are inlined, with the parameter that holds the body.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}
# How a scatter combines what it writes with what is there.
COMBINED: dict[str, Callable[[Array, Array], Array]] = {
    "scatter": lambda operand, update: update,
    "scatter-add": jnp.add,
    "scatter-min": jnp.minimum,
}


def trace(call: Callable[..., Any], *specs: jax.ShapeDtypeStruct) -> ClosedJaxpr:
    """Traces a function for arguments of given shapes; loops with a fixed trip count are unrolled."""
    # With jit disabled, the loops of `jax.lax` run as Python loops.
    with jax.disable_jit():
        return jax.make_jaxpr(call)(*specs)


def flat(closed: ClosedJaxpr) -> Callable[..., list[Array]]:
    """Returns a traced function as an equivalent function of primitives that a converter supports.

    Unused equations are dropped, inner functions are inlined, and a scatter becomes a comparison of indices.
    """
    return lambda *args: _evaluate(closed.jaxpr, closed.consts, args)


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    # An empty array has no values.
    read = lambda atom: atom.val if isinstance(atom, Literal) else values.get(atom)
    for equation in _needed(jaxpr):
        inputs = [read(atom) for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            inner = params[CALLS[name]]
            body, constants = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, ())
            outputs = _evaluate(body, constants, inputs)
        elif name == "stop_gradient":
            outputs = inputs
        elif name == "concatenate":
            # In an ONNX shape, 0 means an unknown dimension.
            outputs = [jnp.concatenate([part for part in inputs if part is not None], params["dimension"])]
        elif name == "stack":
            parts = [jnp.expand_dims(part, params["axis"]) for part in inputs if part is not None]
            outputs = [jnp.concatenate(parts, params["axis"])]
        elif name in COMBINED:
            outputs = [_scattered(name, inputs, params["dimension_numbers"], params["mode"])]
        elif name == "select_n" and len(inputs) == 3 and all(atom.aval.dtype == bool for atom in equation.invars):
            # ONNX Runtime's Where supports only numbers.
            outputs = [_chosen(inputs)]
        elif name == "gather" and _takes_one_row(params, inputs):
            outputs = [_row(inputs)]
        elif name == "pad" and _only_adds(params["padding_config"]):
            outputs = [_padded(inputs, params["padding_config"])]
        elif name == "reduce_window_max" and _are_plain(params, inputs[0].dtype):
            outputs = [_largest_of_windows(inputs[0], params)]
        else:
            outputs = equation.primitive.bind(*inputs, **params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _chosen(inputs: Sequence[Any]) -> Array:
    second, no, yes = inputs
    return (second & yes) | (~second & no)


def _takes_one_row(params: Any, inputs: Sequence[Any]) -> bool:
    """Whether a gather takes one whole row of each image; jax2onnx only supports gathers of a list of rows."""
    numbers = params["dimension_numbers"]
    return (
        inputs[1].ndim == 2
        and tuple(numbers.operand_batching_dims) == tuple(numbers.start_indices_batching_dims) == (0,)
        and not numbers.collapsed_slice_dims
        and tuple(numbers.start_index_map)[:1] == (1,)
        and tuple(params["slice_sizes"]) == (1, 1, *inputs[0].shape[2:])
    )


def _row(inputs: Sequence[Any]) -> Array:
    rows, places = inputs
    # Along the other axes the slice is complete, so it begins at 0.
    return jax.vmap(lambda rows, place: rows[place])(rows, jnp.clip(places[:, :1], 0, rows.shape[1] - 1))


def _needed(jaxpr: Any) -> list[Any]:
    """The equations that an output depends on, in order."""
    needed_atoms = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if not needed_atoms.isdisjoint(equation.outvars):
            equations.append(equation)
            needed_atoms.update(
                atom for atom in equation.invars if not isinstance(atom, Literal) and not _is_empty(atom)
            )
    return equations[::-1]


def _is_empty(atom: Any) -> bool:
    return any(isinstance(side, int) and side == 0 for side in getattr(atom.aval, "shape", ()))


def _only_adds(config: Sequence[tuple[int, int, int]]) -> bool:
    return all(low >= 0 and high >= 0 and not inner for low, high, inner in config)


def _padded(inputs: Sequence[Any], config: Sequence[tuple[int, int, int]]) -> Array:
    operand, value = inputs
    for axis, sides in enumerate(config):
        shape = operand.shape
        low, high = (
            [jnp.full((*shape[:axis], side, *shape[axis + 1 :]), value, operand.dtype)] * bool(side)
            for side in sides[:2]
        )
        operand = jnp.concatenate([*low, operand, *high], axis)
    return operand


def _are_plain(params: Any, dtype: Any) -> bool:
    """Whether windows have no gaps inside; padding is minus infinity, which integers lack."""
    is_padded = any(side for sides in params["padding"] for side in sides)
    is_dense = set(params["base_dilation"]) == set(params["window_dilation"]) == {1}
    return is_dense and (jnp.issubdtype(dtype, jnp.floating) or not is_padded)


def _largest_of_windows(x: Array, params: Any) -> Array:
    """The largest value of each window, channels wherever they are; jax2onnx only pools with the channels second."""
    x = _padded((x, -jnp.inf), [(low, high, 0) for low, high in params["padding"]])
    axes = list(zip(x.shape, params["window_dimensions"], params["window_strides"], strict=True))

    def part(place: Sequence[int]) -> Array:
        # The batch, of any size, stays as it is.
        return x[
            tuple(
                slice(None)
                if (window, stride) == (1, 1)
                else slice(start, start + (size - window) // stride * stride + 1, stride)
                for start, (size, window, stride) in zip(place, axes, strict=True)
            )
        ]

    return functools.reduce(jnp.maximum, map(part, itertools.product(*map(range, params["window_dimensions"]))))


def _scattered(name: str, inputs: Sequence[Any], numbers: Any, mode: Any) -> Array:
    """The result of a scatter along one axis, image by image: each position selects the updates addressed to it.

    If several updates set one position, the largest wins; XLA leaves the winner unspecified.

    Raises:
      UserError: it is another kind of scatter.
    """
    operand, places, updates = inputs
    batched, axes = tuple(numbers.operand_batching_dims), tuple(numbers.scatter_dims_to_operand_dims)
    windows, lead = tuple(numbers.update_window_dims), len(batched)
    single = places.ndim == lead + 1
    along = len(axes) == 1 and axes == tuple(numbers.inserted_window_dims)
    if along and single and not lead and windows == tuple(range(operand.ndim - 1)):
        return _set_one(name, operand, places[0], updates, axes[0])
    if lead == 1 and single and len(axes) == 1 and axes == tuple(numbers.inserted_window_dims) == (2,):
        return _scattered_column(name, operand, places, updates)
    if along and not (lead or single) and places.ndim == 2 and len(windows) == operand.ndim - 1 == updates.ndim - 1:
        # Along any axis: that axis comes first, in the operand as in the updates.
        (front,) = set(range(updates.ndim)) - set(windows)
        operand, updates = jnp.moveaxis(operand, axes[0], 0), jnp.moveaxis(updates, front, 0)
        rows = _scattered_rows(name, operand[None], places[None], updates[None], mode)[0]
        return jnp.moveaxis(rows, 0, axes[0])
    behind = lead if single else lead + 1
    if not (
        along
        and axes == (lead,)
        and batched == tuple(numbers.scatter_indices_batching_dims) == tuple(range(lead))
        and windows == tuple(range(behind, behind + operand.ndim - lead - 1))
        and places.ndim == behind + 1
        and lead <= 1
    ):
        raise UserError(f"This network scatters in a way that has no counterpart in ONNX here ({numbers}).")
    if single:
        places, updates = jnp.expand_dims(places, lead), jnp.expand_dims(updates, lead)
    if not lead:
        return _scattered_rows(name, operand[None], places[None], updates[None], mode)[0]
    return _scattered_rows(name, operand, places, updates, mode)


def _set_one(name: str, operand: Array, place: Array, updates: Array, axis: int) -> Array:
    """The operand with `updates` combined with one index of an axis."""
    shape = [1] * operand.ndim
    shape[axis] = operand.shape[axis]
    hit = (jnp.arange(operand.shape[axis], dtype=place.dtype) == place).reshape(shape)
    updates = jnp.expand_dims(updates, axis).astype(operand.dtype)
    return jnp.where(hit, COMBINED[name](operand, updates), operand)


def _scattered_column(name: str, operand: Array, places: Array, updates: Array) -> Array:
    """The operand (b, n, m) with updates (b, n) combined with one column of each image."""
    hit = jnp.arange(operand.shape[2], dtype=places.dtype)[None, None, :] == places[:, :, None]
    return jnp.where(hit, COMBINED[name](operand, updates[:, :, None].astype(operand.dtype)), operand)


def _scattered_rows(name: str, operand: Array, places: Array, updates: Array, mode: Any) -> Array:
    rows = operand.shape[1]
    ids = places[:, :, 0]
    if "CLIP" in str(mode):
        ids = jnp.clip(ids, 0, rows - 1)
    hits = ids[:, None, :] == jnp.arange(rows, dtype=ids.dtype)[None, :, None]  # (b, rows, updates)
    if name == "scatter-add":
        flattened = updates.reshape(*updates.shape[:2], -1)
        sums = jax.lax.dot_general(
            hits.astype(updates.dtype),
            flattened,
            (((2,), (1,)), ((0,), (0,))),
            precision=jax.lax.Precision.HIGHEST,
        )
        return operand + sums.reshape(operand.shape)
    hits = hits.reshape(*hits.shape, *(1,) * (operand.ndim - 2))
    if name == "scatter-min":
        return jnp.minimum(operand, jnp.where(hits, updates[:, None], operand[:, :, None]).min(2))
    maxima = jnp.where(hits, updates[:, None].astype(jnp.float32), -jnp.inf).max(2)
    kept = operand.astype(jnp.float32)
    result = jnp.where(hits.any(2), maxima, kept)
    return result > 0 if operand.dtype == jnp.bool_ else result.astype(operand.dtype)
