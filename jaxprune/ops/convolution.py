"""Whether a convolution is XLA's operator, or sums and products that its CPU compiler runs faster."""

import contextlib
import contextvars
from collections.abc import Iterator

from jaxprune.ops.platform import platform

_operators = contextvars.ContextVar("convolutions_as_operators", default=False)


@contextlib.contextmanager
def as_operators() -> Iterator[None]:
    """Traces every convolution inside the context as XLA's operator, for programs that other compilers read.

    >>> with as_operators():
    ...     are_operators()
    True
    """
    token = _operators.set(True)
    try:
        yield
    finally:
        _operators.reset(token)


def are_operators() -> bool:
    """Whether convolutions that are traced here are XLA's operator: on GPUs and TPUs, and inside `as_operators`."""
    return _operators.get() or platform() != "cpu"
