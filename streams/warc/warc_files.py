"""The files of an archive: WARC files and their indexes, and the manifest that says which bytes count.

    add: append records      commit: 1 files to the disk → 2 manifest replaced → 3 perhaps the file is closed
    a kill between 1 and 2: the file is longer than its manifest says, and is cut when the archive is opened again
    a file that is shorter, or missing: `broken` names its pages, `remake` writes it anew

An archive that raised is closed, and opened again: that cuts what was half written.
"""

import fcntl
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import msgspec

from crawlog.streams import crash_points, files
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import Misconfigured, RetryLater

from . import cdxj
from .captures import Capture, Member, PageRecord, digest_of, info_member, members

MOST_KNOWN = 100_000  # Captures that are remembered, to find equal bodies; 45 MB

LOCK_S = 1.0  # Pause before the next try at an archive that another process has, seconds


class ArchiveFile(msgspec.Struct):
    """A WARC file.

    Attributes:
        starts: By partition of crawl.pages, the offset of its first page. Empty if another log has them.
        size_bytes: -1 while it is made again.
        pages: Pages with records in it.
        is_closed: Whether its index is sorted, and nothing is appended any more.
    """

    name: str
    starts: dict[int, int]
    size_bytes: int = 0
    index_bytes: int = 0
    pages: int = 0
    is_closed: bool = False

    @property
    def index(self) -> str:
        return self.name.removesuffix(".warc.gz") + ".cdxj"


class WarcManifest(msgspec.Struct):
    """What counts of an archive.

    Attributes:
        offsets: By partition of crawl.pages, up to where all pages are in.
        fill: How often the output was emptied.
        empty: Pages without an answer, or without headers and body: they have no record.
        gone: Records that crawl.pages had lost before they were read.
    """

    log: LogIdentity
    offsets: dict[int, int] = {}
    files: list[ArchiveFile] = []
    fill: int = 0
    empty: int = 0
    gone: int = 0

    @property
    def pages(self) -> int:
        """Pages in the archive."""
        return sum(file.pages for file in self.files)


class WarcArchive:
    """See the module.

    Args:
        log: Identity of crawl.pages.
        about: Fields of the record that begins each file.
        most_bytes: Size from which a new file begins.
        fill: How often the output is to have been emptied, to be filled from the log again.

    Raises: Misconfigured: there are files without a manifest. RetryLater: another process has it. OSError.
    """

    def __init__(
        self, folder: Path, job: str, log: LogIdentity, about: dict[str, str], most_bytes: int, fill: int = 0
    ) -> None:
        self._folder = folder
        self._job = job
        self._about = about
        self._most_bytes = most_bytes
        self._known: dict[str, Capture] = {}
        self._out: tuple[BinaryIO, BinaryIO] | None = None
        self._empty = 0
        with suppress(FileExistsError):
            folder.mkdir(mode=0o777 & ~files.WRITES)
        self._lock = os.open(folder / f".{job}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._take_lock()
            self.manifest = self._read_manifest(log)
            self._empty_for(fill)
            self._write_manifest()  # before the first file: without it nobody would know whose files these are
            self._cut()
            self._recall()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RetryLater(f"another process writes the archive of {self._job} in {self._folder}", LOCK_S) from None

    def close(self) -> None:
        """Close all files. What was not committed is cut by the next opening."""
        with suppress(OSError):  # as on a full disk; what the buffers hold does not count
            self._close_files()
        os.close(self._lock)

    # ------------------------------------------------------------------ the manifest

    @property
    def _manifest_path(self) -> Path:
        return self._folder / f"{self._job}.manifest.json"

    def _read_manifest(self, log: LogIdentity) -> WarcManifest:
        try:
            manifest = msgspec.json.decode(self._manifest_path.read_bytes(), type=WarcManifest)
        except (FileNotFoundError, ValueError) as error:
            if any(self._folder.glob(f"{self._job}-[0-9]*.warc.gz")):
                raise Misconfigured(
                    f"{self._folder} has WARC files of job {self._job}, and {self._manifest_path.name} that counts"
                    f" their pages is missing or damaged ({type(error).__name__}).\n"
                    "Move these files away, or name another folder: all pages that the log has are written again."
                ) from None
            return WarcManifest(log)
        if manifest.log != log:  # the log was made anew: what the old one gave stays
            for file in manifest.files:
                file.starts, file.is_closed = {}, True
            manifest.log, manifest.offsets = log, {}
        return manifest

    def _empty_for(self, fill: int) -> None:
        if fill > self.manifest.fill:
            for file in self.manifest.files:
                for name in (file.name, file.index):
                    (self._folder / name).unlink(missing_ok=True)
            self.manifest = WarcManifest(self.manifest.log, fill=fill)

    def _write_manifest(self) -> None:
        made = self._manifest_path.with_suffix(".new")
        with made.open("wb") as file:
            file.write(msgspec.json.encode(self.manifest))
            file.flush()
            os.fsync(file.fileno())
        made.replace(self._manifest_path)

    # ------------------------------------------------------------------ opening

    def _cut(self) -> None:
        """Cut what no manifest names; a file that lacks something is to be made again."""
        for file in self.manifest.files:
            sizes = (file.name, file.size_bytes), (file.index, file.index_bytes)
            if file.starts and any(_size(self._folder / name) < size for name, size in sizes):
                file.size_bytes = -1
            for name, size in sizes if file.size_bytes >= 0 else ():
                if _size(self._folder / name) > size:
                    os.truncate(self._folder / name, size)

    def broken(self) -> Iterator[tuple[ArchiveFile, dict[int, tuple[int, int]]]]:
        """The files that are shorter than their manifest says, and the offsets of their pages."""
        every = self.manifest.files
        for file, later in zip_longest(every, every[1:]):
            if file.size_bytes < 0:
                ends = later.starts if later is not None else self.manifest.offsets
                yield file, {at: (start, ends.get(at, start)) for at, start in file.starts.items()}

    def _recall(self) -> None:
        """Read the newest captures of this log from the indexes; revisits last, as they name originals."""
        found: list[tuple[str, dict[str, str]]] = []
        for file in reversed(self.manifest.files):
            if file.starts and file.size_bytes >= 0 and len(found) < MOST_KNOWN:
                found += map(cdxj.read, (self._folder / file.index).read_bytes().splitlines())
        for date, fields in sorted(found, key=lambda one: (_is_revisit(one[1]), one[0])):
            self._remember(Capture(fields["page"], fields["url"], date, fields.get("digest", "")), fields)

    # ------------------------------------------------------------------ writing

    def original(self, page: PageRecord, read: Callable[[PageRecord], Capture | None]) -> Capture | None:
        """What the record of a page refers to: the page that it repeats, or one with its body; None for nothing.

        Args:
            read: Reads the older page of a 304 from the log.
        """
        if page.meta.same_as is not None:
            return self._known.get("{}:{}".format(*page.meta.same_as)) or read(page)
        return self._known.get(digest_of(page.body)) if page.body and page.kind == "response" else None

    def _remember(self, capture: Capture, fields: Mapping[str, str]) -> None:
        """Keep what later revisits may refer to: a response, of a revisit its original."""
        original = self._known.get(capture.digest) if _is_revisit(fields) else capture
        if original is not None and "status" in fields:
            self._known[capture.place] = original
            self._known.setdefault(capture.digest, original)
        while len(self._known) > 2 * MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def add(self, page: PageRecord, original: Capture | None) -> int:
        """Append the records of a page; returns their bytes. Raises: ValueError: as `members`. OSError."""
        made = list(members(page, self.manifest.log, original))
        if not made:
            self._empty += 1
            return 0
        return self._append(self._current(), page, made)

    def _append(self, file: ArchiveFile, page: PageRecord, made: list[Member]) -> int:
        out, index = self._out or self._opened(file)
        size = 0
        for content, fields in made:
            if fields is not None:
                at = {"length": str(len(content)), "offset": str(out.tell()), "filename": file.name}
                capture = Capture.of(page)._replace(digest=fields.get("digest", ""))
                index.write(cdxj.line(page.meta.url, capture.date, fields | at | {"page": page.place}))
                self._remember(capture, fields)
            out.write(content)
            size += len(content)
        file.pages += 1
        return size

    def _current(self) -> ArchiveFile:
        every = self.manifest.files
        if not every or every[-1].is_closed:
            every.append(ArchiveFile(f"{self._job}-{len(every):05}.warc.gz", dict(self.manifest.offsets)))
        return every[-1]

    def _opened(self, file: ArchiveFile) -> tuple[BinaryIO, BinaryIO]:
        is_new = file.size_bytes <= 0  # then what lies there is left of a killed process
        paths = (self._folder / file.name, self._folder / file.index)
        out, index = (path.open("wb") if is_new else path.open("ab") for path in paths)
        self._out = out, index
        if not out.tell():
            out.write(info_member(self.manifest.log, file.name, self._about))
        return out, index

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Have all pages before these offsets count. Raises: OSError: as on a full disk."""
        manifest = self.manifest
        if self._out is not None:
            file = manifest.files[-1]
            self._sync(file)
            crash_points.point("warc.pages.written")
        manifest.offsets = dict(offsets)
        manifest.empty, self._empty = manifest.empty + self._empty, 0
        self._write_manifest()
        crash_points.point("warc.manifest.written")
        if self._out is not None and manifest.files[-1].size_bytes >= self._most_bytes:
            self.finish()

    def _sync(self, file: ArchiveFile) -> None:
        assert self._out is not None
        for one in self._out:
            one.flush()
            os.fsync(one.fileno())
        file.size_bytes, file.index_bytes = (one.tell() for one in self._out)

    def finish(self) -> None:
        """Close the file that is written, if there is one: sort its index, as pywb wants it."""
        if not self.manifest.files or self.manifest.files[-1].is_closed:
            return
        self._close_files()
        file = self.manifest.files[-1]
        self._sort(file)
        file.is_closed = True
        self._write_manifest()

    def _close_files(self) -> None:
        for file in self._out or ():
            file.close()
        self._out = None

    def _sort(self, file: ArchiveFile) -> None:
        path = self._folder / file.index
        made = path.with_suffix(".new")
        made.write_bytes(b"".join(sorted(path.read_bytes().splitlines(keepends=True))))
        made.replace(path)

    def remake(self, file: ArchiveFile, pages: Iterable[tuple[PageRecord, Capture | None]]) -> None:
        """Write a file anew. Pages of another log are lost with it."""
        file.size_bytes, file.pages = -1, 0
        self._write_manifest()  # until the next one, the file is to be made again however long it is
        for page, original in pages:
            with suppress(ValueError):  # it was a dead letter the first time
                if made := list(members(page, self.manifest.log, original)):
                    self._append(file, page, made)
        if self._out is None:
            self._opened(file)
        self._sync(file)
        self._close_files()
        if file.is_closed:
            self._sort(file)
        self._write_manifest()


def about(job: str, software: str) -> dict[str, str]:
    """The fields of a `warcinfo` record."""
    return {
        "software": software,
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        "isPartOf": job,
        "hostname": platform.node(),
    }


def _is_revisit(fields: Mapping[str, str]) -> bool:
    return fields.get("mime") == "warc/revisit"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
