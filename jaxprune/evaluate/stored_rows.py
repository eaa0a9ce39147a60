"""Arrays in uncompressed members of .npz files, of which only some rows are in memory at a time."""

import math
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Shaped

_LOCAL_HEADER = 30  # bytes of a member's own header, without its name and extra field
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class StoredRows:
    """The rows of a stored array; a slice reads them from the file.

    Args:
      path: the .npz file.
      dtype: of the array.
      shape: (rows, …).
      offset: where the first row starts in the file, in bytes.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int):
        self._path, self.dtype, self.shape, self._offset = path, dtype, shape, offset

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Shaped[np.ndarray, "rows *d"]:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"Stored rows are read in order, not with a step of {step}.")
        width, count = math.prod(self.shape[1:]), max(stop - start, 0)
        values = np.fromfile(
            self._path, self.dtype, count * width, offset=self._offset + start * width * self.dtype.itemsize
        )
        return values.reshape(count, *self.shape[1:])


def stored_rows(path: Path, name: str) -> StoredRows | np.ndarray:
    """Returns the rows of an array in a .npz file, unread if the array is stored uncompressed, in C order.

    Other arrays are read as a whole.

    Args:
      path: the .npz file.
      name: of the array.

    Raises:
      KeyError: there is no such array.
    """
    with zipfile.ZipFile(path) as file:
        member = file.getinfo(f"{name}.npy")
        with file.open(member) as opened:
            reader = _READERS.get(np.lib.format.read_magic(opened))
            if reader and member.compress_type == zipfile.ZIP_STORED:
                shape, columns_first, dtype = reader(opened)
                if shape and not columns_first and not dtype.hasobject:
                    header = opened.tell()
                    with path.open("rb") as archive_file:
                        return StoredRows(path, dtype, shape, start_of(archive_file, member) + header)
    with np.load(path) as loaded:
        return loaded[name]


def start_of(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Where the data of a member starts; its own header may differ in length from the one in the directory."""
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    sizes = (int.from_bytes(header[place : place + 2], "little") for place in (26, 28))
    return member.header_offset + _LOCAL_HEADER + sum(sizes)
