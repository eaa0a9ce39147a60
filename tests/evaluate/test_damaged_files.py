"""Files that a run stored and a disk damaged: what is damaged is computed again, with a word, and nothing is raised."""

import attacks
import numpy as np
import pytest
from attacks import stored
from attacks.mutations import damages
from attacks.stored import ARRAYS, KEY, PART

from jaxprune.errors import UserError
from jaxprune.evaluate import score_files
from jaxprune.evaluate.collectors import observations
from jaxprune.evaluate.score_files import read_part, write_part
from jaxprune.tune.store import Store


def test_damaged_observations_are_not_there(tmp_path):
    observations.write(tmp_path / "a.npz", KEY, ARRAYS)
    assert observations.is_there(tmp_path / "a.npz", KEY)
    outcome = attacks.run(stored.analyses(tmp_path, 400, 0))
    assert not outcome.raw and not outcome.unnoticed


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
    write_part(path, PART, (2, 2))
    content = path.read_bytes()
    assert read_part(path).files == PART.files and score_files._is_stored(path, PART.files, ["norm"])
    assert not score_files._is_stored(path, PART.files, ["norm", "random"])
    outcome = attacks.run(stored.scores(tmp_path, 300, 2))
    assert not outcome.raw and not outcome.unnoticed and outcome.refused > 150 and "is damaged" in caplog.text
    path.write_bytes(content[:100])
    assert not score_files._is_stored(path, PART.files, ["norm"])
    with pytest.raises(UserError, match="missing or damaged"):
        read_part(path)


@pytest.mark.parametrize("form", stored.features)
def test_damaged_features_are_one_line(form, tmp_path):
    outcome = attacks.run(stored.features[form](tmp_path, 200, 3))
    assert not outcome.raw and outcome.refused > 50 and outcome.longest < 500
    assert form != "npz" or not outcome.unnoticed


def test_a_directory_that_does_not_list_all_is_noticed(tmp_path):
    """Damage to the end of an archive, in which an array is no longer listed, and none of the checksums is wrong."""
    path = tmp_path / "00000000.npz"
    write_part(path, PART, (2, 2))
    content = path.read_bytes()
    entry = content.rindex(b"PK\x01\x02")
    end = bytearray(content[content.rindex(b"PK\x05\x06") :])
    for place in (8, 10):  # the number of members
        end[place : place + 2] = (int.from_bytes(end[place : place + 2], "little") - 1).to_bytes(2, "little")
    size = int.from_bytes(end[12:16], "little") - (content.rindex(b"PK\x05\x06") - entry)
    end[12:16] = size.to_bytes(4, "little")
    path.write_bytes(content[:entry] + bytes(end))
    with np.load(path) as file:
        assert "norm" not in file.files and "files" in file.files
    with pytest.raises(UserError, match="missing or damaged"):
        read_part(path)
