"""The text of an optimised program (HLO), read as computations of instructions."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# Bits of an element, by the name of its type.
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_HEAD = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\]")
_CALLS = re.compile(r"\b(?:calls|body|to_apply)=%?([\w.\-]+)|\b(?:branch|called)_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
# Instructions whose result is their operand, perhaps elsewhere.
_SAME = ("copy", "bitcast", "copy-start", "copy-done", "convert")
# Instructions that run what they call as they stand; the parts of any other one are inside of it.
_OUTER = ("call", "while", "conditional", "async-start")


class Array(NamedTuple):
    """The type and shape of an array.

    >>> Array("bf16", (8, 128)).num_bytes
    2048
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes without padding."""
        digits = re.search(r"\d+", self.dtype)
        bits = _BITS.get(self.dtype, int(digits.group()) if digits else 32)
        return math.ceil(math.prod(self.shape) * bits / 8)


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
      name, op: its name and its operation.
      results: what it gives.
      operands: names of its operands.
      attributes: the rest of its line.
      text: of its operands as they stand, which for a constant is its value.
    """

    name: str
    op: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str
    text: str = ""

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations that it calls."""
        names = [single or several for single, several in _CALLS.findall(self.attributes)]
        return tuple(name.strip(" %") for text in names for name in text.split(","))


class Module(NamedTuple):
    """A program.

    >>> text = '''HloModule step
    ... ENTRY %main (x: f32[8,4]) -> f32[8] {
    ...   %x = f32[8,4]{1,0} parameter(0)
    ...   ROOT %sum = f32[8]{0} fusion(%x), kind=kLoop, calls=%inner
    ... }
    ... '''
    >>> [(line.op, line.operands, line.results[0].shape) for line in Module.parse(text).computations["main"]]
    [('parameter', (), (8, 4)), ('fusion', ('x',), (8,))]

    Attributes:
      computations: the instructions of each computation, by its name.
      entry: name of the computation that the program begins with.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    @classmethod
    def parse(cls, text: str) -> "Module":
        """Parses the text of a compiled program; lines that are not instructions are left out."""
        computations: dict[str, list[Instruction]] = {}
        entry, current = "", []
        for line in text.splitlines():
            if line.startswith((" ", "\t")):
                if instruction := _instruction(line.strip()):
                    current.append(instruction)
            elif (head := _HEAD.fullmatch(line.rstrip())) and not line.startswith("HloModule"):
                current = computations.setdefault(head.group(2), [])
                entry = head.group(2) if head.group(1) else entry
        return cls({name: tuple(lines) for name, lines in computations.items()}, entry)

    def steps(self, inside: bool = False) -> Iterator[tuple[Instruction, int, str]]:
        """Yields (instruction, how often it runs, its computation) of what a run of the program goes through.

        Args:
          inside: also what is inside of fusions and reductions.
        """
        yield from self._steps(self.entry, 1, inside)

    def _steps(self, name: str, times: int, inside: bool) -> Iterator[tuple[Instruction, int, str]]:
        for line in self.computations.get(name, ()):
            yield line, times, name
            if inside or line.op in _OUTER:
                repeats = self._repeats(line, name) if line.op == "while" else 1
                for part in line.calls:
                    yield from self._steps(part, times * repeats, inside)

    def _repeats(self, loop: Instruction, computation: str) -> int:
        """How often a loop runs: as the compiler says, or counted in equal steps up to a constant (TPUs); else 1."""
        if trips := _TRIPS.search(loop.attributes):
            return int(trips.group(1))
        if (counted := self._counted(loop)) is None:
            return 1
        index, end = counted
        state = self._origin(loop.operands[0], computation)
        start = self._origin(state.operands[index], computation) if state and state.op == "tuple" else None
        distance = end - (int(start.text) if start and start.op == "constant" else 0)
        return max(-(-distance // self._stride(loop, index)), 0)

    def _stride(self, loop: Instruction, index: int) -> int:
        """By how much a round raises the counter: 2 in a loop that was unrolled once; 1 where that is not seen."""
        (body,) = loop.calls
        state = self.computations[body][-1]
        counter = self._origin(state.operands[index], body) if state.op == "tuple" else None
        if counter is None or counter.op != "add":
            return 1
        terms = [self._origin(name, body) for name in counter.operands]
        return max((int(term.text) for term in terms if term and term.op == "constant"), default=1)

    def _counted(self, loop: Instruction) -> tuple[int, int] | None:
        """Where the counter of a loop is in its state, and the constant that it stays below; None for other loops."""
        condition = _CONDITION.search(loop.attributes)
        lines = {line.name: line for line in self.computations.get(condition.group(1), ())} if condition else {}
        last = list(lines.values())[-1] if lines else None
        if last is None or last.op != "compare" or "direction=LT" not in last.attributes:
            return None
        counter, end = (lines.get(name) for name in last.operands)
        index = _INDEX.search(counter.attributes) if counter and counter.op == "get-tuple-element" else None
        return (int(index.group(1)), int(end.text)) if index and end and end.op == "constant" else None

    def _origin(self, name: str, computation: str) -> Instruction | None:
        """The instruction that gives a value, before copies of it."""
        lines = {line.name: line for line in self.computations[computation]}
        line = lines.get(name)
        while line and line.op in _SAME and line.operands:
            line = lines.get(line.operands[0])
        return line


def _instruction(line: str) -> Instruction | None:
    name, equals, text = line.removeprefix("ROOT ").partition(" = ")
    if not equals or " " in name:
        return None
    end = _closing(text) if text.startswith("(") else text.find(" ") - 1
    op, _, tail = text[end + 1 :].strip().partition("(")
    end_of_operands = _closing("(" + tail) - 1
    results = tuple(_arrays(text[: end + 1]))
    operands = tuple(re.findall(r"%([\w.\-]+)", tail[:end_of_operands]))
    rest = tail[end_of_operands + 1 :]
    return Instruction(name.lstrip("%"), op, results, operands, rest, tail[:end_of_operands])


def _arrays(text: str) -> Iterator[Array]:
    for dtype, sizes in _ARRAY.findall(text):
        yield Array(dtype, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size))


def _closing(text: str) -> int:
    """The place of the parenthesis that closes the first one; the end of a text without."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and not depth:
            return place
    return len(text)
