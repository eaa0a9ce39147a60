"""Files that are either whole or absent, however the process ends."""

import os
import zlib
from pathlib import Path

_CHUNK = 1 << 20


def write_atomically(path: Path, data: bytes | str) -> None:
    """Writes `data` so that `path` holds the old content or all of the new one, on disk when this returns."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
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
