"""Broken files: reported once, replaced by the next example, and no reason to stop."""

import numpy as np
import pytest
from pictures import break_files, fill
from streams import assert_equal, take

from jaxprune.data.broken_examples import Unreadable, read_or_next
from jaxprune.data.folder import ImageFolder
from jaxprune.data.loader import eval_batches, train_batches
from jaxprune.data.memory import InMemory
from jaxprune.data.sample import Sample
from jaxprune.data.source_factory import create_source, describe
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


def test_broken_files_are_recorded_and_replaced(folder, caplog):
    break_files(folder / "ant" / "003.png", folder / "bee" / "000.png")
    source = ImageFolder(folder)
    with pytest.raises(Unreadable):
        source[3]
    for _ in range(2):
        assert read_or_next(source, 3)["index"] == 5  # 4 is broken too
    assert set(source.broken) == {str(folder / "ant" / "003.png"), str(folder / "bee" / "000.png")}
    assert "no image" in source.broken[str(folder / "bee" / "000.png")]
    assert sum("000.png" in message for message in caplog.messages) == 1


def test_replacement_wraps_around(folder):
    break_files(folder / "cow" / "003.png")
    assert read_or_next(ImageFolder(folder), 11)["index"] == 0


def test_all_broken_is_an_error(tmp_path):
    root = fill(tmp_path / "x", ("a",), 2)
    break_files(root / "a" / "000.png", root / "a" / "001.png")
    with pytest.raises(UserError, match="None of the 2 images"):
        read_or_next(ImageFolder(root), 0)


@pytest.mark.parametrize("in_memory", [None, False])
def test_broken_files_do_not_stop_a_run(folder, in_memory):
    break_files(folder / "ant" / "003.png", folder / "cow" / "000.png")
    source = create_source("folder", path=str(folder), in_memory=in_memory)
    assert isinstance(source, InMemory) == (in_memory is None)
    first, second = (
        take(train_batches(source, batch_size=4, preprocessing=Preprocessing((24, 24)), seed=0), 6) for _ in range(2)
    )
    assert_equal(first, second)
    assert sorted(np.concatenate([b["index"] for b in first[:3]])) == [0, 1, 2, 4, 4, 5, 6, 7, 9, 9, 10, 11]
    assert set(source.broken) == {str(folder / "ant" / "003.png"), str(folder / "cow" / "000.png")}
    assert describe(source).endswith("2 broken")
    seen = list(eval_batches(source, batch_size=8, preprocessing=Preprocessing((24, 24))))
    valid = np.concatenate([b["valid"] for b in seen])
    assert np.flatnonzero(~valid).tolist() == [3, 8, 12, 13, 14, 15]
    replaced = np.concatenate([b["label"] for b in seen])
    assert replaced[3] == 1 and replaced[8] == 2  # the label belongs to the picture shown


@pytest.mark.parametrize("in_memory", [None, False])
def test_a_sample_counts_no_picture_twice(folder, in_memory):
    break_files(folder / "ant" / "003.png", folder / "cow" / "000.png")
    source = create_source("folder", path=str(folder), in_memory=in_memory)
    sample = Sample(Sample(source, 12), 12)
    (batch,) = eval_batches(sample, batch_size=16, preprocessing=Preprocessing((24, 24)))
    assert np.flatnonzero(~batch["valid"]).tolist() == [3, 8, 12, 13, 14, 15]
