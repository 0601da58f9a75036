"""The jobs of one partition: their records, epochs and counts, and the names that joined their scopes."""

from collections.abc import Callable
from functools import cached_property

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.progress import JobCounts
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import traits
from crawlog.streams.requests import check_rules
from crawlog.streams.url import RULES, Canonicaliser, Place, Scope, any_of, scope_name

from . import rows as r
from .overlay import Rows

# Numbers of jobs are four bytes in keys; each job gets a new one. The last number is kept for `default`.
MAX_NUMBER = 0xFFFFFFFE

# Links of one record that parse says it dropped by one rule, at most: the sums of many have to fit into a row.
MAX_DROPPED = 1 << 31

# Status codes, and reasons, that are counted by name, at most, and the length of a name: servers choose them.
MAX_CLASSES, MAX_CLASS_CHARS = 40, 100

OTHERS = "other"  # The name under which all further ones are counted

_NAMES_CACHED = 32_768  # Of each job and partition: those of a job of 200,000 names, 3 MB


class Joined:
    """The names that joined a job's scope, as a container; names asked for lately are in memory."""

    def __init__(self, rows: Rows, job: int) -> None:
        self._rows = rows
        self._job = job
        self._known: set[object] = set()

    def __contains__(self, name: object) -> bool:
        if name in self._known:
            return True
        if self._rows.get(r.joined_key(self._job, str(name))) is None:
            return False
        self._know(name)
        return True

    def add(self, name: str) -> None:
        self._rows.put(r.joined_key(self._job, name), b"")
        self._know(name)

    def clear(self) -> None:
        """Forget the names in memory: their rows were dropped."""
        self._known.clear()

    def _know(self, name: object) -> None:
        if len(self._known) >= _NAMES_CACHED:
            self._known.clear()
        self._known.add(name)


class JobState:
    """A job as one partition knows it.

    Attributes:
        number: Of the job in this partition: it stands in keys.
        spec: Its newest record; `set` replaces it.
        after: Epoch of the deleted job that had its name: records of it and before do not count. Of a deleted job its
            own epoch. -1 without one.
        answers: Offset of the last order for it (partition 0); -1 before the first.
        refusal: Why that order was refused; empty if it was taken.
        hosts: Hosts that have a host queue, as far as they are in memory.
        dirty: Whether `counts` differ from their row.
        dedup_error: Rate at which new URLs may be dropped as known; 0 for an exact job.
    """

    def __init__(self, number: int, row: r.JobRow, counts: JobCounts, rows: Rows) -> None:
        self.number = number
        self.joined = Joined(rows, number)
        self.name = row.name
        self.counts = counts
        self.dirty = False
        self.epoch = row.epoch
        self.since = row.since
        self.awaited = row.awaited
        self.after = row.after
        self.answers = row.answers
        self.refusal = row.refusal
        self.hosts: set[str] = set()
        self.set(row.spec)

    def set(self, spec: u.JobSpec) -> None:
        """Take a revision of the job's record."""
        self.spec = spec
        for made_of_it in ("scope", "canonical"):
            self.__dict__.pop(made_of_it, None)
        self.lifo = spec.order == "lifo"
        self.dedup_error = spec.dedup_error if spec.dedup == "bloom" else 0.0
        self.deleted = spec.state == "deleted"

    @cached_property
    def scope(self) -> Scope:
        """Its scope; made when it is needed, for most of many jobs have ended."""
        return Scope(self.spec)

    @cached_property
    def canonical(self) -> Callable[[str], str]:
        return Canonicaliser(self.spec.canonical).canonical

    @property
    def keeps_places(self) -> bool:
        """Whether the queue row of each URL is noted under its fingerprint; that needs whole fingerprints."""
        return not self.dedup_error and (self.spec.max_depth is not None or self.spec.recrawl.age is not None)

    @property
    def running(self) -> bool:
        return traits(self.spec.state).fetched and not self.awaited

    @property
    def row(self) -> r.JobRow:
        return r.JobRow(
            self.name, self.epoch, self.spec, self.since, self.awaited, self.after, self.answers, self.refusal
        )

    def begin(self, epoch: int, *, awaited: bool) -> None:
        """Begin again from the seeds in a new epoch; its rows are dropped by the caller."""
        self.hosts.clear()
        self.joined.clear()
        self.epoch = self.since = epoch
        self.awaited = awaited
        self.counts = JobCounts(folded=self.counts.folded)

    def bury(self, epoch: int) -> None:
        """Become a tombstone; the rows are dropped by the caller."""
        self.begin(epoch, awaited=False)
        self.after = epoch
        self.counts = JobCounts()
        self.dirty = False

    def join(self, place: Place) -> None:
        kind = self.spec.scope.kind
        if kind != "any":
            self.join_by_name(scope_name(kind, place))

    def join_by_name(self, name: str) -> None:
        if name not in self.scope.names and name not in self.joined:
            self.joined.add(name)

    def count_record(self) -> None:
        self.counts.folded += 1
        self.dirty = True

    def count_dropped(self, rule: str, count: int = 1) -> None:
        dropped = self.counts.dropped
        dropped[rule] = dropped.get(rule, 0) + count

    def count_unsent(self, record: u.UrlsRecord) -> None:
        """Count links that parse dropped and did not send, by rule; those of another epoch do not count."""
        if record.epoch != self.epoch:
            return
        for rule, count in record.dropped.items():
            if rule in RULES and 0 < count <= MAX_DROPPED:
                self.count_dropped(rule, count)
            else:
                self.counts.bad += 1

    def count_answer(self, http: int | None, why: str, change: int) -> None:
        """Count a final result by its status code, and by why there is no page; or take one back."""
        if http is not None and 100 <= http <= 999:
            _count_class(self.counts.statuses, str(http), change)
        if why:
            _count_class(self.counts.no_page, why[:MAX_CLASS_CHARS], change)

    def count_final(self, status: u.AttemptStatus, change: int) -> None:
        """Add to the number of URLs that ended with a status."""
        counts = self.counts
        if status == "redirected":
            counts.redirected += change
        elif status == "failed":
            counts.failed += change
        elif status == "refused":
            counts.refused += change
        else:
            counts.fetched += change


def _count_class(classes: dict[str, int], name: str, change: int) -> None:
    if name not in classes and (len(classes) >= MAX_CLASSES or change < 0):
        name = OTHERS
    if (count := classes.get(name, 0) + change) > 0:
        classes[name] = count
    else:
        classes.pop(name, None)


class JobStates:
    """All jobs of one partition, deleted ones included.

    Args:
        rows: The state, from which they are read; `put` and `flush` write them.

    Attributes:
        by_number: Also former jobs whose names have a new job: requests in flight may have their numbers.
    """

    def __init__(self, rows: Rows) -> None:
        self.by_name: dict[str, JobState] = {}
        self.by_number: dict[int, JobState] = {}
        self._running: dict[str, JobState] = {}
        self._touched: dict[int, JobState] = {}
        self._unsorted: dict[int, JobState] = {}
        self._with_queue: dict[int, JobState] = {}
        self._rows = rows
        self._last_number = 0
        for key, value in list(rows.scan(b"j")):
            number = int.from_bytes(key[1:], "big")
            counts = rows.get(r.counts_key(number))
            self._add(JobState(number, r.read_job(value), r.read_counts(counts) if counts else JobCounts(), rows))

    def _add(self, job: JobState) -> None:
        self.by_name[job.name] = job
        self.by_number[job.number] = job
        self._last_number = max(self._last_number, job.number)
        self._unsorted[job.number] = job
        self._note_state(job)

    def _touch(self, job: JobState) -> None:
        """Note that a job's counts may change, so that no job that rests is looked at."""
        self._touched[job.number] = self._unsorted[job.number] = job

    def with_queue(self) -> list[JobState]:
        """The jobs that have something queued, waiting or due again, by number; costs nothing for other jobs."""
        for number, job in self._unsorted.items():
            if job.counts.queued or job.counts.again:
                self._with_queue[number] = job
            else:
                self._with_queue.pop(number, None)
        self._unsorted.clear()
        return [self._with_queue[number] for number in sorted(self._with_queue)]

    def of(self, record: u.UrlsRecord) -> JobState | None:
        """The job of a record; None if it is named and not known yet."""
        if record.job is not None and record.job != u.DEFAULT_JOB:
            job = self.by_name.get(record.job)
        elif record.job is not None or (job := self._only_active()) is None:
            job = self.by_name.get(u.DEFAULT_JOB) or self.create(u.DEFAULT_JOB, 0, u.DEFAULT_SPEC)
        if job is not None:
            self._touch(job)
        return job

    def known(self, name: str) -> JobState | None:
        """A job by its name, whose counts the caller changes; None if it is not known yet, or deleted."""
        job = self.by_name.get(name)
        if job is None or job.deleted:
            return None
        self._touch(job)
        return job

    def _only_active(self) -> JobState | None:
        return next(iter(self._running.values())) if len(self._running) == 1 else None

    def _note_state(self, job: JobState) -> None:
        if job.running and job.name != u.DEFAULT_JOB:
            self._running[job.name] = job
        else:
            self._running.pop(job.name, None)

    def create(self, name: str, epoch: int, spec: u.JobSpec) -> JobState:
        """Add a job, in the place of a deleted one of its name."""
        was = self.by_name.get(name)
        row = r.JobRow(name, epoch, spec, since=epoch)
        if was is not None:
            row = msgspec.structs.replace(row, after=was.after, answers=was.answers, refusal=was.refusal)
            self._rows.delete(r.job_key(was.number))
        job = JobState(self._last_number + 1, row, JobCounts(), self._rows)
        self._add(job)
        self.put(job)
        return job

    def put(self, job: JobState) -> None:
        """Write what changed of a job beside its counts."""
        self._note_state(job)
        self._rows.put(r.job_key(job.number), r.pack(job.row))
        self._touch(job)
        job.dirty = not job.deleted

    def bury(self, job: JobState, epoch: int, spec: u.JobSpec) -> None:
        """Leave a tombstone of a job; the caller drops its rows that `OF_JOB` names."""
        job.set(spec)
        job.bury(epoch)
        self._rows.delete(r.counts_key(job.number))
        self.put(job)

    def note_deleted(self, job: JobState, epoch: int, spec: u.JobSpec) -> None:
        """Take a late deletion of an earlier epoch: the job has begun again since, and its records count."""
        if spec.state == "deleted" and job.after < epoch < job.epoch:
            job.after = epoch
            self.put(job)

    def refusal(self, name: str, epoch: int, spec: u.JobSpec) -> str | None:
        """Why a job's record cannot be stored and obeyed; None if it can."""
        if name not in self.by_name and self._last_number >= MAX_NUMBER and name != u.DEFAULT_JOB:
            return f"job {name!r} is one more than the {MAX_NUMBER} that a partition can number"
        if name == u.DEFAULT_JOB and spec.state == "deleted":
            return "the job of bare records cannot be deleted"
        try:
            _check(epoch, spec)
        except (ValueError, OverflowError, Misconfigured) as error:
            return f"job {name!r} cannot be taken: {error}"
        return None

    def join(self, job: JobState, names: tuple[str, ...]) -> None:
        """Let names join the scope of a job."""
        if job.spec.scope.kind == "any":
            return
        fit = [name for name in names if name.isascii() and 0 < len(name) <= u.MAX_NAME_CHARS]
        job.counts.bad += len(names) - len(fit)
        ahead = self._rows.read_ahead([r.joined_key(job.number, name) for name in fit])
        for name in fit:
            job.join_by_name(name)
        for key in ahead:
            self._rows.let_go(key)

    def flush(self) -> None:
        for job in self._touched.values():
            if job.dirty:
                self._rows.put(r.counts_key(job.number), r.pack(job.counts))
                job.dirty = False
        self._touched.clear()


def _check(epoch: int, spec: u.JobSpec) -> None:
    """Whether a job's record can be stored and obeyed.

    Raises: ValueError, OverflowError, Misconfigured: it cannot.
    """
    if not 0 <= epoch <= u.MAX_EPOCH:
        raise ValueError(f"epoch {epoch} is not in 0..{u.MAX_EPOCH}")
    r.pack(spec)
    if spec.requests is not None:
        check_rules(spec.requests)
    Scope(spec)
    any_of("render.include", spec.render.include)
    any_of("render.exclude", spec.render.exclude)
