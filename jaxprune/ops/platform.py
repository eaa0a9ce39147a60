"""The platform that a program is traced for: that of this process, or the one it is compiled for ahead of time."""

import contextlib
from collections.abc import Iterator

import jax

from jaxprune.errors import unknown
from jaxprune.ops.trace_context import trace_context

PLATFORMS = ("cpu", "gpu", "tpu")
_target = trace_context()


def platform() -> str:
    """Returns "cpu", "gpu" or "tpu": where the program being traced will run.

    >>> with traced_for("tpu"):
    ...     platform()
    'tpu'
    """
    return _target.value or jax.default_backend()


@contextlib.contextmanager
def traced_for(name: str) -> Iterator[None]:
    """Traces what is inside the context for another platform than that of this process.

    Raises:
      UserError: there is no such platform.
    """
    if name not in PLATFORMS:
        raise unknown("platform", name, PLATFORMS)
    with _target(name):
        yield
