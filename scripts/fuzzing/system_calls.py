"""A process whose calls of the file system another one sees, and refuses or ends: seccomp's user notification.

The kernel stops the process at each call, of Python and of native libraries alike, and asks. Linux 5.5 and later on
x86-64 and ARM64; nothing has to be installed, and no rights are needed.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import platform
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# Name: (number on x86-64, number on ARM64, which argument is a path or a descriptor, whether the call reads).
_AT, _FD, _PATH = "at", "fd", "path"
_CALLS: dict[str, tuple[int | None, int | None, str, bool]] = {
    "open": (2, None, _PATH, False),
    "openat": (257, 56, _AT, False),
    "creat": (85, None, _PATH, False),
    "read": (0, 63, _FD, True),
    "pread": (17, 67, _FD, True),
    "write": (1, 64, _FD, False),
    "pwrite": (18, 68, _FD, False),
    "writev": (20, 66, _FD, False),
    "pwritev": (296, 70, _FD, False),
    "rename": (82, None, _PATH, False),
    "renameat": (264, 38, _AT, False),
    "renameat2": (316, 276, _AT, False),
    "link": (86, None, _PATH, False),
    "linkat": (265, 37, _AT, False),
    "unlink": (87, None, _PATH, False),
    "unlinkat": (263, 35, _AT, False),
    "rmdir": (84, None, _PATH, False),
    "mkdir": (83, None, _PATH, False),
    "mkdirat": (258, 34, _AT, False),
    "truncate": (76, 45, _PATH, False),
    "ftruncate": (77, 46, _FD, False),
    "fallocate": (285, 47, _FD, False),
    "fsync": (74, 82, _FD, False),
    "fdatasync": (75, 83, _FD, False),
    "copy_file_range": (326, 285, _FD, False),
    "sendfile": (40, 71, _FD, False),
}
_MACHINES = {"x86_64": (0, 317), "aarch64": (1, 277)}  # column of the table, and the number of `seccomp`
_FLAGS = {"open": 1, "openat": 2}  # the argument that says whether a file is opened for writing
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of the kernel's packet filters
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_NO_NEW_PRIVILEGES, _SET_FILTER, _NEW_LISTENER, _CONTINUE = 38, 1, 8, 1
_NOTICE, _ANSWER = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_LONGEST_PATH = 4096


class Instruction(ctypes.Structure):
    """One instruction of a packet filter."""

    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class Program(ctypes.Structure):
    """A packet filter."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction)))


class Call(NamedTuple):
    """A call of the file system.

    Attributes:
      name: of the call.
      path: of its file, or of the first of two.
      reads: whether it only reads.
    """

    name: str
    path: str
    reads: bool


class Ended(NamedTuple):
    """How a job of a process ended.

    Attributes:
      status: "done", "refused" (a `UserError`), "raw" (any other exception), "killed" or "hung".
      result: what the job returned, or the message of the exception.
      calls: the calls in the directory, in order.
      seconds: that it took.
    """

    status: str
    result: Any
    calls: list[Call]
    seconds: float


Job = Callable[..., Any]
Fault = Callable[[int, Call], int | None]  # (position, call) -> None to go on, an error number, or `KILL`
KILL = -1


def supported() -> bool:
    """Returns whether this kernel can ask about the calls of a process."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return False
    with contextlib.suppress(OSError):
        return "user_notif" in Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    return False


class Process:
    """A forked process that runs jobs, one at a time, and is asked about at each call in a directory.

    Args:
      jobs: {name: function of plain values that returns one, at most 64 kB as JSON}; a `UserError` is a refusal.
      root: the calls with paths below it are counted.
      limit: seconds after which a job counts as hung.
    """

    def __init__(self, jobs: dict[str, Job], root: Path, limit: float = 900.0):
        self._jobs, self._root, self._limit = jobs, os.path.realpath(root), limit
        self._column, self._seccomp = _MACHINES[platform.machine()]
        self._table = {entry[self._column]: (name, *entry[2:]) for name, entry in _CALLS.items()}
        self._table.pop(None, None)
        self._pid: int | None = None

    def run(self, job: str, *arguments: Any, fault: Fault | None = None) -> Ended:
        """Runs a job, with what `fault` says to its calls; starts the process if there is none."""
        if self._pid is None:
            self._start()
        began, calls = time.monotonic(), []
        self._channel.sendall(json.dumps([job, *arguments]).encode() + b"\n")
        while True:
            left = self._limit - (time.monotonic() - began)
            ready, _, _ = select.select([self._channel, self._listener], [], [], max(left, 0))
            if not ready:
                self.kill()
                return Ended("hung", f"after {self._limit:.0f} s", calls, self._limit)
            if self._listener in ready and self._heed(calls, fault):
                self.kill()
                return Ended("killed", "", calls, time.monotonic() - began)
            if self._channel in ready:
                answer = self._channel.recv(1 << 16)
                if not answer:
                    self.kill()
                    return Ended("raw", "the process ended", calls, time.monotonic() - began)
                status, result = json.loads(answer)
                return Ended(status, result, calls, time.monotonic() - began)

    def kill(self) -> None:
        """Ends the process, as a kill would."""
        if self._pid is None:
            return
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._listener)
        self._channel.close()
        self._pid = None

    def _start(self) -> None:
        self._channel, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._channel.close()
            try:
                self._serve(child_end)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        child_end.close()
        _, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        if not descriptors:
            raise OSError("the kernel gives no notice of the calls of a process")
        (self._listener,) = descriptors
        os.set_blocking(self._listener, False)

    def _serve(self, channel: socket.socket) -> None:
        from jaxprune.errors import UserError

        descriptor = self._filtered()
        socket.send_fds(channel, [b"f"], [descriptor])
        os.close(descriptor)
        while request := channel.recv(1 << 16):
            job, *arguments = json.loads(request)
            try:
                answer = ["done", self._jobs[job](*arguments)]
            except UserError as error:
                answer = ["refused", str(error)]
            except BaseException as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                answer = ["raw", f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {error}"[:900]]
            channel.sendall(json.dumps(answer).encode())

    def _filtered(self) -> int:
        """Lets the kernel ask at the calls of this thread and those that it starts; returns where it asks."""
        numbers = sorted(self._table)
        code = [Instruction(_LOAD, 0, 0, 0)]
        code += [Instruction(_JUMP_IF_EQUAL, len(numbers) - index, 0, n) for index, n in enumerate(numbers)]
        code += [Instruction(_RETURN, 0, 0, _ALLOW), Instruction(_RETURN, 0, 0, _NOTIFY)]
        program = Program(len(code), (Instruction * len(code))(*code))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        descriptor = libc.syscall(self._seccomp, _SET_FILTER, _NEW_LISTENER, ctypes.byref(program))
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return descriptor

    def _heed(self, calls: list[Call], fault: Fault | None) -> bool:
        """Answers one question of the kernel; returns whether the process is to end here."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, notice)
        except OSError as error:  # a signal came, or the thread ended meanwhile
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return False
            raise
        number, thread, _, call, _, _, *arguments = _NOTICE.unpack(notice)
        refusal = 0
        file_call = self._call(thread, call, arguments)
        if file_call is not None:
            calls.append(file_call)
            answer = fault(len(calls), file_call) if fault else None
            if answer == KILL:
                return True
            refusal = answer or 0
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(number, 0, -refusal, 0 if refusal else _CONTINUE))
        return False

    def _call(self, thread: int, number: int, arguments: list[int]) -> Call | None:
        """The call, or None if it is elsewhere."""
        name, kind, reads = self._table[number]
        try:
            if kind == _FD:
                path = os.readlink(f"/proc/{thread}/fd/{arguments[0]}")
            else:
                start = "cwd"
                if kind == _AT:
                    folder, *arguments = arguments
                    folder = ctypes.c_int(folder & 0xFFFFFFFF).value
                    start = "cwd" if folder < 0 else f"fd/{folder}"
                path = _text(thread, arguments[0])
                if not os.path.isabs(path):
                    path = os.path.join(os.readlink(f"/proc/{thread}/{start}"), path)
        except OSError:
            return None
        if path != self._root and not path.startswith(f"{self._root}/"):
            return None
        if name in _FLAGS:
            reads = not arguments[1] & _WRITES
        return Call(name, os.path.relpath(path, self._root), reads)


def _text(thread: int, address: int) -> str:
    """The text at an address of a thread's memory."""
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        with contextlib.suppress(OSError):
            return os.fsdecode(memory.read(_LONGEST_PATH).split(b"\0", 1)[0])
        # The text may end before a page that is not there.
        text = b""
        memory.seek(address)
        while len(text) < _LONGEST_PATH and (byte := memory.read(1)) not in (b"", b"\0"):
            text += byte
        return os.fsdecode(text)
