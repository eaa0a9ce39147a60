"""Fewer and cheaper programs for arrays that are made outside of compiled functions.

JAX compiles one for each shape that is drawn, filled or copied from NumPy, and a network has many: together they were a
fifth of what the tests compiled. Inside of a trace nothing changes, and the numbers are the same everywhere.
"""

import contextlib
import functools
import inspect
import math
import threading

import jax
import jax.numpy as jnp
import numpy as np

LONGEST = 4**9
_array, _asarray = jnp.array, jnp.asarray
_SCALAR = np.zeros((), np.float32)


def tracing() -> bool:
    """Whether what JAX computes now becomes part of a program."""
    return isinstance(_asarray(_SCALAR), jax.core.Tracer)


def copied(values):
    """An array with the values of one of NumPy."""
    kind = jax.dtypes.canonicalize_dtype(values.dtype)
    return _array(values.astype(kind, copy=False), dtype=kind)


def in_few_sizes(draw):
    """A function of `jax.random` that compiles a program for each power of 4.

    Number i of an array depends on the key and on i alone (`jax_threefry_partitionable`).
    """
    signature = inspect.signature(draw)

    @functools.wraps(draw)
    def drawn(*arguments, **options):
        given = signature.bind(*arguments, **options).arguments
        shape = given.get("shape") or ()
        bounds = [value for name, value in given.items() if name in ("lower", "upper", "minval", "maxval")]
        plain = isinstance(shape, tuple) and all(isinstance(value, int | float) for value in (*shape, *bounds))
        plain = plain and given.get("out_sharding") is None and not isinstance(given["key"], jax.core.Tracer)
        length = math.prod(shape) if plain else 0
        if 1 < length <= LONGEST and not tracing():
            longer = next(4**power for power in range(3, 10) if 4**power >= length)
            return copied(np.asarray(draw(**{**given, "shape": (longer,)}))[:length].reshape(shape))
        return draw(*arguments, **options)

    return drawn


def from_numpy(make):
    """`jnp.array` or `jnp.asarray` without a program that copies an array of NumPy."""

    @functools.wraps(make)
    def made(*arguments, **options):
        if len(arguments) == 1 and not options and type(arguments[0]) is np.ndarray and not tracing():
            return copied(arguments[0])
        return make(*arguments, **options)

    return made


def filled(make, value):
    """`jnp.zeros` or `jnp.ones` without a program that fills the array."""

    @functools.wraps(make)
    def made(shape, dtype=None, **options):
        sizes = (shape,) if isinstance(shape, int) else shape
        plain = isinstance(sizes, tuple) and all(isinstance(size, int) for size in sizes)
        if plain and all(option is None for option in options.values()) and not tracing():
            kind = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
            if not jax.dtypes.issubdtype(kind, jax.dtypes.extended):
                return copied(np.full(sizes, value, kind))
        return make(shape, dtype, **options)

    return made


def one_context_for_each_thread() -> None:
    """Lowers all programs of a thread in one context; JAX makes another for each, a quarter of the cost of a small one.

    The function is not JAX's public interface: another version may do without it.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.interpreters import mlir

        make, of_thread = mlir.make_ir_context, threading.local()

        def context():
            if not hasattr(of_thread, "context"):
                of_thread.context = make()
            return of_thread.context

        mlir.make_ir_context = context


def install() -> None:
    """Puts them in the place of JAX's own for the rest of the process."""
    one_context_for_each_thread()
    if jax.config.jax_threefry_partitionable:
        of_initializers = jax.nn.initializers.normal.__globals__["random"]
        for name in ("normal", "truncated_normal", "uniform"):
            drawn = in_few_sizes(getattr(jax.random, name))
            setattr(jax.random, name, drawn)
            setattr(of_initializers, name, drawn)
    jnp.array, jnp.asarray = from_numpy(_array), from_numpy(_asarray)
    jnp.zeros, jnp.ones = filled(jnp.zeros, 0), filled(jnp.ones, 1)
