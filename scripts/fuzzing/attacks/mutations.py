"""Damage to files and values: bytes that flip, are cut off, removed or put in, and JSON with odd values."""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

# What stands in place of a value. `10**30` is beyond 64 bits, and the long text beyond what an error may quote.
VALUES = (
    *(None, True, -1, 0, 0.5, 7, 10**6, 10**30, float("nan"), float("-inf")),
    *("", "x", "x" * 5000, "\x1b[2J", "../x", "a\nb", "\ud800"),
    *([], [1, 2], [[["a"]]], {}, {"a": 1}),
)
_INSERTED = (b"[", b"\xff", b"{", b"\x00", b"[" * 100_000)


def places(values: Any, before: tuple = ()) -> Iterator[tuple]:
    """Yields the path of every value in nested JSON."""
    if before:
        yield before
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield from places(value, (*before, key))


def mutated(values: Any, rng: random.Random, choices: Sequence[Any] = VALUES) -> tuple[Any, tuple]:
    """Returns a copy of nested JSON in which a value was replaced, removed or renamed, and what was done to it."""
    values = json.loads(json.dumps(values))
    path = rng.choice(list(places(values)))
    holder = values
    for key in path[:-1]:
        holder = holder[key]
    key, kind = path[-1], rng.choice(("replace", "replace", "replace", "remove", "rename"))
    old = holder.pop(key) if isinstance(holder, dict) else holder[key]
    if kind == "replace" or isinstance(holder, list):
        is_whole = isinstance(old, int) and not isinstance(old, bool)
        value = rng.choice([*choices, *([old * 1000, -old, old + 1, float(old)] if is_whole else [])])
        holder[key] = value
        return values, (path, "replace", value if len(repr(value)) < 60 else f"{repr(value)[:20]}…")
    if kind == "rename":
        holder[f"{key}x"] = old
    return values, (path, kind)


def damages(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yields copies of a file's content with bytes changed, cut off, put in or removed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield damaged(content, rng)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Returns a file's content with bytes changed, cut off, put in or removed in one place."""
    data = bytearray(content)
    place = rng.randrange(len(data))
    change = rng.choice(("flip", "flip", "flip", "cut", "remove", "insert", "zeros", "odd"))
    if change == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif change == "cut":
        del data[place:]
    elif change == "remove":
        del data[place : place + rng.randrange(1, 40)]
    elif change == "insert":
        data[place:place] = rng.randbytes(rng.randrange(1, 40))
    elif change == "odd":
        data[place:place] = rng.choice(_INSERTED)
    else:
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    return bytes(data)


def flips(content: bytes, count: int, seed: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields (bit, the content with that bit flipped), for `count` different bits, or all of them."""
    for bit in random.Random(seed).sample(range(8 * len(content)), min(count, 8 * len(content))):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(flipped)


def damaged_content(content: Any, rng: random.Random, choices: Sequence[Any] = VALUES) -> tuple[bytes, Any]:
    """Returns nested JSON as a file with another value or, more rarely, with other bytes, and what was done to it."""
    if rng.random() < 0.75:
        values, damage = mutated(content, rng, choices)
        return json.dumps(values).encode(), damage
    return damaged_json(json.dumps(content).encode(), rng)


def damaged_json(content: bytes, rng: random.Random) -> tuple[bytes, Any]:
    """Returns a JSON file with a value or some bytes changed, and what was done."""
    if rng.random() < 0.6:
        values, damage = mutated(json.loads(content), rng)
        return json.dumps(values).encode(), damage
    data = damaged(content, rng)
    return data, f"bytes: {data[:60]!r}, {len(data)} of {len(content)}"
