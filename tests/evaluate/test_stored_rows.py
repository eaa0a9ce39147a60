"""Rows of stored arrays, read from the file where they are sliced."""

import io
import zipfile

import numpy as np
import pytest

from jaxprune.evaluate.collectors.observations import write
from jaxprune.evaluate.stored_rows import StoredRows, stored_rows

VALUES = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)


def test_slices_are_those_of_the_array(tmp_path):
    write(tmp_path / "all.npz", {"key": 1}, {"index": np.arange(11), "layer_1": VALUES, "layer_2": VALUES[:, 0]})
    for name, wanted in (("layer_1", VALUES), ("layer_2", VALUES[:, 0])):
        rows = stored_rows(tmp_path / "all.npz", name)
        assert isinstance(rows, StoredRows) and len(rows) == 11 and rows.shape == wanted.shape
        for some in (slice(None), slice(2, 5), slice(8, 40), slice(-2, None), slice(5, 2), slice(11, 20)):
            np.testing.assert_array_equal(rows[some], wanted[some], strict=True)
    with pytest.raises(ValueError, match="step of 2"):
        rows[::2]


def test_other_arrays_are_read_as_a_whole(tmp_path):
    np.savez_compressed(tmp_path / "small.npz", layer_1=VALUES)
    np.savez(tmp_path / "columns.npz", layer_1=np.asfortranarray(VALUES))
    for name in ("small", "columns"):
        found = stored_rows(tmp_path / f"{name}.npz", "layer_1")
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, VALUES)
    with pytest.raises(KeyError, match="layer_9"):
        stored_rows(tmp_path / "small.npz", "layer_9")


def test_headers_of_any_length(tmp_path):
    # NumPy itself writes extra fields for large files; here one of another tool.
    array = io.BytesIO()
    np.save(array, VALUES)
    with zipfile.ZipFile(tmp_path / "extra.npz", "w") as file:
        info = zipfile.ZipInfo("layer_1.npy")
        info.extra = b"\x99\x99\x04\x00abcd"
        file.writestr(info, array.getvalue())
    np.testing.assert_array_equal(stored_rows(tmp_path / "extra.npz", "layer_1")[3:7], VALUES[3:7])
