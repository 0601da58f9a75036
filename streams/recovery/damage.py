"""Detects a cut log: compares the ends of its partitions with every offset that is known to have been written.

Known offsets are the commits of all groups, the ends that crawlog-parse's commits list, and the pages that dones name
(`JobCounts.page_end`). A partition that ends before one of them was cut: a broker lost its last writes or found them
damaged, or there was an unclean election, a lost disk or a deleted folder. The comparison runs before workers write,
because Kafka assigns the lost offsets again. A loss that new records have covered is detected by `marks.py`.

crawl.progress holds reports only, and each is replaced within a second: damaged ones are skipped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas import progress
from crawlog.streams import groups
from crawlog.streams.cluster import Admin, committed_offsets, log_bounds
from crawlog.streams.errors import DamagedLog
from crawlog.streams.groups import written_ends
from crawlog.streams.log import Topics, read_around, stage_group

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

REPORTS_READ = 2_000  # Number of reports read from the end of crawl.progress: a minute of 32 partitions

Say = Callable[[str], None]


class Known(NamedTuple):
    """An end that the log once had: all records before `offset` were written. `by` names the source."""

    topic: str
    partition: int
    offset: int
    by: str


class CutPartition(NamedTuple):
    """A partition that has lost its last records.

    Attributes:
        end: The first lost offset.
        known: The end that the partition is known to have had.
        by: The source of `known`.
        is_replaced: Whether other records have taken the lost offsets.
    """

    topic: str
    partition: int
    end: int
    known: int
    by: str
    is_replaced: bool = False

    def __str__(self) -> str:
        """One line for users."""
        if self.is_replaced:
            lost = f"has lost its records {self.end} to {self.known - 1}, and others came in their place"
            return f"{self.topic}[{self.partition}] {lost}: {self.by} had them"
        return f"{self.topic}[{self.partition}] ends at offset {self.end}, and {self.by} was at {self.known}"


def cuts_against(known: Iterable[Known], ends: Mapping[str, tuple[int, ...]]) -> list[CutPartition]:
    """The partitions that end too early, each with its highest known offset."""
    highest: dict[tuple[str, int], Known] = {}
    for one in known:
        at = one.topic, one.partition
        if at not in highest or one.offset > highest[at].offset:
            highest[at] = one
    return [
        CutPartition(topic, number, ends[topic][number], one.offset, one.by)
        for (topic, number), one in sorted(highest.items())
        if number < len(ends.get(topic, ())) and one.offset > ends[topic][number]
    ]


def find_cuts(settings: "Settings", names: Topics, say: Say) -> list[CutPartition]:
    """The partitions that were cut; none in a log that no worker has used yet.

    Args:
        say: Called when damaged reports are skipped.

    Raises: EngineError: the cluster does not answer.
    """
    admin = Admin(settings)
    count = groups.count(admin, names.urls)
    start, end = log_bounds(settings, names.progress, [0])[0]
    if start == end and not any(admin.ends((names.urls,), count)[names.urls]):
        return []
    known = [*_commits(admin, names), *_named(settings, names, max(start, end - REPORTS_READ), end, say)]
    ends = admin.ends((names.urls, names.pages, names.items), count)  # last, since others may write meanwhile
    return cuts_against(known, ends)


def _commits(admin: Admin, names: Topics) -> Iterator[Known]:
    for name, topic in (
        (stage_group(admin.settings, "fetch"), names.urls),
        *((n, names.items) for n in groups.known_sink_groups(admin)),
    ):
        for (_, number), offset in admin.committed(name, topic).items():
            yield Known(topic, number, offset, f"the group {name}")
    name, numbers = stage_group(admin.settings, "parse"), range(groups.count(admin, names.pages))
    for number, (offset, metadata) in committed_offsets(admin.settings, name, names.pages, numbers).items():
        yield Known(names.pages, number, offset, f"the group {name}")
        told = written_ends(metadata)
        for topic, ends in ((names.urls, told.founds), (names.items, told.items)):
            for at, end in ends.items():
                yield Known(topic, at, end, f"what the group {name} wrote")


def _named(settings: "Settings", names: Topics, start: int, end: int, say: Say) -> Iterator[Known]:
    """Known offsets from the last reports of fetch and parse: their progress, and the pages that dones name."""
    newest: dict[tuple[str, int], progress.Progress] = {}
    topics = {"fetch": names.urls, "parse": names.pages}

    def passed(error: DamagedLog) -> None:
        say(f"{error.topic}[0] is damaged at offset {error.offset}: reports of progress alone, which are passed over")

    for record in read_around(settings, names.progress, 0, start, end, passed):
        report = progress.decode(record.value())
        if report is not None and report.stage in topics:
            newest[report.stage, report.partition] = report
    for (stage, number), report in newest.items():
        yield Known(topics[stage], number, report.offset, f"a worker of {stage}")
    yield from pages_named(names, newest.values())


def pages_named(names: Topics, reports: Iterable[progress.Progress]) -> Iterator[Known]:
    """Known ends of crawl.pages: the last page of each job's dones, from reports of fetch."""
    for report in reports:
        for job, counts in report.jobs.items():
            yield Known(names.pages, report.partition, counts.page_end, f"the last page that job {job} has fetched")
