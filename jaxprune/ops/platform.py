"""What a program is traced for: the devices of this process, or those it is compiled for ahead of time."""

import contextlib
from collections.abc import Iterator

import jax

from jaxprune.errors import unknown
from jaxprune.ops.trace_context import trace_context

PLATFORMS = ("cpu", "gpu", "tpu")
_target, _count = trace_context(), trace_context()


def platform() -> str:
    """Returns "cpu", "gpu" or "tpu": where the program being traced will run.

    >>> with traced_for("tpu"):
    ...     platform()
    'tpu'
    """
    return _target.value or jax.default_backend()


def num_devices() -> int:
    """Returns the number of devices of all processes, or of those that the program being traced is compiled for.

    >>> with traced_for("tpu", 8):
    ...     num_devices()
    8
    """
    return int(_count.value or jax.device_count())


@contextlib.contextmanager
def traced_for(name: str, num_devices: int = 1) -> Iterator[None]:
    """Traces what is inside the context for another platform than that of this process, and that many devices of it.

    Raises:
      UserError: there is no such platform.
    """
    if name not in PLATFORMS:
        raise unknown("platform", name, PLATFORMS)
    with _target(name), _count(str(num_devices)):
        yield
