"""Small folders of pictures to read."""

import pytest
from pictures import fill


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
