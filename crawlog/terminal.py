"""All text output: answers go to standard output, all other text to standard error.

A message that cannot be written is dropped: what it tells of goes on. An answer that cannot be written is an error.

Text may come from a page, a record or a file, so control characters are escaped here: a page title cannot overwrite the
screen, set the clipboard or add a line. Workers' logs and the live view use the same function.
"""

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, TextIO

from crawlog.streams.printable import escaped

# A command that a message suggests. A command with a pid behind it is a running one, and does not match.
_HINT = re.compile(r"`(crawlog (?!probe\b)[a-z][^`]*)`(?! \(pid)")

_repeated: dict[str, str] = {}


def repeat(options: Mapping[str, object]) -> None:
    """Sets the options that commands in messages carry: `--data` and its value, or `-s kafka.prefix=` with its value.

    With them a copied command works on the same crawl.
    """
    _repeated.clear()
    for name, value in options.items():
        quoted = shlex.quote(str(value))
        _repeated[name] = name + quoted if name.endswith("=") else f"{name} {quoted}"


def hinted(line: str) -> str:
    """The line; its commands in backticks carry the options of `repeat`."""
    return _HINT.sub(_with_options, line) if _repeated else line


def _with_options(hint: re.Match[str]) -> str:
    command = hint[1]
    if command.endswith("--help"):
        return hint[0]
    return f"`{' '.join([command, *(text for name, text in _repeated.items() if name not in command)])}`"


def answer(*lines: str) -> None:
    """Writes lines to standard output; the escaping keeps the data of JSON."""
    _write(sys.stdout, lines)


def tell(*lines: str, to: TextIO | None = None) -> None:
    """Writes lines to standard error, each as `hinted` returns it; none on a full disk, or without a reader."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        _write(to or sys.stderr, map(hinted, lines))


def rows() -> BinaryIO:
    """Standard output for the rows of `-o -`: escaped on a terminal, otherwise as they are."""
    return _Shown() if sys.stdout.isatty() else sys.stdout.buffer


class _Shown(io.BytesIO):
    """Rows on a terminal."""

    def writelines(self, chunks: Iterable[bytes], /) -> None:  # type: ignore[override]  # callers pass bytes, no other buffers
        """Writes chunks of whole rows."""
        for chunk in chunks:
            answer(*chunk.decode("utf-8", "replace").split("\n")[:-1])


def _write(out: TextIO, lines: Iterable[str]) -> None:
    for line in lines:
        print(escaped(line), file=out, flush=True)  # this is the command line


def table(lines: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Columns with two spaces between them; `right` names those aligned to the right."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    rows = (
        [
            text.rjust(width) if at in right else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in rows]
