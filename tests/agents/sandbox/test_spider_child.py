"""A user's spider in a process of its own: calls and answers, and what becomes of spiders that misbehave."""

import asyncio
import errno
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from structlog.testing import capture_logs

from crawlog.agents.sandbox import (
    BackgroundChild,
    ChildRules,
    Died,
    Fault,
    SpiderChild,
    fault_of,
    result_of,
    spider_child,
    zygote_process,
)
from crawlog.agents.sandbox.answers import MAX_TEXT, facts_of
from crawlog.agents.sandbox.child_code import ChildCode
from crawlog.agents.sandbox.frames import CALL, DONE, FAILED, PAGE, FrameReader, SpiderFrame, TooLong
from crawlog.agents.sandbox.limits import ChildCgroup, ChildLimits
from crawlog.agents.sandbox.spider_process import SpiderService
from crawlog.agents.sandbox.zygote_process import BURST, Printed
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.errors import Misconfigured, SpiderDied
from crawlog.streams.line_rate import LineRate
from crawlog.streams.spiders import CallResult, PageCall, SpiderFacts, SpiderRef
from tests.support.processes import LIMIT_S as LATEST_S
from tests.support.processes import until

LOADER = "tests.support.hostile_spiders:load"
ROOT = Path(__file__).parent.parent.parent.parent
LIMIT_S = 0.6
"""CPU time of a page."""


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child finds the tests' modules. On a busy machine a page takes long by the clock, and little CPU."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(spider_child, "PATIENCE", 300)


def child_of(path: str = "spider", **rules: Any) -> SpiderChild:
    """A child that nobody waits for."""
    rules.setdefault("limits", ChildLimits(1 << 30))
    return SpiderChild(SpiderRef(path), ChildRules(LIMIT_S, **rules), LOADER)


@pytest.fixture
def child() -> Iterator[SpiderChild]:
    """With a loaded spider; of this test alone, which ends it."""
    with child_of() as child:
        child.facts()
        yield child


@pytest.fixture(scope="module")
def shared() -> Iterator[SpiderChild]:
    """With a loaded spider, for tests whose claim it is that a child serves the next page, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        child = child_of()
        child.facts()
    with child:
        yield child


def call_of(body: bytes) -> PageCall:
    """A page."""
    return PageCall(PageMeta("http://a.test/", "j"), body)


def row_of(result: CallResult) -> dict[str, Any]:
    """Its only item."""
    assert not result.error, result.trace
    (item,) = result.items
    row: dict[str, Any] = msgspec.json.decode(item)
    return row


def pid_of(child: SpiderChild) -> int:
    """Of the process that has parsed a page just now: the test before may have ended another one."""
    return int(row_of(child.page(call_of(b"")))["pid"])


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_gone(pid: int) -> None:
    """Until a process has ended."""
    until(lambda: is_gone(pid), f"the end of {pid}")


def end_once(child: SpiderChild, is_so: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Close a child; however slow the machine is, its zygote looks at the clock, and kills, only after a condition."""
    assert child._zygote is not None
    monkeypatch.setattr(zygote_process, "CLOSE_S", 300.0)
    zygote = psutil.Process(child._zygote._process.pid)
    zygote.suspend()
    child.close()
    until(is_so, "its child")
    zygote.resume()
    child.wait_ended()


def test_a_page_goes_in_and_its_result_comes_out(shared: SpiderChild) -> None:
    """With a body of any size."""
    assert shared.facts().label == "hostile@1"
    for size in (0, 100, 1 << 17, 9 << 20):
        row = row_of(shared.page(call_of(b"-" * size)))
        assert (row["bytes"], row["url"], row["pid"]) == (size, "http://a.test/", shared.pid)
    assert row_of(shared.page(PageCall(PageMeta("http://a.test/", "j"), b"whole", is_whole=True)))["bytes"] == 5


def test_a_page_keeps_its_request(shared: SpiderChild) -> None:
    """Records of both versions are read."""
    meta = PageMeta("http://a.test/post", "j", id=7, request=RequestRecord("POST", body=b"\xff"))
    assert row_of(shared.page(PageCall(meta, b"")))["url"] == meta.url


def test_the_child_inherits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files nor variables, but those that are named; standard input is closed."""
    monkeypatch.setenv("CRAWLOG_KAFKA__SASL_PASSWORD", "secret")
    monkeypatch.setenv("SHOP_KEY", "k")
    inherited = os.open("/", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    with child_of(env=("SHOP_KEY", "MISSING")) as child:
        row = row_of(child.page(call_of(b"")))
        held = {number for number in row["files"] if number > 3}
    os.close(inherited)
    assert "SHOP_KEY" in row["env"]
    assert not [name for name in row["env"] if name.startswith(("CRAWLOG", "MISSING"))]
    assert len(held) <= 3, "its event loop's files alone"


def test_start_goes_on_when_it_is_asked() -> None:
    """It may be endless, and ends where it ends."""
    with child_of() as child:
        parts = child.parts()
        assert [bytes(next(parts).items[0]) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    with child_of("short") as child:
        assert len(list(child.parts())) == 3


WAITS = """
import asyncio
from pathlib import Path
from crawlog import Request, Spider

class Waits(Spider):
    async def start(self):
        try:
            for number in range(1000):
                yield Request(f"http://a.test/{number}")
                await asyncio.sleep(0.1)
        finally:
            await asyncio.sleep(0.01)
            Path(__file__).with_name("closed").touch()
"""


@pytest.mark.parametrize("parts", [1, 2])
def test_a_start_that_waits_cleans_up_at_the_end_of_its_process(
    tmp_path: Path, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `finally` did not run, and the job's log had errors of asyncio about a generator that is running."""
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    with capture_logs() as logs, SpiderChild(SpiderRef(str(path)), ChildRules(limits=ChildLimits(1 << 30))) as child:
        given = child.parts()
        assert all(next(given).requests for _ in range(parts))
        end_once(child, path.with_name("closed").exists, monkeypatch)
    assert [entry for entry in logs if entry["event"] == "spider_printed"] == []


async def test_an_error_of_a_start_that_is_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else hears of it: the process ends."""

    async def parts() -> AsyncGenerator[CallResult, bytes | None]:
        try:
            yield CallResult()
        finally:
            raise ValueError("at its end")

    service = SpiderService()
    service._parts = asked = parts()
    await anext(asked)
    await service.close()
    assert "ValueError: at its end" in caplog.text


def test_other_calls_are_passed_on(shared: SpiderChild) -> None:
    """For pipelines; an error is told with its text."""
    assert shared.call("give", b"\0x") == b"give\0x"
    with pytest.raises(Misconfigured, match="ValueError: no such call"):
        shared.call("fails")


def test_a_spider_that_cannot_be_loaded_says_why() -> None:
    """By its own message, or by how its process ended."""
    with child_of("broken") as child:
        for _ in range(2):
            with pytest.raises(Misconfigured, match=r"^--spider broken: line 3$"):
                child.facts()
        with pytest.raises(Misconfigured, match="line 3"):
            child.page(call_of(b""))
    with child_of("load_exit") as child, pytest.raises(SpiderDied, match="loaded: its process exited with code 7"):
        child.facts()


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("exit", "its process exited with code 7"),
        ("segfault", "its process was ended by signal 11"),
        ("endless", "it took more than"),
        ("endless_c", "it took more than"),
        ("sum", "it took more than"),
        ("closes", "its process exited with code"),
        ("zygote", "the zygote ended"),
    ],
)
def test_a_spider_that_ends_its_process_costs_one_call(shared: SpiderChild, deed: str, reason: str) -> None:
    """The next call has a new process."""
    before = pid_of(shared)
    with pytest.raises(SpiderDied, match=reason):
        shared.page(call_of(deed.encode()))
    assert row_of(shared.page(call_of(b"next")))["bytes"] == 4
    wait_gone(before)


def test_a_page_that_waits_has_a_limit_by_the_clock(shared: SpiderChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than that of its CPU time."""
    with monkeypatch.context() as hurry:
        hurry.setattr(spider_child, "PATIENCE", 3)
        with pytest.raises(SpiderDied, match=r"it took more than 1.8 s by the clock"):
            shared.page(call_of(b"sleep"))
    assert row_of(shared.page(call_of(b"next")))["bytes"] == 4


def test_a_page_that_gives_more_and_more_has_more_time(shared: SpiderChild) -> None:
    """A sitemap of 50,000 URLs takes as long as a spider that hangs."""
    assert row_of(shared.page(call_of(b"gives")))["bytes"] == 5
    with pytest.raises(SpiderDied, match="it took more than"):
        shared.page(call_of(b"endless"))


def test_a_page_that_says_for_ever_that_it_gives_more_ends(shared: SpiderChild) -> None:
    """Whoever writes the spider can write such frames."""
    with pytest.raises(SpiderDied, match="reports more than 250,000 outputs"):
        shared.page(call_of(b"boasts"))


@pytest.mark.parametrize(
    ("deed", "error"),
    [
        ("memory", "MemoryError"),
        ("sys_exit", "SystemExit: 7"),
        ("large", "TooMuch: a page's"),
        ("crowd", "TooMuch: a page's"),
    ],
)
def test_other_errors_leave_the_process_alive(shared: SpiderChild, deed: str, error: str) -> None:
    """They are the page's error."""
    pid = pid_of(shared)
    assert shared.page(call_of(deed.encode())).error.startswith(error)
    assert row_of(shared.page(call_of(b"next")))["pid"] == pid


def test_a_large_answer_comes_whole(shared: SpiderChild) -> None:
    """In several frames, in its order; the next answer has nothing of it."""
    result = shared.page(call_of(b"many"))
    assert [bytes(item) for item in result.items] == [b'{"n": %d}' % number for number in range(120_000)]
    assert [out.url for out in result.requests] == [f"http://a.example/{number}" for number in range(40_000)]
    assert result.stats == {"given": 160_000.0}
    assert len(shared.page(call_of(b"next")).items) == 1


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ("answer", "a frame of 67,000,001 bytes"),
        ("items", "more than 500,000 items and requests"),
        ("values", "whose requests have more than 2,000,000 values"),
        ("part", "a part of one, of 1,500,001 bytes"),
        ("garbage", "an answer that cannot be read"),
    ],
)
def test_an_answer_that_would_cost_its_worker_much_ends_the_child_alone(
    shared: SpiderChild, forged: str, reason: str
) -> None:
    """64 MiB of tiny objects took a worker's event loop 30 s and 1.9 GB. They are counted before they are decoded."""
    with pytest.raises(SpiderDied, match=reason):
        shared.page(call_of(f"forges {forged}".encode()))
    assert row_of(shared.page(call_of(b"next")))["pid"] == shared.pid


def test_processes_and_threads_that_a_spider_leaves_end_with_it(child: SpiderChild) -> None:
    """Also one with a session of its own."""
    child.page(call_of(b"threads"))
    child.page(call_of(b"orphan"))
    (left,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.close()
    wait_gone(int(left))


def _has_cgroup() -> bool:
    corral = ChildCgroup()
    corral.make(ChildLimits())
    corral.remove()
    return corral.is_there


@pytest.mark.skipif(os.geteuid() == 0 and not _has_cgroup(), reason="root without a cgroup: nothing limits its forks")
def test_a_fork_bomb_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its processes are limited, and killed with it."""
    monkeypatch.setenv("TEST_BOMB", str(tmp_path))  # what it forks is known by its environment
    with child_of(env=("TEST_BOMB",)) as child:
        with pytest.raises(SpiderDied):
            child.page(call_of(b"bomb"))
        assert row_of(child.page(call_of(b"next")))["bytes"] == 4
        assert 1 <= len(_processes_with(f"TEST_BOMB={tmp_path}")) <= 2, "the child, and its zygote"


def _processes_with(variable: str) -> list[str]:
    """The numbers of the processes that have a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


def _forks_within(tasks: int) -> bool:
    """Whether a user who is not root gets an error before 64 forks."""
    made: list[int] = []
    if not os.geteuid():
        os.setgid(65534)
        os.setuid(65534)
    ChildLimits(tasks=tasks).apply()
    try:
        while len(made) < 64:
            made.append(os.fork())
            if not made[-1]:
                time.sleep(60)
                os._exit(0)
    except BlockingIOError:
        return True
    finally:
        for pid in filter(None, made):
            os.kill(pid, 9)
    return False


def test_without_a_cgroup_the_processes_of_the_user_are_limited() -> None:
    """By the kernel's limit for each user, which counts those that run already."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = 0 if _forks_within(8) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_a_spider_prints_is_in_the_log(child: SpiderChild) -> None:
    """As lines without control characters; garbage cannot reach the frames."""
    with capture_logs() as logs:
        child.page(call_of(b"prints"))
        child.page(call_of(b""))
    lines = [entry["line"] for entry in logs if entry["event"] == "spider_printed"]
    assert any(line.endswith("a line") or line == "a line" for line in lines) or "garbage" in lines[0]
    assert all(line.isprintable() for line in lines)


def test_lines_that_a_child_prints_too_fast_are_counted_in_their_place() -> None:
    """The last ones too, when the pipe is closed: else the log looks as if it were whole."""
    printed = Printed("s.py", "j")
    printed._rate = LineRate(0.0, BURST, 0.0)  # else a slow test lets more pass
    with capture_logs() as logs:
        with printed.opened() as end:
            os.write(end, b"x\n" * (BURST + 7))
        printed.read()
        printed.close()
    assert [entry["line"] for entry in logs[:BURST]] == ["x"] * BURST
    assert [entry["line"] for entry in logs[BURST:]] == ["(7 lines left out: more than 40 a second)"]
    assert {entry["job"] for entry in logs} == {"j"}


async def test_an_event_loop_waits_and_calls_are_answered_in_order() -> None:
    """Many calls are in flight; the first one without an answer is named, the others are not."""
    loop = asyncio.get_running_loop()
    child = BackgroundChild(SpiderRef("spider"), ChildRules(LIMIT_S), LOADER, loop)
    got: list[SpiderFrame | Died] = []
    done = asyncio.Event()

    def take(answer: SpiderFrame | Died) -> None:
        got.append(answer)
        if len(got) == 300:
            done.set()

    bodies = [b"-" * number for number in range(300)]
    bodies[150], bodies[200] = b"pause", b"exit"
    for body in bodies:
        child.submit_page(call_of(body), take)
    async with asyncio.timeout(LATEST_S):
        await done.wait()
    child.close()
    answers = [row_of(result_of(one))["bytes"] for one in got if isinstance(one, SpiderFrame)]
    assert answers == [len(body) for body in bodies[: len(answers)]]
    assert 150 < len(answers) <= 200, "answers gather for some milliseconds, less than the pause"
    died = [one for one in got if isinstance(one, Died)]
    assert [one.ran for one in died] == [True, *[False] * (299 - len(answers))]
    assert died[0].reason == "spider_died: its process exited with code 7"


def test_the_child_ends_with_its_worker(child: SpiderChild) -> None:
    """Its zygote sees the closed socket."""
    pid = child.pid
    child.close()
    wait_gone(pid)


@pytest.mark.parametrize(("deed", "ends_by_itself"), [(b"", True), (b"threads", False)])
def test_files_that_a_spider_left_open_are_written_out_at_its_end(
    tmp_path: Path, deed: bytes, ends_by_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process ends as a Python process does, with `atexit`, unless threads hold it up."""
    file = tmp_path / "rows.txt"
    with child_of(str(file)) as child:
        child.page(call_of(deed))
        assert not file.read_text()
        pid = child.pid
        end_once(child, lambda: is_gone(pid) if ends_by_itself else file.read_text(), monkeypatch)
    assert file.read_text() == "a row\n"
    assert (tmp_path / "atexit").exists() == ends_by_itself


def test_a_child_whose_worker_does_not_wait_for_its_answer_ends_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its files written out, too."""
    file = tmp_path / "rows.txt"
    with capture_logs() as logs, child_of(str(file)) as child:
        child.page(call_of(b""))
        child.submit_page(call_of(b"pause"), lambda _: None)
        child.pump()
        end_once(child, file.read_text, monkeypatch)
    assert file.read_text() == "a row\n"
    assert [entry for entry in logs if entry["event"] == "spider_printed"] == []


def test_a_child_that_was_killed_writes_nothing_out(tmp_path: Path) -> None:
    """The next one may have opened its files."""
    file = tmp_path / "rows.txt"
    with child_of(str(file)) as child:
        child.page(call_of(b""))
        child.kill("its rows are made anew")
    child.wait_ended()
    assert not file.read_text()


@pytest.mark.parametrize("deed", ["stays", "threads", "endless"])
def test_a_child_that_does_not_end_holds_nothing_up(deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it, and its zygote kills it."""
    child = child_of()
    child.facts()
    child.submit_page(call_of(deed.encode()), lambda _: None)
    child.pump()
    pid = child.pid
    end_once(child, lambda: True, monkeypatch)  # `close` came back while nobody could kill it
    assert is_gone(pid)


OWNER = """
import sys, time
from crawlog.agents.sandbox import SpiderChild
from crawlog.schemas.pages import PageMeta
from crawlog.streams.spiders import PageCall, SpiderRef

child = SpiderChild(SpiderRef("spider"), loader="tests.support.hostile_spiders:load")
child.page(PageCall(PageMeta("http://a.test/", "j"), b"orphan"))
print(child.pid, flush=True)
child.page(PageCall(PageMeta("http://a.test/", "j"), b"endless"))
"""


def test_a_worker_that_is_killed_leaves_no_process() -> None:
    """Neither its zygote nor the child, which is busy, nor what that started."""
    owner = subprocess.Popen([sys.executable, "-P", "-c", OWNER], stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        zygote = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        (orphan,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        owner.kill()
    for left in (pid, zygote, int(orphan)):
        wait_gone(left)


def test_a_call_fails_at_once_where_the_code_cannot_be_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call and later ones, as on a full TMPDIR: nothing else would answer them."""

    def ready(_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ChildCode, "ready", ready)
    answers: list[Any] = []
    with SpiderChild(SpiderRef("", folder=str(tmp_path)), ChildRules(LIMIT_S), LOADER) as child:
        for count in (1, 2):
            child.submit(SpiderFrame(CALL, b"spiders"), answers.append, LIMIT_S)
            assert [answer.kind for answer in answers] == [FAILED] * count
        with pytest.raises(Misconfigured, match="No space left on device"):
            child.call("spiders")


async def test_each_call_is_answered_once_where_the_first_answer_ends_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with code that was revoked while its pages waited: the first page that hears it gives the child up."""

    def ready(_: object) -> None:
        raise Misconfigured("code_refused: revoked")

    monkeypatch.setattr(ChildCode, "ready", ready)
    ref = SpiderRef("", folder=str(tmp_path))
    child = BackgroundChild(ref, ChildRules(LIMIT_S), LOADER, asyncio.get_running_loop())
    answers: list[tuple[int, Any]] = []

    def then(number: int, answer: Any) -> None:
        answers.append((number, answer))
        child.close()

    for number in range(3):
        child.submit(SpiderFrame(CALL, b"spiders"), partial(then, number), LIMIT_S)
    ended = asyncio.Event()
    child.heard_facts = ended.set
    async with asyncio.timeout(30):
        await ended.wait()
    assert [number for number, _ in answers] == [0, 1, 2]
    assert answers[0][1].kind == FAILED
    assert all(isinstance(answer, Died) for _, answer in answers[1:])


def test_frames_come_in_pieces() -> None:
    """One byte at a time, many at once, and larger than the buffer."""
    frames = [SpiderFrame(PAGE, b"t" * size, b"b" * (3 * size)) for size in (0, 1, 70_000, 3, 200_000, 5)]
    stream = b"".join(part for frame in frames for part in frame.parts())
    for step in (7919, 1 << 16, 1 << 20):
        reader, found, at = FrameReader(1 << 20), [], 0
        while at < len(stream):
            space = reader.space()
            count = min(step, len(space), len(stream) - at)
            space[:count] = stream[at : at + count]
            reader.filled(count)
            at += count
            while (frame := reader.take()) is not None:
                found.append(frame)
        assert found == frames
    for reader in (FrameReader(10), FrameReader(1000, 10)):
        parts = b"".join(SpiderFrame(PAGE, b"x" * 11).parts())
        reader.space()[: len(parts)] = parts
        reader.filled(len(parts))
        with pytest.raises(TooLong):
            reader.take()


def test_calls_are_answered_before_the_folder_of_their_child_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages in flight wait for their answers, whatever the spider left there."""
    answers: list[Any] = []
    answered: list[int] = []
    close = ChildCode.close

    def closed(code: ChildCode) -> None:
        answered.append(len(answers))
        close(code)

    monkeypatch.setattr(ChildCode, "close", closed)
    child = SpiderChild(SpiderRef("", folder=str(tmp_path)), ChildRules(LIMIT_S), LOADER)
    child.submit(SpiderFrame(CALL, b"spiders"), answers.append, LIMIT_S)
    child.close()
    child.wait_ended()
    assert answered == [len(answers)] == [1]


def test_texts_that_go_into_records_are_cut() -> None:
    """A record has a limit, and a spider's own code may answer whatever it likes."""
    long, encode = "x" * 10_000, msgspec.json.encode
    result = result_of(SpiderFrame(DONE, encode(CallResult(error=long, closes=long))))
    fault = fault_of(SpiderFrame(FAILED, encode(Fault(long))))
    facts, _ = facts_of(SpiderFrame(DONE, encode(SpiderFacts("x.py", long, long))))
    assert facts is not None
    texts = (result.error, result.closes, fault.error, facts.label, facts.digest)
    assert [len(text) for text in texts] == [MAX_TEXT] * len(texts)
