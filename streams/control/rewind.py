"""Rewinds: a job back to its seeds, or the whole crawl back to an earlier place in crawl.urls.

Order of writes, each acknowledged before the next:

    1  a note of the rewind in crawl.control
    2  the epoch record in every partition
    3  the job records of that epoch, then their copies
    4  of the crawl: the founds of pages that are not fetched again, and the seeds given since
    5  the note, complete

If the command is killed in between, the next one finds the note and repeats all steps: an epoch record or a found that
is there already changes nothing. Each command that changes a job looks for such notes first. No URL of a job is fetched
before its job record comes, so workers never see half a rewind.

Step 4 is needed because a page is parsed later than it is done. A page that was done before the rewind's start may have
been parsed after it. It is not fetched again, so its founds are sent again.

crawl.control has no lock, so two commands may note the same epoch: both read it → both write a note → both read it
again. The first note in the log counts. The other command reports that, and has changed nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import xxhash

from crawlog.schemas import urls as u
from crawlog.schemas.control import JobCopy, Rewound, key
from crawlog.streams import crash_points
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import ControlState, after
from crawlog.streams.log import CommandProducer, Producer, Topics, partition_count, read_partitions
from crawlog.streams.sink_groups import RewoundRange

from .job_records import acknowledged, known_job, read_control, write_control, write_job

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

# First number of records read backwards to find the last page done before a rewind's start; mostly enough.
LOOK_BACK = 1000

POLL_EVERY = 64  # Number of records sent between two polls


def rewind_crawl(settings: "Settings", to: Mapping[int, int]) -> int:
    """Rewind the crawl to `to`: it goes on from there in a new epoch.

    A second call with the same `to` after a kill finishes the same epoch.

    Args:
        to: For each partition of crawl.urls, the offset of the first record that does not count any more.

    Returns: The new epoch; all its records are in the log.

    Raises:
        Misconfigured: An offset is missing or not in the log, there are no more epochs, or another command began one
            at the same instant.
        EngineError: The log does not answer.
    """
    topics, producer = Topics(settings.kafka.prefix), CommandProducer(settings, "crawlog-rewind")
    for begun in _completed(settings, producer, topics, read_control(settings, topics)):
        if not begun.job and begun.start == dict(to):
            return begun.epoch
    _check(settings, topics, to)
    control = read_control(settings, topics)
    before = {copy.job: copy.epoch for copy in control.of(JobCopy)}
    epoch = 1 + max([0, *before.values(), *(entry.epoch for entry in counted(control.of(Rewound)))])
    _begin(settings, producer, topics, Rewound(epoch, start=dict(to), before=before))
    return epoch


def rewind_job(
    settings: "Settings", producer: Producer, topics: Topics, job: str, spec: u.JobSpec, epoch: int
) -> JobCopy:
    """Rewind one job to its start. The caller sends its seeds afterwards.

    Args:
        spec: The new record, with the next revision.
        epoch: A later epoch than the job's present one.

    Raises: Misconfigured: as for `rewind_crawl`.
    """
    _begin(settings, producer, topics, Rewound(epoch, job, spec))
    return JobCopy(job, spec, epoch)


def settled_control(settings: "Settings", producer: Producer, topics: Topics) -> ControlState:
    """The content of crawl.control; first completes each unfinished rewind."""
    control = read_control(settings, topics)
    return read_control(settings, topics) if list(_completed(settings, producer, topics, control)) else control


def unfinished(control: ControlState) -> list[Rewound]:
    """Rewinds whose note is not complete, the oldest first."""
    return [note for note in counted(control.of(Rewound)) if not note.complete]


def counted(notes: Iterable[Rewound]) -> list[Rewound]:
    """The rewinds in the order of their epochs; of two commands that noted the same epoch only the first.

    Args:
        notes: In the log's order. A complete note counts as first: it moved to the end when it was written again.
    """
    counts: list[Rewound] = []
    for note in sorted(notes, key=lambda note: not note.complete):
        if not any(_is_one_epoch(note, first) for first in counts):
            counts.append(note)
    return sorted(counts, key=lambda note: note.epoch)


def _completed(settings: "Settings", producer: Producer, topics: Topics, control: ControlState) -> Iterator[Rewound]:
    """Completes each unfinished rewind, then gives it. That of a job which was deleted since is taken back."""
    for begun in _possible(settings, topics, unfinished(control)):
        if _is_deleted(control.job(begun.job), begun):
            producer.send(topics.control, None, key=key(begun), partition=0)
            acknowledged(producer, topics.control)
        else:
            _carry_out(settings, producer, topics, begun)
        yield begun


def _is_deleted(copy: JobCopy | None, begun: Rewound) -> bool:
    """Whether the job that was to begin again is deleted, not one of its earlier epochs."""
    return copy is not None and copy.spec.state == "deleted" and copy.epoch >= begun.epoch - 1


def _possible(settings: "Settings", topics: Topics, begun: list[Rewound]) -> list[Rewound]:
    """The rewinds that begin within the log: a stranger's note of another place stops no command."""
    if not begun:
        return []
    ends = log_bounds(settings, topics.urls, list(range(partition_count(settings))))
    return [one for one in begun if (one.spec is not None if one.job else _is_within(one, ends))]


def _is_within(begun: Rewound, ends: Mapping[int, tuple[int, int]]) -> bool:
    places = begun.start
    return begun.spec is None and places.keys() == ends.keys() and all(places[at] <= ends[at][1] for at in places)


def _is_one_epoch(one: Rewound, other: Rewound) -> bool:
    """Whether two rewinds conflict: they have one epoch number, and the same job or the crawl with that job.

    Jobs count their epochs apart. A job that a rewind of the crawl does not name began after it, at epoch 0, and may
    reach the same number without a conflict.
    """
    if one.epoch != other.epoch:
        return False
    return one.job == other.job or other.job in one.before or one.job in other.before


def mend_rewinds(settings: "Settings", producer: Producer, topics: Topics) -> None:
    """Repeat the rewinds that may be incomplete because the log lost its last records, as after a power cut."""
    ends = log_bounds(settings, topics.urls, list(range(partition_count(settings))))
    for entry in counted(read_control(settings, topics).of(Rewound)):
        if any(ends[at][1] < end for at, end in entry.upto.items() if at in ends):
            _carry_out(settings, producer, topics, entry)


def counting_epochs(notes: Iterable[Rewound], job: str, copy: JobCopy | None) -> tuple[int, tuple[RewoundRange, ...]]:
    """The first epoch whose results of a job count, and the pages that later rewinds of the crawl cancel.

    A rewind cancels no pages of a job that it does not name: that one began after it, at epoch 0. It never names the
    job of bare records, which has no record.
    """
    rewinds = {entry.epoch: entry for entry in counted(notes) if not entry.job}
    epoch = copy.epoch if copy is not None else 0
    while epoch in rewinds and job in rewinds[epoch].before:
        epoch = rewinds[epoch].before[job]
    done = [
        rewind
        for later, rewind in sorted(rewinds.items())
        if later > epoch and rewind.complete and (job in rewind.before or job == u.DEFAULT_JOB)
    ]
    return epoch, tuple(void for partition in _partitions_of(done) for void in _voids(done, partition))


def has_begun_again(notes: Iterable[Rewound], copy: JobCopy | None, epoch: int) -> bool:
    """Whether a job began again from its seeds after this epoch of it. A rewind of the crawl is no such beginning."""
    return copy is not None and copy.epoch > epoch and counting_epochs(notes, copy.job, copy)[0] > epoch


def _partitions_of(rewinds: list[Rewound]) -> list[int]:
    return sorted({partition for rewound in rewinds for partition in rewound.pages})


def _voids(rewinds: list[Rewound], partition: int) -> list[RewoundRange]:
    """The voids of one partition. A rewind restores the voids as of its start, then adds its own; see `effective`."""
    was: list[tuple[int, list[RewoundRange]]] = [(-1, [])]
    for rewound in rewinds:
        start, page = rewound.start[partition], rewound.pages.get(partition)
        then = next(voids for end, voids in reversed(was) if end < start)
        was.append(
            (rewound.end[partition], then if page is None else [*then, RewoundRange(partition, rewound.epoch, page)])
        )
    return was[-1][1]


def _check(settings: "Settings", topics: Topics, to: Mapping[int, int]) -> None:
    every = range(partition_count(settings))
    if set(to) != set(every):
        raise Misconfigured(f"a rewind names an offset for each of the {len(every)} partitions, not for {sorted(to)}")
    for partition, (low, high) in log_bounds(settings, topics.urls, list(every)).items():
        start = to[partition]
        if start < low:
            raise Misconfigured(
                f"{topics.urls}[{partition}] begins at offset {low}: what it held from {start} on was deleted, by"
                " retention or by hand, so how the crawl then stood is not known any more. Rewind to a later time, or"
                " crawl a job anew with `crawlog run --fresh`."
            )
        if start > high:
            raise Misconfigured(f"{topics.urls}[{partition}] ends at offset {high}: it cannot be rewound to {start}")


def _begin(settings: "Settings", producer: Producer, topics: Topics, begun: Rewound) -> None:
    if begun.epoch > u.MAX_EPOCH:
        raise Misconfigured(f"there are no more than {u.MAX_EPOCH} epochs: give the job another name, or another log")
    begun = msgspec.structs.replace(begun, mark=uuid4().hex[:8])
    write_control(producer, topics, [begun])
    crash_points.point("rewind.noted")
    if begun not in counted(read_control(settings, topics).of(Rewound)):
        raise Misconfigured(
            f"another command began epoch {begun.epoch} at the same instant, and was first: nothing was changed by this"
            " one. See what the crawl is now by `crawlog status`, and run it again if it is still wanted."
        )
    _carry_out(settings, producer, topics, begun)


def _carry_out(settings: "Settings", producer: Producer, topics: Topics, begun: Rewound) -> None:
    for partition in range(partition_count(settings)):
        crash_points.point("rewind.sending")
        record = u.UrlsRecord(begun.job or None, begun.epoch, rewind=u.Rewind(begun.start.get(partition, 0)))
        producer.send(topics.urls, u.encode(record), partition=partition)
    acknowledged(producer, f"epoch {begun.epoch} in {topics.urls}")
    crash_points.point("rewind.acknowledged")
    if begun.spec is not None:
        _renew_job(settings, producer, topics, JobCopy(begun.job, begun.spec, begun.epoch))
    else:
        _renew_jobs(settings, producer, topics, begun.epoch)
        begun = _Past(settings, topics, begun).send_again(producer)
    ends = log_bounds(settings, topics.urls, list(range(partition_count(settings))))
    upto = {partition: end for partition, (_, end) in ends.items()}
    write_control(producer, topics, [msgspec.structs.replace(begun, complete=True, upto=upto)])
    crash_points.point("rewind.complete")


def _renew_job(settings: "Settings", producer: Producer, topics: Topics, copy: JobCopy) -> None:
    there = known_job(settings, topics, copy.job)
    after = there.after if there is not None else copy.after
    if there is not None and (there.epoch, there.spec.rev) > (copy.epoch, copy.spec.rev):
        copy = there  # another command has changed the job since
    write_job(settings, producer, topics, copy.job, copy.spec, copy.epoch, after)


def _renew_jobs(settings: "Settings", producer: Producer, topics: Topics, epoch: int) -> None:
    """Writes every job's record in the new epoch: after the rewind the fold does not know jobs that began later.

    A job that ended by itself runs again; what an operator decided stays. The job of bare records awaits a record too,
    although crawl.control has no copy of it. A partition that does not know it learns the epoch of its items.
    """
    for copy in read_control(settings, topics).of(JobCopy):
        if copy.epoch < epoch:
            state = after("rewind", copy.spec.state)
            assert state is not None
            reason = copy.spec.reason if state == copy.spec.state else ""
            spec = msgspec.structs.replace(copy.spec, rev=copy.spec.rev + 1, state=state, reason=reason)
            write_job(settings, producer, topics, copy.job, spec, epoch, copy.after)
    record = u.encode(u.UrlsRecord(u.DEFAULT_JOB, epoch, spec=u.DEFAULT_SPEC))
    for partition in range(partition_count(settings)):
        producer.send(topics.urls, record, partition=partition)
    acknowledged(producer, f"the record of job {u.DEFAULT_JOB}")


class _Past:
    """The records that a rewind of the crawl cancels, read from the log."""

    def __init__(self, settings: "Settings", topics: Topics, begun: Rewound) -> None:
        self._settings = settings
        self._topic = topics.urls
        self._begun = begun
        self._bounds = log_bounds(settings, topics.urls, list(begun.start))
        self._ends: dict[int, int] = {}
        self._first_page: dict[int, int] = {}
        self._asked: set[int] = set()
        self._deleted: dict[tuple[int, str | None], tuple[int, int]] = {}

    def send_again(self, producer: Producer) -> Rewound:
        """Send the founds again whose page is not fetched again; returns the rewind with its ends and pages."""
        start = self._begun.start
        for partition, offset, record in self._records({at: (start[at], self._bounds[at][1]) for at in start}):
            if partition not in self._ends:
                self._look(partition, offset, record)
        found = self._records({at: (start[at], self._ends[at]) for at in start})
        for count, (partition, offset, record) in enumerate(found):
            self._send_again(producer, partition, offset, record)
            if count % POLL_EVERY == 0:
                producer.poll()
        acknowledged(producer, f"what pages had found that are not fetched again, in {self._topic}")
        return msgspec.structs.replace(self._begun, end=self._ends, pages=self._first_page | self._last_pages())

    def _look(self, partition: int, offset: int, record: u.UrlsRecord) -> None:
        if record.rewind is not None and record.job is None and record.epoch == self._begun.epoch:
            self._ends[partition] = offset
        if record.spec is not None and record.spec.state == "deleted":
            key = partition, record.job
            self._deleted[key] = max((record.epoch, offset), self._deleted.get(key, (-1, 0)), key=itemgetter(0))
        for page, url in _paged(record):
            self._asked.add(_mark(record.job, url))
            self._first_page[partition] = min(page, self._first_page.get(partition, page))

    def _send_again(self, producer: Producer, partition: int, offset: int, record: u.UrlsRecord) -> None:
        if record.url is not None and offset < self._deleted.get((partition, record.job), (-1, 0))[1]:
            return  # of the deleted job: bare, it would count for the next one of the name
        found = [url for url in record.urls or () if not url.parent or _mark(record.job, url.parent) not in self._asked]
        if found:
            crash_points.point("rewind.founds.sending")
            producer.send(self._topic, u.encode(u.founds_again(record, found)), partition=partition)

    def _last_pages(self) -> dict[int, int]:
        """The end of the pages that were done before the start, by partition.

        Reads backwards in growing steps: dones are nearly in the order of their pages.
        """
        ends: dict[int, int] = {}
        before, many = dict(self._begun.start), LOOK_BACK
        while before:
            begin = {at: max(self._bounds[at][0], offset - many) for at, offset in before.items()}
            for partition, _, record in self._records({at: (begin[at], before[at]) for at in before}):
                for page, _ in _paged(record):
                    ends[partition] = max(page + 1, ends.get(partition, 0))
            before = {at: offset for at, offset in begin.items() if at not in ends and offset > self._bounds[at][0]}
            many *= 4
        return ends

    def _records(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int, u.UrlsRecord]]:
        for message in read_partitions(self._settings, self._topic, ranges):
            try:
                record = u.decode(message.value())
            except ValueError:
                continue  # it is a dead letter already
            yield message.partition() or 0, message.offset() or 0, record


def _paged(record: u.UrlsRecord) -> Iterator[tuple[int, str]]:
    """(offset in crawl.pages, URL) of each result that has a page."""
    return ((result.page[1], result.url) for result in record.results or () if result.page is not None)


def _mark(job: str | None, url: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{job}\0{url}".encode())
