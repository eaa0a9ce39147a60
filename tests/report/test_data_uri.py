"""Images are embedded as small files."""

import numpy as np

from jaxprune.report import Report
from jaxprune.report.data_uri import data_uri


def test_pictures_are_small():
    rng = np.random.default_rng(0)
    assert data_uri(np.zeros((8, 8, 3), np.uint8)).startswith("data:image/png;")
    photo = data_uri(rng.random((256, 256, 3)))
    assert photo.startswith(("data:image/webp;", "data:image/jpeg;"))
    assert len(photo) < 150_000
    assert 'width="160" height="160"' in Report("r").section("s").figure(rng.random((32, 32, 3))).render()
