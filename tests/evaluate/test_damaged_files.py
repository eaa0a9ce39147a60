"""Files that a run stored and a disk damaged: what is damaged is computed again, with a word, and nothing is raised."""

import random

import numpy as np
import pytest

from jaxprune.errors import UserError
from jaxprune.evaluate import score_files
from jaxprune.evaluate.collectors import observations
from jaxprune.evaluate.feature_formats import Shard, encode, read_shard
from jaxprune.evaluate.score_files import Part, read_part, write_part
from jaxprune.tune.store import Store

KEY = {"network": "vit", "seed": 0}
RNG = np.random.default_rng(0)
ARRAYS = {
    "index": np.arange(9),
    "pooled": RNG.normal(size=(9, 8)).astype(np.float32),
    "kept_0": RNG.integers(0, 9, (9, 4)),
}


def damages(content, count, seed=0):
    """Yields copies of a file's content with bytes changed, cut off, put in or removed."""
    rng = random.Random(seed)
    for _ in range(count):
        data = bytearray(content)
        place = rng.randrange(len(data))
        change = rng.choice(("flip", "flip", "flip", "cut", "remove", "insert", "zeros"))
        if change == "flip":
            data[place] ^= 1 << rng.randrange(8)
        elif change == "cut":
            del data[place:]
        elif change == "remove":
            del data[place : place + rng.randrange(1, 40)]
        elif change == "insert":
            data[place:place] = rng.randbytes(rng.randrange(1, 40))
        else:
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        yield bytes(data)


def test_damaged_observations_are_not_there(tmp_path):
    path = tmp_path / "a.npz"
    observations.write(path, KEY, ARRAYS)
    content = path.read_bytes()
    assert observations.is_there(path, KEY)
    for data in damages(content, 400):
        path.write_bytes(data)
        if observations.is_there(path, KEY):  # damage outside of what is read
            with np.load(path) as file:
                for name, values in ARRAYS.items():
                    np.testing.assert_array_equal(file[name], values)


def test_a_damaged_piece_of_a_store_is_computed_again(tmp_path, caplog):
    def stored():
        return Store(tmp_path, KEY).arrays("plan", lambda: made.append(1) or ARRAYS, images=[1])

    made = []
    stored()
    (path,) = tmp_path.glob("*.npz")
    content = path.read_bytes()
    for data in damages(content, 150, seed=1):
        path.write_bytes(data)
        for name, values in stored().items():
            np.testing.assert_array_equal(ARRAYS[name], values)
    assert len(made) > 75 and "computed again" in caplog.text


def test_damaged_scores_are_computed_again(tmp_path, caplog):
    path = tmp_path / "00000000.npz"
    part = Part(("a.png", "caf\udce9.png"), ("", "gone"), {"norm": np.ones((2, 4), np.float32)})
    write_part(path, part, (2, 2))
    content = path.read_bytes()
    assert read_part(path).files == part.files and score_files._is_stored(path, part.files, ["norm"])
    assert not score_files._is_stored(path, part.files, ["norm", "random"])
    dropped = 0
    for data in damages(content, 300, seed=2):
        path.write_bytes(data)
        if score_files._is_stored(path, part.files, ["norm"]):
            np.testing.assert_array_equal(read_part(path).scores["norm"], part.scores["norm"])
        else:
            dropped += 1
    assert dropped > 150 and "is damaged" in caplog.text
    path.write_bytes(content[:100])
    with pytest.raises(UserError, match="missing or damaged"):
        read_part(path)


@pytest.mark.parametrize("form", ["npz"])
def test_damaged_features_are_one_line(form, tmp_path):
    shard = Shard(("a", "b"), np.arange(2, dtype=np.int32), None, {"pooled": np.ones((2, 3), np.float32)})
    path = tmp_path / f"0.{form}"
    for data in damages(encode(shard, form), 200, seed=3):
        path.write_bytes(data)
        try:
            read_shard(path)
        except UserError as error:
            assert len(str(error)) < 500
