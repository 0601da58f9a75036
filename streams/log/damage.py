"""What the log must have and has no more: its ends, compared with every offset that is known to have been in it.

Known are the commits of all groups, the founds and items that crawlog-parse had written at its commits, and the pages
that dones name (`JobCounts.page_end`). A log that ends before one of them was cut: by a broker that lost its last
writes or found them damaged, by an unclean election, by a lost disk or a deleted folder. The comparison is made before
workers write: offsets that are gone are given out again. That others came in their place is noticed by the leaders'
epochs (`marks.py`).

crawl.progress holds reports alone, and each is replaced within a second: where it is damaged, the others are read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from crawlog.schemas import progress
from crawlog.streams.errors import DamagedLog

from . import groups
from .admin import Admin
from .client import committed_offsets, log_bounds
from .commits import written_ends
from .read import read_around
from .topics import Topics, stage_group

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

REPORTS_READ = 2_000
"""Reports at the end of crawl.progress that are read: a minute of 32 partitions."""

Say = Callable[[str], None]


class Known(NamedTuple):
    """An offset of which somebody knows that it was in the log: everything before it was."""

    topic: str
    partition: int
    offset: int
    by: str


class CutPartition(NamedTuple):
    """A partition that ends before an offset that is known, or was cut there and has had other records since.

    Attributes:
        end: The first offset whose record is gone.
        known: The one behind the last that is known to have been there.
        by: Who knows it.
        is_replaced: The log goes on, with other records at these offsets.
    """

    topic: str
    partition: int
    end: int
    known: int
    by: str
    is_replaced: bool = False

    def __str__(self) -> str:
        """For people."""
        if self.is_replaced:
            lost = f"has lost its records {self.end} to {self.known - 1}, and others came in their place"
            return f"{self.topic}[{self.partition}] {lost}: {self.by} had them"
        return f"{self.topic}[{self.partition}] ends at offset {self.end}, and {self.by} was at {self.known}"


def cuts_against(known: Iterable[Known], ends: Mapping[str, tuple[int, ...]]) -> list[CutPartition]:
    """The partitions that end too early, each with the highest offset that is known of it."""
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
    """The partitions that were cut; in a log that no worker has worked on, none.

    Args:
        say: Told of damaged reports, which are passed over.

    Raises: EngineError: the cluster does not answer.
    """
    admin = Admin(settings)
    count = groups.count(admin, names.urls)
    start, end = log_bounds(settings, names.progress, [0])[0]
    if start == end and not any(admin.ends((names.urls,), count)[names.urls]):
        return []
    known = [*_commits(admin, names), *_named(settings, names, max(start, end - REPORTS_READ), end, say)]
    ends = admin.ends((names.urls, names.pages, names.items), count)  # others may write: last
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
    """What the last reports of fetch and parse tell: how far they are, and the pages that dones name."""
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
    """The ends of crawl.pages by the dones that reports of fetch tell of."""
    for report in reports:
        for job, counts in report.jobs.items():
            yield Known(names.pages, report.partition, counts.page_end, f"the last page that job {job} has fetched")
