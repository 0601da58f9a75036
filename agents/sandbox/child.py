"""The process that tries pages: a separate program that imports the HTML parser and no module of crawlog.

    trial.py ── size, limits, a page ─► here ── fork ─► parses it, and ends
                                         ◄── exit status and CPU time ──┘

It forks a process for each page, in a millisecond. The kernel ends that process when its time is up, with all its
memory. Standard input is a socket in both directions; when its other end closes, this process and its page end.
"""

import os
import resource
import select
import signal
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED = struct.Struct(">QdQ")
"""Request: size of the page in bytes, limit of CPU seconds, limit of memory in bytes; the page follows."""

ANSWERED = struct.Struct(">iid")
"""Answer: the signal that ended the parse or 0, its exit code, its CPU seconds."""

REFUSED = 3
"""Exit code: the parser refused the page, or got no memory."""

PARENT = 0
"""Standard input."""

NICE = 5
"""Niceness of trials, which may be useless: they get a third of the CPU share of fetching and parsing."""


def _read(size: int) -> bytes:
    """Exactly `size` bytes. Raises: SystemExit: the other end is closed."""
    parts = []
    while size:
        part = os.read(PARENT, min(size, 1 << 20))
        if not part:
            sys.exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _parse(html: bytes, cpu_s: float, memory_bytes: int, parser: "Callable[[bytes], object]") -> None:
    """Parse within the limits, and end the process."""
    code = REFUSED
    try:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        soft = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        parser(html)
        code = 0
    finally:
        os._exit(code)


def _tried(html: bytes, cpu_s: float, memory_bytes: int, parser: "Callable[[bytes], object]") -> bytes:
    """The packed answer for a page. Raises: SystemExit: the worker is gone."""
    ended, end = os.pipe()
    child = os.fork()
    if not child:
        _parse(html, cpu_s, memory_bytes, parser)
    os.close(end)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(PARENT, 0)  # reports only a hang-up
    is_alone = all(number == PARENT for number, _ in poll.poll())
    os.close(ended)
    if is_alone:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    if is_alone:
        sys.exit(0)
    code = 0 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return ANSWERED.pack(number, code, used.ru_utime + used.ru_stime)


def main() -> None:
    """Try pages until the other end of standard input closes."""
    os.nice(NICE)
    sys.path.append(sys.argv[1])
    from selectolax.lexbor import LexborHTMLParser

    while True:
        size, cpu_s, memory_bytes = ASKED.unpack(_read(ASKED.size))
        answer = _tried(_read(size), cpu_s, memory_bytes, LexborHTMLParser)
        while answer:
            answer = answer[os.write(PARENT, answer) :]


if __name__ == "__main__":
    main()
