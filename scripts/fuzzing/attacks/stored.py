"""Damaged files that a run stored to resume: what they held, or a word that it is computed again."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from attacks import Attack, Case
from attacks.mutations import damages
from jaxprune.evaluate.collectors import observations
from jaxprune.evaluate.feature_formats import FORMATS, Shard, encode, read_shard
from jaxprune.evaluate.score_files import Part, read_part, write_part
from jaxprune.text import file_name
from jaxprune.tune.store import Store

KEY = {"network": "vit", "seed": 0}
_RNG = np.random.default_rng(0)
ARRAYS = {
    "index": np.arange(9),
    "pooled": _RNG.normal(size=(9, 8)).astype(np.float32),
    "kept_0": _RNG.integers(0, 9, (9, 4)),
}
PART = Part(("a.png", "caf\udce9.png"), ("", "gone"), {"norm": np.ones((2, 4), np.float32)})
SHARD = Shard(("a", "b"), np.arange(2, dtype=np.int32), None, {"pooled": np.ones((2, 3), np.float32)})


def equal(arrays: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> bool:
    """Whether arrays have the same names, types and values."""
    alike = lambda first, second: first.dtype == second.dtype and np.array_equal(first, second)
    return arrays.keys() == expected.keys() and all(alike(arrays[name], expected[name]) for name in arrays)


def _damaged(name: str, write: Callable[[Path], None], read: Callable[[Path], bool]) -> Attack:
    def cases(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
        path = folder / name
        write(path)
        content = path.read_bytes()
        for number, data in enumerate(damages(content, count, seed)):
            path.write_bytes(data)
            yield Case(f"damage {number} of {name}", lambda: read(path))
        path.write_bytes(content)

    return cases


def _same_scores(path: Path) -> bool:
    part = read_part(path)
    return part.files == PART.files and part.broken == PART.broken and equal(part.scores, PART.scores)


def _same_observations(path: Path) -> bool:
    if not observations.is_there(path, KEY):
        return True  # they are computed again
    with np.load(path) as file:
        return equal({name: file[name] for name in ARRAYS}, ARRAYS)


def _write_piece(path: Path) -> None:
    Store(path.parent, KEY).arrays("plan", lambda: ARRAYS, images=[1])


def _same_piece(path: Path) -> bool:
    return equal(Store(path.parent, KEY).arrays("plan", lambda: ARRAYS, images=[1]), ARRAYS)


def _same_features(path: Path) -> bool:
    shard = read_shard(path)
    return shard.names == SHARD.names and equal(
        {"index": shard.index, **shard.features}, {"index": SHARD.index, **SHARD.features}
    )


scores = _damaged("00000000.npz", lambda path: write_part(path, PART, (2, 2)), _same_scores)
analyses = _damaged("a.npz", lambda path: observations.write(path, KEY, ARRAYS), _same_observations)
tunings = _damaged(f"{file_name('plan')}.npz", _write_piece, _same_piece)
features = {
    form: _damaged(f"0.{form}", lambda path, form=form: path.write_bytes(encode(SHARD, form)) and None, _same_features)
    for form in FORMATS
}
