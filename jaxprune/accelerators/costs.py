"""The cost of a program on a chip, as its compiler gives it; nothing runs."""

import dataclasses
import re
from typing import Any

import jax

from jaxprune.accelerators import program_text
from jaxprune.accelerators.chips import GIB
from jaxprune.accelerators.hlo import Module
from jaxprune.accelerators.target import Target
from jaxprune.report.table import column

_NEEDED = re.compile(r"([\d.]+)([KMGT]?)B?\)? (?:exceeds available|of [\d.]+[KMGT]? ?(?:hbm|HBM))")
# Without a GPU nothing is tuned, and Triton's matrix products fail at small sizes; cuBLAS' are what most are tuned to.
_OPTIONS = {"tpu": None, "gpu": {"xla_gpu_enable_triton_gemm": False}}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


class DoesNotFit(Exception):
    """A program needs more memory than a chip has.

    Attributes:
      num_bytes: what it needs; 0 if the compiler does not say.
      available: the chip's.
    """

    def __init__(self, num_bytes: int, available: int):
        super().__init__(f"{num_bytes / GIB:.2f} GiB of {available / GIB:.2f}")
        self.num_bytes, self.available = num_bytes, available


@dataclasses.dataclass(frozen=True)
class Costs:
    """What a run of a program takes on each chip.

    Attributes:
      arguments, outputs, temporaries, code: GiB; outputs without those that take the place of arguments.
      total: GiB of all of these.
      available: GiB that programs can use.
      tflop: operations of matrix products and convolutions, two a multiply-add, in 10¹²; kernels that are not XLA
        programs (cuDNN's and Pallas' attention) are not counted.
      moved: GiB of operands and results of all kernels.
      mcycles: the compiler's estimated cycles, in millions; 0 where it gives none.
      ms: time by these cycles; without them, by the roofline of each kernel. Communication is not counted.
      estimate: "cycles" or "roofline".
      share: of the chip's peak, at that time.
      sent: GiB that each chip sends to others of its slice or machine; see `program_text.sent`.
      sent_away: GiB that each chip sends to other slices.
      communication: ms of what is sent, at the published bandwidths; at best it takes place beside the computation.
      collectives: {kind: (count, bytes on a chip)}.
    """

    arguments: float = column("arguments", "GiB")
    outputs: float = column("output", "GiB")
    temporaries: float = column("temporaries", "GiB")
    code: float = column("code", "GiB")
    total: float = column("total", "GiB")
    available: float = column("available", "GiB")
    tflop: float = column("TFLOP")
    moved: float = column("moved", "GiB")
    mcycles: float = column("M cycles")
    ms: float = column("estimated", "ms")
    estimate: str = column("estimate")
    share: float = column("share of peak")
    sent: float = column("sent", "GiB")
    sent_away: float = column("sent to other slices", "GiB")
    communication: float = column("communication", "ms")
    collectives: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @property
    def cycles(self) -> int:
        """The compiler's estimated cycles; 0 where it gives none."""
        return round(self.mcycles * 1e6)


def costs(lowered: Any, target: Target) -> Costs:
    """Compiles a program that was lowered for described devices.

    Args:
      lowered: what `jax.jit(f).lower(…)` returns for abstract arrays on the target's devices.
      target: these devices.

    Raises:
      DoesNotFit: it needs more memory than a chip has.
    """
    try:
        compiled = lowered.compile(compiler_options=_OPTIONS[target.chip.platform])
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(bytes_needed(str(error)), target.memory) from error
    memory, chip = compiled.memory_analysis(), target.chip
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    code = memory.generated_code_size_in_bytes
    total = memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes + code
    if total > target.memory:
        raise DoesNotFit(total, target.memory)
    module = Module.parse(compiled.as_text())
    flops, cycles = program_text.flops(module), program_text.cycles(module).total()
    seconds = cycles / chip.hertz if chip.hertz and cycles else program_text.roofline(module, chip)
    links, network = program_text.sent(module)
    return Costs(
        memory.argument_size_in_bytes / GIB,
        outputs / GIB,
        memory.temp_size_in_bytes / GIB,
        code / GIB,
        total / GIB,
        target.memory / GIB,
        flops / 1e12,
        program_text.moved(module) / GIB,
        cycles / 1e6,
        seconds * 1e3,
        "cycles" if cycles else "roofline",
        flops / chip.flops / seconds if seconds else 0.0,
        links / GIB,
        network / GIB,
        1e3 * (links / chip.links + network / chip.network),
        program_text.collectives(module),
    )


def bytes_needed(message: str) -> int:
    """Returns the bytes that a compiler's message of too little memory names; 0 if it names none.

    >>> bytes_needed("Ran out of memory: the total for temporaries (20.5G) exceeds available HBM (15.75G).") / 2**30
    20.5
    """
    match = _NEEDED.search(message)
    return int(float(match.group(1)) * _UNITS[match.group(2)]) if match else 0
