"""Returns freed memory to the system: by default glibc keeps much of it, in one heap per thread."""

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MAPPED_BYTES = 1 << 20
"""Blocks of this size or more get their own mapping. They are rare: each costs a system call and its page faults."""

KEPT_BYTES = 32 << 20
"""Free memory that stays at the end of a heap. Returning it after each page cost parse 6 %."""

LARGE_BYTES = 1 << 20
"""From this size on a page's tree takes many times as much memory; parsing takes so long that a trim costs little."""


def give_back_large_blocks() -> None:
    """Make glibc return large blocks to the system when they are freed.

    By default it raises the limit to the largest block freed lately, up to 32 MiB. Smaller blocks stay in a heap per
    thread; bodies of some megabytes then leave hundreds of megabytes of holes.
    """
    with contextlib.suppress(AttributeError):  # musl has no such setting
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_memory(size_bytes: int) -> None:
    """Return the free memory between used blocks to the system, before a large page is parsed.

    It takes 1 to 8 ms, 40 ms after half a gigabyte.

    Args:
        size_bytes: Size of the page; nothing happens below LARGE_BYTES.
    """
    if size_bytes >= LARGE_BYTES:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
