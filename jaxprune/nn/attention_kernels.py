"""The choice of the attention implementation, including kernels for GPU and TPU.

    with attention_kernels.implementation("blocked"):
        logits, aux = model(images)

"plain" computes the matrix of all pairs (or leaves it to XLA). "blocked" computes it in blocks of queries, forward and
backward, with memory linear in the length. "cudnn" is cuDNN's flash kernel, "pallas" JAX's for TPUs; if they cannot be
used, "blocked" is used with a warning. Operations that sum rows of attention, or weight them by a policy, use "blocked"
with both.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import unknown
from jaxprune.ops.platform import num_devices, platform
from jaxprune.ops.trace_context import trace_context

IMPLEMENTATIONS = ("plain", "blocked", "cudnn", "pallas")
VARIABLE = "JAXPRUNE_ATTENTION"
BLOCK = 128  # rows of a block

# A key column with this value masks the key; biases below its negative mark masked keys.
_HIDDEN = 3e4

_log = logging.getLogger(__name__)


class Default(NamedTuple):
    """A backend's default implementation from some length on.

    Attributes:
      backend: JAX backend.
      half: whether it only applies to float16 and bfloat16.
      length: smallest length of queries and keys.
      implementation: one of `IMPLEMENTATIONS`.
    """

    backend: str
    half: bool
    length: int
    implementation: str


# The first match applies, else "plain". The time of "blocked" relative to "plain" on a CPU, with the heads of a ViT-S:
#
#     tokens    forward       forward and backward
#     197       1.15          1.2 to 1.8
#     577       0.45 to 1     0.9 to 1.05, by batch
#     1374      0.48          0.7 to 0.95
#     4096      0.48          0.8
#
# For TPUs the compiler's estimates are in docs/results.md ("Attention on a TPU"), and nothing was measured: forward,
# "blocked" is ahead of "plain" from 1025 tokens on, with at most .15 of the memory; "pallas" is ahead of both from 1370
# on, but JAX does not partition it over several chips. GPUs have no entry until they are measured, since XLA estimates
# nothing there: force "cudnn" or "blocked".
DEFAULTS = (Default("cpu", False, 1024, "blocked"), Default("tpu", False, 1024, "blocked"))


_forced = trace_context()


@contextlib.contextmanager
def implementation(name: str | None) -> Iterator[None]:
    """Selects the attention implementation inside the context, one of `IMPLEMENTATIONS`; None follows `DEFAULTS`.

    It applies at trace time. `jax.jit` retraces in another context, except in versions of JAX without
    `jax.make_user_context`, where a program keeps the implementation of its first call. The environment variable
    JAXPRUNE_ATTENTION does the same for a whole process.

    Raises:
      UserError: there is no such implementation.
    """
    _check(name)
    with _forced(name):
        yield


def forced() -> str | None:
    """Returns the implementation forced by the context or else by the environment, or None."""
    return _forced.value or _check(os.environ.get(VARIABLE) or None)


def chosen(dtype: Any, queries: int, keys: int) -> str:
    """Returns the implementation for these lengths and this dtype: the forced one, or the default."""
    if (kind := forced()) is not None:
        return kind
    half = jnp.dtype(dtype).itemsize == 2
    for row in DEFAULTS:
        if row.backend == platform() and min(queries, keys) >= row.length and (half or not row.half):
            return row.implementation
    return "plain"


def row_block() -> int | None:
    """Returns the `size` for `ops.blocks.by_rows` of other all-pairs matrices: None unless "plain" is excluded.

    Attention is faster in blocks, but distances and similarities are recomputed several times, so they are in blocks
    only if memory has priority.
    """
    return None if forced() in (None, "plain") else BLOCK


def with_key_columns(
    q: Float[Array, "b h m d"], k: Float[Array, "b h n d"], bias: Float[Array, "#b 1 1 n"] | None, multiple: int = 8
) -> tuple[Float[Array, "b h m e"], Float[Array, "b h n e"]]:
    """Extends queries and keys so that their scaled products include a bias per key, for kernels without such a bias.

    An extra channel holds the bias times √d in the keys, and 1 in the queries; in half precision two channels hold a
    high and a low part for twice the precision. Another holds -3e4 for masked keys (a bias below -3e4). The width is
    padded with zeros.

    Args:
      multiple: the width is padded to a multiple of this.
    """
    b, _, n, d = k.shape
    if bias is None:
        return _widened(q, -d % multiple), _widened(k, -d % multiple)
    of_key = jnp.broadcast_to(bias, (b, 1, 1, n))[:, 0, 0].astype(jnp.float32)
    hidden = of_key < -_HIDDEN
    left, columns = jnp.where(hidden, 0.0, of_key) * d**0.5, []
    for _ in range(1 if k.dtype == jnp.float32 else 2):
        columns.append(left.astype(k.dtype))
        left = left - columns[-1].astype(jnp.float32)
    columns.append(jnp.where(hidden, -_HIDDEN, 0.0).astype(k.dtype))
    of_keys = jnp.stack(columns, axis=-1)[:, None]
    behind = lambda x, values: jnp.concatenate([x, jnp.broadcast_to(values, (*x.shape[:3], len(columns)))], axis=-1)
    fill = -(d + len(columns)) % multiple
    return _widened(behind(q, jnp.ones((), q.dtype)), fill), _widened(behind(k, of_keys), fill)


def _widened(x: Array, zeros: int) -> Array:
    """Pads the last axis with that many zeros."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, zeros)))


def flash(
    kind: str,
    q: Float[Array, "b h m d"],
    k: Float[Array, "b h n d"],
    v: Float[Array, "b h n e"],
    bias: Float[Array, "#b #h #m n"] | None = None,
) -> Float[Array, "b h m e"] | None:
    """Attention by a device kernel, "cudnn" or "pallas"; None, with a warning, if it cannot be used."""
    why = _obstacle(kind, q, bias)
    if why is None:
        try:
            return _KERNELS[kind](q, k, v, bias)
        except (ImportError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            why = str(error)
    _warn(kind, why)
    return None


def _obstacle(kind: str, q: Array, bias: Array | None) -> str | None:
    backend = _BACKENDS[kind]
    if platform() != backend:
        return f"it is for {backend}, and this is {platform()}"
    if kind == "cudnn" and q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"it supports float16 and bfloat16, not {q.dtype}"
    if bias is not None and bias.shape[1:3] != (1, 1):
        return "each pair of tokens has its own bias"
    if kind == "pallas" and num_devices() > 1:
        return f"JAX does not split it over {num_devices()} devices"
    return None


@functools.cache
def _warn(kind: str, why: str) -> None:
    """Warns once per reason."""
    _log.warning("Attention is computed in blocks instead of by %s: %s.", kind, why)


def cudnn(q: Array, k: Array, v: Array, bias: Array | None) -> Array:
    """cuDNN's flash kernel (GPU, float16 and bfloat16).

    On an H100 it has trained at even lengths; its padding of odd ones was only compiled for one. No speed was measured.
    """
    scale, width = q.shape[-1] ** -0.5, v.shape[-1]
    q, k = with_key_columns(q, k, bias)
    v = _widened(v, q.shape[-1] - width)
    odd = q.shape[2] % 2 or k.shape[2] % 2
    return (_odd_cudnn_attention if odd else _cudnn_attention)(q, k, v, scale)[..., :width]


def _cudnn_attention(q: Array, k: Array, v: Array, scale: float, length: int | None = None) -> Array:
    """Calls cuDNN; keys from `length` on are masked."""
    swap = lambda t: jnp.swapaxes(t, 1, 2)  # b h n d <-> b n h d, the order of jax.nn
    lengths = None if length is None else jnp.full(len(q), length, jnp.int32)
    options: dict[str, Any] = {"scale": scale, "implementation": "cudnn", "key_value_seq_lengths": lengths}
    return swap(jax.nn.dot_product_attention(swap(q), swap(k), swap(v), **options))


def _padded_cudnn_attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    """Pads odd lengths by one row; the key of it is masked."""
    even = lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, x.shape[2] % 2), (0, 0)))
    return _cudnn_attention(even(q), even(k), even(v), scale, k.shape[2])[:, :, : q.shape[2]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _odd_cudnn_attention(q: Array, k: Array, v: Array, scale: float) -> Array:
    """Attention at odd lengths, such as 197, which JAX does not differentiate by cuDNN: in training they are padded."""
    return _cudnn_attention(q, k, v, scale)


def _odd_forward(q: Array, k: Array, v: Array, scale: float) -> tuple[Array, Any]:
    return jax.vjp(lambda q, k, v: _padded_cudnn_attention(q, k, v, scale), q, k, v)


def _odd_backward(scale: float, pullback: Any, gradient: Array) -> tuple[Array, Array, Array]:
    del scale
    return pullback(gradient)


_odd_cudnn_attention.defvjp(_odd_forward, _odd_backward)


def pallas(q: Array, k: Array, v: Array, bias: Array | None) -> Array:
    """JAX's flash kernel for TPUs; lengths are padded to multiples of its block size, 128, with masked keys.

    So far only run in Pallas' interpreter, not on a TPU.
    """
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    scale, (b, _, m, _), n, width = q.shape[-1] ** -0.5, q.shape, k.shape[2], v.shape[-1]
    if n % BLOCK:
        bias = jnp.zeros((b, 1, 1, n)) if bias is None else jnp.broadcast_to(bias, (b, 1, 1, n))
        bias = jnp.pad(bias, ((0, 0), (0, 0), (0, 0), (0, -n % BLOCK)), constant_values=jnp.finfo(jnp.float32).min)
    q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % BLOCK), (0, 0))) for x in (q, k, v))
    q, k = with_key_columns(q, k, bias, BLOCK if width + 3 > BLOCK else 8)
    v = _widened(v, q.shape[-1] - width)
    return flash_attention(q, k, v, sm_scale=scale)[:, :, :m, :width]


_KERNELS = {"cudnn": cudnn, "pallas": pallas}
_BACKENDS = {"cudnn": "gpu", "pallas": "tpu"}


def _check(name: str | None) -> str | None:
    if name is not None and name not in IMPLEMENTATIONS:
        raise unknown("implementation of attention", name, IMPLEMENTATIONS)
    return name
