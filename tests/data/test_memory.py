"""Which sources are held in memory."""

import pytest
from pictures import fill, picture

from jaxprune.data import memory
from jaxprune.data.loader import eval_batches
from jaxprune.data.memory import InMemory
from jaxprune.data.source_factory import create_source
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


def test_only_images_of_one_size_are_held(tmp_path, monkeypatch):
    root = fill(tmp_path / "x", ("a", "b"), 3)
    assert isinstance(create_source("folder", path=root), InMemory)
    monkeypatch.setattr(memory, "LIMIT", 6 * 24 * 24 * 3 - 1)
    assert not isinstance(create_source("folder", path=root), InMemory)
    assert isinstance(create_source("folder", path=root, in_memory=True), InMemory)
    monkeypatch.undo()
    picture(9, (30, 20)).save(root / "b" / "odd.png")
    source = create_source("folder", path=root)
    assert not isinstance(source, InMemory)
    assert next(iter(eval_batches(source, batch_size=7, preprocessing=Preprocessing((16, 16)))))["image"].shape == (
        7,
        16,
        16,
        3,
    )
    with pytest.raises(UserError, match=r"needs images of one size.*24×24 and 20×30"):
        create_source("folder", path=root, in_memory=True)
