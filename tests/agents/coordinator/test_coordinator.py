"""The coordinator's table: each event, at work and at rest, and the records that it writes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.agents.coordinator.coordinator import BY, Coordinator
from crawlog.agents.coordinator.copies import Copies
from crawlog.schemas import control, urls
from crawlog.schemas.control import Command, Control, Finished, JobCopy
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.progress import JobCounts
from crawlog.schemas.urls import JobOrder, JobSpec, UrlsRecord
from crawlog.streams.jobs import DueOrder, JobRevision
from crawlog.streams.log import Topics
from tests.support.folding import State, job

TOPICS = Topics("crawl.")
PARTITIONS = 3
END = Finished("j", 0.0, 0, "max_pages", (4,), (1,), (3,), counts=JobCounts(fetched=1), rev=1)
NOW = JobRevision(0, 1)
"""The revision that job j has in these tests."""


class Written:
    """A producer whose broker acknowledges at once; `held` keeps the acknowledgements of crawl.urls back.

    Args:
        hear: Gets the records of crawl.control a moment later, as the worker does.
    """

    def __init__(self, hear: Callable[[Control], None]) -> None:
        self._hear = hear
        self.records: list[str] = []
        self.last: Any = None
        self.held: list[Callable[[int, int], None]] | None = None

    def send(self, topic: str, value: bytes, *, partition: int, key: bytes = b"", on_delivery: Any = None) -> None:
        """Names the record as `partition record`, or `control record`."""
        if topic == TOPICS.control:
            self.last = control.decode(key, value)
            self.records.append(f"control {_name(self.last)}")
            asyncio.get_running_loop().call_soon(self._hear, self.last)
            return
        self.last = urls.decode(value)
        kind = f"order {self.last.order.state}" if self.last.order else f"record rev {self.last.spec.rev}"
        self.records.append(f"{partition} {kind}")
        if self.held is not None:
            self.held.append(on_delivery)
        elif on_delivery is not None:
            on_delivery(partition, 0)


def _name(record: Control) -> str:
    if isinstance(record, JobCopy):
        return f"copy rev {record.spec.rev}" + (" refused" if record.refusal else "")
    if isinstance(record, Finished):
        return f"end rev {record.rev} {record.reason}"
    return f"{record.action} {record.target}" if isinstance(record, Command) else type(record).__name__


class Duty:
    """A coordinator over a real fold of partition 0, whose broker and reports are the test's."""

    def __init__(self) -> None:
        self.fold = State(job(rev=1))
        self.has_lease = self.is_known = True
        self.written = Written(self.hear)
        self.threads: list[list[str]] = []
        self.undone: list[DueOrder | Finished] = []
        self.live: dict[int, Any] = {0: self.fold}
        stage: Any = SimpleNamespace(live=self.live, orders=self, may_ask=lambda: self.has_lease)
        producer: Any = self.written
        self.coordinator = Coordinator(stage, lambda: Copies(producer, TOPICS, PARTITIONS), self._follow)

    def _follow(self, _jobs: Any, act: Callable[[DueOrder | Finished], None]) -> Any:
        did: list[str] = []
        self.threads.append(did)
        self.act = act
        return SimpleNamespace(
            start=lambda: did.append("follows"), stop=lambda: did.append("stops"), undone=self.undone.append
        )

    def hear(self, *records: Control) -> None:
        """Records of crawl.control."""
        for record in records:
            self.coordinator.take(record)

    def hear_late(self, copy: JobCopy) -> None:
        """A copy that another process wrote, when the fold has a later record already."""
        self.fold.take(job(rev=copy.spec.rev + 1))
        self.hear(copy)

    def begin(self) -> None:
        """Brings the duty to work; what it writes at its beginning is left out."""
        self.hear(self.copy())
        self.coordinator.look()
        self.written.records.clear()

    def lose(self) -> None:
        """Takes partition 0 away."""
        del self.live[0]
        self.coordinator.look()

    def order(self, state: JobStateName, expects: int = 1, *, by: str = "", at: float = 5.0) -> None:
        """Folds an order, and passes the answer on."""
        record = UrlsRecord("j", 0, order=JobOrder(expects, state, by=by, at=at))
        (effects,) = self.fold.take(urls.encode(record))
        self.coordinator.answered(list(effects.answered))

    def copy(self, rev: int = 1, state: JobStateName = "running", answers: int = -1) -> JobCopy:
        """A copy of job j in crawl.control."""
        return JobCopy("j", JobSpec(rev, state=state, scope=self.fold.fold.jobs["j"].spec.scope), answers=answers)


async def _settle(duty: Duty) -> list[str]:
    for _ in range(5):
        await asyncio.sleep(0)
    return duty.written.records


CLOSED = Command("stop", job="j", reason="done")
DUE_ORDER = DueOrder("j", NOW, "stopped", "max_pages")
DUE_END = END

TABLE: dict[str, tuple[Callable[[Duty], None], list[str], list[str]]] = {
    # event: (what happens, written at work, written at rest)
    "the fold took an order": (
        lambda duty: duty.order("paused"),
        ["1 record rev 2", "2 record rev 2", "control copy rev 2"],
        [],
    ),
    "the fold refused an order": (lambda duty: duty.order("paused", expects=9), ["control copy rev 1 refused"], []),
    "the fold took a deletion": (
        lambda duty: duty.order("deleted"),
        ["0 record rev 2", "1 record rev 2", "2 record rev 2", "control copy rev 2"],
        [],
    ),
    "a copy of an older revision": (
        lambda duty: duty.hear_late(duty.copy(rev=2)),
        ["1 record rev 3", "2 record rev 3", "control copy rev 3"],
        [],
    ),
    "a copy of this revision": (lambda duty: duty.hear(duty.copy()), [], []),
    "a copy of a later revision": (lambda duty: duty.hear(duty.copy(rev=8)), [], []),
    "a copy of this revision with another record": (
        lambda duty: duty.hear(duty.copy(state="paused")),
        ["1 record rev 1", "2 record rev 1", "control copy rev 1"],
        [],
    ),
    "a copy of a job that the fold does not know": (lambda duty: duty.hear(JobCopy("k", JobSpec(1))), [], []),
    "a running job is closed by its spider": (lambda duty: duty.hear(CLOSED), [], []),
}


@pytest.mark.parametrize("is_at_work", [True, False], ids=["at work", "at rest"])
@pytest.mark.parametrize("event", TABLE)
async def test_each_event_writes_what_the_table_says(event: str, is_at_work: bool) -> None:
    """The other partitions get a record before crawl.control has its copy; a worker at rest writes nothing."""
    duty, (happens, at_work, at_rest) = Duty(), TABLE[event]
    duty.begin()
    if not is_at_work:
        duty.is_known = False
        duty.coordinator.look()
    happens(duty)
    assert await _settle(duty) == (at_work if is_at_work else at_rest)


@pytest.mark.parametrize("has_lease", [True, False], ids=["lease", "no lease"])
@pytest.mark.parametrize(
    ("due", "written"),
    [(DUE_ORDER, ["0 order stopped"]), (DUE_END, ["control end rev 1 max_pages"])],
    ids=["order", "end"],
)
async def test_what_is_due_is_written_with_the_lease_and_decided_again_without(
    due: DueOrder | Finished, written: list[str], has_lease: bool
) -> None:
    """A worker that slept may have lost its partitions before it knows."""
    duty = Duty()
    duty.begin()
    duty.has_lease = has_lease
    duty.act(due)
    assert await _settle(duty) == written * has_lease
    assert duty.undone == [due] * (not has_lease)


@pytest.mark.parametrize("due", [DUE_ORDER, DUE_END], ids=["order", "end"])
@pytest.mark.parametrize("comes_back", [False, True], ids=["gone", "back"])
async def test_what_was_due_to_an_earlier_duty_is_not_done(due: DueOrder | Finished, comes_back: bool) -> None:
    """Another worker may have done it meanwhile, and the job may have gone on."""
    duty = Duty()
    duty.begin()
    act = duty.act
    act(due)  # on its way to the event loop
    duty.lose()
    if comes_back:
        duty.live[0] = duty.fold
        duty.coordinator.look()
    act(due)  # the thread looks at its event a moment later
    assert await _settle(duty) == []
    assert duty.undone == []
    assert duty.threads == [["follows", "stops"], *[["follows"]] * comes_back]


@pytest.mark.parametrize(
    ("is_live", "is_known", "follows"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
async def test_the_duty_begins_with_partition_0_and_all_of_crawl_control(
    is_live: bool, is_known: bool, follows: bool
) -> None:
    """A job that crawl.control lacks may have been copied by the one before: that is read first."""
    duty = Duty()
    duty.is_known = is_known
    if not is_live:
        duty.live.clear()
    for _ in range(2):  # a second look changes nothing
        duty.coordinator.look()
    assert duty.threads == [["follows"]] * follows


@pytest.mark.parametrize(
    ("copied", "written"),
    [
        (None, ["1 record rev 1", "2 record rev 1", "control copy rev 1"]),
        ({"rev": 1}, []),
        ({"rev": 2}, []),
        ({"rev": 1, "answers": 0}, []),
    ],
    ids=["never", "this revision", "later", "a later answer"],
)
async def test_it_begins_with_the_copies_that_crawl_control_lacks(
    copied: dict[str, int] | None, written: list[str]
) -> None:
    """The coordinator before it may have died between the order's fold and the copy."""
    duty = Duty()
    if copied is not None:
        duty.hear(duty.copy(**copied))  # type: ignore[arg-type]  # two of its integers
    duty.coordinator.look()
    assert await _settle(duty) == written


async def test_an_answer_that_crawl_control_lacks_is_copied_at_the_beginning() -> None:
    """The command that gave the order waits for it."""
    duty = Duty()
    duty.order("paused", expects=9)
    duty.hear(duty.copy())
    duty.coordinator.look()
    assert await _settle(duty) == ["1 record rev 1", "2 record rev 1", "control copy rev 1 refused"]


async def test_a_job_that_awaits_its_record_is_not_copied() -> None:
    """A rewind has begun its next epoch: the record of that one is on its way."""
    duty = Duty()
    duty.fold.take(urls.encode(UrlsRecord("j", 1, rewind=urls.Rewind(0))))
    duty.coordinator.look()
    duty.hear(duty.copy())
    assert await _settle(duty) == []


async def test_a_copy_waits_for_every_other_partition() -> None:
    """Who reads of a job in crawl.control writes to any partition, which must know it."""
    duty = Duty()
    duty.begin()
    duty.written.held = []
    duty.order("paused")
    first, second = duty.written.held
    first(1, 0)
    assert duty.written.records == ["1 record rev 2", "2 record rev 2"]
    second(2, 0)
    assert duty.written.records[2:] == ["control copy rev 2"]


@pytest.mark.parametrize(
    ("state", "at", "ends"),
    [("finished", None, True), ("finished", 5.0, False), ("paused", None, False)],
    ids=["the given order", "another order that finishes", "another order"],
)
async def test_the_end_follows_the_copy_of_the_order_that_was_given(
    state: JobStateName, at: float | None, ends: bool
) -> None:
    """The offsets of an end are those that the order was decided on; of another order they are not known."""
    duty = Duty()
    duty.begin()
    duty.act(DueOrder("j", NOW, "finished", "", msgspec.structs.replace(END, reason="finished")))
    assert await _settle(duty) == ["0 order finished"]
    given = duty.written.last.order
    assert (given.expects, given.by) == (1, BY)
    duty.order(state, at=given.at if at is None else at)
    tail = ["control end rev 2 finished"] * ends
    assert duty.written.records[1:] == ["1 record rev 2", "2 record rev 2", "control copy rev 2", *tail]


async def test_a_copy_names_the_epoch_of_the_deleted_job_that_had_the_name() -> None:
    """An order does not know it, the fold does."""
    duty = Duty()
    duty.fold.take(job(state="deleted", rev=2), job(epoch=1, rev=3))
    duty.begin()
    (effects,) = duty.fold.take(urls.encode(UrlsRecord("j", 1, order=JobOrder(3, "paused"))))
    duty.coordinator.answered(list(effects.answered))
    assert duty.written.last == JobCopy("j", duty.fold.fold.jobs["j"].spec, 1, answers=3, after=0)


FINISHED = JobCopy("j", JobSpec(1, state="finished"))
NOTED = Finished("j", 1.0, rev=1)


@pytest.mark.parametrize("took_over", [False, True], ids=["there", "took over"])
@pytest.mark.parametrize(
    ("records", "is_freed"),
    [
        ((FINISHED, NOTED, CLOSED), True),
        ((CLOSED, FINISHED, NOTED), True),  # the order was on its way
        ((FINISHED, NOTED, Command("stop", job="j")), False),  # the operator's
        ((FINISHED, NOTED, CLOSED, Command("stop", job="j")), False),  # the same, before anything was done
        ((FINISHED, NOTED, CLOSED, Command("resume", job="j"), NOTED), False),
        ((JobCopy("j", JobSpec(1, state="stopped")), NOTED, CLOSED), False),
        ((JobCopy("j", JobSpec(1)), CLOSED), False),
    ],
)
async def test_a_finished_job_that_its_spider_closes_may_go_on(
    records: tuple[Control, ...], is_freed: bool, took_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelines that open slowly may close it. Its later URLs would wait for ever, and `resume` is refused."""
    monkeypatch.setattr("crawlog.agents.coordinator.coordinator.FREE_S", 0.0)
    duty = Duty()
    duty.fold = State()
    duty.live[0] = duty.fold
    duty.has_lease = False
    if not took_over:
        duty.coordinator.look()
    duty.hear(*records)
    duty.coordinator.look()
    assert await _settle(duty) == []
    duty.has_lease = True
    assert await _settle(duty) == ["control resume j"] * is_freed
