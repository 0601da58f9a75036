"""Fills the archive of a job from crawl.pages, as far as the log has come. Its calls block: use a thread.

1 files that lack something are made again ─► 2 what the log gained is read ─► 3 records appended, some MiB at a time
─► 4 dead letters acknowledged ─► 5 manifest
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from crawlog.schemas import pages
from crawlog.schemas.dead import DeadLetter
from crawlog.streams.cluster import log_bounds, log_identity, offset_at
from crawlog.streams.coded_pages import coding_in
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Topics, partition_count, read_partitions, record_at, record_headers
from crawlog.streams.sink_groups import ARCHIVE, SinkSpec

from .captures import Capture, PageRecord
from .warc_files import WarcArchive, about

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.schemas.urls import JobSpec
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

BATCH_BYTES = 8 << 20  # Bytes of records that are committed together, about

BATCH_S = 2.0  # Longest time until a commit while pages come, seconds

CLOCKS_S = 3600.0  # The clock of a machine that fetched may be behind that of the submitter by this, seconds

Bury = Callable[[list[DeadLetter]], None]


class PageArchiver:
    """See the module.

    Args:
        spec: Its output is `warc:DIR`.
        job: The job's record.
        bury: Sends dead letters, and waits for their acknowledgement.

    Raises: Misconfigured: the job keeps no headers. As `WarcArchive`; EngineError: the cluster does not answer.
    """

    def __init__(self, settings: "Settings", spec: SinkSpec, job: "JobSpec", bury: Bury = lambda _: None) -> None:
        if not job.full_headers:
            raise Misconfigured(
                f"{spec.output}: the pages of job {spec.job} have no headers of their requests.\n"
                "WARC files are written of a job that keeps them: give it -s pages.headers=full"
            )
        self._settings = settings
        self._spec = spec
        self._since = job.at
        self._bury = bury
        self._topic = Topics(settings.kafka.prefix).pages
        self._count = partition_count(settings)
        self._dead: list[DeadLetter] = []
        self._bounds: dict[int, tuple[int, int]] = {}
        folder = Path(spec.output.removeprefix(ARCHIVE))
        fields = about(spec.job, f"crawlog/{version('crawlog')}")
        identity = log_identity(settings, self._topic)
        self._archive = WarcArchive(folder, spec.job, identity, fields, settings.sink.warc_mb << 20, spec.fill)
        self.close = self._archive.close

    @property
    def pages(self) -> int:
        """Pages in the archive."""
        return self._archive.manifest.pages

    @property
    def waiting(self) -> int:
        """Records of crawl.pages, of any job, that were there at the last look and are not read yet."""
        offsets = self._archive.manifest.offsets
        return sum(end - offsets.get(at, end) for at, (_, end) in self._bounds.items())

    @property
    def note(self) -> str:
        """A line for the user about what the log had lost; empty if nothing."""
        if not (gone := self._archive.manifest.gone):
            return ""
        return (
            f"{self._spec.output}: {self._topic} lost {gone:,} records before they were read, of any job, by its"
            " retention (log.pages_keep_days) or by DeleteRecords"
        )

    def fill(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Bring in all that the log has now.

        Args:
            goes_on: Asked before each page; what is not read then comes with the next call.

        Raises: EngineError: the log cannot be read. OSError: as on a full disk. Then close this, and make another one.
        """
        manifest, self._bounds = self._archive.manifest, log_bounds(self._settings, self._topic, [*range(self._count)])
        for file, ranges in self._archive.broken():
            log.warning("warc_made_again", file=file.name, output=self._spec.output, job=self._spec.job)
            self._archive.remake(file, self._pages_in(ranges))
        known = manifest.offsets
        manifest.offsets = {at: self._place(at, *bounds) for at, bounds in self._bounds.items()}
        ranges = self._there({at: (offset, self._bounds[at][1]) for at, offset in manifest.offsets.items()})
        offsets = {at: start for at, (start, _) in ranges.items()}
        size, committed_at = 0, time.monotonic()
        with closing(read_partitions(self._settings, self._topic, ranges)) as records:
            for record in records:
                if not goes_on():
                    break
                size += self._add(record)
                offsets[record.partition() or 0] = (record.offset() or 0) + 1
                if size >= BATCH_BYTES or time.monotonic() > committed_at + BATCH_S:
                    self._commit(offsets)
                    size, committed_at = 0, time.monotonic()
            else:
                offsets = {at: end for at, (_, end) in ranges.items()}  # a transaction's marks are no records
        if offsets != known:
            self._commit(offsets)

    def finish(self) -> None:
        """The job has ended: close the file, so that pywb finds its index sorted."""
        self._archive.finish()

    def _place(self, partition: int, first: int, end: int) -> int:
        """Where to go on; in a new archive shortly before the job began. A log that was cut gives offsets out again."""
        known = self._archive.manifest.offsets.get(partition)
        if known is None and self._since:
            return offset_at(self._settings, self._topic, partition, int((self._since - CLOCKS_S) * 1000), end)
        return first if known is None else min(known, end)

    def _there(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """What the log still has of some ranges; the rest is counted."""
        there = {at: (max(start, self._bounds[at][0]), end) for at, (start, end) in ranges.items()}
        self._archive.manifest.gone += sum(min(there[at][0], end) - start for at, (start, end) in ranges.items())
        return there

    def _pages_in(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[PageRecord, Capture | None]]:
        for record in read_partitions(self._settings, self._topic, self._there(ranges)):
            if (page := self._wanted(record)) is not None:
                yield page, self._archive.original(page, self._older)

    def _wanted(self, record: "Message") -> PageRecord | None:
        """The page in a record, if it is of the job."""
        page = _page_in(record)
        is_wanted = page is not None and self._spec.wants(page.meta.job, page.meta.epoch, (page.partition, page.offset))
        return page if is_wanted else None

    def _add(self, record: "Message") -> int:
        """Append a page's records; returns their bytes."""
        page = self._wanted(record)
        if page is None:
            return 0
        try:
            return self._archive.add(page, self._archive.original(page, self._older))
        except ValueError as error:
            letter = DeadLetter(
                self._topic,
                page.partition,
                page.offset,
                "sink",
                f"{type(error).__name__}: {error}",
                record.key(),
                record.value(),
                page.meta.job,
                traceback.format_exc(),
            )
            self._dead.append(letter)
            return 0

    def _older(self, page: PageRecord) -> Capture | None:
        """The page that a 304 repeats, read from the log; None if it is gone."""
        at, offset = page.meta.same_as or (-1, 0)
        first, end = self._bounds.get(at, (0, 0))
        record = record_at(self._settings, self._topic, at, offset) if first <= offset < end else None
        old = _page_in(record) if record is not None else None
        if old is None or (old.meta.job, old.meta.url, old.kind) != (page.meta.job, page.meta.url, "response"):
            return None
        with suppress(ValueError):
            return Capture.of(old)
        return None

    def _commit(self, offsets: Mapping[int, int]) -> None:
        if self._dead:
            self._bury(self._dead)
            self._dead.clear()
        self._archive.commit(offsets)


def _page_in(record: "Message") -> PageRecord | None:
    """The page in a record. None for garbage: parse makes a dead letter of it."""
    headers = record_headers(record)
    try:
        meta = pages.meta_in(headers)
    except ValueError:
        return None
    return PageRecord(record.partition() or 0, record.offset() or 0, meta, record.value() or b"", coding_in(headers))
