"""The fold: how one record of crawl.urls changes the state of its partition.

`state' = fold(state, record)`, pure and total: it reads the record and the job records before it, never the clock, a
worker's settings or the network. A bad entry is counted or becomes a dead letter, never an exception. So one log gives
the same rows, byte for byte, on every worker.

Two writers may change a job at once. `revisions` decides which record counts, so that all partitions end with the same
one. A deleted job leaves a tombstone: its older records are dropped without a trace.

A rewind of the crawl takes records back, and a fold cannot run backwards. So the fold asks for a rewind in its effects,
and the partition folds again from before `start`, with the range in `skipped`: the state is the fold of the effective
log, the log without those ranges. A rewind inside the range of a later one does not count. A deletion
inside a range counts: no rewind brings a deleted job back.

A change of a result here for a record already in a log needs a new `FOLD_VERSION`.
"""

from collections import deque

from crawlog.schemas import urls as u
from crawlog.streams.url import Places

from . import rows as r
from .dones import Dones
from .host_queues import HostQueues, Listener
from .jobs import JobState, JobStates
from .offers import Offers
from .overlay import Rows
from .revisions import (
    NO_EFFECTS,
    Answered,
    Effects,
    effective,
    is_deletion,
    kept_for_life,
    ordered_spec,
    refusal,
    supersedes,
    tombstone,
)
from .seen import SeenTable

FOLD_VERSION = 20


class Fold:
    """The state of one partition and how records change it.

    Args:
        partition: The partition of crawl.urls that is folded.
        places: Where URLs belong; its partition count is that of crawl.urls.
        rows: The state; `flush` completes it before a checkpoint.
        cached_pages: Pages of the seen table held in memory.
        skipped: The ranges that rewinds took back, as far as they were met, in order.
    """

    def __init__(
        self,
        partition: int,
        places: Places,
        rows: Rows,
        cached_pages: int = 4096,
        skipped: tuple[r.Skip, ...] = (),
    ) -> None:
        self.partition = partition
        self.rows = rows
        self.skipped = skipped
        self._skips = deque(skipped)
        self._jobs = JobStates(rows)
        self.jobs = self._jobs.by_name
        self.numbers = self._jobs.by_number
        self.queues = HostQueues(rows, cached_pages)
        self.offers = Offers(partition, places, rows, self.queues, cached_pages)
        self.dones = Dones(partition, places, rows, self.queues)

    # ------------------------------------------------------------------ reading

    def take(self, value: bytes | None, offset: int, timestamp_s: float) -> Effects:
        """Fold the record at `offset`.

        Args:
            timestamp_s: The record's own timestamp, UTC epoch seconds: used where the record names no time.
        """
        if self._skips and self._is_skipped(offset) and not u.may_delete(value):
            return NO_EFFECTS
        try:
            record = u.decode(value)
        except ValueError as error:
            return Effects(dead=[f"does not decode: {error}"])
        if self._skips and self._is_skipped(offset):
            return self._take_deletion(record)
        if record.urls is not None:
            return self._take_urls(record, offset)
        if record.results is not None or record.changes is not None:
            return self._take_results(record, timestamp_s)
        return self._take_rare(record, offset)

    def _take_rare(self, record: u.UrlsRecord, offset: int) -> Effects:
        """Fold a record of a kind without URLs: a new kind gets its line here."""
        if record.spec is not None:
            return self._take_job(record, record.spec)
        if record.order is not None:
            return self._take_order(record, record.order, offset)
        if record.rewind is not None:
            return self._take_rewind(record, record.rewind, offset)
        return self._take_joins(record, record.joins or ())

    def _take_urls(self, record: u.UrlsRecord, offset: int) -> Effects:
        job = self._jobs.of(record)
        if job is not None and record.url is not None and not job.deleted:
            record.epoch = max(record.epoch, job.epoch)  # other clients do not know it
        if job is not None and job.after >= 0:
            if record.epoch <= job.after:
                return NO_EFFECTS
            if job.deleted:
                job = None
        return self.offers.take(job, record, offset)

    def _take_results(self, record: u.UrlsRecord, timestamp_s: float) -> Effects:
        """Fold what became of attempts, or how pages have changed."""
        job = self._jobs.of(record)
        if job is not None and record.epoch > job.after:
            job.count_record()
            for result in record.results or ():
                self.dones.take(job, result, record.epoch, timestamp_s)
            if record.epoch == job.epoch:
                for change in record.changes or ():
                    self.dones.take_change(job, change, record.at or timestamp_s)
        return NO_EFFECTS

    def flush(self) -> None:
        """Write into the rows what is held beside them: before each checkpoint and each digest."""
        self.offers.flush()
        self.queues.flush()
        self._jobs.flush()

    def with_queue(self) -> list[JobState]:
        return self._jobs.with_queue()

    @property
    def seen(self) -> SeenTable:
        return self.offers.seen

    @property
    def listener(self) -> Listener | None:
        return self.queues.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self.queues.listener = listener

    def host_queue(self, job: int, host: int) -> r.HostQueueRow | None:
        """A host queue as it is now; `host` is its hash."""
        return self.queues.row(job, host)

    def queued_of(self, job: int, host: int) -> int:
        """URLs in a host queue, waiting ones included; `host` is its hash."""
        queue = self.queues.row(job, host)
        return queue.queued if queue is not None else 0

    # ------------------------------------------------------------------ jobs

    def _take_job(self, record: u.UrlsRecord, spec: u.JobSpec) -> Effects:
        assert record.job is not None
        reason = self._jobs.refusal(record.job, record.epoch, spec)
        if reason is not None:
            return Effects(dead=[reason])
        job = self._jobs.known(record.job)
        if job is not None:
            job.count_record()
            if not supersedes(job, record.epoch, spec):
                self._jobs.note_deleted(job, record.epoch, spec)
                return NO_EFFECTS
        self._set_job(record.job, record.epoch, spec)
        return NO_EFFECTS

    def _set_job(self, name: str, epoch: int, spec: u.JobSpec) -> None:
        """Give a job its new record; after a deletion only one of a greater epoch counts."""
        job = self.jobs.get(name)
        if is_deletion(spec):
            self._delete(job, name, epoch, spec)
            return
        if job is None or job.deleted:
            if job is not None and epoch <= job.after:
                return
            job = self._jobs.create(name, epoch, spec)
            job.count_record()
            self.offers.unpark(job)
        else:
            if epoch > job.epoch:
                self._begin(job, epoch, awaited=False)
            job.set(kept_for_life(spec, job))
            job.awaited = False
            self._jobs.put(job)
        self._tell_changed(job)

    def _delete(self, job: JobState | None, name: str, epoch: int, spec: u.JobSpec) -> None:
        """Drop all rows of a job and leave a tombstone."""
        stone = tombstone(spec)
        if job is None:
            self.offers.drop_parked(name)
            job = self._jobs.create(name, epoch, stone)
        elif job.deleted and not supersedes(job, epoch, stone):
            return
        elif not job.deleted:
            self._forget(job)
        self._jobs.bury(job, epoch, stone)
        if self.listener is not None:
            self.listener.forgotten(job.number)
        self._tell_changed(job)

    def _take_deletion(self, record: u.UrlsRecord) -> Effects:
        """Fold a record that a rewind took back: only a deletion still counts."""
        return self._take_job(record, record.spec) if record.spec and is_deletion(record.spec) else NO_EFFECTS

    def _take_order(self, record: u.UrlsRecord, order: u.JobOrder, offset: int) -> Effects:
        name = record.job
        assert name is not None
        if self.partition != 0:
            return Effects(dead=[f"an order belongs to partition 0, not to {self.partition}"])
        job = self._jobs.known(name)
        if job is not None:
            job.count_record()
        reason = refusal(self.jobs.get(name), name, record.epoch, order)
        if not reason:
            spec = ordered_spec(job.spec if job is not None else None, order, offset)
            reason = self._jobs.refusal(name, record.epoch, spec) or ""
            if not reason:
                self._set_job(name, record.epoch, spec)
        job = self.jobs.get(name)
        if job is not None:
            job.answers, job.refusal = offset, reason
            self._jobs.put(job)
        return Effects(answered=[Answered(name, offset, reason)])

    def _begin(self, job: JobState, epoch: int, *, awaited: bool) -> None:
        """A job begins again, in a new epoch."""
        self._forget(job)
        job.begin(epoch, awaited=awaited)
        self._jobs.put(job)
        if self.listener is not None:
            self.listener.forgotten(job.number)

    def _forget(self, job: JobState) -> None:
        """Drop all rows of a job but its record. Hosts keep their rests."""
        for kind in r.OF_JOB:
            self.rows.drop(r.of_job(kind, job.number))
        self.offers.forget(job)
        self.queues.forget(job.number)

    def _take_joins(self, record: u.UrlsRecord, names: tuple[str, ...]) -> Effects:
        job = self._jobs.of(record)
        if job is not None and record.epoch > job.after:
            job.count_record()
            self._jobs.join(job, names)
        return NO_EFFECTS

    def _tell_changed(self, job: JobState) -> None:
        if self.listener is not None:
            self.listener.job_changed(job.number)

    # ------------------------------------------------------------------ rewinds

    def _is_skipped(self, offset: int) -> bool:
        while self._skips and self._skips[0].end <= offset:
            self._skips.popleft()
        return bool(self._skips) and self._skips[0].start <= offset

    def _take_rewind(self, record: u.UrlsRecord, rewind: u.Rewind, offset: int) -> Effects:
        if record.job is not None:
            job = self.jobs.get(record.job)
            if job is not None and record.epoch > job.epoch and not job.deleted:
                self._begin(job, record.epoch, awaited=True)
            return NO_EFFECTS
        if rewind.start > offset:
            return Effects(dead=[f"it rewinds to offset {rewind.start}, which lies behind it"])
        skip = r.Skip(rewind.start, offset, record.epoch)
        if skip not in self.skipped:
            if record.epoch <= self._epoch(offset):
                return NO_EFFECTS
            if skip.start < skip.end:
                return Effects(rewind=skip)
            self.skipped = effective(self.skipped, skip)
        self._await_records(record.epoch)
        return NO_EFFECTS

    def _await_records(self, epoch: int) -> None:
        """Every job that is not deleted goes on in a new epoch, once its record of it has come."""
        for job in self.jobs.values():
            if not job.deleted:
                job.epoch, job.awaited = epoch, True
                self._jobs.put(job)
                self._tell_changed(job)

    def _epoch(self, offset: int) -> int:
        """The latest epoch of any job, or of a rewind before `offset`."""
        began = [skip.epoch for skip in self.skipped if skip.end < offset]
        return max([0, *began, *(job.epoch for job in self.jobs.values())])
