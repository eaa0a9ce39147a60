"""Prepared data sets whose descriptions were damaged: images, or one short line."""

import json
import random

import pytest
from pictures import fill

from jaxprune.data.broken import Unreadable
from jaxprune.data.prepare import prepare
from jaxprune.data.tfds_source import Tfds
from jaxprune.errors import UserError

VALUES = [None, True, -1, 0, 1.5, 10**30, "", "x" * 3000, [], {}, [1], "NaN"]


def places(values, before=()):
    """Yields the path of every value in nested JSON."""
    if before:
        yield before
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield from places(value, (*before, key))


def damaged(content, is_json, rng):
    """Returns the content of a file with a value or some bytes changed."""
    if is_json and rng.random() < 0.6:
        values = json.loads(content)
        path = rng.choice(list(places(values)))
        holder = values
        for key in path[:-1]:
            holder = holder[key]
        if rng.random() < 0.3 and isinstance(holder, dict):
            holder.pop(path[-1])
        else:
            holder[path[-1]] = rng.choice(VALUES)
        return json.dumps(values).encode()
    data, place = bytearray(content), rng.randrange(len(content))
    change = rng.random()
    if change < 0.5:
        data[place] ^= 1 << rng.randrange(8)
    elif change < 0.75:
        del data[place:]
    else:
        data[place:place] = rng.choice([b"[", b"\xff", b"{", b"\x00", b"[" * 100_000])
    return bytes(data)


def open_damaged(root, count, seed=0):
    """Opens damaged data sets; returns (how many were refused, the longest message)."""
    fill(root / "in" / "train", ("ant", "bee"), 2)
    prepare(root / "in", root / "out", name="animals")
    files = sorted(path for path in (root / "out").rglob("*") if path.suffix in (".json", ".txt"))
    rng, refused, longest = random.Random(seed), 0, 0
    for _ in range(count):
        path = rng.choice(files)
        content = path.read_bytes()
        path.write_bytes(damaged(content, path.suffix == ".json", rng))
        try:
            source = Tfds(str(root / "out"), split="train")
            for index in range(min(len(source), 3)):
                source[index]
        except (UserError, Unreadable) as error:
            refused, longest = refused + 1, max(longest, len(str(error)))
        path.write_bytes(content)
    return refused, longest


@pytest.mark.filterwarnings("ignore")
def test_damaged_descriptions_end_in_a_line(tmp_path):
    refused, longest = open_damaged(tmp_path, 120)
    assert refused > 40 and longest < 1000
