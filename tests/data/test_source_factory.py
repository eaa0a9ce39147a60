"""Opening sources by name, and their summaries."""

import numpy as np
import pytest
from pictures import fill

from jaxprune.data.loader import train_batches
from jaxprune.data.source_factory import create_source, describe
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing


def test_invalid_sources_are_rejected():
    with pytest.raises(UserError, match=r"Unknown data source 'folders'\. Did you mean 'folder'"):
        create_source("folders")
    with pytest.raises(UserError, match=r"'scenes' has no option 'imagesize'\. Did you mean 'image_size'"):
        create_source("scenes", imagesize=3)
    with pytest.raises(UserError, match="needs the path"):
        create_source("folder")
    with pytest.raises(UserError, match="split=None opens a folder whose directories are classes"):
        create_source("scenes", split=None)


def test_labels_are_optional(tmp_path):
    fill(tmp_path / "unlabelled", ("x",), 4)
    source = create_source("folder", path=tmp_path / "unlabelled" / "x", labels=False)
    batch = next(train_batches(source, batch_size=4, preprocessing=Preprocessing((8, 8)), seed=0))
    np.testing.assert_array_equal(batch["label"], [-1, -1, -1, -1])


def test_describe(held, drawn):
    assert describe(held) == "scenes/train: 20 images, 10 classes, 32×32, in memory (0 MiB)"
    assert describe(drawn) == "scenes/train: 20 images, 10 classes"
