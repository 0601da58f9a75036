"""A fleet's sink worker without Kafka: what was heard of a job is planned, whatever fails meanwhile."""

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from crawlog.agents import control, progress
from crawlog.agents.outputs import completion, outputs_worker, row_maker
from crawlog.agents.outputs import output as output_module
from crawlog.agents.outputs import wanted as wanted_module
from crawlog.agents.outputs.completion import Completion
from crawlog.agents.outputs.items_log import ItemRecord
from crawlog.agents.outputs.output import Output
from crawlog.agents.outputs.outputs_worker import OutputsWorker, told_rows
from crawlog.schemas import items
from crawlog.schemas.control import Finished, JobCopy, OutputNote
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.progress import MAX_ROWS_TOLD, JobCounts
from crawlog.schemas.urls import JobSpec
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import EngineError, Misconfigured, RefusedOutput, RetryLater
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink import PipelineRows, SinkState, fleet_sink_of, state_of
from crawlog.streams.spiders import MadeItem, MadeItems
from crawlog.streams.spiders.pipelines import written_made
from crawlog.streams.state import Rocks
from crawlog.streams.worker import CrawlApp, finish_within


class EmptyLog:
    """A producer and a reader of a crawl.items without records; its bounds are told once it answers.

    Attributes:
        beats: What the watchdog was told.
        sent: Notes that were taken.
    """

    outstanding = 0
    is_open = True

    def __init__(self) -> None:
        self.at: dict[int, int] = {}
        self.failures = 1
        self.beats = threading.Semaphore(0)
        self.sent = 0

    def send(self, *_: Any, **__: Any) -> None:
        """Take a note."""
        self.sent += 1

    def seek(self, offsets: dict[int, int]) -> None:
        """Read on from these offsets."""
        self.at = dict(offsets)

    def take(self, _wait_s: float) -> list[Any]:
        """Nothing comes."""
        return []

    def passed(self, _records: list[Any]) -> None:
        """Nothing came."""

    def bounds(self, *_: Any) -> dict[int, tuple[int, int]]:
        """The log's first and last offsets."""
        if self.failures:
            self.failures -= 1
            raise EngineError("no answer")
        return {0: (0, 0)}


def jobs_with_file(data: Path) -> set[str]:
    """The jobs whose FILE was made."""
    return {path.parent.name for path in data.glob("outputs/*/rows.jsonl")}


class TurnedWorker(OutputsWorker):
    """Owns the one partition of crawl.items. Its test takes each turn, and hands it the records of crawl.control."""

    def __init__(self, app: CrawlApp) -> None:
        super().__init__(app)
        self._owned = {0}
        self._passes_at = inf  # crawl.items without an output is not passed
        self.settings, self.data = self._settings, self._settings.run.data
        self.turn, self.plan, self.turning = self._turn, self._plan, self._turning
        self.heard, self.note, self.wanted_of = self._wanted.heard, self._wanted.note, self._wanted.of

    @property
    def outputs(self) -> dict[tuple[str, str], Output]:
        """Those that are written."""
        return self._outputs

    def completion(self, output: Output) -> Completion:
        """What completes one of them."""
        return self._of(output)

    def follows_nothing(self) -> None:
        """There is no crawl.control to be read."""
        self._is_following = True

    def own(self, *partitions: int) -> None:
        """As after a rebalance whose time ran out."""
        self._owned = set(partitions)

    def passed(self) -> tuple[list[int], list[str]]:
        """What it reports of the partition."""
        return self._passed(0)

    def look_again(self, job: str) -> None:
        """As if something was heard of a job."""
        self._wanted.changed.add(job)

    async def drop_all(self) -> None:
        """Its state in memory goes, as with a process that dies."""
        await self._drop(list(self._outputs))


@pytest.fixture
def log() -> EmptyLog:
    """Does not answer the first question."""
    return EmptyLog()


@pytest.fixture
def sink(log: EmptyLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TurnedWorker:
    """Owns the one partition of crawl.items."""
    for name in ("Producer", "ItemsReader"):
        monkeypatch.setattr(outputs_worker, name, lambda *_: log)
    monkeypatch.setattr(outputs_worker, "partition_count", lambda _: 1)
    monkeypatch.setattr(outputs_worker, "log_identity", lambda *_: LogIdentity("cluster", "topic"))
    monkeypatch.setattr(outputs_worker, "log_bounds", log.bounds)
    settings = Settings()
    app = SimpleNamespace(
        crawl=settings.model_copy(update={"run": settings.run.model_copy(update={"data": tmp_path})}),
        worker_name="sink-0",
        positions=SimpleNamespace(done=lambda *_: None, cuts={}),
        watchdog=SimpleNamespace(beat=log.beats.release),
    )
    sink = TurnedWorker(app)  # type: ignore[arg-type]  # as much of an app as it needs
    sink.orders.caught_up()
    return sink


async def test_an_end_that_was_heard_while_the_log_did_not_answer_makes_file(
    sink: TurnedWorker, tmp_path: Path
) -> None:
    """crawl.control is not read again: the worker would learn of the end at its next start only."""
    for job in ("a", "b"):
        spec = msgspec.structs.replace(JobSpec(), outputs=(OutputSpec("rows.jsonl"),), rev=2, state="finished")
        sink.heard(JobCopy(job, spec))
        sink.heard(Finished(job, 1.0, items=(0,), rev=2))
    with pytest.raises(EngineError):
        await sink.turn()
    for _ in range(2):
        await sink.turn()
    assert jobs_with_file(tmp_path) == {"a", "b"}


async def test_a_file_that_was_lost_is_made_again_when_a_command_asks_for_it(
    sink: TurnedWorker, log: EmptyLog, tmp_path: Path
) -> None:
    """It is complete otherwise, and is not made anew."""
    log.failures = 0
    spec = msgspec.structs.replace(JobSpec(), outputs=(OutputSpec("rows.jsonl"),), rev=2, state="finished")
    sink.heard(JobCopy("j", spec))
    sink.heard(Finished("j", 1.0, items=(0,), rev=2))
    await sink.turn()
    made = tmp_path / "outputs" / "j" / "rows.jsonl"
    was = made.stat().st_ino
    sink.heard(OutputNote("j", "rows.jsonl", 2.0))
    await sink.turn()
    assert made.stat().st_ino == was
    made.unlink()
    sink.heard(OutputNote("j", "rows.jsonl", 3.0))
    await sink.turn()
    assert made.exists()


def running(sink: TurnedWorker, job: str, rev: int = 1) -> None:
    """Tell the worker of a job that goes on."""
    sink.heard(JobCopy(job, msgspec.structs.replace(JobSpec(), outputs=(OutputSpec("rows.jsonl"),), rev=rev)))


def row(n: int) -> ItemRecord:
    """A row of the job j."""
    record = items.encode(ItemsRecord("j", f"http://a.example/{n}", (0, n), [msgspec.Raw(b'{"n": 1}')]))
    return ItemRecord(0, n, items.key("j", f"http://a.example/{n}"), record)


async def test_a_revocation_opens_no_output_to_write_its_rows(sink: TurnedWorker, log: EmptyLog) -> None:
    """It has little time, and who gets the output reads the rows again."""
    log.failures = 0
    output = await begun(sink)
    output.take(row(0))
    await sink.revoking({0})
    assert not state_of(output.spec.folder(sink.data)).exists()


async def test_an_output_is_closed_though_the_time_ran_out_while_it_was_opened(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks would shut out each other worker, and this one too, until the process ends."""
    log.failures = 0
    output = await begun(sink)
    opened, goes_on, states = output._opened, threading.Event(), list[SinkState]()

    def slow() -> SinkState:
        states.append(opened())
        goes_on.wait(60)
        return states[0]

    monkeypatch.setattr(output, "_opened", slow)
    opening = asyncio.create_task(output.open())
    async with asyncio.timeout(60):
        while not states:  # noqa: ASYNC110  # a thread opens it
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        monkeypatch.setattr(output, "_opened", opened)
        with pytest.raises(RetryLater):
            await output.open()
        goes_on.set()
        while not output.is_open:
            with contextlib.suppress(RetryLater):
                await output.open()
            await asyncio.sleep(0.01)
    await output.close()


async def test_a_partition_has_passed_nothing_until_its_outputs_are_planned(sink: TurnedWorker, log: EmptyLog) -> None:
    """The reader of a worker that had no output is at the end; the owner before may have died with rows behind."""
    sink.follows_nothing()
    log.failures, log.at = 0, {0: 100}
    running(sink, "j")
    await sink.owned({0})
    assert sink.passed() == ([0], [])
    await sink.plan()
    assert sink.passed() == ([0], [])
    await sink.drop_all()
    assert sink.passed() == ([100], [])


async def test_what_a_revocation_left_open_is_closed_though_nothing_is_assigned(
    sink: TurnedWorker, log: EmptyLog
) -> None:
    """Another worker waits for its locks."""
    log.failures = 0
    output = await begun(sink)
    await output.open()
    async with sink.turning:
        assert not await finish_within(0.01, sink.revoking({0}), "on_revoking")
    assert output.is_open
    await sink.turn()
    assert (output.is_open, sink.outputs) == (False, {})


def hurried(log: EmptyLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause before a write, nor after one that failed; the log takes each note."""
    monkeypatch.setattr(outputs_worker, "FLUSH_S", 0.0)
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    log.failures = 0


async def begun(sink: TurnedWorker) -> Output:
    """The output of job j, which goes on."""
    running(sink, "j")
    await sink.turn()
    [output] = sink.outputs.values()
    return output


FULL = OSError(errno.ENOSPC, "No space left on device")


async def test_a_full_disk_is_noted_once_and_the_note_is_taken_back_by_the_next_good_write(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jobs show` says so for as long as it is so; the log does not grow by each try."""
    hurried(log, monkeypatch)
    output = await begun(sink)
    output.take(row(0))
    with monkeypatch.context() as full:
        full.setattr(SinkState, "fold", Mock(side_effect=FULL))
        for _ in range(3):
            await sink.turn()
    note = sink.note("j", "rows.jsonl")
    assert (note and note.rev, note and note.error, log.sent) == (1, f"{output.partial}: {FULL.strerror}", 1)
    for _ in range(3):
        await sink.turn()
    note = sink.note("j", "rows.jsonl")
    assert (note and note.rev, note and note.error, log.sent) == (0, "", 2)


async def test_an_output_goes_on_after_a_full_disk_where_its_database_met_it(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB takes no write after a failed one: it was tried for ever, and outputs of other jobs waited."""
    hurried(log, monkeypatch)
    output = await begun(sink)
    await output.open()
    fill_disk(output, monkeypatch)
    output.take(row(0))
    await sink.turn()
    note = sink.note("j", "rows.jsonl")
    assert note is not None
    assert note.error == f"{output.partial}: {FULL.strerror}"
    await sink.turn()
    assert (output.pending, output.partial.read_text()) == ([], '{"n": 1}\n')


def fill_disk(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output's database meets a full disk with its next write, and takes none until it is opened again."""
    failed = output._results
    assert failed is not None
    full = Exception(f"IO error: {FULL.strerror}: While appending to file: 4.log: {FULL.strerror}")
    monkeypatch.setattr(failed._db, "apply", Mock(side_effect=full))
    monkeypatch.setattr(failed._db, "close", closed_with(failed._db, "IO error: Writer has previous error."))


def closed_with(database: Rocks, error: str) -> Callable[[], None]:
    """Closes it, and raises an error of RocksDB."""
    close = database.close

    def closed() -> None:
        close()
        raise Exception(error)  # noqa: TRY002  # as rocksdict

    return closed


@pytest.mark.parametrize("rev", [1, 2])
async def test_the_note_of_a_worker_that_died_is_taken_back_by_the_next_one(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch, rev: int
) -> None:
    """Of a former revision of the job, too: its error stands beside `writing`."""
    monkeypatch.setattr(outputs_worker, "FLUSH_S", 0.0)
    log.failures = 0
    running(sink, "j", rev=rev)
    sink.heard(OutputNote("j", "rows.jsonl", 1.0, rev=1, error=str(FULL)))
    await sink.turn()
    assert (note := sink.note("j", "rows.jsonl")) is not None
    assert note.error
    [output] = sink.outputs.values()
    output.take(row(0))
    await sink.turn()
    assert (note := sink.note("j", "rows.jsonl")) is not None
    assert (note.rev, note.error) == (0, "")


async def test_a_state_that_cannot_be_opened_on_a_full_disk_is_noted(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker began again meanwhile; one that another process has yet is no news."""
    log.failures = 0
    running(sink, "j")
    for error, told in ((RetryLater("it is locked"), ""), (FULL, str(FULL))):
        monkeypatch.setattr(Output, "begin", Mock(side_effect=error))
        sink.look_again("j")
        await sink.turn()
        note = sink.note("j", "rows.jsonl")
        assert (note.error if note else "") == told


async def test_a_write_that_fails_while_the_output_is_handed_over_is_noted_by_its_next_worker(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is little time, and the disk may be that of another machine."""
    log.failures = 0
    output = await begun(sink)
    await output.open()
    output.take(row(0))
    monkeypatch.setattr(SinkState, "fold", Mock(side_effect=FULL))
    await sink.revoking({0})
    assert sink.note("j", "rows.jsonl") is None


@pytest.mark.parametrize(
    ("module", "slow"), [(output_module, "SinkState"), (completion, "finalise")], ids=["SinkState", "finalise"]
)
async def test_an_output_that_takes_long_to_open_or_to_make_is_no_stuck_worker(
    sink: TurnedWorker, log: EmptyLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, slow: str
) -> None:
    """The watchdog hears of it all the while: the next worker would begin the same again, and so for ever."""
    log.failures = 0
    running(sink, "j")
    await sink.turn()
    done = getattr(module, slow)

    def slowly(*args: Any, **more: Any) -> Any:
        assert all(log.beats.acquire(timeout=30) for _ in range(5))
        return done(*args, **more)

    monkeypatch.setattr(control, "BEAT_S", 0.01)
    monkeypatch.setattr(module, slow, slowly)
    [output] = sink.outputs.values()
    output.take(row(0))
    ended = msgspec.structs.replace(output.wanted.spec, state="finished")
    output.wanted = msgspec.structs.replace(output.wanted, spec=ended)
    assert await sink.completion(output).complete(Finished("j", 1.0), {})


class Child:
    """Pipelines that make a row of each item.

    Attributes:
        calls: What they were asked for, of each process.
        may_work: Whether they answer.
        may_open: Whether they are opened at any time.
        error: Why they cannot be opened.
        reason: With which they were closed.
        kept: What they count at a time; 0 for the number of items.
    """

    goes_on = False

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_work = asyncio.Event()
        self.may_open = False
        self.error = ""
        self.reason = b""
        self.kept = 0.0

    async def start(self, *_: Any) -> "Child":
        """A fresh process."""
        if self.error:
            raise Misconfigured(self.error)
        return self

    async def call(self, name: str, argument: bytes = b"") -> bytes:
        """As `PipelinesChild.call`."""
        if name != "open" or not self.may_open:
            await self.may_work.wait()
        if name == "rows":
            await asyncio.sleep(0.01)  # some turns of the worker
        self.calls.append(name)
        made = [MadeItem(msgspec.Raw(line[1:])) for line in argument.splitlines()] if name == "rows" else []
        if name == "close":
            self.reason = argument
        return written_made(MadeItems(made, stats={"kept": self.kept or len(made)} if made else {}))

    def close(self) -> None:
        """Ended."""

    async def end(self) -> None:
        """Ended."""

    def kill(self) -> None:
        """Ended."""


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    """The pipelines of every job."""
    made = Child()
    monkeypatch.setattr(output_module, "pipelines_of", made.start)
    return made


def with_pipelines(
    sink: TurnedWorker,
    rev: int,
    state: str = "running",
    ends: int | None = None,
    *,
    has_pipelines: bool = True,
    outputs: tuple[str, ...] = ("rows.jsonl",),
    counts: JobCounts | None = None,
) -> None:
    """Tell the worker of the job j, whose items pass pipelines unless it has none; and of its end."""
    made = {"rev": rev, "state": state, "outputs": tuple(map(OutputSpec, outputs)), "pipelines": has_pipelines}
    spec = msgspec.structs.replace(JobSpec(), **made)
    sink.heard(JobCopy("j", spec))
    if ends is not None:
        sink.heard(Finished("j", 1.0, items=(ends,), rev=rev, reason=state, counts=counts))


async def scraped(sink: TurnedWorker, *, rows: int, outputs: tuple[str, ...] = ("rows.jsonl",)) -> Output:
    """The output of a job with pipelines that goes on, and has scraped some items; the first one of several."""
    with_pipelines(sink, 1, outputs=outputs)
    await sink.turn()
    [output] = sink.outputs.values()
    for number in range(rows):
        output.take(row(number))
    await output.write({})
    return output


async def noted(sink: TurnedWorker, rev: int, error: str = "", *, of: str = "rows.jsonl") -> OutputNote:
    """What became of an output of j, behind the end of a revision."""
    async with asyncio.timeout(30):
        while (note := sink.note("j", of)) is None or (note.rev, note.error) != (rev, error):
            await sink.turn()
            await asyncio.sleep(0.01)
    return note


async def test_the_rows_of_a_cancelled_job_are_left_once_its_pipelines_have_made_them(
    sink: TurnedWorker, log: EmptyLog, child: Child, tmp_path: Path
) -> None:
    """A process that is ended before has made some, and the next one would begin with none. They stay then.

    It is closed behind them: what it holds until `close_spider` was lost without a word.
    """
    log.failures = 0
    output = await scraped(sink, rows=2)
    with_pipelines(sink, 2, "cancelled", ends=2)
    await sink.turn()
    assert sink.note("j", "rows.jsonl") is None
    child.may_work.set()
    for rev in (2, 3):
        with_pipelines(sink, rev, "cancelled", ends=2)
        note = await noted(sink, rev)
        assert (note.rows, note.is_partial, note.stats) == (2, True, {"kept": 2})
        assert len(output.partial.read_text().splitlines()) == 2
    assert (child.calls, child.reason) == (ONCE, b"shutdown")


@pytest.mark.parametrize(("fetched", "calls"), [(0, []), (3, ["open", "close"])])
async def test_pipelines_of_a_cancelled_job_without_items_are_closed_if_it_had_begun(
    sink: TurnedWorker, log: EmptyLog, child: Child, fetched: int, calls: list[str]
) -> None:
    """Its spider's `closed` may tell that nothing was found. Scrapyd starts nothing for a pending job."""
    log.failures = 0
    child.may_work.set()
    await scraped(sink, rows=0)
    with_pipelines(sink, 2, "cancelled", ends=0, counts=JobCounts(fetched=fetched))
    await noted(sink, 2)
    assert child.calls == calls


async def test_a_state_is_opened_again_whatever_the_pipelines_have_counted(
    sink: TurnedWorker, log: EmptyLog, child: Child
) -> None:
    """They run a user's code. An error of one state would hold up all outputs of this worker."""
    log.failures = 0
    child.may_work.set()
    child.kept = 1e308
    output = await scraped(sink, rows=0)
    for number in range(2):
        output.take(row(number))
        await output.write({})
        async with asyncio.timeout(30):
            while child.calls.count("rows") <= number:
                await sink.turn()
                await asyncio.sleep(0.01)
    with_pipelines(sink, 2, "finished", ends=2)
    await sink.drop_all()
    sink.look_again("j")
    assert (await noted(sink, 2)).rows == 2


async def test_items_of_a_start_pass_the_pipelines_of_a_cancelled_job_that_has_fetched_nothing(
    sink: TurnedWorker, log: EmptyLog, child: Child
) -> None:
    """A spider's `start` may give items before its first page."""
    log.failures = 0
    child.may_work.set()
    await scraped(sink, rows=2)
    with_pipelines(sink, 2, "cancelled", ends=2, counts=JobCounts(queued=1))
    assert (await noted(sink, 2)).rows == 2
    assert child.calls == ONCE


async def test_pipelines_of_a_stopped_job_are_closed_again_when_it_has_finished(
    sink: TurnedWorker, log: EmptyLog, child: Child
) -> None:
    """With its own reason, also if it got no further item: some act on `finished` alone."""
    log.failures = 0
    child.may_work.set()
    await scraped(sink, rows=2)
    with_pipelines(sink, 2, "stopped", ends=2)
    await noted(sink, 2)
    assert (child.calls, child.reason) == (ONCE, b"shutdown")
    with_pipelines(sink, 3)
    await sink.turn()
    with_pipelines(sink, 4, "finished", ends=2)
    assert (await noted(sink, 4)).rows == 2
    assert (child.calls, child.reason) == (ONCE * 2, b"finished")


async def test_pipelines_of_a_job_that_goes_on_are_not_closed_by_its_former_end(
    sink: TurnedWorker, log: EmptyLog, child: Child
) -> None:
    """They would be closed whenever they have made all rows, and each fresh process gets all items again."""
    log.failures = 0
    output = await scraped(sink, rows=1)
    with_pipelines(sink, 2, "finished", ends=1)
    await sink.turn()
    with_pipelines(sink, 3)
    await sink.turn()
    child.may_work.set()
    async with asyncio.timeout(30):
        while "rows" not in child.calls:
            await sink.turn()
            await asyncio.sleep(0.01)
    output.take(row(1))
    await output.write({})
    with_pipelines(sink, 4, "finished", ends=2)
    assert (await noted(sink, 4)).rows == 2
    assert child.calls == ["open", "rows", "rows", "close"]


@pytest.mark.parametrize("ends", [None, 2])
async def test_pipelines_go_on_after_a_full_disk_where_the_write_of_their_rows_met_it(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch, ends: int | None
) -> None:
    """The job may get no other item, and have ended: they tried the same closed database for ever."""
    monkeypatch.setattr(outputs_worker, "FLUSH_S", 0.0)
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.01)
    log.failures = 0
    output = await scraped(sink, rows=2)
    fill_disk(output, monkeypatch)
    with_pipelines(sink, 2, "running" if ends is None else "finished", ends=ends)
    child.may_work.set()
    told = f"pipelines: {FULL.strerror}"
    await noted(sink, 2, told if ends else f"{output.partial}: {told}")
    async with asyncio.timeout(30):
        while "rows" not in child.calls[2:]:
            await sink.turn()
            await asyncio.sleep(0.01)
    if ends is None:
        with_pipelines(sink, 3, "finished", ends=2)
    assert (await noted(sink, 2 if ends else 3)).rows == 2


@pytest.mark.parametrize("with_rows", [False, True], ids=["without pipelines", "with pipelines"])
async def test_the_note_of_a_worker_that_died_behind_its_good_write_is_taken_back_once(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch, with_rows: bool
) -> None:
    """Or that handed the output over. Nothing waits, and the job may get no other item for hours."""
    log.failures, log.at = 0, {0: 1}
    monkeypatch.setattr(outputs_worker, "log_bounds", lambda *_: {0: (0, 1)})
    child.may_work.set()
    with_pipelines(sink, 1) if with_rows else running(sink, "j")
    await sink.turn()
    [output] = sink.outputs.values()
    output.take(row(0))
    await output.write({})
    async with asyncio.timeout(30):
        while not output.partial.exists() or not output.partial.read_text():  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(0.01)
    await sink.drop_all()
    sink.heard(OutputNote("j", "rows.jsonl", 1.0, rev=1, error=str(FULL)))
    await noted(sink, 0)
    for _ in range(5):
        await sink.turn()
    assert log.sent == 1


@pytest.mark.parametrize("with_rows", [False, True], ids=["without pipelines", "with pipelines"])
async def test_an_output_whose_file_cannot_be_made_stays_failed_when_its_worker_changes(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch, with_rows: bool
) -> None:
    """The next worker has nothing to write; that it can open the state says nothing of FILE."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    log.failures, log.at = 0, {0: 1}
    monkeypatch.setattr(outputs_worker, "log_bounds", lambda *_: {0: (0, 1)})
    child.may_work.set()
    with_pipelines(sink, 1, has_pipelines=with_rows)
    await sink.turn()
    [output] = sink.outputs.values()
    output.take(row(0))
    await output.write({})
    with monkeypatch.context() as refused:
        refused.setattr(completion, "finalise", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
        with_pipelines(sink, 2, "finished", ends=1, has_pipelines=with_rows)
        await noted(sink, 2, "[Errno 30] Read-only file system")
        for _ in range(2):
            await sink.drop_all()
            log.is_open = False  # the next worker reads from where its outputs are
            sink.look_again("j")
            for _ in range(5):
                await sink.turn()
        assert log.sent == 1
    assert (await noted(sink, 2)).rows == 1


async def test_an_output_with_pipelines_is_no_failed_one_any_more_when_it_is_written_again(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are opened a while behind the good write, and nothing else is written then."""
    hurried(log, monkeypatch)
    output = await scraped(sink, rows=1)
    fill_disk(output, monkeypatch)
    output.take(row(1))
    await noted(sink, 1, f"{output.partial}: {FULL.strerror}")
    for _ in range(3):
        await sink.turn()
    assert (note := sink.note("j", "rows.jsonl")) is not None
    assert (output.pending, bool(note.error)) == ([], True), "the pipelines are not opened yet"
    child.may_work.set()
    await noted(sink, 0)
    for _ in range(5):
        await sink.turn()
    assert log.sent == 2


async def test_a_disk_that_stays_full_for_the_rows_of_pipelines_is_noted_once(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They can be opened at each try; that is no news."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    monkeypatch.setattr(row_maker, "AGAIN_S", 0.01)
    log.failures, child.may_open = 0, True
    child.may_work.set()
    with monkeypatch.context() as full:
        full.setattr(PipelineRows, "take", Mock(side_effect=FULL))
        await scraped(sink, rows=1)
        with_pipelines(sink, 2, "finished", ends=1)
        await noted(sink, 2, f"pipelines: {FULL}")
        tries = len(child.calls)
        async with asyncio.timeout(30):
            while len(child.calls) < tries + 10:
                await sink.turn()
                await asyncio.sleep(0.001)
        assert log.sent == 1
    assert (await noted(sink, 2)).rows == 1


@pytest.mark.parametrize("error", [RefusedOutput("behind a link"), Misconfigured("cannot write")])
async def test_an_output_that_cannot_be_had_any_more_is_noted_once(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A link in its place, a folder that may not be written. What is open could be written again."""
    hurried(log, monkeypatch)
    output = await begun(sink)
    output.take(row(0))
    with monkeypatch.context() as full:
        full.setattr(SinkState, "fold", Mock(side_effect=FULL))
        for _ in range(2):
            await sink.turn()
    monkeypatch.setattr(wanted_module, "fleet_sink_of", Mock(side_effect=error))
    sink.look_again("j")
    for _ in range(5):
        await sink.turn()
    note = sink.note("j", "rows.jsonl")
    assert (note and note.error, log.sent) == (str(error), 2)


NOT_OPENED = "pipelines: open_spider: OSError: no database"


async def not_opened(sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch) -> Output:
    """The output of j, which goes on: it has an item, and its pipelines cannot be opened."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    monkeypatch.setattr(row_maker, "AGAIN_S", 0.01)
    log.failures, child.error = 0, "open_spider: OSError: no database"
    output = await scraped(sink, rows=1)
    async with asyncio.timeout(30):
        while not output.trouble:
            await sink.turn()
            await asyncio.sleep(0.01)
    return output


async def test_pipelines_that_cannot_be_opened_are_told_in_reports_and_in_the_outputs_note(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status` and `jobs show` say so; the output is completed once they can be opened."""

    def positions(*_: Any, **told: Any) -> list[Any]:
        return [SimpleNamespace(partition=0, **told)]

    monkeypatch.setattr(progress, "positions", positions)
    await not_opened(sink, log, child, monkeypatch)
    assert sink.reports()[0].trouble == f"job j, {NOT_OPENED}"
    with_pipelines(sink, 2, "finished", ends=1)
    await noted(sink, 2, NOT_OPENED)
    assert sink.reports()[0].trouble == f"job j, {NOT_OPENED}"
    child.error = ""
    child.may_work.set()
    assert (await noted(sink, 2)).rows == 1


async def test_a_sink_reports_the_rows_of_each_output(sink: TurnedWorker, log: EmptyLog) -> None:
    """Those that count: the same page once more adds none. Of very many jobs all are named, in turns."""
    log.failures = 0
    output = await begun(sink)
    for number in (0, 1, 1):
        output.take(row(number))
    await output.write({0: 2})
    assert told_rows([output], 0.0) == {"j": (0, 2)}
    await output.close()
    assert told_rows([output], 0.0) == {"j": (0, 2)}
    wanted = [SimpleNamespace(job=f"j{number}", epoch=0, fed=None) for number in range(1_000)]
    many: list[Any] = [SimpleNamespace(wanted=one, rows=7, written_at=0.0) for one in wanted]
    named = [told_rows(many, 2.0 * turn) for turn in range(10)]
    assert max(map(len, named)) == MAX_ROWS_TOLD
    assert set().union(*named) == {one.job for one in wanted}


async def test_an_output_is_no_failed_one_any_more_when_its_pipelines_are_opened(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may work for hours, and `submit --wait` waits for no failed output."""
    await not_opened(sink, log, child, monkeypatch)
    with_pipelines(sink, 2, "finished", ends=1)
    await noted(sink, 2, NOT_OPENED)
    child.error, child.may_open = "", True
    await noted(sink, 0)
    child.may_work.set()
    assert (await noted(sink, 2)).rows == 1


@pytest.mark.parametrize("state", ["stopped", "cancelled"])
async def test_the_rows_of_a_job_that_was_stopped_are_left_though_its_pipelines_cannot_be_opened(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """They would be tried for ever, and nobody waits for them. Once they can be opened they make the rest."""
    monkeypatch.setattr(row_maker, "AGAIN_S", 0.01)
    log.failures = 0
    child.may_work.set()
    output = await scraped(sink, rows=1)
    with_pipelines(sink, 2, state, ends=1)
    assert (await noted(sink, 2)).rows == 1
    for rev, error, rows in ((3, "open_spider: OSError: no database", 1), (4, "", 2)):
        child.error = error
        with_pipelines(sink, rev)
        await sink.turn()
        [output] = sink.outputs.values()
        output.take(row(1))
        await output.write({})
        with_pipelines(sink, rev, state, ends=2)
        note = await noted(sink, rev)
        assert (note.rows, note.is_partial) == (rows, True)
        assert len(output.partial.read_text().splitlines()) == rows


async def test_the_same_command_is_told_of_a_try_since_it_was_given(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user has mended the cause; that the pipelines are opened may take as long as it likes."""
    await not_opened(sink, log, child, monkeypatch)
    with_pipelines(sink, 2, "finished", ends=1)
    await noted(sink, 2, NOT_OPENED)
    sink.heard(OutputNote("j", "rows.jsonl", 2.0))
    await noted(sink, 2, NOT_OPENED)
    child.error = ""
    sink.heard(OutputNote("j", "rows.jsonl", 3.0))
    for _ in range(3):
        await sink.turn()
    assert (note := sink.note("j", "rows.jsonl")) is not None
    assert not note.error
    child.may_work.set()
    assert (await noted(sink, 2)).rows == 1


TWO = ("rows.jsonl", "table.csv")
ONCE = ["open", "rows", "close"]


def made_files(sink: TurnedWorker) -> dict[str, str]:
    """What lies in the folder of j, by name."""
    return {path.name: path.read_text() for path in (sink.data / "outputs" / "j").iterdir()}


def without(name: str) -> Callable[..., Any]:
    """In place of `fleet_sink_of`: no worker declares the output of this name."""

    def declared(settings: Settings, job: str, output: OutputSpec, *more: Any, **named: Any) -> Any:
        if output.name == name:
            raise Misconfigured("not declared")
        return fleet_sink_of(settings, job, output, *more, **named)

    return declared


BOTH = {"rows.jsonl": '{"n": 1}\n{"n": 1}\n', "table.csv": "n\n1\n1\n"}


@pytest.mark.parametrize("outputs", [TWO, TWO[::-1]])
async def test_items_pass_the_pipelines_once_for_all_outputs_of_a_job(
    sink: TurnedWorker, log: EmptyLog, child: Child, outputs: tuple[str, ...]
) -> None:
    """What a pipeline does outside, such as a row in a database, happened as often as there are outputs."""
    log.failures = 0
    child.may_work.set()
    output = await scraped(sink, rows=2, outputs=outputs)
    assert output.wanted.output.name == outputs[0]
    with_pipelines(sink, 2, "finished", ends=2, outputs=outputs)
    assert [(await noted(sink, 2, of=name)).rows for name in outputs] == [2, 2]
    assert (made_files(sink), child.calls, sink.outputs) == (BOTH, ONCE, {})


async def test_an_output_that_cannot_be_written_keeps_the_rows_for_itself_and_no_other_output_waits(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is away: the pipelines would have to make all rows again."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    log.failures = 0
    child.may_work.set()
    await scraped(sink, rows=2, outputs=TWO)
    with monkeypatch.context() as away:
        away.setattr(completion, "write_other", Mock(side_effect=Misconfigured("no answer")))
        with_pipelines(sink, 2, "finished", ends=2, outputs=TWO)
        assert (await noted(sink, 2)).rows == 2
        await noted(sink, 2, "no answer", of="table.csv")
        for _ in range(5):
            await sink.turn()
        assert made_files(sink)["rows.jsonl"] == BOTH["rows.jsonl"]
        assert log.sent == 2
    assert (await noted(sink, 2, of="table.csv")).rows == 2
    await sink.turn()
    assert (made_files(sink), child.calls, sink.outputs) == (BOTH, ONCE, {})


async def test_an_output_that_cannot_be_had_gets_the_rows_once_it_can(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker declared it; others of the job are complete meanwhile."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    log.failures = 0
    child.may_work.set()

    with monkeypatch.context() as lacking:
        lacking.setattr(wanted_module, "fleet_sink_of", without(TWO[1]))
        await scraped(sink, rows=2, outputs=TWO)
        await sink.turn()
        assert sink.passed()[1] == ["j"], "the job waits for it"
        with_pipelines(sink, 2, "finished", ends=2, outputs=TWO)
        assert (await noted(sink, 2)).rows == 2
        for _ in range(5):
            await sink.turn()
    assert (await noted(sink, 2, of="table.csv")).rows == 2
    await sink.turn()
    assert (made_files(sink), child.calls, sink.outputs) == (BOTH, ONCE, {})


async def test_no_other_output_leads_while_the_worker_before_has_the_state(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items would pass the pipelines for the other one, too."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    log.failures = 0
    with monkeypatch.context() as held:
        held.setattr(Output, "begin", Mock(side_effect=RetryLater("another worker has it")))
        with_pipelines(sink, 1, outputs=TWO)
        await sink.turn()
        assert sink.outputs == {}
    await sink.turn()
    [output] = sink.outputs.values()
    assert (output.wanted.output.name, list(sink.completion(output).copies)) == (TWO[0], [TWO[1]])


async def test_all_outputs_of_a_cancelled_job_with_pipelines_name_the_rows_that_are_left(
    sink: TurnedWorker, log: EmptyLog, child: Child
) -> None:
    """Only the first one has a file of its own."""
    log.failures = 0
    child.may_work.set()
    output = await scraped(sink, rows=2, outputs=TWO)
    with_pipelines(sink, 2, "cancelled", ends=2, outputs=TWO)
    for name in TWO:
        note = await noted(sink, 2, of=name)
        assert (note.rows, note.is_partial, note.place) == (2, True, str(output.partial))


async def test_an_output_of_a_finished_job_that_is_wanted_again_gets_the_rows_of_the_first_one(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was lost, and the same `submit` came again."""
    log.failures = 0
    monkeypatch.setattr(outputs_worker, "log_bounds", lambda *_: {0: (0, 2)})
    child.may_work.set()
    await scraped(sink, rows=2, outputs=TWO)
    with_pipelines(sink, 2, "finished", ends=2, outputs=TWO)
    await noted(sink, 2)
    (sink.data / "outputs" / "j" / TWO[1]).unlink()
    sink.heard(OutputNote("j", TWO[1], 3.0))
    assert (await noted(sink, 2, of=TWO[1])).rows == 2
    await sink.turn()
    assert (made_files(sink), child.calls, sink.outputs) == (BOTH, ONCE, {})


async def test_outputs_whose_rows_cannot_be_made_are_all_noted_as_failed(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit --wait` waited for ever for one of which nothing was said."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    monkeypatch.setattr(row_maker, "AGAIN_S", 0.01)
    log.failures, child.error = 0, "open_spider: OSError: no database"
    child.may_work.set()
    await scraped(sink, rows=2, outputs=TWO)
    with_pipelines(sink, 2, "finished", ends=2, outputs=TWO)
    for name in TWO:
        await noted(sink, 2, NOT_OPENED, of=name)
    for _ in range(5):
        await sink.turn()
    assert log.sent == 2
    child.error = ""
    assert [(await noted(sink, 2, of=name)).rows for name in TWO] == [2, 2]
    assert (made_files(sink), child.calls) == (BOTH, ONCE)


@pytest.mark.parametrize("when", ["the job has ended", "the job goes on", "its worker begins anew"])
async def test_the_output_that_leads_in_place_of_the_first_one_keeps_the_rows_for_it(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The first one cannot be had until then: all items passed the pipelines again for it."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    monkeypatch.setattr(outputs_worker, "REST_S", 0.0)
    log.failures = 0
    child.may_work.set()

    with monkeypatch.context() as lacking:
        lacking.setattr(wanted_module, "fleet_sink_of", without(TWO[0]))
        output = await scraped(sink, rows=2, outputs=TWO)
        assert output.wanted.output.name == TWO[1]
        if when != "the job goes on":
            with_pipelines(sink, 2, "finished", ends=2, outputs=TWO)
            assert (await noted(sink, 2, of=TWO[1])).rows == 2
            for _ in range(5):
                await sink.turn()
            assert not output.is_open
        if when == "its worker begins anew":
            await sink.drop_all()
    with_pipelines(sink, 2, "finished", ends=2, outputs=TWO)
    assert [(await noted(sink, 2, of=name)).rows for name in TWO] == [2, 2]
    await sink.turn()
    assert (made_files(sink), child.calls, sink.outputs) == (BOTH, ONCE, {})


async def test_a_full_disk_is_noted_once_for_each_output_that_shares_the_rows(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error of its own file; two errors in turns would be a note with each try."""
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    log.failures = 0
    child.may_work.set()
    await scraped(sink, rows=2, outputs=TWO)

    def full(_source: Any, _sink: Any, path: Path) -> Path:
        raise OSError(errno.ENOSPC, FULL.strerror, str(path))

    with monkeypatch.context() as filled:
        filled.setattr("crawlog.streams.sink.finish._written", full)
        with_pipelines(sink, 2, "finished", ends=2, outputs=TWO)
        async with asyncio.timeout(30):
            while log.sent < 2:
                await sink.turn()
                await asyncio.sleep(0.01)
        for _ in range(20):
            await sink.turn()
        assert log.sent == 2
        for name in TWO:
            assert (note := sink.note("j", name)) is not None
            assert f"/{name}'" in note.error
    assert [(await noted(sink, 2, of=name)).rows for name in TWO] == [2, 2]
    assert (made_files(sink), child.calls) == (BOTH, ONCE)


async def test_the_output_that_leads_still_has_its_copies_in_a_new_epoch(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All states are other ones then; the first output, a copy, was forgotten with the old leading one."""
    log.failures = 0
    monkeypatch.setattr(outputs_worker, "AGAIN_S", 0.0)
    with monkeypatch.context() as lacking:
        lacking.setattr(wanted_module, "fleet_sink_of", without(TWO[0]))
        output = await scraped(sink, rows=1, outputs=TWO)
        assert output.wanted.output.name == TWO[1]
    made = {"rev": 2, "outputs": tuple(map(OutputSpec, TWO)), "pipelines": True}
    sink.heard(JobCopy("j", msgspec.structs.replace(JobSpec(), **made), epoch=1))
    await sink.turn()
    [leads] = sink.outputs.values()
    assert (leads.wanted.output.name, list(sink.completion(leads).copies)) == (TWO[1], [TWO[0]])


@pytest.mark.parametrize("leads", TWO)
async def test_a_refused_output_does_not_have_the_finished_ones_made_again(
    sink: TurnedWorker, log: EmptyLog, child: Child, leads: str
) -> None:
    """Nor does the next worker, nor the same `submit`: items pass the pipelines once."""
    log.failures = 0
    child.may_work.set()
    outputs = (leads, next(name for name in TWO if name != leads), "no/plain.jsonl")
    await scraped(sink, rows=2, outputs=outputs)
    with_pipelines(sink, 2, "finished", ends=2, outputs=outputs)
    for name in TWO:
        await noted(sink, 2, of=name)
    were = {path: path.stat().st_ino for path in (sink.data / "outputs" / "j").iterdir()}
    for notes in ((), outputs[:2], outputs[:1]):
        await sink.drop_all()
        sink.look_again("j")
        for name in notes:
            sink.heard(OutputNote("j", name, 3.0))
        for name in TWO:
            assert (await noted(sink, 2, of=name)).rows == 2
        await sink.turn()
    assert (made_files(sink), child.calls, sink.outputs) == (BOTH, ONCE, {})
    assert {path: path.stat().st_ino for path in were} == were


async def test_a_report_amid_a_plan_does_not_forget_a_required_copy(
    sink: TurnedWorker, log: EmptyLog, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are with an output that is not required; the job would end before they are durable."""
    log.failures, log.at = 0, {0: 100}
    outputs = OutputSpec(TWO[0], required=False), OutputSpec(TWO[1])
    made = {"outputs": outputs, "pipelines": True}
    sink.heard(JobCopy("j", msgspec.structs.replace(JobSpec(), rev=1, **made)))
    await sink.turn()
    [output] = sink.outputs.values()
    output.take(row(3))
    assert sink.passed() == ([3], [])
    sink.heard(JobCopy("j", msgspec.structs.replace(JobSpec(), rev=2, **made)))
    monkeypatch.setattr(outputs_worker, "log_bounds", Mock(side_effect=EngineError("no answer")))
    with pytest.raises(EngineError):
        await sink.plan()
    assert sink.passed() == ([3], [])


async def test_a_job_waits_for_a_required_copy_whose_leading_output_another_worker_has_yet(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leading one is not required."""
    log.failures = 0
    outputs = OutputSpec(TWO[0], required=False), OutputSpec(TWO[1])
    monkeypatch.setattr(Output, "begin", Mock(side_effect=RetryLater("another worker has it")))
    sink.heard(JobCopy("j", msgspec.structs.replace(JobSpec(), outputs=outputs, pipelines=True)))
    await sink.turn()
    assert sink.passed()[1] == ["j"]


async def test_an_output_without_pipelines_begins_though_another_worker_has_the_one_before_it(
    sink: TurnedWorker, log: EmptyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have nothing in common."""
    log.failures, real = 0, Output.begin

    async def begin(self: Output, *args: Any) -> None:
        if self.wanted.output.name == TWO[0]:
            raise RetryLater("another worker has it")
        await real(self, *args)

    monkeypatch.setattr(Output, "begin", begin)
    with_pipelines(sink, 1, has_pipelines=False, outputs=TWO)
    await sink.turn()
    assert [key[1] for key in sink.outputs] == [TWO[1]]


@pytest.mark.parametrize(
    ("worker", "machine", "place", "stays"),
    [
        ("sink-9", "another", "", False),
        ("sink-9", "", "/elsewhere/rows.jsonl", False),
        ("sink-9", "", "", True),
        ("sink-0", "another", "", True),
    ],
    ids=["another machine's", "another folder's", "of this folder", "its own"],
)
async def test_rows_so_far_go_once_another_machine_has_made_the_file(
    worker: str, machine: str, place: str, stays: bool, sink: TurnedWorker, log: EmptyLog, tmp_path: Path
) -> None:
    """A worker that lost the output keeps FILE.partial meanwhile: it may get the output back."""
    log.failures = 0
    spec = msgspec.structs.replace(JobSpec(), outputs=(OutputSpec("rows.jsonl"),), rev=2)
    sink.heard(JobCopy("a", spec))
    [wanted] = sink.wanted_of("a")
    made = fleet_sink_of(sink.settings, "a", wanted.output, wanted.since, wanted.voids, pipelines=False)
    SinkState(tmp_path, made, LogIdentity("cluster", "topic")).close()
    partial = made.partial(tmp_path)
    assert partial.exists()
    sink.own()
    sink.heard(JobCopy("a", msgspec.structs.replace(spec, state="finished")))
    sink.heard(Finished("a", 1.0, items=(0,), rev=2))
    await sink.plan()
    assert partial.exists()
    place = place or made.output
    sink.heard(OutputNote("a", "rows.jsonl", 2.0, rev=2, place=place, worker=worker, machine=machine))
    await sink.plan()
    assert partial.exists() is stays
