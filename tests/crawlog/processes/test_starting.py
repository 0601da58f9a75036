"""The `start` of a spider as the supervisor sees it: what its child gives, when it waits, when it begins again."""

import errno
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.agents import sandbox
from crawlog.agents.sandbox import SpiderFrame, result_of
from crawlog.agents.sandbox.zygote_process import ZygoteProcess
from crawlog.processes import starting
from crawlog.processes.starting import MOST_WAITING, Starting
from crawlog.schemas import control, log_lines, urls
from crawlog.schemas.control import NO_EPOCH, Command, Control, JobCopy, StartEnded
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams import logs
from crawlog.streams.errors import GiveUp
from crawlog.streams.jobs import ControlState, FleetReports, NextStart
from crawlog.streams.settings.settings import Settings
from crawlog.streams.spiders import CallResult, RequestOut, allow
from tests.support.control_records import control_of
from tests.support.processes import LIMIT_S

SPIDER = """
import asyncio, os
from pathlib import Path
from crawlog import Request, Spider

class Numbers(Spider):
    def parse(self, response):
        pass

    async def start(self):
"""


ANY = ScopeSpec(kind="any")

LARGEST = 1 << 16
"""Bytes of a record of the log."""


class FakeSupervisor:
    """Has settings, and a picture of one partition."""

    def __init__(self, data: Path) -> None:
        self.settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": data})})
        self.picture = FleetReports()
        self.watch: Any = None
        self.producer = FakeProducer()
        self.report(0, 0)

    def report(self, offset: int, queued: int) -> None:
        """A worker has folded up to an offset."""
        self.picture.take(Progress("fetch-0", "fetch", 0, time.time(), offset, jobs={"j": JobCounts(queued=queued)}))


class FakeProducer:
    """Keeps what is sent; acknowledged at once."""

    outstanding = 0

    def __init__(self) -> None:
        self.founds: list[str] = []
        self.controls: list[Control | None] = []
        self.lines: list[log_lines.LogLine] = []
        self.unanswered = 0

    def send(
        self, topic: str, value: bytes, *, key: bytes | None = None, partition: int, on_delivery: Any = None
    ) -> None:
        """Keeps a record. Raises: GiveUp: it is too large."""
        if len(value) > LARGEST:
            raise GiveUp("too_large")
        if topic.endswith("urls"):
            self.founds += [found.url for found in urls.decode(value).urls or ()]
        elif topic.endswith("logs"):
            self.lines += log_lines.decode(value).lines
        elif topic.endswith("control"):
            self.controls.append(control.decode(key, value))
        if on_delivery is not None:
            on_delivery(partition, len(self.founds))

    def poll(self) -> int:
        """Nothing comes back."""
        return 0

    def flush(self, _: float) -> bool:
        """All is acknowledged, but for the first `unanswered` times."""
        self.unanswered -= 1
        return self.unanswered < 0


class Started:
    """A start that runs, and what came of it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, scope: ScopeSpec = ANY) -> None:
        file = folder / "numbers.py"
        file.write_text(SPIDER + "".join(f"        {line}\n" for line in body.splitlines()))
        self.supervisor, self.said = FakeSupervisor(folder / "data"), list[str]()
        self.producer = self.supervisor.producer
        (folder / "data" / "run").mkdir(parents=True)
        allow(folder / "data", file)
        spec = JobSpec(spider=f"{file}:Numbers", starts=True, scope=scope)
        self.copy = JobCopy("j", spec)
        self.said_in_log: dict[bytes, Control] = {b"job/j": self.copy}
        self.reads = 0
        monkeypatch.setattr("crawlog.streams.control.read_control", self._entries)
        monkeypatch.setattr("crawlog.streams.log.partition_count", lambda _: 1)
        self.supervisor.watch = SimpleNamespace(control_end=lambda: len(self.said_in_log))
        monkeypatch.setattr(starting, "AGAIN_S", 0.0)
        self.starting = Starting(self.copy, self.supervisor, self.said.append)  # type: ignore[arg-type]  # as much as is needed

    def _entries(self, *_: object, joins: bool = False) -> ControlState:
        self.reads += not joins
        return control_of(*self.said_in_log.values())

    def until(self, is_so: Callable[[], bool]) -> None:
        """Looks until it is so."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so() and time.monotonic() < deadline:
            self.starting.look()
            time.sleep(0.01)
        assert is_so()

    def ended(self) -> StartEnded:
        """Looks until it has ended; the note of it."""
        self.until(lambda: not self.starting.is_running)
        (note,) = self.producer.controls
        assert isinstance(note, StartEnded)
        return note


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Started]:
    """Starts a spider with this `start`."""
    return lambda body: Started(tmp_path, monkeypatch, body)


Start = Callable[[str], Started]


def test_all_that_it_gives_is_in_the_log_before_the_note_of_its_end(start: Start) -> None:
    """The job is not finished before."""
    made = start('for n in range(100): yield Request(f"http://a.test/{n}")\nyield {"n": 1}')
    note = made.ended()
    assert (note.job, note.requests, note.items, note.error) == ("j", 100, 1, "")
    assert made.producer.founds == [f"http://a.test/{n}" for n in range(100)]
    assert control_of(note).start_ended(made.copy, note.spider) == note
    assert not made.said


@pytest.mark.parametrize("unanswered", [1, 2, 3])
def test_a_part_whose_names_were_not_acknowledged_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unanswered: int
) -> None:
    """The broker died meanwhile; the stop of a spider that closes its job is not lost either."""

    def closing(answer: SpiderFrame) -> CallResult:
        result = result_of(answer)
        return msgspec.structs.replace(result, closes="enough" if result.items else "")

    monkeypatch.setattr(sandbox, "result_of", closing)
    body = 'for n in range(3): yield Request(f"http://{n}.test/")\nyield {}'
    made = Started(tmp_path, monkeypatch, body, ScopeSpec("domain"))
    made.producer.unanswered = unanswered
    made.until(lambda: not made.starting.is_running)
    assert made.producer.founds == [f"http://{n}.test/" for n in range(3)]
    *_, stop, note = made.producer.controls
    assert isinstance(stop, Command)
    assert stop.reason == "enough"
    assert isinstance(note, StartEnded)
    assert (note.requests, note.items, note.error) == (3, 1, "")


def test_an_error_that_closes_the_job_does_both(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the error that reaches CLOSESPIDER_ERRORCOUNT."""
    failed = CallResult(error="ValueError: no price", closes="closespider_errorcount")
    monkeypatch.setattr(sandbox, "result_of", lambda _: failed)
    made = start('yield {"n": 1}')
    made.until(lambda: not made.starting.is_running)
    [stop, note] = made.producer.controls
    assert isinstance(stop, Command)
    assert isinstance(note, StartEnded)
    assert (stop.action, stop.reason, note.error) == ("stop", "closespider_errorcount", "ValueError: no price")


def test_it_goes_on_after_an_error_beside_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of a callback that Scrapy's adapter calls at once. The note has the first one; each is said once."""
    errors = iter(["no price", "no price", "no title", ""])

    def given(answer: SpiderFrame) -> CallResult:
        error = next(errors, "")
        return msgspec.structs.replace(result_of(answer), error=error, goes_on=True)

    monkeypatch.setattr(sandbox, "result_of", given)
    made = start('for n in range(20): yield Request(f"http://a.test/{n}")')
    note = made.ended()
    assert (note.requests, note.error) == (20, "no price; it went on")
    begin = "`start` of job j has an error beside it: "
    assert made.said == [f"{begin}{error}; it went on" for error in ("no price", "no title")]
    assert control_of(note).start_ended(made.copy) is None


@pytest.mark.parametrize(
    "result",
    [
        CallResult(requests=[RequestOut("http://a.test/" + "x" * LARGEST)]),
        CallResult(
            requests=[RequestOut("http://a.test/", 7, request=RequestRecord(method="POST", body=b"x" * LARGEST))]
        ),
        CallResult(items=[msgspec.Raw(b'"%s"' % (b"x" * LARGEST))]),
    ],
    ids=["URL", "body", "item"],
)
def test_what_no_record_can_hold_is_an_error_of_its_start_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, result: CallResult
) -> None:
    """The note of its end is written, or the next `up` would begin it again."""
    monkeypatch.setattr(sandbox, "result_of", lambda _: result)
    made = start('yield {"n": 1}')
    assert "too_large for one record" in made.ended().error
    assert not made.producer.founds


@pytest.mark.parametrize("error", [GiveUp("too_large"), KeyError("x")])
def test_an_error_that_is_not_the_brokers_ends_the_start_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The process runs the `start` of other jobs, and the workers."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("crawlog.agents.seed.StartSower.sow", fail)
    assert type(error).__name__ in start("yield {}").ended().error


def test_one_whose_note_cannot_be_written_ends_without(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each look would fail at it; the next command begins it again."""

    def fail(*_: object, **__: object) -> None:
        raise GiveUp("too_large")

    monkeypatch.setattr("crawlog.streams.control.write_control", fail)
    made = start("yield {}")
    made.until(lambda: not made.starting.is_running)
    assert not made.producer.controls
    assert "too_large" in made.starting.error


def test_one_that_has_no_room_for_its_process_waits_for_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR is full, or no process or descriptor is left: that passes."""
    failed: list[OSError] = []

    def begun(*args: Any, **more: Any) -> ZygoteProcess:
        if len(failed) < 3:
            failed.append(OSError(errno.ENOSPC, "No space left on device", f"/tmp/{len(failed)}"))
            raise failed[-1]
        return ZygoteProcess(*args, **more)

    monkeypatch.setattr("crawlog.agents.sandbox.spider_child.ZygoteProcess", begun)
    made = start('yield Request("http://a.test/")')
    assert not made.ended().error
    assert len(failed) == 3
    assert made.said == ["`start` of job j waits: No space left on device"]


def test_it_begins_again_with_another_producer(start: Start) -> None:
    """The broker has another address, and may lack what was on its way."""
    made = start('for n in range(3): yield Request(f"http://a.test/{n}")\nyield {}')
    made.until(lambda: len(made.producer.founds) == 3)
    made.supervisor.producer = made.producer = FakeProducer()
    note = made.ended()
    assert made.producer.founds == [f"http://a.test/{n}" for n in range(3)]
    assert (note.requests, note.items, note.error) == (3, 1, "")


def test_its_spider_is_loaded_while_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks also restarts workers and the broker."""
    made = Started(tmp_path, monkeypatch, 'yield Request("http://a.test/")')
    go, file = tmp_path / "go", tmp_path / "numbers.py"
    file.write_text(
        f"import time, pathlib\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n{file.read_text()}"
    )
    made.starting.look()
    go.touch()
    assert not made.ended().error
    assert not made.said


@pytest.mark.parametrize(
    ("top", "error"),
    [
        ("raise KeyError('x')", "KeyError"),
        ("import os; os._exit(3)", "spider_died while it was loaded: its process exited with code 3"),
    ],
)
def test_one_whose_spider_cannot_be_loaded_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: str, error: str
) -> None:
    """The next command tries it again."""
    made = Started(tmp_path, monkeypatch, "yield {}")
    (tmp_path / "numbers.py").write_text(top)
    assert error in made.ended().error
    assert not made.producer.founds


def test_a_part_comes_at_once_though_the_next_one_never_does(start: Start) -> None:
    """A spider may wait for work of others."""
    made = start('yield Request("http://a.test/")\nawait asyncio.sleep(1000)')
    made.until(lambda: bool(made.producer.founds))
    assert made.starting.is_running
    made.starting.close()


def test_it_goes_on_only_while_few_requests_wait(start: Start) -> None:
    """Not folded, or queued: it may be endless."""
    made = start('n = 0\nwhile True:\n    n += 1\n    yield Request(f"http://a.test/{n}")')
    starting = made.starting
    made.until(lambda: len(made.producer.founds) > MOST_WAITING // 2 and not starting._asked and not starting._answers)
    before = len(made.producer.founds)
    assert before <= MOST_WAITING
    made.supervisor.report(10**9, MOST_WAITING)
    for _ in range(20):
        starting.look()
    assert not starting._asked
    assert len(made.producer.founds) == before
    made.supervisor.report(10**9, 0)
    made.until(lambda: len(made.producer.founds) > before)
    made.starting.close()


def test_a_process_that_dies_begins_again_a_few_times(start: Start, tmp_path: Path) -> None:
    """What it gave before is known to the job."""
    made = start(
        f'mark = Path("{tmp_path}/died")\nyield Request("http://a.test/1")\n'
        'if not mark.exists():\n    mark.touch()\n    os._exit(3)\nyield Request("http://a.test/2")'
    )
    assert not made.ended().error
    assert set(made.producer.founds) == {"http://a.test/1", "http://a.test/2"}
    assert "its process exited with code 3; it begins again" in made.said[0]


def test_one_that_dies_each_time_is_an_error(start: Start) -> None:
    """The next command tries it again."""
    made = start("yield {}\nos._exit(3)")
    note = made.ended()
    assert "its process exited with code 3" in note.error == made.starting.error
    assert control_of(note).start_ended(made.copy) is None


def test_a_job_that_is_stopped_has_its_start_ended_without_a_note(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `resume` it begins again."""
    monkeypatch.setattr(starting, "HELD_LOOK_S", 0.05)
    made = start('yield Request("http://a.test/")\nawait asyncio.sleep(1000)')
    made.until(lambda: bool(made.producer.founds))
    made.said_in_log[b"command/job/j"] = Command("stop", job="j")
    made.until(lambda: not made.starting.is_running)
    assert not made.producer.controls


def test_crawl_control_is_read_only_when_it_has_grown(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read waits half a minute for a broker that has died, and this thread is the one that starts it again."""
    monkeypatch.setattr(starting, "HELD_LOOK_S", 0.0)
    made = start('yield Request("http://a.test/")\nawait asyncio.sleep(1000)')
    made.until(lambda: bool(made.producer.founds))
    for _ in range(20):
        made.starting.look()
    assert made.reads == 1
    made.starting.close()


def test_a_start_begins_again_in_another_epoch_with_other_arguments_and_other_code() -> None:
    """Else its note counts."""
    copy = JobCopy("j", JobSpec(spider="/s.py:S", starts=True, args=(("a", "1"),)), 2)
    note = StartEnded("j", 1.0, 2, "abc", (("a", "1"),))
    assert control_of(note).start_ended(copy) == note
    assert control_of(note).start_ended(copy, "abc") == note
    assert control_of(note).start_ended(copy, "xyz") is None
    assert control_of(note).start_ended(JobCopy("j", copy.spec, 3)) is None
    assert control_of(note).start_ended(JobCopy("j", JobSpec(starts=True), 2)) is None
    assert control_of().start_ended(copy) is None
    assert control_of(copy).startable() == {("j", 2): copy}
    assert not control_of(copy, Command("stop", job="j")).startable()
    assert not control_of(JobCopy("j", JobSpec(starts=True, state="stopped"))).startable()


def test_a_start_with_every_is_due_again_so_long_after_it_ended() -> None:
    """Also after an error, and at once after another epoch or other arguments. `after` tells the requests apart."""
    copy = JobCopy("j", JobSpec(spider="/s.py:S", starts=True, every=60.0), 2)
    assert control_of().next_start(copy) == NextStart(copy, 0.0, 0.0)
    assert control_of(StartEnded("j", 7.0, 2)).next_start(copy) == NextStart(copy, 67.0, 7.0)
    assert control_of(StartEnded("j", 7.0, 2, error="KeyError: x")).next_start(copy) == NextStart(copy, 67.0, 7.0)
    assert control_of(StartEnded("j", 7.0, 1)).next_start(copy) == NextStart(copy, 0.0, 7.0)
    assert control_of(StartEnded("j", 7.0, NO_EPOCH)).next_start(copy) == NextStart(copy, 0.0, 7.0)
    once = JobCopy("j", JobSpec(starts=True), 2)
    assert control_of(StartEnded("j", 7.0, 2)).next_start(once) is None
    assert control_of(StartEnded("j", 7.0, NO_EPOCH)).next_start(once) == NextStart(once, 0.0, 0.0)


def test_while_a_start_with_every_goes_on_again_its_last_end_does_not_count(start: Start) -> None:
    """So the job does not end between its requests. After a kill it begins again with the same `after`."""
    made = start('yield Request("http://a.test/")\nawait asyncio.sleep(1000)')
    made.starting.close()
    made.starting = Starting(made.copy, made.supervisor, made.said.append, 7.0)  # type: ignore[arg-type]  # as above
    made.until(lambda: bool(made.producer.founds))
    made.starting.close()
    (note,) = made.producer.controls
    assert isinstance(note, StartEnded)
    copy = JobCopy("j", JobSpec(starts=True, every=60.0))
    assert control_of(StartEnded("j", 7.0), note).next_start(copy) == NextStart(copy, 0.0, 7.0)


def test_what_it_prints_and_raises_are_lines_about_its_job(start: Start) -> None:
    """`jobs logs` shows them; the terminal of `up` is nobody's."""
    logs.configure("warning")
    made = start('print("hello")\nyield {"n": 1}\nraise KeyError("x")')
    assert made.ended().error
    made.until(lambda: {"hello", "start_failed"} <= {line.source or line.text for line in made.producer.lines})
    (failed,) = (line for line in made.producer.lines if line.source == "start_failed")
    assert failed.level == "error"
    assert "KeyError" in failed.text
