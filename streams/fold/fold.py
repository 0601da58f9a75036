"""The fold: how one record of crawl.urls changes the state of its partition.

`state' = fold(state, record)`, pure and total: it reads the record and the job records before it, never the clock, a
worker's settings or the network, and a bad entry is counted or becomes a dead letter, never an exception. So one log
gives the same rows, byte for byte, whatever the workers did.

A rewind of the crawl takes records back, and a fold cannot run backwards. So it asks for that in its effects, and who
drives it folds again from before `start`, with the range in `skipped`: the state is the fold of the effective log, the
log without those ranges. A rewind inside the range of a later one never was.

Whatever changes a result here for a record already in a log needs a new `FOLD_VERSION`.
"""

from collections import deque
from collections.abc import Collection
from typing import Any, Protocol

import msgspec
import re2

from crawlog.schemas import urls as u
from crawlog.schemas.progress import JobCounts
from crawlog.streams.errors import Misconfigured
from crawlog.streams.http import check_rules
from crawlog.streams.url import RULES, Canonicaliser, InvalidUrl, Place, Places, Scope, any_of, fingerprint, scope_name

from . import rows as r
from .fingerprints import Domain
from .overlay import Rows
from .seen import SeenTable
from .traps import MORE_PER_URLS, Traps, session_twin

FOLD_VERSION = 6

_HOSTS_CACHED = 65_536
_NAMES_CACHED = 32_768
"""Of each job and partition: those of a job of 200,000 names, 3 MB."""

MAX_JOBS = 0xFFFE
"""Jobs of one partition: their numbers and epochs are two bytes in keys; the last number is kept for `default`."""

MAX_DEPTH = (1 << 31) - 1
"""Depth and hops of a found beyond this are no sense, and a row could not hold every integer that JSON can."""

MAX_DROPPED = 1 << 31
"""Links of one record that parse says it dropped by one rule, at most: the sums of many have to fit into a row."""

MANY = 8
"""URLs of one record, in a depth-limited job, from which on the depths of those known are read together."""

MAX_OFFSET = 1 << 62
"""A page at a higher offset is no sense."""

MAX_DUE_S = 1e12
"""Due times and waits are cut to this, seconds: 30,000 years."""

_NEVER_ASKED = r.HostRow(0.0, 0.0, 0)

_depth_row = msgspec.msgpack.Decoder(tuple[int, int, int]).decode
_parked = msgspec.msgpack.Decoder(u.FoundUrl).decode


class Effects(msgspec.Struct):
    """What a record asks of the outside, in live reading and in restore alike; doing it twice is harmless.

    Attributes:
        forward: URLs that belong to another partition, with that partition, one record each, `fwd` counted up.
        dead: Why the record, or a part of it, goes to crawl.dead.
        rewind: What the record takes back of what was folded. It changed nothing; the state is to be folded again,
            with `effective(fold.skipped, rewind)`.
    """

    forward: dict[int, u.UrlsRecord] = {}
    dead: list[str] = []
    rewind: r.Skip | None = None


NO_EFFECTS = Effects()


def effective(skipped: tuple[r.Skip, ...], rewind: r.Skip) -> tuple[r.Skip, ...]:
    """The ranges that count once a rewind has been met: those behind it too, of rewinds that were met before."""
    before = tuple(skip for skip in skipped if skip.end < rewind.start)
    return (*before, rewind, *(skip for skip in skipped if skip.start > rewind.end))


class Listener(Protocol):
    """Who dispatches hears of each change as it is folded."""

    def queued(self, job: int, host: str, domain: str, key: bytes, value: bytes) -> None:
        """A URL may be fetched; `value` is its row's, a `QueueRow`."""

    def lowered(self, job: int, host: str, key: bytes, value: bytes) -> None:
        """A URL that is queued or waits has been found nearer, which changed its row."""

    def removed(self, job: int, host: str, key: bytes) -> None:
        """A URL has been done, or waits; `key` is the one it was dispatched under."""

    def waiting(self, job: int, host: str, domain: str, key: bytes, row: r.QueueRow) -> None:
        """A URL waits `row.wait_s` seconds for its next attempt."""

    def outdated(self, key: bytes, epoch: int) -> None:
        """A URL's done changed nothing, for its job has left the epoch it was dispatched in."""

    def job_changed(self, job: int) -> None:
        """A job's record was folded."""

    def forgotten(self, job: int) -> None:
        """All rows of a job were dropped."""


class Job:
    """A job as one partition knows it; `number` is local to the partition, `hosts` have a queue row."""

    def __init__(self, number: int, row: r.JobRow, counts: JobCounts, rows: Rows) -> None:
        self.number = number
        self.joined = Joined(rows, number)
        self.name = row.name
        self.counts = counts
        self.dirty = False
        self.epoch = row.epoch
        self.since = row.since
        self.awaited = row.awaited
        self.hosts: set[str] = set()
        self.set(row.spec)

    def set(self, spec: u.JobSpec) -> None:
        """Take a revision of the job's record."""
        self.spec = spec
        self.scope = Scope(spec)
        self.canonical = Canonicaliser(spec.canonical).canonical
        self.lifo = spec.order == "lifo"

    @property
    def running(self) -> bool:
        """Whether its URLs are fetched."""
        return self.spec.state == "running" and not self.awaited


class _HostQueue:
    __slots__ = ("dirty", "domain", "host", "queued")

    def __init__(self, host: str, domain: str, queued: int) -> None:
        self.host = host
        self.domain = domain
        self.queued = queued
        self.dirty = False


Placed = tuple[str, Place, int]
"""A found URL: canonical, where it belongs, and its fingerprint."""


class Joined:
    """The names that joined a job's scope, as a container; those asked for lately are at hand."""

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
        """Let one join that is not there."""
        self._rows.put(r.joined_key(self._job, name), b"")
        self._know(name)

    def clear(self) -> None:
        """Their rows were dropped."""
        self._known.clear()

    def _know(self, name: object) -> None:
        if len(self._known) >= _NAMES_CACHED:
            self._known.clear()
        self._known.add(name)


class Fold:
    """The state of one partition and how records change it.

    Args:
        partition: The partition of crawl.urls that is folded.
        places: Where URLs belong; its partition count is that of crawl.urls.
        rows: The state; `flush` completes it before a checkpoint.
        cached_pages: Pages of the seen table held in memory.
        skipped: What rewinds take back, as far as they were met, in order.
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
        self.listener: Listener | None = None
        self.jobs: dict[str, Job] = {}
        self.numbers: dict[int, Job] = {}
        self.seen = SeenTable(rows, cached_pages)
        self.traps = Traps(rows, cached_pages)
        self._places = places
        self._hosts: dict[bytes, _HostQueue] = {}
        self._parked = 0
        self._load()

    # ------------------------------------------------------------------ reading

    def take(self, value: bytes | None, offset: int, timestamp_s: float) -> Effects:
        """Fold the record at `offset`.

        Args:
            timestamp_s: The record's own timestamp, UTC epoch seconds: used where the record names no time.
        """
        if self._skips and self._is_skipped(offset):
            return NO_EFFECTS
        try:
            record = u.decode(value)
        except ValueError as error:
            return Effects(dead=[f"does not decode: {error}"])
        if record.spec is not None:
            return self._take_job(record)
        if record.rewind is not None:
            return self._take_rewind(record, record.rewind, offset)
        job = self._job_of(record)
        if record.urls is not None:
            return self._take_found(job, record, offset)
        if job is not None:
            self._count_record(job)
            self._take_joins(job, record.joins or ())
            for result in record.results or ():
                self._take_result(job, result, record.epoch, timestamp_s)
        return NO_EFFECTS

    def flush(self) -> None:
        """Write into the rows what is held beside them: before each checkpoint and each digest."""
        self.seen.flush()
        self.traps.flush()
        for key, queue in self._hosts.items():
            if queue.dirty:
                self.rows.put(key, r.pack(r.HostQueueRow(queue.host, queue.domain, queue.queued)))
                queue.dirty = False
        if len(self._hosts) > self.seen.cached:
            self._hosts.clear()
        for job in self.numbers.values():
            if job.dirty:
                self.rows.put(r.counts_key(job.number), r.pack(job.counts))
                job.dirty = False

    def host_queue(self, job: int, host: int) -> r.HostQueueRow | None:
        """A host queue as it is now; `host` is its hash."""
        key = r.host_queue_key(job, host)
        queue = self._hosts.get(key)
        if queue is not None:
            return r.HostQueueRow(queue.host, queue.domain, queue.queued)
        stored = self.rows.get(key)
        return r.read_host_queue(stored) if stored else None

    def queued_of(self, job: int, host: int) -> int:
        """URLs in a host queue, waiting ones included; `host` is its hash."""
        queue = self.host_queue(job, host)
        return queue.queued if queue is not None else 0

    # ------------------------------------------------------------------ rewinds

    def _is_skipped(self, offset: int) -> bool:
        while self._skips and self._skips[0].end <= offset:
            self._skips.popleft()
        return bool(self._skips) and self._skips[0].start <= offset

    def _take_rewind(self, record: u.UrlsRecord, rewind: u.Rewind, offset: int) -> Effects:
        if record.job is not None:
            job = self.jobs.get(record.job)
            if job is not None and record.epoch > job.epoch:
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
        for job in self.numbers.values():
            job.epoch, job.awaited = record.epoch, True
            self._put_job(job)
            self._tell_changed(job)
        return NO_EFFECTS

    def _epoch(self, offset: int) -> int:
        """The latest epoch of any job, or of a rewind before `offset`."""
        began = [skip.epoch for skip in self.skipped if skip.end < offset]
        return max([0, *began, *(job.epoch for job in self.numbers.values())])

    def _begin(self, job: Job, epoch: int, *, awaited: bool) -> None:
        """Drop all that is known of a job but its record: it begins again, in a new epoch. Hosts keep their rests."""
        for kind in r.OF_JOB:
            self.rows.drop(r.of_job(kind, job.number))
        self.seen.forget(job.number)
        self.traps.forget(job.number)
        job.hosts.clear()
        job.joined.clear()
        self._hosts = {key: queue for key, queue in self._hosts.items() if r.unpack_host_queue(key)[0] != job.number}
        job.epoch = job.since = epoch
        job.awaited = awaited
        job.counts = JobCounts(folded=job.counts.folded)
        self._put_job(job)
        if self.listener is not None:
            self.listener.forgotten(job.number)

    # ------------------------------------------------------------------ jobs

    def _load(self) -> None:
        for key, value in list(self.rows.scan(b"j")):
            number = int.from_bytes(key[1:], "big")
            counts = self.rows.get(r.counts_key(number))
            self._add(Job(number, r.read_job(value), r.read_counts(counts) if counts else JobCounts(), self.rows))
        self._parked = sum(1 for _ in self.rows.scan(b"p"))

    def _add(self, job: Job) -> None:
        self.jobs[job.name] = job
        self.numbers[job.number] = job

    def _job_of(self, record: u.UrlsRecord) -> Job | None:
        if record.job is not None and record.job != u.DEFAULT_JOB:
            return self.jobs.get(record.job)
        if record.job is None and (only := self._only_active()) is not None:
            return only
        return self.jobs.get(u.DEFAULT_JOB) or self._create(u.DEFAULT_JOB, 0, u.DEFAULT_SPEC)

    def _only_active(self) -> Job | None:
        active = [job for job in self.jobs.values() if job.running and job.name != u.DEFAULT_JOB]
        return active[0] if len(active) == 1 else None

    def _create(self, name: str, epoch: int, spec: u.JobSpec) -> Job:
        job = Job(len(self.numbers) + 1, r.JobRow(name, epoch, spec, since=epoch), JobCounts(), self.rows)
        self._add(job)
        self._put_job(job)
        return job

    def _put_job(self, job: Job) -> None:
        job.dirty = True
        self.rows.put(r.job_key(job.number), r.pack(r.JobRow(job.name, job.epoch, job.spec, job.since, job.awaited)))

    def _take_job(self, record: u.UrlsRecord) -> Effects:
        assert record.job is not None
        assert record.spec is not None
        job = self.jobs.get(record.job)
        if job is None and len(self.numbers) >= MAX_JOBS and record.job != u.DEFAULT_JOB:
            return Effects(dead=[f"job {record.job!r} is one more than the {MAX_JOBS} a partition can hold"])
        try:
            _check_job(record, record.spec)
        except (ValueError, OverflowError, Misconfigured) as error:
            return Effects(dead=[f"job {record.job!r} cannot be taken: {error}"])
        if job is None:
            job = self._create(record.job, record.epoch, record.spec)
            self._count_record(job)
            self._unpark(job)
        else:
            self._count_record(job)
            self._revise(job, record.spec, record.epoch)
        self._tell_changed(job)
        return NO_EFFECTS

    def _take_joins(self, job: Job, names: tuple[str, ...]) -> None:
        """Let scope names join a job."""
        if job.spec.scope.kind == "any":
            return
        fit = [name for name in names if name.isascii() and 0 < len(name) <= u.MAX_NAME_CHARS]
        job.counts.bad += len(names) - len(fit)
        ahead = self.rows.read_ahead([r.joined_key(job.number, name) for name in fit])
        for name in fit:
            self._join_by_name(job, name)
        for key in ahead:
            self.rows.let_go(key)

    def _revise(self, job: Job, spec: u.JobSpec, epoch: int) -> None:
        if spec.rev > job.spec.rev:
            if epoch > job.epoch:
                self._begin(job, epoch, awaited=False)
            # Queue keys depend on the order, pages on confirmation: both are fixed for the job's life.
            job.set(msgspec.structs.replace(spec, order=job.spec.order, confirm=job.spec.confirm))
            self._put_job(job)
        if job.awaited and epoch >= job.epoch:
            job.awaited = False
            self._put_job(job)

    def _tell_changed(self, job: Job) -> None:
        if self.listener is not None:
            self.listener.job_changed(job.number)

    def _unpark(self, job: Job) -> None:
        if not self._parked:
            return
        for key, value in list(self.rows.scan(b"p")):
            if key[9:] == job.name.encode():
                self.rows.delete(key)
                self._parked -= 1
                found = _parked(value)
                self._offer(job, found, self._place(job, found), int.from_bytes(key[1:9], "big"))

    @staticmethod
    def _count_record(job: Job) -> None:
        job.counts.folded += 1
        job.dirty = True

    def _count_dropped(self, job: Job, record: u.UrlsRecord) -> None:
        """Add links that parse did not send to those that were dropped here; the counts of another epoch are gone."""
        if record.epoch != job.epoch:
            return
        for rule, count in record.dropped.items():
            if rule in RULES and 0 < count <= MAX_DROPPED:
                self._drop(job, rule, count)
            else:
                self._bad(job)

    # ------------------------------------------------------------------ found

    def _take_found(self, job: Job | None, record: u.UrlsRecord, offset: int) -> Effects:
        assert record.urls is not None
        effects = NO_EFFECTS
        if job is not None:
            self._count_record(job)
            if record.dropped:
                self._count_dropped(job, record)
        places = [
            self._place(job, found) if not index >> r.SEQUENCE_INDEX_BITS and _makes_sense(found) else None
            for index, found in enumerate(record.urls)
        ]
        ahead = self._read_ahead(job, places)
        for index, (found, placed) in enumerate(zip(record.urls, places, strict=True)):
            sequence = (offset << r.SEQUENCE_INDEX_BITS) + index
            if placed is None:
                self._bad(job)
            elif placed[1].partition != self.partition:
                effects = self._misplaced(effects, record, found, placed[1].partition)
            elif job is None:
                assert record.job is not None
                parked = msgspec.structs.replace(found, priority=_priority(found.priority))
                self.rows.put(r.parked_key(sequence, record.job), r.pack(parked))
                self._parked += 1
            else:
                self._offer(job, found, placed, sequence)
        for key in ahead:
            self.rows.let_go(key)
        return effects

    def _read_ahead(self, job: Job | None, places: list[Placed | None]) -> list[bytes]:
        """Keys of rows that a record's URLs ask for, which were read together: half the cost of a look-up each."""
        if job is None or len(places) < MANY:
            return []
        mine = [p for p in places if p is not None and p[1].partition == self.partition]
        by_host = {place.host_hash: place for _, place, _ in mine}
        ahead = self.rows.read_ahead(self._keys_of_places(job, by_host.values()))
        if job.spec.max_depth is not None and job.spec.confirm:
            known = [(place, mark) for _, place, mark in mine if self._knows(job, place, mark)]
            ahead += self.rows.read_ahead([self._depth_key(job, place, mark) for place, mark in known])
        return ahead

    def _keys_of_places(self, job: Job, places: Collection[Place]) -> list[bytes]:
        """Rows of hosts, domains and names that are not in memory."""
        hosts = [r.host_queue_key(job.number, place.host_hash) for place in places]
        keys = [key for key in hosts if key not in self._hosts]
        if len(keys) < MANY:
            return []
        domains = {place.domain_hash for place in places}
        keys += [
            r.domain_key(job.number, job.since, domain)
            for domain in domains
            if not self.seen.holds(job.number, job.since, domain)
        ]
        if job.spec.scope.kind != "any":
            names = {scope_name(job.spec.scope.kind, place) for place in places}
            keys += [r.joined_key(job.number, name) for name in names - job.scope.names]
        return keys

    def _knows(self, job: Job, place: Place, mark: int) -> bool:
        return self.seen.knows(job.number, job.since, place.domain_hash, mark, job.spec.confirm)

    @staticmethod
    def _depth_key(job: Job, place: Place, mark: int) -> bytes:
        return r.depth_key(job.number, job.since, place.domain_hash, mark)

    @staticmethod
    def _bad(job: Job | None) -> None:
        if job is not None:
            job.counts.bad += 1

    def _place(self, job: Job | None, found: u.FoundUrl) -> Placed | None:
        """The canonical URL and where it belongs; None when it is no http(s) URL."""
        try:
            url = (job.canonical if job is not None else _default_canonical)(found.url)
            return url, self._places.of(url), fingerprint(url)
        except InvalidUrl:
            return None

    @staticmethod
    def _misplaced(effects: Effects, record: u.UrlsRecord, found: u.FoundUrl, partition: int) -> Effects:
        if effects is NO_EFFECTS:
            effects = Effects()
        if record.fwd:
            effects.dead.append(f"forwarded already, and {found.url} belongs to partition {partition}")
            return effects
        forward = effects.forward.get(partition)
        if forward is None:
            forward = effects.forward[partition] = u.UrlsRecord(
                job=record.job, epoch=record.epoch, at=record.at, fwd=record.fwd + 1, urls=[]
            )
        assert forward.urls is not None
        forward.urls.append(found)
        return effects

    def _offer(self, job: Job, found: u.FoundUrl, placed: Placed | None, sequence: int) -> None:
        """Queue a URL unless a rule drops it or the job knows it; only a queued one is marked seen."""
        if placed is None:
            self._bad(job)
            return
        url, place, mark = placed
        if found.source == "seed" or found.joins:
            self._join(job, place)
        rule = job.scope.refusal(url, place, found.depth, found.hops, job.joined)
        if rule is not None:
            self._drop(job, rule)
            return
        if self._knows(job, place, mark):
            self._offer_known(job, found, placed, sequence)
            return
        rule = self._refusal_of_new(job, found, url, place)
        if rule is not None:
            self._drop(job, rule)
            return
        self._mark(job, place, mark)
        self._note_depth(job, place, mark, (found.depth, _priority(found.priority), sequence))
        self._queue(job, found, url, place, sequence)

    def _offer_known(self, job: Job, found: u.FoundUrl, placed: Placed, sequence: int) -> None:
        """Queue a URL that the job knows where its done counts no longer, or from a lesser depth."""
        url, place, _ = placed
        was = found.again
        if was is None and found.checked and self._is_first_check(job, url, place):
            was = "redirected"
        if was is not None:
            self._queue_again(job, found, was, placed, sequence)
        elif not self._found_nearer(job, found, placed, sequence):
            job.counts.seen += 1

    def _refusal_of_new(self, job: Job, found: u.FoundUrl, url: str, place: Place) -> str | None:
        """The rule about what its domain and host had already that refuses a URL the job does not know."""
        budget = job.spec.max_pages_per_domain
        if budget is not None and self._queued_in(job, place) >= budget:
            return "domain_budget"
        if found.source == "seed" or found.joins:
            return None
        return self._trap(job, found, url, place)

    def _queued_in(self, job: Job, place: Place) -> int:
        """URLs of a domain that were ever queued."""
        return self._domain(job, place).queued

    def _domain(self, job: Job, place: Place) -> Domain[Any]:
        return self.seen.domain(job.number, job.since, place.domain_hash, job.spec.confirm)

    def _trap(self, job: Job, found: u.FoundUrl, url: str, place: Place) -> str | None:
        """The trap rule that refuses a new URL that was not given as a seed."""
        rules = job.spec.traps
        twin = session_twin(url) if rules.sessions and found.source != "redirect" else None
        if twin is not None and any(self._knows(job, place, fingerprint(name)) for name in twin):
            return "trap_session"
        is_host_new = self._is_new_host(job, place)
        if is_host_new and self._has_hosts(job, place):
            return "trap_hosts"
        # What a sitemap lists is finite, and meant to be asked for.
        rule = self.traps.suspicion(job.number, rules, found, url, place) if found.source != "sitemap" else None
        if rule is not None and not self.traps.may_stray(
            job.number, rules, rule, url, place, self._queued_in(job, place)
        ):
            return rule
        if twin is not None:
            self._mark_name(job, place, fingerprint(twin[1]))
        if is_host_new:
            self.traps.one_host_more(job.number, place.domain_hash)
        return None

    def _is_new_host(self, job: Job, place: Place) -> bool:
        """Whether a host beside the domain's own name has had no queue yet."""
        host, domain = place.host, place.domain
        if host in job.hosts or host.startswith(domain, host.index("//") + 2):
            return False
        key = r.host_queue_key(job.number, place.host_hash)
        is_new = key not in self._hosts and self.rows.get(key) is None
        if not is_new:
            if len(job.hosts) >= _HOSTS_CACHED:
                job.hosts.clear()
            job.hosts.add(host)
        return is_new

    def _has_hosts(self, job: Job, place: Place) -> bool:
        limit = job.spec.traps.hosts
        if limit is None:
            return False
        most = limit + self._queued_in(job, place) // MORE_PER_URLS
        return self.traps.hosts(job.number, place.domain_hash) >= most

    def _mark(self, job: Job, place: Place, mark: int) -> None:
        self.seen.insert(job.number, job.since, place.domain_hash, mark, job.spec.confirm)

    def _mark_name(self, job: Job, place: Place, mark: int) -> None:
        """Remember a name that is no URL: it counts for no budget, and has no depth."""
        self._mark(job, place, mark)
        self._domain(job, place).queued -= 1

    def _join(self, job: Job, place: Place) -> None:
        kind = job.spec.scope.kind
        if kind != "any":
            self._join_by_name(job, scope_name(kind, place))

    @staticmethod
    def _join_by_name(job: Job, name: str) -> None:
        if name not in job.scope.names and name not in job.joined:
            job.joined.add(name)

    @staticmethod
    def _drop(job: Job, rule: str, count: int = 1) -> None:
        dropped = job.counts.dropped
        dropped[rule] = dropped.get(rule, 0) + count

    def _found_nearer(self, job: Job, found: u.FoundUrl, placed: Placed, sequence: int) -> bool:
        """Whether a known URL of a depth-limited job was found at a lesser depth, and so is fetched (again) from there.

        A row still queued is lowered in place; a fetch in flight then ends with a greater depth than its row, which
        keeps the row. A URL already done is queued anew.
        """
        if job.spec.max_depth is None:
            return False
        url, place, mark = placed
        known = self.rows.get(self._depth_key(job, place, mark))
        if known is None:
            return False
        depth, priority, old_sequence = _depth_row(known)
        if found.depth >= depth:
            return False
        host = place.host_hash
        for key in (
            r.queue_key(job.number, host, priority, old_sequence, job.lifo),
            r.wait_key(job.number, host, old_sequence),
        ):
            stored = self.rows.get(key)
            if stored is not None:
                lowered = r.pack(msgspec.structs.replace(r.read_queued(stored), depth=found.depth))
                self.rows.put_ordered(key, lowered)
                if self.listener is not None:
                    self.listener.lowered(job.number, place.host, key, lowered)
                self._note_depth(job, place, mark, (found.depth, priority, old_sequence))
                return True
        self._note_depth(job, place, mark, (found.depth, _priority(found.priority), sequence))
        self._queue(job, found, url, place, sequence)
        return True

    def _is_first_check(self, job: Job, url: str, place: Place) -> bool:
        """Whether no check for cookies has led back to a URL yet; from now on one has."""
        mark = fingerprint(f"{url}\tchecked")
        if self._knows(job, place, mark):
            return False
        self._mark_name(job, place, mark)
        return True

    def _queue_again(self, job: Job, found: u.FoundUrl, was: u.Status, placed: Placed, sequence: int) -> None:
        """Queue a URL whose done counts no longer: its old row is gone with that."""
        url, place, mark = placed
        self._count_final(job, was, -1)
        job.counts.seen += 1
        job.counts.page_end = job.counts.page_back = 0
        self._note_depth(job, place, mark, (found.depth, _priority(found.priority), sequence))
        self._queue(job, found, url, place, sequence)

    def _note_depth(self, job: Job, place: Place, mark: int, row: tuple[int, int, int]) -> None:
        """Keep at which depth a URL was queued, and its queue row, in a depth-limited job that confirms."""
        if job.spec.max_depth is not None and job.spec.confirm:
            self.rows.put(self._depth_key(job, place, mark), r.pack(row))

    def _queue(self, job: Job, found: u.FoundUrl, url: str, place: Place, sequence: int) -> None:
        host = place.host_hash
        priority = _priority(found.priority)
        key = r.queue_key(job.number, host, priority, sequence, job.lifo)
        seed = found.source == "seed" or found.joins
        row = r.QueueRow(url, found.depth, found.hops, seed, 0, priority, sitemap=found.source == "sitemap")
        value = r.pack(row)
        self.rows.put_ordered(key, value)
        self._count_queued(job, host, place, 1)
        if self.listener is not None:
            self.listener.queued(job.number, place.host, place.domain, key, value)

    def _count_queued(self, job: Job, host: int, place: Place, change: int) -> None:
        key = r.host_queue_key(job.number, host)
        queue = self._hosts.get(key)
        if queue is None:
            stored = self.rows.get(key)
            row = r.read_host_queue(stored) if stored else r.HostQueueRow(place.host, place.domain, 0)
            queue = self._hosts[key] = _HostQueue(row.host, row.domain, row.queued)
        queue.queued += change
        queue.dirty = True
        job.counts.queued += change
        job.dirty = True

    # ------------------------------------------------------------------ done

    def _take_result(self, job: Job, result: u.Result, epoch: int, timestamp_s: float) -> None:
        """Fold what became of one attempt; it counts only if its URL has a row, so a doubled one is harmless."""
        if result.page is not None:
            self._note_page(job, *result.page)
        if not 0 <= result.row < 1 << 64 or not result.url.startswith(("http://", "https://")):
            job.counts.bad += 1
            return
        place = self._places.of(result.url)
        host = place.host_hash
        queue_key = r.queue_key(job.number, host, _priority(result.priority), result.row, job.lifo)
        waited = r.wait_key(job.number, host, result.row)
        stored = self.rows.get(queue_key)
        key = queue_key if stored is not None else waited
        if stored is None and (stored := self.rows.get(waited)) is None:
            return
        if epoch != job.epoch:
            self._tell_outdated(key, epoch)
            return
        row = r.read_queued(stored)
        if row.url != result.url or (result.status == "failed" and result.attempt != row.attempt + 1):
            return
        self._take_counted(job, result, place, key, row, timestamp_s)

    def _note_page(self, job: Job, partition: int, offset: int) -> None:
        """Pages of one partition are done in their order, so an offset that comes again was given out again."""
        if partition == self.partition and 0 <= offset < MAX_OFFSET:
            counts = job.counts
            counts.page_back += offset < counts.page_end
            counts.page_end = max(counts.page_end, offset + 1)
            job.dirty = True

    def _tell_outdated(self, key: bytes, epoch: int) -> None:
        if self.listener is not None:
            self.listener.outdated(key, epoch)

    def _take_counted(  # what `_take_result` has found out
        self, job: Job, result: u.Result, place: Place, key: bytes, row: r.QueueRow, timestamp_s: float
    ) -> None:
        host = place.host_hash
        self.rows.delete(key)
        if row.due_ms:
            self.rows.delete(r.due_key(row.due_ms, job.number, host, result.row))
        self._note_host(host, result, timestamp_s)
        if self.listener is not None:
            self.listener.removed(job.number, place.host, key)
        if result.status == "failed" and result.next_at > 0:
            self._wait(job, place, host, row, result)
        elif result.depth > row.depth:
            self._again(job, place, row, result.row)
        else:
            self._count_final(job, result.status, 1)
            self._count_queued(job, host, place, -1)

    def _wait(self, job: Job, place: Place, host: int, row: r.QueueRow, result: u.Result) -> None:
        due_ms = max(int(min(result.next_at, MAX_DUE_S) * 1000), 1)
        wait_s = min(max(result.delay_s, 0.0), MAX_DUE_S)
        later = msgspec.structs.replace(row, attempt=result.attempt, due_ms=due_ms, wait_s=wait_s)
        key = r.wait_key(job.number, host, result.row)
        self.rows.put(key, r.pack(later))
        self.rows.put(r.due_key(due_ms, job.number, host, result.row), b"")
        job.counts.retried += 1
        job.dirty = True
        if self.listener is not None:
            self.listener.waiting(job.number, place.host, place.domain, key, later)

    def _again(self, job: Job, place: Place, row: r.QueueRow, sequence: int) -> None:
        """Keep the row of a URL that was found nearer while it was being fetched."""
        key = r.queue_key(job.number, place.host_hash, row.priority, sequence, job.lifo)
        fresh = r.pack(msgspec.structs.replace(row, attempt=0, due_ms=0, wait_s=0.0))
        self.rows.put_ordered(key, fresh)
        if self.listener is not None:
            self.listener.queued(job.number, place.host, place.domain, key, fresh)

    def _note_host(self, host: int, result: u.Result, timestamp_s: float) -> None:
        if result.status == "refused":
            return
        key = r.host_key(host)
        stored = self.rows.get(key)
        before = r.read_host(stored) if stored else _NEVER_ASKED
        at = result.at or timestamp_s
        # Several at a time: a rest that one answer asked for is not over because another one was fine.
        left_s = min(before.last_at + before.wait_s - at, before.wait_s)
        wait_s = min(max(result.host_wait_s, left_s, 0.0), MAX_DUE_S)
        failures = before.failures + 1 if result.host_wait_s > 0 else 0
        self.rows.put(key, r.pack(r.HostRow(at, wait_s, failures)))

    @staticmethod
    def _count_final(job: Job, status: u.Status, change: int) -> None:
        counts = job.counts
        if status == "redirected":
            counts.redirected += change
        elif status == "failed":
            counts.failed += change
        elif status == "refused":
            counts.refused += change
        else:
            counts.fetched += change


_default_canonical = Canonicaliser(u.CanonicalRules()).canonical


def _priority(priority: int) -> int:
    return priority if -128 <= priority <= 127 else min(max(priority, -128), 127)


def _makes_sense(found: u.FoundUrl) -> bool:
    return len(found.url) <= u.MAX_URL_BYTES and 0 <= found.depth <= MAX_DEPTH and 0 <= found.hops <= MAX_DEPTH


def _check_job(record: u.UrlsRecord, spec: u.JobSpec) -> None:
    """Whether a job's record can be stored and obeyed.

    Raises: ValueError, OverflowError, Misconfigured: it cannot.
    """
    if not 0 <= record.epoch <= u.MAX_EPOCH:
        raise ValueError(f"epoch {record.epoch} is not in 0..{u.MAX_EPOCH}")
    r.pack(spec)
    if spec.requests is not None:
        check_rules(spec.requests)
    try:
        Scope(spec)
        any_of("render.include", spec.render.include)
        any_of("render.exclude", spec.render.exclude)
    except re2.error as error:
        raise ValueError(f"scope or render: the expressions together are too large: {error}") from None
