"""Turns arguments into lines of seeds that can be read more than once.

    argument ─┬─► a URL ─────────────────────► one line
              ├─► a file, plain or gzipped ──► its lines; of a sitemap, a line for each URL listed
              ├─► `-` or a pipe ─► copied ───► the copy's lines
              └─► sitemap:URL ─► collected ──► a line for each URL listed (`sitemap_seeds.py`)

The first reading finds a damaged gzip file, before anything is sent.
"""

import gzip
import os
import shutil
import stat
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self, cast

from crawlog.schemas.urls import MAX_URL_BYTES
from crawlog.streams.errors import Misconfigured
from crawlog.streams.url import plain, serialise

from .line import COMMENT, found_on

MAX_LINE_BYTES = MAX_URL_BYTES + 4096  # Longest accepted line, bytes: a URL and the JSON around it

SPOOL_BYTES = 8 << 20  # Standard input stays in memory up to this size, bytes; then it goes to a temporary file

OPEN_S = 5.0  # A pipe that stays open for longer is told of, seconds

STAYS_OPEN = (
    "{} is open still: its seeds are sent when it ends. Without an end, give each batch to a `crawlog seed` of its own,"
    ' or write lines {{"job": NAME, "url": URL}} to crawl.urls (docs/fleet.md, "The first requests")'
)

HEAD_BYTES = 1024  # A sitemap's first character that is no blank is among these bytes

# Of a sitemap in a file, what is read, bytes: more than its parser takes (50 MiB), which says so.
MAX_SITEMAP_BYTES = 64 << 20

STANDARD_INPUT = "standard input"

BOM = b"\xef\xbb\xbf"

SITEMAP = "sitemap:"  # Prefix of an argument that stands for all URLs of a sitemap


class Source:
    """Seeds that can be read more than once: files, `-` for standard input, URLs. Use it in a `with`.

    Args:
        arguments: As on the command line. A pipe (`<(zcat x.gz)`, `/dev/stdin`) can be read only once, so it is copied
            at once.
        stdin: Read for `-`, and copied too.
        collect: Returns the URLs of a `sitemap:URL` as lines; without it such an argument is no seed.
        say: Is told of a pipe that stays open, by another thread.

    Raises: Misconfigured: a file cannot be read, or an argument is neither a file nor a URL.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        stdin: BinaryIO | None = None,
        collect: Callable[[str], BinaryIO] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._arguments = arguments
        self._spools: dict[str, BinaryIO] = {}
        self._collected: dict[str, BinaryIO] = {}
        for argument in arguments:
            if collect is not None and argument.startswith(SITEMAP):
                self._collected[argument] = collect(argument.removeprefix(SITEMAP))
            elif argument == "-":
                with _told(STANDARD_INPUT, say):
                    self._spools[argument] = _spooled(stdin or sys.stdin.buffer)
            elif "://" not in argument:
                with _told(argument, say):
                    spool = _readable(Path(argument))
                if spool is not None:
                    self._spools[argument] = spool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for spool in (*self._spools.values(), *self._collected.values()):
            spool.close()

    def __str__(self) -> str:
        return ", ".join(self._arguments[:3]) + (", …" if len(self._arguments) > 3 else "")

    def parts(self) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Each part's name and lines, numbered from 1; URLs given as arguments are one part."""
        given = [
            argument.encode("utf-8", "surrogateescape")  # invalid UTF-8 is a bad line, as in a file
            for argument in self._arguments
            if "://" in argument and argument not in self._collected
        ]
        if given:
            yield "argument", given
        for argument in self._arguments:
            if argument in self._spools:
                self._spools[argument].seek(0)
                name = STANDARD_INPUT if argument == "-" else argument
                yield name, _whole(name, _seeds(name, self._spools[argument]))
            elif argument in self._collected:
                self._collected[argument].seek(0)
                yield argument, lines_of(self._collected[argument])
            elif "://" not in argument:
                with Path(argument).open("rb") as file:
                    yield argument, _whole(argument, _seeds(argument, file))

    def first(self) -> str:
        """The first URL, without a login; empty if no line has one."""
        for _, lines in self.parts():
            for line in lines:
                text = line.strip()
                if text and text[0] != COMMENT:
                    with suppress(ValueError):
                        return plain(serialise(found_on(text, str).url))
        return ""


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, without a byte order mark. A line that is too long is cut, and its rest is skipped."""
    line = file.readline(MAX_LINE_BYTES).removeprefix(BOM)
    while line:
        yield line
        while len(line) >= MAX_LINE_BYTES - 3 and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)  # skip the rest of the long line
        line = file.readline(MAX_LINE_BYTES)


def _seeds(name: str, file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, plain or gzipped; of a sitemap, a line for each URL listed."""
    file = _unpacked(file)
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if not head.removeprefix(BOM).lstrip().startswith(b"<"):
        yield from lines_of(file)
        return
    from .sitemap_seeds import lines_in  # a run without such a file does without the parser

    yield from lines_in(name, file.read(MAX_SITEMAP_BYTES))


def _whole(part: str, lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines; a clear error for a damaged gzip file. The first reading finds it, before anything is sent."""
    try:
        yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Misconfigured(f"{part} is damaged: {error}; nothing was sent") from None


def _unpacked(file: BinaryIO) -> BinaryIO:
    """A file, decompressed if its first bytes say gzip."""
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file, mode="rb")) if is_gzip else file


@contextmanager
def _told(name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Says that the block takes long: it reads a pipe to its end, or waits for somebody to open it."""
    timer = threading.Timer(OPEN_S, say, [STAYS_OPEN.format(name)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _spooled(stdin: BinaryIO) -> BinaryIO:
    spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115  # the source closes it
    shutil.copyfileobj(stdin, spool)
    return spool  # type: ignore[return-value]  # a binary file in all but name


def _readable(path: Path) -> BinaryIO | None:
    """A copy of a file that can be read only once, such as a pipe; None for a regular file."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return _spooled(file)
            file.read(1)
            return None
    except OSError as error:
        hint = "" if path.exists() else "; a URL starts with http:// or https://"
        raise Misconfigured(f"cannot read seeds from {path}: {error.strerror}{hint}") from None
