"""Atomic file writes: files are either complete or absent, however the process ends."""

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from jaxprune.errors import UserError

_CHUNK = 1 << 20
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Free some space, and run the same command again."),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Make it writable, or choose another place."),
    **dict.fromkeys((errno.ENOENT, errno.ESTALE), "Was its directory removed or unmounted meanwhile?"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR), "Remove what is in its place, or choose another."),
}


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Turns errors of the file system while `path` is written into a one-line error.

    Raises:
      UserError: the disk is full, the location is read-only or gone, or there is another error.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "Check the disk, and run the same command again.")
        raise UserError(f"{path} cannot be written ({error.strerror or error}). {remedy}") from error


def write_atomically(path: Path, data: bytes | str) -> None:
    """Writes `data` atomically: `path` has the old or the new content, which is on disk when this returns.

    Raises:
      UserError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory (new files, renames) durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_and_crc(path: Path, *, sync: bool = False) -> list[int]:
    """Returns a file's [bytes, CRC-32]; `sync` also makes its content durable."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
        if sync:
            os.fsync(file.fileno())
    return [size, crc]
