"""How this process keeps host memory: on CPU a step's buffers are the heap's, and it pays to keep some of them."""

import ctypes
import platform

# Of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8

# The largest that glibc takes. What is larger is mapped by itself, and returns to the system as soon as it is freed.
_HEAP_BLOCK = 32 * 2**20
_KEPT = 2**30  # of freed memory at the end of the heap


def keep_freed_memory() -> bool:
    """Makes glibc's malloc keep up to a gibibyte of freed memory for the next step.

    XLA's CPU backend frees its buffers after every step, about a gigabyte for an MAE step of ViT-S at batch 8, and
    maps them anew for the next: 290,000 page faults a step, a tenth of its time. Only blocks below 32 MiB are kept, in
    one heap: with all of them, compiling left holes that nothing filled, and the process grew to twice its size.

    Returns:
      Whether the C library is glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _HEAP_BLOCK), (_M_TRIM_THRESHOLD, _KEPT))
    done = [mallopt(*setting) for setting in settings]
    return all(done)
