"""Small folders of pictures, and small sources of scenes."""

import pytest
from pictures import fill

from jaxprune.data.source_factory import create_source


@pytest.fixture
def folder(tmp_path):
    """Three classes of four pictures."""
    return fill(tmp_path / "pictures", ("ant", "bee", "cow"), 4)


@pytest.fixture
def splits(tmp_path):
    """train/ and test/, of which test lacks a class."""
    fill(tmp_path / "splits" / "train", ("ant", "bee", "cow"), 4, suffix="jpg")
    fill(tmp_path / "splits" / "test", ("ant", "cow"), 2, suffix="jpg")
    return tmp_path / "splits"


@pytest.fixture(scope="module")
def held():
    """Twenty scenes, held in memory."""
    return create_source("scenes", split="train", num_examples=20, image_size=32)


@pytest.fixture(scope="module")
def drawn():
    """The same scenes, drawn on access."""
    return create_source("scenes", split="train", num_examples=20, image_size=32, in_memory=False)
