"""Weights files with damaged headers, archives and indices: the tensors that were written, or one short line."""

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save

from attacks import Case
from attacks.mutations import VALUES, damaged, damaged_json, mutated
from attacks.stored import equal
from jaxprune import checkpoints, models
from jaxprune.weights.read import read_tensors

TENSORS = {f"layer.{index}.weight": np.full((2, 3), index, np.float32) for index in range(4)}
_SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 3}
_HEADERS = (*VALUES, "F64", "BOOL", "BF16", "I8", "F8_E4M3", [0, 24], [24, 0], [0, 10**30], [-1, 24], [2, 3, 10**9])
_LENGTHS = (0, 1, 2**20, 100_000_001, 2**32, 2**63, 2**64 - 1)


def _header_damaged(content: bytes, rng: random.Random) -> tuple[bytes, Any]:
    """Returns a safetensors file with another length, another header or some other bytes in it, and what was done."""
    length = struct.unpack("<Q", content[:8])[0]
    header, body = content[8 : 8 + length], content[8 + length :]
    change = rng.random()
    if change < 0.1:
        length = rng.choice((*_LENGTHS, length - 1, length + 1, len(content)))
        return struct.pack("<Q", length) + header + body, f"header of {length} bytes"
    if change < 0.7:
        values, damage = mutated(json.loads(header), rng, _HEADERS)
        header = json.dumps(values).encode(errors="replace")
    elif change < 0.8:
        name = rng.choice(("é" * 3000, "\x1b[2J" * 50, "x" * 60_000, "a\nb", ""))
        header = json.dumps({name: {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}).encode()
        damage = f"a tensor named {name[:20]!r}…"
    else:
        header, damage = damaged(header, rng), "bytes of the header"
    return struct.pack("<Q", len(header)) + header + body, damage


def safetensors(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields published files and files of `save_model` whose headers were damaged."""
    network = models.create("vit", **_SIZES, rngs=nnx.Rngs(0))
    checkpoints.save_model(network, folder / "network.safetensors")
    contents = (save(TENSORS), (folder / "network.safetensors").read_bytes())
    rng, path = random.Random(seed), folder / "damaged.safetensors"
    for number in range(count):
        kind = number % 3  # the last: of a published file, by `load_pretrained`, whose errors name tensors
        data, damage = _header_damaged(contents[kind % 2], rng)
        path.write_bytes(data)
        reads: tuple[Callable[[], Any], ...] = (
            lambda: read_tensors(path),
            lambda: checkpoints.load_model(path),
            lambda: checkpoints.load_pretrained(network, path),
        )
        yield Case(damage, lambda read=reads[kind]: read() is not None)


def archives(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields `.npz` files with damaged bytes or with headers of arrays that are not theirs."""
    buffer = io.BytesIO()
    np.savez(buffer, **TENSORS)
    compressed = io.BytesIO()
    np.savez_compressed(compressed, **TENSORS)
    contents = (buffer.getvalue(), compressed.getvalue())
    rng, path = random.Random(seed), folder / "damaged.npz"
    for number in range(count):
        if number % 3:
            path.write_bytes(damaged(contents[number % 3 - 1], rng))
            yield Case(f"bytes, case {number}", lambda: _same_tensors(path))
        else:
            header, description = _array_header(rng)
            with zipfile.ZipFile(path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
                archive.writestr("layer.0.weight.npy", header + bytes(rng.choice((0, 1, 24, 10_000))))
            yield Case(description, lambda: read_tensors(path) is not None)


def _array_header(rng: random.Random) -> tuple[bytes, str]:
    """Returns the header of an array in a file, of an odd type and shape, and what it says."""
    dtype = rng.choice(
        ("<f4", "|V0", "|S0", "<U0", "|O", "<f8", "|V100000", "|b1", "x", "<c16", "<M8[s]", "[('a','<f4')]")
    )
    shape = rng.choice(
        ("()", "(0,)", "(6,)", "(2, 3)", "(1000000000000,)", "(-1,)", "(0, 1000000000000)", "6", "(6.0,)")
    )
    text = f"{{'descr': {dtype if dtype[0] == '[' else repr(dtype)}, 'fortran_order': False, 'shape': {shape}, }}"
    text = rng.choice((text, text, text, text[:-2], text + "}" * 3, "[" * 5000, "{" + "'a':" * 9000))
    version = rng.choice((1, 1, 1, 2, 3, 9))
    length = struct.pack("<H" if version == 1 else "<I", min(len(text) + 1, 2**16 - 1))
    return b"\x93NUMPY" + bytes((version, 0)) + length + text.encode() + b"\n", f"version {version}, {text[:80]}"


def _same_tensors(path: Path) -> bool:
    tensors = read_tensors(path)
    # What an archive's directory lists may lack a tensor; its numbers have checksums.
    return all(name not in tensors or equal({name: array}, {name: tensors[name]}) for name, array in TENSORS.items())


def indices(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields directories of shards whose index was damaged."""
    places = {}
    for number, part in enumerate(_halves(), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        (folder / file).write_bytes(save({name: TENSORS[name] for name in part}))
        places.update(dict.fromkeys(part, file))
    index = folder / "model.safetensors.index.json"
    content = json.dumps({"metadata": {"total_size": 96}, "weight_map": places}).encode()
    names = (*VALUES, "/etc/passwd", "..", ".", "x" * 300, "a\x00b", "/dev/zero", "sub/model.safetensors")
    rng = random.Random(seed)
    for _ in range(count):
        if rng.random() < 0.6:
            values, damage = mutated(json.loads(content), rng, names)
            index.write_text(json.dumps(values))
        else:
            data, damage = damaged_json(content, rng)
            index.write_bytes(data)
        yield Case(damage, lambda: _part_of_tensors(folder))


def _halves() -> tuple[list[str], list[str]]:
    names = list(TENSORS)
    return names[:2], names[2:]


def _part_of_tensors(folder: Path) -> bool:
    """Whether what is read are tensors that were written; an index that lists fewer lists fewer."""
    return all(
        name in TENSORS and equal({name: array}, {name: TENSORS[name]}) for name, array in read_tensors(folder).items()
    )
