"""PyTorch files with damaged bytes, other instructions, other archives: tensors, or one short line; nothing runs."""

import io
import pickletools
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch_files

from attacks import Case
from attacks.mutations import damaged
from jaxprune.weights.read import read_tensors

TENSORS = {f"layer.{index}.weight": np.full((2, 3), index, np.float32) for index in range(3)}
VALUE = {"epoch": 7, "args": {"lr": 0.1, "names": ["a", "b"]}, "model": TENSORS}
# Instructions that stand where there was another one: those that run code, that name what is not there, that are huge.
INSTRUCTIONS = (
    *(b"R", b"b", b"o", b"\x81", b"\x92", b"i", b"0", b"1", b"2", b"(", b"t", b"l", b"d", b"u", b"s", b"a", b"e", b"Q"),
    *(b"h\x05", b"h\xff", b"j\xff\xff\xff\x7f", b"q\x00", b"r\xff\xff\xff\x7f", b"\x94", b"\x8f", b"\x90", b"\x91"),
    *(
        b"N",
        b"I01\n",
        b"L" + b"9" * 5000 + b"L\n",
        b"F1e309\n",
        b"J\xff\xff\xff\xff",
        b"\x8a\x08" + b"\xff" * 8,
        b"M\xff\xff",
    ),
    *(
        b"X\xff\xff\xff\x7f",
        b"\x8d" + b"\xff" * 8,
        b"B\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\x7f",
        b"\x95" + b"\xff" * 8,
    ),
    *(
        b"cos\nsystem\n",
        b"cbuiltins\nexec\n",
        b"ctorch\nload\n",
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"ccollections\nOrderedDict\n",
    ),
    *(b"\x82\x01", b"\x84\xff\xff\xff\x7f", b"Pname\n", b"\x80\x05", b"\x80\xff", b".", b")" * 20_000, b"]" * 20_000),
)


def _instructions(program: bytes) -> list[bytes]:
    """The instructions of a pickle, each with its argument."""
    places = [place or 0 for _, _, place in pickletools.genops(program)]
    return [program[start:end] for start, end in zip(places, [*places[1:], len(program)], strict=True)]


def _other_program(program: bytes, rng: random.Random) -> tuple[bytes, Any]:
    """Returns a pickle with some instructions removed, doubled, exchanged or replaced, and what was done."""
    code, changes = _instructions(program), []
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place, change = rng.randrange(len(code)), rng.choice(("remove", "double", "exchange", "replace", "replace"))
        changes.append((change, place))
        if change == "remove" and len(code) > 1:
            del code[place]
        elif change == "double":
            code[place:place] = [code[place]] * rng.choice((1, 2, 1000))
        elif change == "exchange":
            partner = rng.randrange(len(code))
            code[place], code[partner] = code[partner], code[place]
        else:
            code[place] = rng.choice(INSTRUCTIONS)
            changes.append(code[place][:30])
    return b"".join(code), changes


def _other_archive(content: bytes, rng: random.Random) -> tuple[bytes, Any]:
    """Returns a PyTorch archive with another program, or with members of other names, sizes and compression."""
    change = rng.choice(("program", "program", "program", "name", "cut", "longer", "twice", "bomb", "missing"))
    buffer, damage = io.BytesIO(), change
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    place = rng.randrange(len(members))
    name, data = members[place]
    if change == "program":
        place = next(number for number, (name, _) in enumerate(members) if name.endswith("data.pkl"))
        program, done = _other_program(members[place][1], rng)
        members[place] = (members[place][0], program)
        damage = f"program: {done}"
    elif change == "name":
        members[place] = (rng.choice(("../x", "/etc/passwd", "x" * 300, "data.pkl", "a/b/data.pkl", "", "é")), data)
    elif change == "cut":
        members[place] = (name, data[: rng.randrange(max(len(data), 1))])
    elif change == "longer":
        members[place] = (name, data * 1000)
    elif change == "twice":
        members.append(members[place])
    elif change == "bomb":
        members[place] = (name, bytes(2**26))
    else:
        del members[place]
    kind = zipfile.ZIP_DEFLATED if change == "bomb" else rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, data in members:
            archive.writestr(name or "x", data)  # the library writes no empty name
    return buffer.getvalue(), damage


def pickles(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields files in both of PyTorch's formats, with damaged bytes, other instructions or other members."""
    legacy, canary = folder / "legacy.pth", folder / "ran"
    archive = torch_files.write(folder / "archive.pth", VALUE).read_bytes()
    torch_files.write(legacy, VALUE, legacy=True)
    program = b"\x80\x02" + torch_files.program(VALUE, {}) + b"."
    start = legacy.read_bytes().index(program)
    before, behind = legacy.read_bytes()[:start], legacy.read_bytes()[start + len(program) :]
    runs = b"cos\nsystem\n(X" + len(f"touch {canary}").to_bytes(4, "little") + f"touch {canary}".encode() + b"tR."
    rng, path = random.Random(seed), folder / "damaged.pth"
    for number in range(count):
        kind = number % 5
        if kind == 0:
            data, damage = damaged(archive, rng), "bytes of an archive"
        elif kind == 1:
            data, damage = _other_archive(archive, rng)
        elif kind == 2:
            data, damage = damaged(before + program + behind, rng), "bytes of the old format"
        else:
            mutant, damage = _other_program(program, rng)
            cut = rng.choice((0, 2, len(program) // 2, len(program) - 1))
            mutant = program[:cut] + runs if rng.random() < 0.1 else mutant
            data = before + mutant + behind
        path.write_bytes(data)
        yield Case(damage, lambda: _only_tensors(path, canary))


def _only_tensors(path: Path, canary: Path) -> bool:
    """Whether arrays of numbers were read, and nothing ran."""
    try:
        tensors = read_tensors(path)
    finally:
        ran = canary.exists()
        canary.unlink(missing_ok=True)
    return not ran and all(isinstance(value, np.ndarray) and value.dtype != object for value in tensors.values())
