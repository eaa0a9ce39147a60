"""Which implementation computes attention, and the kernels of GPU and TPU that it can be.

    with kernels.implementation("blocked"):
        logits, aux = model(images)

"plain" makes the matrix of all pairs (or leaves it to XLA), "blocked" makes it in blocks of queries, forward and
backward, so that memory grows with the length and not with its square. "cudnn" is cuDNN's flash kernel, "pallas" JAX's
for TPUs; where they cannot be used, "blocked" is, and a warning says why. What sums rows of attention, or weighs them
by a policy, is "blocked" beside both.
"""

import contextlib
import contextvars
import functools
import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxprune.errors import unknown

IMPLEMENTATIONS = ("plain", "blocked", "cudnn", "pallas")
VARIABLE = "JAXPRUNE_ATTENTION"
BLOCK = 128  # rows of a block

# A key column of so much hides the key; smaller biases than its negative are taken for hidden keys.
_HIDDEN = 3e4

_log = logging.getLogger(__name__)


class Default(NamedTuple):
    """What a backend uses by default from some length on.

    Attributes:
      backend: of JAX.
      half: only for float16 and bfloat16.
      length: of queries and keys, at least.
      implementation: of `IMPLEMENTATIONS`.
    """

    backend: str
    half: bool
    length: int
    implementation: str


# The first that fits counts, and "plain" where none does. Measured on CPU with the heads of a ViT-S, blocked takes of
# plain's time forward, and with backward: 1.15 and 1.2 to 1.8 at 197 tokens, .45 to 1 and .9 to 1.05 at 577 (by batch),
# .48 and .7 to .95 at 1374, .48 and .8 at 4096. GPUs and TPUs have no row before theirs are measured: force "cudnn",
# "pallas" or "blocked" there.
DEFAULTS = (Default("cpu", False, 1024, "blocked"),)


class _Context:
    """What `jax.make_user_context` makes, for versions of JAX without it: `jax.jit` does not notice a change."""

    def __init__(self):
        self._held: contextvars.ContextVar[str | None] = contextvars.ContextVar("attention", default=None)

    @property
    def value(self) -> str | None:
        return self._held.get()

    @contextlib.contextmanager
    def __call__(self, value: str | None) -> Iterator[None]:
        token = self._held.set(value)
        try:
            yield
        finally:
            self._held.reset(token)


_forced: Any = jax.make_user_context(default_value=None) if hasattr(jax, "make_user_context") else _Context()


@contextlib.contextmanager
def implementation(name: str | None) -> Iterator[None]:
    """Has attention inside the context computed by one of `IMPLEMENTATIONS`; None leaves the choice to `DEFAULTS`.

    It counts when a program is traced. `jax.jit` traces again in another context, except in versions of JAX without
    `jax.make_user_context`: there a program keeps the implementation of its first call. The environment variable
    JAXPRUNE_ATTENTION does the same for a whole process.

    Raises:
      UserError: there is no such implementation.
    """
    _check(name)
    with _forced(name):
        yield


def forced() -> str | None:
    """Returns the implementation that the context or else the environment asks for; None where neither does."""
    return _forced.value or _check(os.environ.get(VARIABLE) or None)


def chosen(dtype: Any, queries: int, keys: int) -> str:
    """Returns the implementation of so many queries and keys of a dtype: the one that is forced, or the default."""
    asked = forced()
    if asked is not None:
        return asked
    half = jnp.dtype(dtype).itemsize == 2
    for row in DEFAULTS:
        if row.backend == jax.default_backend() and min(queries, keys) >= row.length and (half or not row.half):
            return row.implementation
    return "plain"


def row_block() -> int | None:
    """Returns the `size` for `ops.blocks.by_rows` of other matrices of all pairs: None unless "plain" is ruled out.

    Attention gains by blocks; distances and similarities are computed several times in blocks, so they are only where
    memory is asked for.
    """
    return None if forced() in (None, "plain") else BLOCK


def with_key_columns(
    q: Float[Array, "b h m d"], k: Float[Array, "b h n d"], bias: Float[Array, "#b 1 1 n"] | None, multiple: int = 8
) -> tuple[Float[Array, "b h m e"], Float[Array, "b h n e"]]:
    """Queries and keys whose products scaled by d^-½ contain the bias of each key, for kernels that take no such bias.

    One more column of the keys is the bias times √d, and 1 in the queries; in half precision two, a high and a low
    part, whose sum has twice the digits. Another is -3e4 for hidden keys (a bias below -3e4). Zeros fill up the width.

    Args:
      multiple: of which the width becomes one.
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
    behind = lambda x, more: jnp.concatenate([x, jnp.broadcast_to(more, (*x.shape[:3], len(columns)))], axis=-1)
    fill = -(d + len(columns)) % multiple
    return _widened(behind(q, jnp.ones((), q.dtype)), fill), _widened(behind(k, of_keys), fill)


def _widened(x: Array, more: int) -> Array:
    """With so many channels of zeros more."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, more)))


def flash(
    kind: str,
    q: Float[Array, "b h m d"],
    k: Float[Array, "b h n d"],
    v: Float[Array, "b h n d"],
    bias: Float[Array, "#b #h #m n"] | None = None,
) -> Float[Array, "b h m d"] | None:
    """Attention by the kernel of a device, "cudnn" or "pallas"; None, with a warning, where it cannot be used."""
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
    if jax.default_backend() != backend:
        return f"it is for {backend}, and this is {jax.default_backend()}"
    if kind == "cudnn" and q.dtype not in (jnp.float16, jnp.bfloat16):
        return f"it takes float16 and bfloat16, not {q.dtype}"
    if bias is not None and bias.shape[1:3] != (1, 1):
        return "each pair of tokens has its own bias"
    return None


@functools.cache
def _warn(kind: str, why: str) -> None:
    """Once for each reason."""
    _log.warning("Attention is computed in blocks, not by %s: %s.", kind, why)


def cudnn(q: Array, k: Array, v: Array, bias: Array | None) -> Array:
    """cuDNN's flash kernel (GPU, float16 and bfloat16).

    Written by the checks of `jax.nn.dot_product_attention`, and not yet run on a GPU.
    """
    scale, width = q.shape[-1] ** -0.5, v.shape[-1]
    q, k = with_key_columns(q, k, bias)
    v = _widened(v, q.shape[-1] - width)
    swap = lambda t: jnp.swapaxes(t, 1, 2)  # b h n d <-> b n h d, the order of jax.nn
    out = jax.nn.dot_product_attention(swap(q), swap(k), swap(v), scale=scale, implementation="cudnn")
    return swap(out)[..., :width]


def pallas(q: Array, k: Array, v: Array, bias: Array | None) -> Array:
    """JAX's flash kernel for TPUs; lengths are filled up to multiples of its blocks, 128, with hidden keys.

    Run in Pallas' interpreter only, and not yet on a TPU.
    """
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    scale, (b, _, m, width), n = q.shape[-1] ** -0.5, q.shape, k.shape[2]
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
