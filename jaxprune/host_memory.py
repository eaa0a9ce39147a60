"""Settings of malloc: on a CPU every step maps its buffers anew; huge pages make that cheap, kept memory avoids it."""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_KEEP_FREED = (
    "glibc.malloc.mmap_threshold=1099511627776:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.arena_max=1"
)
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use_huge_pages() -> None:
    """Restarts this program, once, with a malloc that asks for huge pages where the kernel grants them on request.

    XLA's CPU backend frees the buffers of a step at its end and maps new ones for the next, page by page. Pages of 2
    MiB instead of 4 KiB made the quickstart's pre-training 1.29 times as fast, at the same peak memory. glibc reads the
    setting when a process starts, so call this first in a program, before slow imports. A `GLIBC_TUNABLES` that is
    already set, even to an empty value, is left alone.
    """
    _restart(huge_pages(os.environ))


def keep_freed_memory() -> None:
    """Restarts this program, once, with huge pages and a malloc that never returns freed memory to the kernel.

    For benchmarks that compare two variants of a step: mapping new buffers took between 2 and 40 % of a ViT-B step on
    one virtual machine, and not the same share for both variants. Training does not use this, because memory freed by
    one program is not always reusable by the next: the three phases of a ViT-Ti peaked at 9.9 GiB instead of 5.4.
    """
    _restart(tunables(os.environ, platform.libc_ver()[0], _kernel(), keep_freed=True))


def huge_pages(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which a process started on this machine uses huge pages; see `tunables`."""
    return tunables(environ, platform.libc_ver()[0], _kernel())


def tunables(environ: Mapping[str, str], libc: str, kernel: str, *, keep_freed: bool = False) -> dict[str, str]:
    """Returns the variables to add to the environment: none if already set, or if they would have no effect.

    >>> tunables({}, "glibc", "always [madvise] never")
    {'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'}
    >>> tunables({"GLIBC_TUNABLES": ""}, "glibc", "always [madvise] never")
    {}

    Args:
      environ: environment of the process.
      libc: name of its C library.
      kernel: the kernel's setting for transparent huge pages.
      keep_freed: also keep freed memory in the process; see `keep_freed_memory`.
    """
    if libc != "glibc" or _TUNABLES in environ:
        return {}
    settings = [_HUGE_PAGES] * ("[madvise]" in kernel) + [_KEEP_FREED] * keep_freed
    return {_TUNABLES: ":".join(settings)} if settings else {}


def _kernel() -> str:
    return _KERNEL.read_text() if _KERNEL.is_file() else ""


def _restart(added: Mapping[str, str]) -> None:
    if added:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})
