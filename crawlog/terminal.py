"""The one way out for text: answers to standard output, all else to standard error.

Text may come from a page, a record or a file, so its control characters are escaped here: a title cannot paint over
the screen, set the clipboard or add a line of its own. Workers' logs and the live view use the same function.
"""

import io
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import BinaryIO, TextIO

from crawlog.streams.printable import escaped

_HINT = re.compile(r"`(crawlog (?!probe\b)[a-z][^`]*)`(?! \(pid)")
"""A command that a message names; with a pid behind it, it is one that runs."""

_repeated: dict[str, str] = {}


def repeat(options: Mapping[str, object]) -> None:
    """From now on commands in messages carry these options: `--data` as its own word, or `-s kafka.prefix=` before it.

    A user who copies such a command means the same crawl.
    """
    _repeated.clear()
    for name, value in options.items():
        quoted = shlex.quote(str(value))
        _repeated[name] = name + quoted if name.endswith("=") else f"{name} {quoted}"


def hinted(line: str) -> str:
    """A line whose commands, in backticks, carry the options that are to be repeated."""
    return _HINT.sub(_with_options, line) if _repeated else line


def _with_options(hint: re.Match[str]) -> str:
    command = hint[1]
    if command.endswith("--help"):
        return hint[0]
    return f"`{' '.join([command, *(text for name, text in _repeated.items() if name not in command)])}`"


def answer(*lines: str) -> None:
    """Writes lines to standard output; a line of JSON stays the same data."""
    _write(sys.stdout, lines)


def tell(*lines: str, to: TextIO | None = None) -> None:
    """Writes lines to standard error, commands in them as `hinted` has them."""
    _write(to or sys.stderr, map(hinted, lines))


def rows() -> BinaryIO:
    """Standard output for the rows of `-o -`: as they are, and escaped where a terminal would show them."""
    return _Shown() if sys.stdout.isatty() else sys.stdout.buffer


class _Shown(io.BytesIO):
    """Rows on a terminal."""

    def writelines(self, chunks: Iterable[bytes], /) -> None:  # type: ignore[override]  # of all buffers only bytes come
        """Writes pieces that end with a row."""
        for chunk in chunks:
            answer(*chunk.decode("utf-8", "replace").split("\n")[:-1])


def _write(out: TextIO, lines: Iterable[str]) -> None:
    for line in lines:
        print(escaped(line), file=out, flush=True)  # this is the command line
