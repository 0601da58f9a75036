"""Rewinds: a state is the fold of the effective log, whatever was folded when a rewind was met."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from crawlog.agents.seed.planting import kept_seeds
from crawlog.schemas import urls as u
from crawlog.schemas.control import JobCopy, Rewound
from crawlog.streams.cluster.client import kafka_config, log_bounds, log_identity
from crawlog.streams.control import job_records
from crawlog.streams.control import rewind as rewinds
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.overlay import InMemory, Rows
from crawlog.streams.fold.revisions import effective
from crawlog.streams.jobs import ControlState
from crawlog.streams.log import provision, topics
from crawlog.streams.log.producer import Producer
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink_groups import RewoundRange, SinkSpec
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.state.restore import Restorer
from crawlog.streams.url.place import Places
from tests.support.dying import dying
from tests.support.folding import AT, A, B, State, crawl, done, found, job, sequence, true_dones


def rewind(epoch: int, start: int = 0, job: str | None = None) -> bytes:
    """An epoch record."""
    return u.encode(u.UrlsRecord(job=job, epoch=epoch, rewind=u.Rewind(start)))


class Rebuilt(State):
    """A fold that goes back where a record says so: to its checkpoint, if that is old enough, or to nothing."""

    def __init__(self, log: list[bytes]) -> None:
        self.log = log
        self.checkpointed = 0
        self.kept: tuple[r.Skip, ...] = ()
        self.skipped: tuple[r.Skip, ...] = ()
        super().__init__()

    def open(self, skipped: tuple[r.Skip, ...] = ()) -> None:
        """Open what was checkpointed last."""
        super().open(skipped or self.skipped)
        self.offset = self.checkpointed

    def checkpoint(self) -> None:
        """Write all changes."""
        super().checkpoint()
        self.checkpointed, self.kept = self.offset, self.fold.skipped
        self.skipped = self.kept

    def go_on(self, end: int) -> None:
        """Fold the log up to an offset."""
        while self.offset < end:
            effects = self.fold.take(self.log[self.offset], self.offset, AT)
            if effects.rewind is None:
                self.offset += 1
                continue
            self.skipped = effective(self.fold.skipped, effects.rewind)
            if self.checkpointed > effects.rewind.start or not r.fits(self.kept, self.checkpointed, self.skipped):
                self.base, self.checkpointed = InMemory(), 0
            self.open()


def effective_log(log: list[bytes]) -> tuple[list[r.Skip], str]:
    """The simple model: a rewind that counts makes the log what it was at its start, and goes on behind itself."""
    struck: list[list[r.Skip]] = [[]]
    for at, value in enumerate(log):
        now = struck[at]
        record = u.decode(value)
        if record.rewind is not None and record.job is None and record.rewind.start <= at:
            job_records = folded(log[:at], now).fold.jobs.values()
            if record.epoch > max([0, *(skip.epoch for skip in now), *(job.epoch for job in job_records)]):
                now = [*struck[record.rewind.start], r.Skip(record.rewind.start, at, record.epoch)]
        struck.append(now)
    return struck[-1], folded(log, struck[-1]).digest()


def folded(log: list[bytes], struck: list[r.Skip]) -> State:
    """The fold of what is not struck out."""
    state = State()
    state.fold.skipped = tuple(struck)
    for at, value in enumerate(log):
        if not any(skip.start <= at < skip.end for skip in struck):
            assert state.fold.take(value, at, AT).rewind is None
    return state


def with_rewinds(seed: int) -> list[bytes]:
    """A log with rewinds of the crawl and of a job anywhere, nested, repeated, late; each job's record follows."""
    draw = random.Random(seed)
    log = true_dones(crawl(seed))
    epoch = 0
    for at in sorted(draw.sample(range(1, len(log)), draw.randrange(1, 6))):
        name = draw.choice([None, None, "j"])
        late = draw.random() < 0.2
        epoch += not late
        start = 0 if name else draw.randrange(at + 1)
        records = [rewind(max(epoch, 1), start, name)] * draw.choice([1, 1, 2])
        records += [job(name, epoch, rev=10 + epoch) for name in ("j", "k") if draw.random() < 0.7]
        log[at:at] = records
    return log


REWOUND = st.integers(0, 100_000).map(with_rewinds)


@given(REWOUND, st.lists(st.integers(0, 80)), st.lists(st.integers(0, 80)))
def test_a_state_is_the_fold_of_what_counts(log: list[bytes], checkpoints: list[int], restarts: list[int]) -> None:
    """From nothing, from any checkpoint, restarted anywhere: the rows and the ranges are those of the simple model."""
    state = Rebuilt(log)
    for at in range(len(log)):
        if at in checkpoints:
            state.checkpoint()
        if at in restarts:
            state.open()
        state.go_on(at + 1)
    assert (list(state.fold.skipped), state.digest()) == effective_log(log)


@given(REWOUND, st.integers(0, 80), st.integers(0, 80))
def test_a_rebuild_may_be_interrupted(log: list[bytes], first: int, then: int) -> None:
    """Ranges met before the end are kept beside a state that has not come to them again."""
    whole = Rebuilt(log)
    whole.go_on(len(log))
    again = Rebuilt(log)
    again.skipped = whole.fold.skipped
    again.open()
    for end in (first, then):
        again.go_on(min(end, len(log)))
        again.checkpoint()
        again.open()
    again.go_on(len(log))
    assert (again.fold.skipped, again.digest()) == (whole.fold.skipped, whole.digest())


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ([], [(2, 5)]),
        ([(2, 5)], [(2, 5), (7, 9)]),
        ([(2, 5), (7, 9)], [(3, 12)]),
        ([(2, 5), (7, 9)], [(2, 5), (6, 12)]),
        ([(2, 5)], [(5, 8)]),
        ([(9, 12)], [(3, 6), (9, 12)]),
    ],
)
def test_a_rewind_inside_a_later_one_never_was(before: list[tuple[int, int]], then: list[tuple[int, int]]) -> None:
    """Ranges that count, from the last rewind back; what stands behind it was met before the state was rebuilt."""
    skips = tuple(r.Skip(start, end, 1) for start, end in before)
    new = next(r.Skip(start, end, 1) for start, end in then if (start, end) not in before)
    assert [(skip.start, skip.end) for skip in effective(skips, new)] == then


# ---------------------------------------------------------------------- the crawl


def rewound(*log: bytes) -> Rebuilt:
    """A log, folded to its end."""
    state = Rebuilt(list(log))
    state.go_on(len(log))
    return state


def test_what_was_found_later_is_offered_again() -> None:
    """What was done before stays done, what was done later is queued again, what was found later is new."""
    log = [job(), found(A, B), done(A, sequence(1)), done(B, sequence(1, 1)), found("http://c.org/")]
    state = rewound(*log, rewind(1, 3), job(epoch=1, rev=2), found(A, "http://c.org/", B))
    assert sorted(state.urls()) == [B, "http://c.org/"]
    assert (state.counts.fetched, state.counts.seen) == (1, 2)


def test_only_dones_of_the_new_epoch_count() -> None:
    """One of the old epoch was written by who had not met the rewind yet."""
    log = [job(), found(A), rewind(1, 2), job(epoch=1, rev=2)]
    assert rewound(*log, done(A, sequence(1), epoch=0)).urls() == [A]
    assert rewound(*log, done(A, sequence(1), epoch=1)).urls() == []


@pytest.mark.parametrize("name", [None, "j"])
def test_nothing_is_fetched_before_the_job_record_of_the_epoch(name: str | None) -> None:
    """It is written when the epoch record is everywhere; one of an older epoch is not it."""
    log = [job(), found(A), rewind(1, 2 if name is None else 0, name), job(rev=2)]
    state = rewound(*log)
    assert not state.fold.jobs["j"].running
    state.checkpoint()
    state.open()
    assert not state.fold.jobs["j"].running
    assert rewound(*log, job(epoch=1, rev=3)).fold.jobs["j"].running


def renewed(monkeypatch: pytest.MonkeyPatch, epoch: int) -> list[bytes]:
    """The job records that a rewind of the crawl writes to a partition if crawl.control has no job."""
    monkeypatch.setattr(rewinds, "read_control", lambda *_: ControlState())
    monkeypatch.setattr(rewinds, "partition_count", lambda *_: 1)
    producer = Mock()
    rewinds._renew_jobs(Settings(), producer, topics.Topics("crawl."), epoch)
    return [call.args[1] for call in producer.send.call_args_list]


@pytest.mark.parametrize("log", [[b"http://a.com/"], [b"http://a.com/", b"http://b.com/", rewind(1, 1)], []])
def test_the_job_of_bare_records_goes_on_after_a_rewind(log: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was known, stands still since an earlier rewind, or begins later."""
    state = rewound(*log, rewind(2, len(log)), *renewed(monkeypatch, 2), b"http://c.org/")
    default = state.fold.jobs[u.DEFAULT_JOB]
    assert (default.epoch, default.running) == (2, True)
    assert "http://c.org/" in state.urls()


def sent_again(monkeypatch: pytest.MonkeyPatch, log: list[bytes], epoch: int, start: int) -> list[bytes]:
    """The founds that a rewind of the crawl sends again; its epoch record ends the log of the one partition."""

    def read(_settings: Settings, _topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Mock]:
        for offset in range(*ranges[0]):
            yield Mock(
                **{"value.return_value": log[offset], "partition.return_value": 0, "offset.return_value": offset}
            )

    monkeypatch.setattr(rewinds, "read_partitions", read)
    monkeypatch.setattr(rewinds, "log_bounds", lambda *_: {0: (0, len(log))})
    producer = Mock()
    rewinds._Past(Settings(), topics.Topics("crawl."), Rewound(epoch, start={0: start})).send_again(producer)
    return [call.args[1] for call in producer.send.call_args_list]


@pytest.mark.parametrize("start", [1, 4])
def test_a_bare_record_counts_after_a_rewind_for_the_job_that_it_was_of(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted job had the name before: its bare records stay gone, those of the later job are sent again."""
    bare = b'{"job": "j", "url": "http://%s.org/"}'
    log = [job(), bare % b"old", job(rev=2, state="deleted"), job(epoch=1), bare % b"new", rewind(2, start)]
    state = rewound(*log, job(epoch=2, rev=3), *sent_again(monkeypatch, log, 2, start))
    assert state.urls() == ["http://new.org/"]


def test_an_epoch_record_that_was_written_twice_counts_once() -> None:
    """Who was killed after some of them writes all again."""
    log = [job(), found(A), rewind(1, 2), job(epoch=1, rev=2), found(B), rewind(1, 2), rewind(1, 0)]
    state = rewound(*log)
    assert sorted(state.urls()) == [A, B]
    assert state.fold.skipped == (r.Skip(2, 2, 1),)


def test_a_job_that_began_later_is_unknown_again() -> None:
    """Until its record comes once more; what is found meanwhile is parked."""
    state = rewound(job(), found(A), job("k"), found(B, job="k"), rewind(1, 2), found(B, job="k"), job("k", 1, rev=2))
    assert sorted(state.urls()) == [A, B]
    assert state.fold.jobs["k"].epoch == 1


# ---------------------------------------------------------------------- a job


def fresh(**changes: Any) -> list[bytes]:
    """What `run --fresh` writes."""
    return [rewind(1, job="j"), job(epoch=1, rev=2, **changes)]


def test_a_fresh_job_has_no_rows_of_its_old_epoch() -> None:
    """Whatever is of that job goes, on disk and in memory; another's stays, and so do hosts."""
    past = [job(scope=u.ScopeSpec()), job("k"), found(A, B), found(A, job="k"), done(A, sequence(2), host_wait_s=9.0)]
    past += [done(B, sequence(2, 1), "failed", next_at=AT + 9, delay_s=9.0), found("http://b.com/y")]
    kept = State(*past)
    hosts = dict(kept.rows.scan(b"h"))
    for checkpointed in (0, 3, len(past)):
        state = State(*past[:checkpointed])
        state.checkpoint()
        state.take(*past[checkpointed:], *fresh(scope=u.ScopeSpec()))
        state.checkpoint()
        of_j = [key for kind in r.OF_JOB for key, _ in state.base.scan(kind) if key.startswith(r.of_job(kind, 1))]
        assert of_j == []
        assert state.urls() == [A]
        assert dict(state.rows.scan(b"h")) == hosts
        assert (state.counts.fetched, state.counts.queued, state.counts.retried) == (0, 0, 0)


def test_a_fresh_job_begins_from_its_seeds() -> None:
    """Known and done URLs are new; founds of the old epoch that come late are offered too, its dones are not taken."""
    state = State(job(), found(A, B), done(A, sequence(1)), *fresh(), found(A), found(B), done(B, sequence(1, 1)))
    assert sorted(state.urls()) == [A, B]
    state.take(done(A, sequence(5), epoch=1), done(B, sequence(6), epoch=1))
    assert (state.urls(), state.counts.fetched) == ([], 2)


def test_a_job_record_of_a_later_epoch_is_a_rewind() -> None:
    """Logs of older versions have no epoch records."""
    state = State(job(), found(A, B), job(epoch=1, rev=2), found(B))
    assert state.urls() == [B]
    assert state.fold.jobs["j"].running


def test_an_epoch_record_of_an_unknown_job_changes_nothing() -> None:
    """Its founds wait for its record as before."""
    state = State(found(A), rewind(1, job="j"), job(epoch=1))
    assert state.urls() == [A]


@pytest.mark.parametrize(
    "value",
    [
        b'{"v":1,"epoch":1,"rewind":{"start":-1}}',
        b'{"v":1,"epoch":0,"rewind":{"start":1}}',
        b'{"v":1,"epoch":65536,"rewind":{"start":1}}',
        b'{"v":1,"epoch":1,"rewind":{"start":9}}',
        b'{"v":1,"epoch":1,"job":"j","rewind":{"start":1}}',
        b'{"v":1,"epoch":1,"rewind":{"start":1},"url":"http://a.com/"}',
        b'{"v":1,"epoch":1,"rewind":{"start":"1"}}',
        b'{"v":1,"epoch":1,"rewind":1}',
    ],
)
def test_a_wrong_epoch_record_is_dead(value: bytes) -> None:
    """Nothing is rewound by what makes no sense."""
    state = State(job(), found(A))
    [effects] = state.take(value)
    assert effects.dead
    assert effects.rewind is None
    assert state.urls() == [A]


# ---------------------------------------------------------------------- rows


@given(st.data())
def test_dropped_rows_are_gone(data: st.DataObject) -> None:
    """Puts, deletes, drops and checkpoints in any order: reads and scans are those of a plain dictionary."""
    keys = st.binary(min_size=15, max_size=15).map(lambda key: b"q\x00\x00\x00" + bytes([key[0] % 3]) + key[3:4] * 10)
    base, model = InMemory(), dict[bytes, bytes]()
    rows = Rows(base)
    for step in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["put", "put", "put", "delete", "drop", "checkpoint", "keep"]))
        key = data.draw(keys)
        if action == "put":
            rows.put_ordered(key, bytes([step]))
            model[key] = bytes([step])
        elif action == "delete":
            rows.delete(key)
            model.pop(key, None)
        elif action == "drop":
            rows.drop(key[:5])
            model = {other: value for other, value in model.items() if not other.startswith(key[:5])}
        elif action == "keep":
            rows.keep(key, model[key]) if key in model else None
        else:
            base.write(rows.taken())
        assert dict(rows.scan(b"q")) == model
        assert rows.get(key) == model.get(key)
        assert rows.get_many([key]) == {key: model.get(key)}
        assert rows.scan_queue(key[:13], key[:13], 99) == sorted(
            kv for kv in model.items() if kv[0].startswith(key[:13])
        )
    base.write(rows.taken())
    assert base.rows == model


# ---------------------------------------------------------------------- results


def at(epoch: int, start: int, end: int, page: int, **before: int) -> Rewound:
    """A rewind of the crawl, with one partition."""
    return Rewound(epoch, start={0: start}, end={0: end}, pages={0: page}, before=before, complete=True)


@pytest.mark.parametrize(
    ("epoch", "rewound", "since", "pages"),
    [
        (0, [], 0, []),
        (2, [], 2, []),
        (1, [at(1, 50, 90, 5, j=0)], 0, [5]),
        (3, [at(3, 50, 90, 5, j=2, k=1)], 2, [5]),
        (4, [at(3, 50, 90, 5, j=2)], 4, []),
        (2, [at(1, 50, 90, 5, j=0), at(2, 95, 99, 9, j=1)], 0, [5, 9]),
        (2, [at(1, 50, 90, 5, j=0), at(2, 60, 99, 6, j=1)], 0, [6]),
        (3, [at(1, 50, 90, 5, j=0), at(2, 40, 99, 4, j=1), at(3, 95, 120, 9, j=2)], 0, [5, 9]),
        (0, [at(3, 50, 90, 5, k=2)], 0, []),
        (1, [at(3, 50, 90, 5, k=2)], 1, []),
        (3, [at(3, 50, 90, 5, k=2)], 3, []),
        (4, [at(3, 50, 90, 5, k=2), at(4, 95, 120, 9, j=0, k=3)], 0, [9]),
        (5, [at(3, 50, 90, 5, k=2), at(4, 40, 120, 4, j=1, k=3), at(5, 130, 140, 12, j=4, k=4)], 1, [4, 12]),
    ],
)
def test_results_that_count(epoch: int, rewound: list[Rewound], since: int, pages: list[int]) -> None:
    """Those since the job began from its seeds, but for those of pages that rewinds took back.

    A rewind that does not name the job was before it.
    """
    counted, voids = rewinds.counting_epochs(rewound, "j", JobCopy("j", u.JobSpec(), epoch))
    assert (counted, [void.page for void in voids]) == (since, pages)


@pytest.mark.parametrize(
    ("since", "epoch", "rewound", "begun_again"),
    [
        (0, 0, [], False),
        (1, 0, [], False),  # the record of the epoch is not read yet
        (0, 1, [], True),
        (0, 1, [Rewound(1, "j", u.JobSpec(), mark="a")], True),
        (0, 1, [at(1, 50, 90, 5, j=0)], False),
        (0, 1, [Rewound(1, start={0: 50}, before={"j": 0})], False),
        (0, 2, [at(2, 50, 90, 5, k=1)], True),
        (0, 2, [at(2, 50, 90, 5, j=1)], True),
        (1, 2, [at(2, 50, 90, 5, j=1)], False),
    ],
)
def test_a_job_has_begun_again_if_its_epoch_is_not_that_of_a_rewind(
    since: int, epoch: int, rewound: list[Rewound], *, begun_again: bool
) -> None:
    """A rewind of the crawl has the job go on, with most of its rows; a job after a deleted one has none of them."""
    assert rewinds.has_begun_again(rewound, JobCopy("j", u.JobSpec(), epoch), since) == begun_again


def test_a_rewind_takes_back_bare_records_though_it_does_not_name_their_job() -> None:
    """The job of bare records has no record in crawl.control."""
    assert rewinds.counting_epochs([at(3, 50, 90, 5, k=2)], u.DEFAULT_JOB, None) == (0, (RewoundRange(0, 3, 5),))


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("names", [("", ""), ("", "j"), ("j", ""), ("j", "j")])
def test_of_two_rewinds_with_one_epoch_the_first_counts(names: tuple[str, str], is_complete: bool) -> None:
    """Also when it is complete, and its note so stands behind the other one's; a later epoch is a matter of its own."""
    first, second = (Rewound(3, job, start={0: n}, before={"j": 2}, mark=str(n)) for n, job in enumerate(names))
    later = Rewound(4, start={0: 9}, mark="9")
    done = msgspec.structs.replace(first, complete=True)
    notes = [second, later, done] if is_complete else [first, second, later]
    assert rewinds.counted(notes) == [done if is_complete else first, later]


def test_rewinds_of_two_jobs_may_have_one_epoch() -> None:
    """Each job has epochs of its own."""
    notes = [Rewound(3, "j", mark="a"), Rewound(3, "k", mark="b")]
    assert rewinds.counted(notes) == notes


def test_a_job_begun_after_a_rewind_may_come_to_its_epoch() -> None:
    """It began at epoch 0, unknown to the rewind of the crawl, and begins again."""
    notes = [Rewound(1, before={"k": 0}, mark="a", complete=True), Rewound(1, "j", mark="b")]
    assert rewinds.counted(notes) == notes


@pytest.mark.parametrize(
    ("epoch", "page", "wanted"),
    [(1, (0, 9), True), (1, (0, 10), False), (1, (1, 10), True), (2, (0, 10), True), (0, (0, 0), False)],
)
def test_a_sink_leaves_out_what_was_taken_back(epoch: int, page: tuple[int, int], wanted: bool) -> None:
    """Items of an older epoch whose page was done later than the rewind's start."""
    sink = SinkSpec("j", "-", epoch=1, voids=(RewoundRange(0, 2, 10),))
    assert sink.wants("j", epoch, page) == wanted
    assert sink.id != SinkSpec("j", "-", epoch=1).id


# ---------------------------------------------------------------------- in the log


EIGHT = Places(8)
HERE, THERE = 2, 5


def site(partition: int) -> str:
    """A site of a partition."""
    return next(url for n in range(999) if EIGHT.of(url := f"http://site{n}.com/").partition == partition)


class Log:
    """A log with a job, a page done before a cut through it, and links that were found after the cut."""

    def __init__(self, settings: Settings, path: Path) -> None:
        provision.ensure_topics(settings)
        self.settings = settings
        self.topics = topics.Topics(settings.kafka.prefix)
        self.producer = Producer(settings, "test")
        self._path = path
        job_records.write_job(settings, self.producer, self.topics, "j", u.JobSpec(scope=u.ScopeSpec(kind="any")))
        one, other = site(HERE), site(THERE)
        self.write(HERE, found(one), done(one, sequence(1), page=(HERE, 0)))
        self.to = {partition: end for partition, (_, end) in self.ends().items()}
        link: Any = {"source": "link", "depth": 1}
        self.write(HERE, found(one + "x", parent=one, **link), done(one + "x", sequence(3), page=(HERE, 1)))
        self.write(THERE, found(other, parent=one, **link), done(other, sequence(1), page=(THERE, 0)))
        self.write(THERE, found(other + "y", parent=other, **link), found(other + "z"))
        self.again = sorted([one + "x", other, other + "z"])

    def write(self, partition: int, *values: bytes) -> None:
        """Append to a partition."""
        for value in values:
            self.producer.send(self.topics.urls, value, partition=partition)
        assert self.producer.flush(30)

    def ends(self) -> dict[int, tuple[int, int]]:
        """Where each partition begins and ends."""
        return log_bounds(self.settings, self.topics.urls, list(range(8)))

    def states(self) -> Iterator[Partition]:
        """Every partition, folded to its end."""
        log = log_identity(self.settings, self.topics.urls)
        memory = StateMemory(16)
        states = [Partition(self._path / str(n), n, EIGHT, log, memory, cached_pages=64) for n in range(8)]
        Restorer(self.settings, self.topics.urls).restore(states, lambda *_: None, lambda _: None)
        for state in states:
            yield state
            state.checkpoint()
            state.close()

    def check(self, epoch: int) -> None:
        """All that is not fetched again is known, the rest is queued, and every partition may go on."""
        queued, fetched = [], 0
        for state in self.states():
            jobs = {name: (job.epoch, job.running) for name, job in state.fold.jobs.items()}
            assert jobs == {"j": (epoch, True), u.DEFAULT_JOB: (epoch, True)}
            queued += [r.read_queued(value).url for _, value in state.rows.scan(b"q")]
            fetched += state.fold.jobs["j"].counts.fetched
        assert (sorted(queued), fetched) == (self.again, 1)


DEATHS = {
    "rewind.sending": 5,
    "job.sending": 3,
    "rewind.founds.sending": 2,
    "rewind.acknowledged": 1,
    "rewind.noted": 1,
    "rewind.complete": 1,
}


@pytest.mark.broker
def test_a_rewind_goes_on_where_it_was_killed(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes next carries it out, another rewind or a run: nothing is lost, and it is one epoch."""
    log = Log(cluster, tmp_path)
    for epoch, (point, count) in enumerate(DEATHS.items(), 1):
        with dying(monkeypatch, point, count):
            rewinds.rewind_crawl(log.settings, log.to)
        if epoch % 2:
            assert rewinds.rewind_crawl(log.settings, log.to) == epoch
        else:
            rewinds.settled_control(log.settings, log.producer, log.topics)
        assert rewinds.unfinished(job_records.read_control(log.settings, log.topics)) == []
        log.check(epoch)

    spec = u.JobSpec(rev=9, scope=u.ScopeSpec(kind="any"))
    with dying(monkeypatch, "rewind.sending", 4):
        rewinds.rewind_job(log.settings, log.producer, log.topics, "j", spec, epoch=7)
    after = rewinds.settled_control(log.settings, log.producer, log.topics)
    copy = after.job("j")
    assert copy == JobCopy("j", spec, 7)
    assert rewinds.counting_epochs(after.of(Rewound), "j", copy) == (7, ())
    for state in log.states():
        known = state.fold.jobs["j"]
        assert (known.epoch, known.spec, known.running, known.counts.queued) == (7, spec, True, 0)


@pytest.mark.broker
def test_the_rewind_of_a_job_that_was_deleted_since_is_taken_back(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 the note is written → 2 its command is killed → 3 another one deletes the job: it stays deleted."""
    log = Log(cluster, tmp_path)
    with dying(monkeypatch, "rewind.noted", 1):
        rewinds.rewind_job(log.settings, log.producer, log.topics, "j", u.JobSpec(rev=2), epoch=1)
    deleted = job_records.write_job(log.settings, log.producer, log.topics, "j", u.JobSpec(rev=9, state="deleted"))
    after = rewinds.settled_control(log.settings, log.producer, log.topics)
    assert after.job("j") == deleted
    assert after.of(Rewound) == []


@pytest.mark.broker
def test_the_second_of_two_rewinds_at_one_instant_says_so(
    cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 both read crawl.control → 2 the other writes its note → 3 this one writes its own: one epoch, of the other."""
    log = Log(cluster, tmp_path)
    other = Rewound(1, start=log.to, before={"j": 0}, mark="other")

    def second(producer: Producer, names: topics.Topics, records: Any) -> None:
        job_records.write_control(producer, names, [other])
        job_records.write_control(producer, names, records)

    with monkeypatch.context() as patch:
        patch.setattr(rewinds, "write_control", second)
        with pytest.raises(Misconfigured, match="another command began epoch 1 at the same instant"):
            rewinds.rewind_crawl(log.settings, dict.fromkeys(range(8), 0))
    rewinds.settled_control(log.settings, log.producer, log.topics)
    assert rewinds.unfinished(job_records.read_control(log.settings, log.topics)) == []
    log.check(epoch=1)


@pytest.mark.broker
def test_a_strangers_note_of_a_rewind_that_cannot_be_stops_no_command(cluster: Settings, tmp_path: Path) -> None:
    """Of partitions and offsets that the log does not have, of a job without a record, of nothing."""
    log = Log(cluster, tmp_path)
    everywhere = range(8)
    forged = [
        Rewound(1, start={99: 0}),
        Rewound(2, start=dict.fromkeys(everywhere, 1 << 60)),
        Rewound(3, "j"),
        Rewound(4),
        Rewound(5, upto={99: 1 << 60}, complete=True),
    ]
    job_records.write_control(log.producer, log.topics, forged)
    after = rewinds.settled_control(log.settings, log.producer, log.topics)
    assert rewinds.unfinished(after) == forged[:4]
    rewinds.mend_rewinds(log.settings, log.producer, log.topics)
    assert rewinds.rewind_crawl(log.settings, log.to) == 6
    log.check(epoch=6)


@pytest.mark.broker
def test_a_rewind_is_carried_out_once_and_may_be_repeated(cluster: Settings, tmp_path: Path) -> None:
    """The same place again is a new epoch in the same state; then offsets that are not in the log are refused."""
    log = Log(cluster, tmp_path)
    assert rewinds.rewind_crawl(log.settings, log.to) == 1
    known = job_records.read_control(log.settings, log.topics)
    epoch, voids = rewinds.counting_epochs(known.of(Rewound), "j", known.job("j"))
    assert (epoch, {void.partition: void.page for void in voids}) == (0, {HERE: 1, THERE: 0})
    log.check(epoch=1)
    with kept_seeds(log.settings, log.topics, "j") as seeds:
        given = [msgspec.json.decode(line)["url"] for line in seeds.path.read_text().splitlines()]
    assert sorted(given) == sorted([site(HERE), site(THERE) + "z"])
    [note] = known.of(Rewound)
    lost = msgspec.structs.replace(note, epoch=2, upto={HERE: note.upto[HERE] + 1})  # of which only the note is left
    job_records.write_control(log.producer, log.topics, [lost])
    rewinds.mend_rewinds(log.settings, log.producer, log.topics)
    log.check(epoch=2)
    assert rewinds.rewind_crawl(log.settings, log.to) == 3
    log.check(epoch=3)
    admin = AdminClient(kafka_config(log.settings))
    for gone in admin.delete_records([TopicPartition(log.topics.urls, HERE, 4)]).values():
        gone.result()
    for to, why in (
        (log.to, r"urls\[2\] begins at offset 4: what it held from 3 on was deleted"),
        (log.to | {HERE: 999}, r"urls\[2\] ends at offset \d+: it cannot be rewound to 999"),
        ({0: 0}, "an offset for each of the 8 partitions"),
    ):
        with pytest.raises(Misconfigured, match=why):
            rewinds.rewind_crawl(log.settings, to)
