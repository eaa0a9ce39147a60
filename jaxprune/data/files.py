"""Reads untrusted files: only regular ones, of bounded size, without blocking."""

import os
import stat

TEXT_LIMIT = 2**24  # maximum size in bytes of a text file that describes one picture


def read_bytes(path: str | os.PathLike, limit: int | None = None) -> bytes:
    """Returns the content of a regular file.

    Args:
      path: the file; symbolic links are followed.
      limit: maximum size in bytes; None for any.

    Raises:
      OSError: it is not a regular file (a directory, a pipe, a device), has more than `limit` bytes, or cannot be read.
    """
    # Without O_NONBLOCK, opening a pipe blocks until there is a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if limit is not None and status.st_size > limit:
            raise OSError(f"it has {status.st_size:,} bytes, and at most {limit:,} are read")
        return file.read()


def read_text(path: str | os.PathLike, limit: int | None = TEXT_LIMIT) -> str:
    """Returns the content of a regular file of UTF-8 text.

    Raises:
      OSError: as for `read_bytes`.
      ValueError: it is not UTF-8.
    """
    return read_bytes(path, limit).decode()
