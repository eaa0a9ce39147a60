"""Files: atomic writes, complete or absent however the process ends, and reads that neither block nor end never."""

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from jaxprune.errors import UserError, quoted

TEXT_LIMIT = 2**24  # maximum size in bytes of a text file that describes one thing, such as a picture or a network

_LONGEST_NAME, _LONGEST_PATH = 255, 4000  # bytes
_CHUNK = 1 << 20
_PATIENCE, _PAUSE = 60.0, 0.005  # seconds that a writer waits for another one, and between two looks
_SEALED, _SEAL = "checksum", "crc32"  # that a file has one, and the checksum
_CHECK = "Check the disk, and run the same command again."
# Of file systems without locks; NFS has none for directories, which are only opened to be read.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EFBIG), "Free some space, and run the same command again."),
    errno.EDQUOT: "Remove files of this user or have the quota raised, and run the same command again.",
    errno.EBUSY: "Stop the other process, or wait for it, and run the same command again.",
    errno.EIO: "Check the disk and the way to it, or choose another place, and run the same command again.",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Make it writable, or choose another place."),
    **dict.fromkeys((errno.ENOENT, errno.ESTALE), "Was its directory removed or unmounted meanwhile?"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR), "Remove what is in its place, or choose another."),
}
_READ_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Let this user read it."),
    **{number: _REMEDIES[number] for number in (errno.EIO, errno.ENOENT, errno.ESTALE)},
}


def as_path(path: Any) -> Path:
    """Returns a path as a `Path`, in which a `~` at the beginning is the home directory.

    Raises:
      UserError: it is not a path, or has a part that no file system allows.
    """
    try:
        text = os.path.expanduser(os.fsdecode(path))
        text.encode(errors="surrogateescape")
    except (TypeError, UnicodeError):
        raise UserError(f"{quoted(path)} is not a path: give a text, or a pathlib.Path.") from None
    if not text or "\0" in text:
        raise UserError(f"{quoted(text)} is not a path: name a file or a directory.")
    longest = max(len(os.fsencode(part)) for part in text.split("/"))
    if len(os.fsencode(text)) > _LONGEST_PATH or longest > _LONGEST_NAME:
        raise UserError(f"The path {quoted(text)} has a name that is too long for a file: give a shorter one.")
    return Path(text)


def require_utf8(path: Path) -> None:
    """Checks the name of a directory for checkpoints, whose library reads names as UTF-8.

    Raises:
      UserError: it is not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"The name of the directory {quoted(str(path))} is not UTF-8: rename it, or give another."
        ) from None


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[None]:
    """Turns errors of the file system while `path` is written into a one-line error.

    Raises:
      UserError: the disk is full, the location is read-only or gone, or there is another error.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, _CHECK)
        raise UserError(f"{path} cannot be written ({error.strerror or error}). {remedy}") from error


@contextlib.contextmanager
def reading(path: str | os.PathLike) -> Iterator[None]:
    """Turns errors of the file system while `path` is read into a one-line error.

    Raises:
      UserError: the file is gone, may not be read, or there is an error of the disk.
    """
    try:
        yield
    except OSError as error:
        remedy = _READ_REMEDIES.get(error.errno or 0, _CHECK)
        raise UserError(f"{path} cannot be read ({error.strerror or error}). {remedy}") from error


def make_directory(path: str | os.PathLike) -> Path:
    """Makes a directory and those above it, unless they are there, and returns its path.

    Raises:
      UserError: it cannot be made.
    """
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def listing(folder: Path) -> list[Path]:
    """Returns the files and directories in a directory, in the order of their names.

    Raises:
      UserError: it is gone, or may not be read.
    """
    with reading(folder):
        return sorted(folder.iterdir())


def folders_below(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yields (directory, names of its files) for a directory and all below it, whereas `Path.rglob` passes over errors.

    Raises:
      OSError: a directory cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(path, onerror=refuse):
        yield Path(folder), names


def write_atomically(path: Path, data: bytes | str) -> None:
    """Writes `data` atomically: `path` has the old or the new content, which is on disk when this returns.

    Of several writers, of any process, one writes after the other.

    Raises:
      UserError: the file cannot be written, or another process has been writing it for a minute.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path), _alone(temporary) as file:
        try:
            file.truncate(0)
            file.write(data.encode(errors="backslashreplace") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lets one process or thread at a time read a file of a directory and write it again.

    It is not reentrant. On file systems without locks there is none.

    Raises:
      UserError: the directory cannot be opened, or another process has been in it for a minute.
    """
    over = time.monotonic() + _PATIENCE
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writing(folder):
            while not _is_locked(descriptor):
                _pause(over)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to append to it, and locks it; the system releases the lock however the process ends.

    Raises:
      OSError: the file cannot be opened, or another process holds the lock for too long.
    """
    over = time.monotonic() + _PATIENCE
    while True:
        with path.open("ab") as file:
            # Whoever had the lock may have renamed or removed the file that was opened here.
            if _is_locked(file.fileno()) and _is_at(file.fileno(), path):
                yield file
                return
        _pause(over)


def _pause(over: float) -> None:
    if time.monotonic() > over:
        raise OSError(errno.EBUSY, "another process is writing it")
    time.sleep(_PAUSE)


def _is_locked(descriptor: int) -> bool:
    try:
        # Unlike POSIX locks, these hold between threads, too.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def sync_directory(path: Path) -> None:
    """Makes the names in a directory (new files, renames) durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: str | os.PathLike) -> BinaryIO:
    """Opens a regular file for reading; symbolic links are followed.

    Raises:
      OSError: it is not a regular file (a directory, a pipe, a device), or cannot be read.
    """
    # Without O_NONBLOCK, opening a pipe blocks until there is a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: str | os.PathLike, limit: int | None = None) -> bytes:
    """Returns the content of a regular file.

    Args:
      path: the file; symbolic links are followed.
      limit: maximum size in bytes; None for any.

    Raises:
      OSError: it is not a regular file (a directory, a pipe, a device), has more than `limit` bytes, or cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            raise OSError(f"it has {size:,} bytes, and at most {limit:,} are read")
        return file.read()


def read_text(path: str | os.PathLike, limit: int | None = TEXT_LIMIT) -> str:
    """Returns the content of a regular file of UTF-8 text, without the mark that some editors begin one with.

    Raises:
      OSError: as for `read_bytes`.
      ValueError: it is not UTF-8.
    """
    return read_bytes(path, limit).decode("utf-8-sig")


def sealed(values: Mapping[str, Any], **options: Any) -> str:
    """Returns plain values as JSON whose last entry is the CRC-32 of what stands before it; `unsealed` reads it.

    >>> unsealed(sealed({"steps": 3}))
    {'steps': 3}

    Args:
      options: of `json.dumps`.
    """
    text = json.dumps({_SEALED: True, **values}, indent=2, **options).removesuffix("\n}")
    return f'{text},\n  "{_SEAL}": {zlib.crc32(text.encode())}\n}}'


def unsealed(text: bytes | str) -> dict[str, Any]:
    """Returns what `sealed` wrote; JSON of earlier versions, without a checksum, is returned as it is.

    Raises:
      ValueError: it is neither, or has changed since it was written.
    """
    text = text.decode() if isinstance(text, bytes) else text
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    body, line, seal = text.rpartition(f',\n  "{_SEAL}": ')
    if (line or _SEALED in values) and seal.removesuffix("\n") != f"{zlib.crc32(body.encode())}\n}}":
        raise ValueError("it has changed since it was written")
    return {name: value for name, value in values.items() if name not in (_SEAL, _SEALED)}


def size_and_crc(path: Path, *, sync: bool = False) -> list[int]:
    """Returns a regular file's [bytes, CRC-32]; `sync` also makes its content durable.

    Raises:
      OSError: as for `read_bytes`.
    """
    size = crc = 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
        if sync:
            os.fsync(file.fileno())
    return [size, crc]
