"""When a program starts again to get huge pages, and when it is left alone."""

import os
import sys

from jaxprune import host_memory


def test_a_program_starts_again_once_with_what_was_set(monkeypatch, tmp_path):
    kernel = tmp_path / "enabled"
    kernel.write_text("always [madvise] never\n")
    started = []
    monkeypatch.setattr(host_memory, "_KERNEL", kernel)
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "jaxprune.main", "--help"])
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    host_memory.use_huge_pages()
    ((program, arguments, environ),) = started
    assert (program, arguments) == (sys.executable, [sys.executable, "-m", "jaxprune.main", "--help"])
    monkeypatch.setenv("GLIBC_TUNABLES", environ["GLIBC_TUNABLES"])
    host_memory.use_huge_pages()
    kernel.write_text("[always] madvise never\n")
    monkeypatch.delenv("GLIBC_TUNABLES")
    host_memory.use_huge_pages()
    assert len(started) == 1


def test_benchmarks_keep_freed_memory_whatever_the_kernel_grants():
    kept = host_memory.tunables({}, "glibc", "[always] madvise never", keep_freed=True)["GLIBC_TUNABLES"]
    assert "trim_threshold" in kept and "hugetlb" not in kept
    both = host_memory.tunables({}, "glibc", "always [madvise] never", keep_freed=True)["GLIBC_TUNABLES"]
    assert both == f"glibc.malloc.hugetlb=1:{kept}"
    assert host_memory.tunables({}, "musl", "", keep_freed=True) == {}
