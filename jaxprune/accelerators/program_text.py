"""What the text of an optimised program says of its cost."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from jaxprune.accelerators.chips import Chip
from jaxprune.accelerators.hlo import Array, Instruction, Module

SEND = "send"  # to another slice
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "reduce-scatter")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CHAIN = re.compile(r'\bchain_id="\d+"')
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"(\w+)=(-?\d[\d_x-]*)")
# Instructions that move nothing.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "conditional", "call")
_CALLBACK = re.compile(r'custom_call_target="[^"]*callback[^"]*"|is_host_transfer=true|\boutfeed\(')


def cycles(module: Module) -> Counter[str]:
    """Returns the compiler's estimated cycles by kind of instruction; a loop counts as often as it runs."""
    total: Counter[str] = Counter()
    for line, times, _ in module.steps():
        if estimate := _CYCLES.search(line.attributes):
            total[line.op] += times * int(estimate.group(1))
    return total


def _communication(module: Module) -> Iterator[tuple[Instruction, int, str]]:
    """`Module.steps` with what is inside; of a chain, which is communication in pieces, the first piece once."""
    chains = set()
    for line, times, computation in module.steps(inside=True):
        chain = _CHAIN.search(line.attributes)
        if chain is None:
            yield line, times, computation
        elif chain.group() not in chains:
            chains.add(chain.group())
            yield line, 1, computation


def collectives(module: Module) -> dict[str, tuple[int, int]]:
    """Returns {kind: (how many a run has, bytes of their results on a chip)} of the communication between chips."""
    counts: Counter[str] = Counter()
    volumes: Counter[str] = Counter()
    shapes = _shapes(module)
    for line, times, computation in _communication(module):
        op = line.op.removesuffix("-start")
        if op not in COLLECTIVES:
            continue
        kind = "reduce-scatter" if computation.startswith("all-reduce-scatter") else op
        counts[kind] += times
        volumes[kind] += times * _outcome(line, _operands(line, shapes[computation]))
    return {kind: (counts[kind], volumes[kind]) for kind in sorted(counts)}


def sent(module: Module) -> tuple[int, int]:
    """Returns the bytes that each chip sends in a run: over the links of its slice, and to other slices.

    An all-reduce sends everything twice, as in a ring of many chips; an all-gather as much as a chip lacked before, a
    reduce-scatter as much as others keep.
    """
    shapes, links, network = _shapes(module), 0, 0
    for line, times, computation in _communication(module):
        operands = _operands(line, shapes[computation])
        op = line.op.removesuffix("-start")
        if op == SEND and "megascale" in line.attributes:
            network += times * operands
        if op not in COLLECTIVES:
            continue
        if op in ("all-gather", "reduce-scatter"):
            links += times * abs(_outcome(line, operands) - operands)
        elif op == "all-reduce" and not computation.startswith("all-reduce-scatter"):
            links += times * 2 * operands
        else:
            links += times * operands
    return links, network


def _operands(line: Instruction, shapes: Mapping[str, tuple[Array, ...]]) -> int:
    """Bytes of the operands."""
    return sum(array.num_bytes for name in line.operands for array in shapes.get(name, ()))


def _outcome(line: Instruction, operands: int) -> int:
    """Bytes of what communication gives: the results, without the operands and numbers among those of its start."""
    arrays = [array for array in line.results if array.shape or not line.op.endswith("-start")]
    operand_bytes = operands if line.op.endswith("-start") and line.op != "all-reduce-start" else 0
    return sum(array.num_bytes for array in arrays) - operand_bytes


def flops(module: Module) -> int:
    """Returns the operations of matrix products and convolutions, two for each multiply-add."""
    shapes = _shapes(module)
    return sum(times * _flops(line, shapes[computation]) for line, times, computation in module.steps(inside=True))


def roofline(module: Module, chip: Chip) -> float:
    """Returns the seconds of a run if every kernel is as fast as its products or its bytes allow.

    A kernel is an instruction of the program, such as a fusion; its bytes are those of its operands and results.
    Communication and the time between kernels are not counted.
    """
    shapes, seconds = _shapes(module), 0.0
    for line, times, computation, num_bytes in _kernels(module, shapes):
        of_products = sum(
            _flops(part, shapes[name]) / (chip.flops if _is_half(part, shapes[name]) else chip.flops / 2)
            for part, name in _parts(module, line, computation)
        )
        seconds += times * max(of_products, num_bytes / chip.bandwidth)
    return seconds


def moved(module: Module) -> int:
    """Returns the bytes of the operands and results of all kernels, without communication."""
    return sum(times * num_bytes for _, times, _, num_bytes in _kernels(module, _shapes(module)))


def uses_float64(module: Module) -> bool:
    """Whether a result has 64-bit floats."""
    return any(array.dtype in ("f64", "c128") for line, _, _ in module.steps(inside=True) for array in line.results)


def calls_host(text: str) -> bool:
    """Whether the program calls Python or exchanges arrays with the host while it runs.

    >>> calls_host('%c = f32[] custom-call(), custom_call_target="xla_ffi_python_gpu_callback"')
    True
    """
    return bool(_CALLBACK.search(text))


def _shapes(module: Module) -> dict[str, dict[str, tuple[Array, ...]]]:
    return {name: {line.name: line.results for line in lines} for name, lines in module.computations.items()}


def _kernels(module: Module, shapes: Mapping[str, Any]) -> Iterator[tuple[Instruction, int, str, int]]:
    """Yields (kernel, how often it runs, its computation, bytes of its operands and results)."""
    for line, times, computation in module.steps():
        if line.op in _FREE or line.op.removesuffix("-done").removesuffix("-start") in COLLECTIVES:
            continue
        operands = [array for name in line.operands for array in shapes[computation].get(name, ())]
        yield line, times, computation, sum(array.num_bytes for array in (*operands, *line.results))


def _parts(module: Module, line: Instruction, computation: str) -> Iterator[tuple[Instruction, str]]:
    yield line, computation
    for name in line.calls if line.op == "fusion" else ():
        for part in module.computations.get(name, ()):
            yield from _parts(module, part, name)


def _is_half(line: Instruction, shapes: Mapping[str, tuple[Array, ...]]) -> bool:
    inputs = [array for name in line.operands for array in shapes.get(name, ())]
    return bool(inputs) and inputs[0].dtype in ("bf16", "f16")


def _flops(line: Instruction, shapes: Mapping[str, tuple[Array, ...]]) -> int:
    """The operations of one matrix product or convolution; 0 for anything else."""
    product = line.op == "dot" or (line.op == "custom-call" and "cublas" in line.attributes)
    if not product and not (line.op == "convolution" or '"__cudnn$conv' in line.attributes):
        return 0
    inputs = [shapes.get(name, ()) for name in line.operands[:2]]
    if not all(inputs) or len(inputs) < 2 or not line.results:
        return 0
    result = math.prod(line.results[0].shape)
    if product:
        axes = _CONTRACTED.search(line.attributes)
        contracted = [int(axis) for axis in re.findall(r"\d+", axes.group(1))] if axes else []
        return 2 * result * math.prod(inputs[0][0].shape[axis] for axis in contracted)
    labels = _LABELS.search(line.attributes)
    return _of_convolution(line, inputs[0][0].shape, inputs[1][0].shape, *labels.groups()) if labels else 0


def _of_convolution(
    line: Instruction, image: tuple[int, ...], kernel: tuple[int, ...], of_image: str, of_kernel: str, of_result: str
) -> int:
    """The operations of a convolution whose axes have these labels.

    On a TPU batched matrix products are convolutions too, over dilated axes: products with padding are not counted.
    """
    result, window = line.results[0].shape, line.attributes.partition("window={")[2].partition("}")[0]
    options = {name: values.split("x") for name, values in _WINDOW.findall(window)}
    count = 2 * result[of_result.index("b")] * result[of_result.index("f")] * kernel[of_kernel.index("i")]
    for label in (letter for letter in of_result if letter.isdigit()):
        axis = int(label)
        option = lambda name, default, axis=axis: options[name][axis] if name in options else default
        stride, dilation, spread = (int(option(name, "1")) for name in ("stride", "rhs_dilate", "lhs_dilate"))
        low = int(option("pad", "0_0").split("_")[0])
        places = spread * (image[of_image.index(label)] - 1) + 1
        count *= sum(
            0 <= place < places and place % spread == 0
            for start in range(0, stride * result[of_result.index(label)], stride)
            for place in range(start - low, start - low + dilation * kernel[of_kernel.index(label)], dilation)
        )
    return count
