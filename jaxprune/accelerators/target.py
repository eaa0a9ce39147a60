"""Devices that are described, not present: `v5e:2x4`, two slices `v5e:4x4:2`, `h100:8`."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies

from jaxprune import parallel
from jaxprune.accelerators.chips import CHIPS, H100, Chip
from jaxprune.errors import UserError, quoted, shortened, unknown
from jaxprune.ops.platform import traced_for

_PATTERN = re.compile(r"(\w+)(?::(\d+(?:x\d+){0,2})(?::(\d+))?)?")
_MOST = 2**14  # chips; larger topologies only cost time
# libtpu looks for a TPU's name and neighbours otherwise, and refuses to be loaded by a second process.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
_FRACTION, _USUAL_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75


@dataclasses.dataclass(frozen=True)
class Target:
    """A topology of chips to compile for.

    >>> target = Target.parse("v5e:2x4")
    >>> str(target), target.chips, target.chip.title
    ('v5e:2x4', 8, 'TPU v5e')
    >>> Target.parse("v5e:4x4:2").chips
    32

    Attributes:
      name: name of the chip, one of `CHIPS`.
      shape: chips along each axis of a slice.
      slices: number of slices, which the network of the data centre joins.
    """

    name: str
    shape: tuple[int, ...]
    slices: int = 1

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parses a chip, its topology and the number of slices; a chip alone is one of it.

        Raises:
          UserError: there is no such chip, or it has no such topology.
        """
        match = _PATTERN.fullmatch(text.strip().lower())
        if match is None:
            raise UserError(
                f"{quoted(text)} describes no devices: write a chip and its topology, such as v5e:2x4 or h100:8."
            )
        name, sizes, slices = match.groups()
        if name not in CHIPS:
            raise unknown("chip", name, CHIPS)
        target = cls(name, tuple(int(size) for size in sizes.split("x")) if sizes else (1,), int(slices or 1))
        if not 1 <= target.chips <= _MOST:
            raise UserError(f"{quoted(text)} has {target.chips:,} chips: describe 1 to {_MOST:,}.")
        if target.chip.platform == "gpu" and (len(target.shape) > 1 or target.slices > 1):
            raise UserError(f"{quoted(text)} is not a number of GPUs: write {name}:{target.chips}.")
        return target

    def __str__(self) -> str:
        return f"{self.name}:{'x'.join(map(str, self.shape))}{f':{self.slices}' if self.slices > 1 else ''}"

    @property
    def chips(self) -> int:
        """Number of chips, of all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def chip(self) -> Chip:
        """One of the chips."""
        return CHIPS[self.name]

    @property
    def memory(self) -> int:
        """Bytes of a chip that a program can use; on a GPU, the share that JAX allocates at its start."""
        if self.chip.platform == "tpu":
            return self.chip.memory
        return int(self.chip.memory * float(os.environ.get(_FRACTION) or _USUAL_FRACTION))

    def devices(self) -> list[Any]:
        """Returns the described devices, for meshes to compile for.

        Raises:
          UserError: the compiler for them is not installed, or knows no such topology.
        """
        package, extra = _COMPILERS[self.chip.platform]
        if not any(_is_installed(name) for name in package):
            raise UserError(
                f"Compiling for {self} needs {package[0].partition('.')[2] or package[0]}, which is not installed: "
                f'pip install "jaxprune[{extra}]".'
            )
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            topology = self._tpu() if self.chip.platform == "tpu" else self._gpu()
        except Exception as error:  # whatever a plug-in raises
            raise UserError(
                f"{self} cannot be described to the compiler ({shortened(error)}): write a topology that there is, "
                f"such as {_EXAMPLES[self.chip.platform]}."
            ) from error
        return list(topology.devices)

    def _tpu(self) -> Any:
        # The default of 2 x 2 chips a host does not divide a smaller topology.
        shape = (*self.shape, 1, 1)[:3]
        bounds: dict[str, Any] = {"chips_per_host_bounds": shape} if math.prod(shape) < 4 else {}
        if self.slices > 1:
            bounds["num_slices"] = self.slices
        name = f"{self.name}:{'x'.join(map(str, shape if self.name == 'v5p' else shape[:2]))}"
        if len(self.shape) == 3 and self.name != "v5p" and self.shape[2] > 1:
            raise UserError("its chips lie in two dimensions")
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **bounds)

    def _gpu(self) -> Any:
        text = " ".join(H100.split())
        return topologies.get_topology_desc(platform="cuda", target_config=text, topology=f"1x1x{self.chips}")


_COMPILERS = {
    "tpu": (("libtpu",), "tpu-compile"),
    "gpu": (("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"), "cuda-compile"),
}
_EXAMPLES = {"tpu": "v5e:2x4, v6e:1x1 or v5p:2x2x1", "gpu": "h100:1 or h100:8"}


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its package
        return False


@contextlib.contextmanager
def compiling_for(target: Target) -> Iterator[list[Any]]:
    """Inside the `with` block meshes consist of the target's devices, and programs are traced for its platform.

    Yields:
      The devices.

    Raises:
      UserError: see `Target.devices`.
    """
    devices = target.devices()
    with parallel.on_devices(devices), traced_for(target.chip.platform, len(devices)):
        yield devices


def stay_on_cpu() -> None:
    """Keeps JAX from looking for devices other than the CPU; before it computes anything."""
    jax.config.update("jax_platforms", "cpu")
