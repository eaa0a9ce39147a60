"""Values that a program is traced under, such as the platform it is for."""

import contextlib
import contextvars
from collections.abc import Hashable, Iterator
from typing import Any

import jax


class _Context:
    """A substitute for `jax.make_user_context` in older versions of JAX: `jax.jit` does not notice changes."""

    def __init__(self):
        self._held: contextvars.ContextVar[Hashable] = contextvars.ContextVar("trace_context", default=None)

    @property
    def value(self) -> Hashable:
        return self._held.get()

    @contextlib.contextmanager
    def __call__(self, value: Hashable) -> Iterator[None]:
        token = self._held.set(value)
        try:
            yield
        finally:
            self._held.reset(token)


def trace_context() -> Any:
    """Returns a new context: `.value` is None, or that of the `with` block around; another one retraces `jax.jit`.

    >>> context = trace_context()
    >>> with context("tpu"):
    ...     context.value
    'tpu'
    """
    return jax.make_user_context(default_value=None) if hasattr(jax, "make_user_context") else _Context()
