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
    """An instruction: its name, operation, results, the names of its operands, and the rest of its line."""

    name: str
    op: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations that it calls."""
        names = [single or several for single, several in _CALLS.findall(self.attributes)]
        return tuple(name.strip(" %") for text in names for name in text.split(","))

    @property
    def repeats(self) -> int:
        """How often it runs what it calls: the length of a loop, where the compiler knows it, else 1."""
        trips = _TRIPS.search(self.attributes) if self.op == "while" else None
        return int(trips.group(1)) if trips else 1


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
        """Parses the text of a compiled program; lines that are no instructions are left out."""
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
                for part in line.calls:
                    yield from self._steps(part, times * line.repeats, inside)


def _instruction(line: str) -> Instruction | None:
    name, equals, text = line.removeprefix("ROOT ").partition(" = ")
    if not equals or " " in name:
        return None
    end = _closing(text) if text.startswith("(") else text.find(" ") - 1
    op, _, tail = text[end + 1 :].strip().partition("(")
    end_of_operands = _closing("(" + tail) - 1
    results = tuple(_arrays(text[: end + 1]))
    operands = tuple(re.findall(r"%([\w.\-]+)", tail[:end_of_operands]))
    return Instruction(name.lstrip("%"), op, results, operands, tail[end_of_operands + 1 :])


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
