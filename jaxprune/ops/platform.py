"""What a program is traced for: this process's devices, or described ones; for its results, or its gradient too."""

import contextlib
from collections.abc import Iterator

import jax

from jaxprune.errors import unknown
from jaxprune.ops.trace_context import trace_context

PLATFORMS = ("cpu", "gpu", "tpu")
_target, _count, _gradient = trace_context(), trace_context(), trace_context()


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


def takes_gradient() -> bool:
    """Returns whether a training step is being traced, whose best layouts are others than those of inference."""
    return bool(_gradient.value)


@contextlib.contextmanager
def traced_for_gradient() -> Iterator[None]:
    """Traces what is inside the context as a part of a training step.

    >>> with traced_for_gradient():
    ...     takes_gradient()
    True
    """
    with _gradient(True):
        yield


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
