"""What the C library keeps of freed memory: of itself glibc keeps a lot, in a heap for each thread."""

import contextlib
import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MAPPED_BYTES = 1 << 20
"""Blocks from here on are mapped one by one: rare ones, for each costs a system call and its page faults."""

KEPT_BYTES = 32 << 20
"""Free memory at the end of a heap that stays there: given back and taken anew for each page, it cost parse 6 %."""

LARGE_BYTES = 1 << 20
"""A page from here on takes many times that as a tree, and so long that to give back holes first costs little."""


def give_back_large_blocks() -> None:
    """Have large blocks returned to the system when they are freed, where the library can be told so.

    Of itself glibc keeps blocks as large as the largest that was freed lately, up to 32 MiB, in a heap for each thread;
    bodies of some megabytes then leave hundreds of megabytes of holes.
    """
    with contextlib.suppress(AttributeError):  # musl has no such heap
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_memory(size_bytes: int) -> None:
    """Before a page of this size is parsed: give back what lies free between blocks in use, if the page is large.

    It takes 1 to 8 ms, 40 after half a gigabyte.
    """
    if size_bytes >= LARGE_BYTES:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
