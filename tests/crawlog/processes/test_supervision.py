"""How the supervisor treats the deaths of its workers: when the next process starts, what it says, when it gives up."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from msgspec.structs import replace

from crawlog.cli import fleet_text
from crawlog.commands import up
from crawlog.processes import hold, supervisor
from crawlog.processes.workers import (
    HEALTHY_S,
    KILLED_BACKOFF_S,
    MAX_BACKOFF_S,
    MAX_DENIALS,
    MAX_FAILURES,
    RESTART_WANTED,
    SAME_S,
    Forked,
    Forkserver,
    Name,
    Workers,
    worker_counts,
)
from crawlog.schemas.progress import ExitFigures, Progress
from crawlog.streams import files
from crawlog.streams.engine import broker
from crawlog.streams.errors import AccessDenied, DamagedLog, EngineError, Misconfigured, OffsetFell
from crawlog.streams.exit_codes import EX_DATAERR, EX_NOPERM, EX_SOFTWARE, LAST_WORDS, code_of
from crawlog.streams.fleet import ExitView, FleetStatus, HostView, WorkerView
from crawlog.streams.log import provision
from crawlog.streams.settings.sources import load
from tests.support.finalizing import signal_in_a_finalizer
from tests.support.processes import until

KILLED = -9
CRASHED = -11


class Process(Forked):
    """Stands in for a child; it lives until the test says how it ended."""

    def __init__(self, log: str = "") -> None:
        super().__init__(id(self), None)
        self.log = log

    def poll(self) -> int | None:
        """How it ended."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """It obeys."""
        self.returncode = -number

    def wait(self) -> int | None:
        """It has ended."""
        return self.returncode


class Server(Forkserver):
    """Forks nothing; it is ready, and answers, when the test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.starts = 0
        self.bearer: Process
        self.loads = False
        self.is_silent = False
        self.started: list[Process] = []

    def start(self, now: float) -> None:
        """One more process."""
        self.process = self.bearer = Process()
        self.started_at, self.has_worked = now, not self.loads
        self.starts += 1

    def is_ready(self, timeout_s: float = 0) -> bool:  # noqa: ARG002  # nothing is waited for
        """Once it has loaded."""
        return self.process is not None and self.has_worked

    def fork(self, who: Name, log: IO[bytes]) -> Forked | None:  # noqa: ARG002  # all are alike
        """A process that lives."""
        if self.is_silent:
            self.bearer.send_signal(9)
            self.has_worked = False
            return None
        self.started.append(Process(log.name))
        return self.started[-1]


class Everything(set[int]):
    """All processes have reported."""

    def __contains__(self, _: object) -> bool:
        return True


class House:
    """One worker under supervision, on a clock of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.worked: set[int] = set()
        self.server = Server(folder)
        self.started = self.server.started
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        names = [Name("fetch", "fetch-0")]
        self.noted: list[tuple[str, int, str]] = []
        self.workers = Workers(
            names,
            folder,
            self.said.append,
            lambda pid: pid in self.worked,
            self.server,
            noted=lambda who, pid, why: self.noted.append((who.name, pid, why)),
        )
        self.workers.launch()
        self.workers.go({"fetch": {}})

    def dies(self, code: int, lived_s: float = 1.0, words: str = "") -> float:
        """The process ends; returns the seconds until the next one was started."""
        self.now += lived_s
        number = len(self.started)
        if words:
            with Path(self.started[-1].log).open("a") as log:
                log.write(words)
        self.started[-1].returncode = code
        died_at = self.now
        while len(self.started) == number:
            self.workers.look()
            self.now += 0.01
        return self.now - died_at


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A worker that lives."""
    made = House(tmp_path, monkeypatch)
    yield made
    made.workers.kill()


def test_the_first_restart_comes_within_half_a_second(house: House) -> None:
    """Whatever ended it."""
    assert house.dies(KILLED) <= 0.55


@pytest.mark.parametrize(
    ("code", "words", "noted"),
    [
        (KILLED, "", ["killed by SIGKILL"]),
        (75, "12:00 [critical] worker_stuck  why=no_progress after_s=60\n", ["ended with exit code 75 (no_progress)"]),
        (75, '{"event": "worker_stuck", "why": "loop_blocked"}\n', ["ended with exit code 75 (loop_blocked)"]),
        (1, "FileNotFoundError: '/root/secret'\n", ["ended with exit code 1"]),
        (0, "stopped\n", []),
    ],
)
def test_an_end_that_was_not_planned_is_noted_for_the_log(
    house: House, code: int, words: str, noted: list[str]
) -> None:
    """Without a text that may name a path; a worker that stops in order reports that itself."""
    pid = house.started[-1].pid
    house.dies(code, words=words)
    assert house.noted == [("fetch-0", pid, why) for why in noted]


def test_deaths_in_a_row_wait_longer_each_time_up_to_a_limit(house: House) -> None:
    """A worker that dies at once would otherwise cost a core."""
    waits = [house.dies(CRASHED) for _ in range(8)]
    assert waits[:4] == pytest.approx([0.5, 1.0, 2.0, 4.0], abs=0.05)
    assert max(waits) == pytest.approx(MAX_BACKOFF_S, abs=0.05)


def test_five_healthy_seconds_forget_the_deaths_before(house: House) -> None:
    """A crash every few seconds is no reason to be slow."""
    for _ in range(5):
        house.dies(CRASHED)
    assert house.dies(CRASHED, lived_s=HEALTHY_S) <= 0.55


def test_kills_in_a_row_leave_time_between_them(house: House) -> None:
    """With one every few seconds, each life is to be longer than the wait before it."""
    assert max(house.dies(KILLED) for _ in range(8)) == pytest.approx(KILLED_BACKOFF_S, abs=0.05)
    for _ in range(5):
        house.dies(CRASHED)
    assert house.dies(KILLED) == pytest.approx(KILLED_BACKOFF_S, abs=0.05)


@pytest.mark.parametrize("code", [KILLED, -11, *RESTART_WANTED])
def test_who_is_killed_or_asks_for_it_is_always_started_again(house: House, code: int) -> None:
    """A hundred times, though it never got so far as to report."""
    for _ in range(100):
        house.dies(code, lived_s=0.1)
    assert len(house.started) == 101


def test_who_ends_by_itself_without_ever_having_worked_is_given_up(house: House) -> None:
    """Its last words and its log are named."""
    for _ in range(MAX_FAILURES - 1):
        house.dies(1)
    with pytest.raises(EngineError, match=r"fetch-0 fails again and again; it ended with code 1: no such thing\n.*log"):
        house.dies(1, words="trace\nno such thing\n")


def test_a_worker_works_once_it_has_reported_or_has_lived_for_a_while(house: House) -> None:
    """A process that has just begun may die of what it finds; one that waits for partitions has nothing to report."""
    assert house.workers.idle_stages() == {"fetch"}
    house.worked.add(house.started[0].pid)
    assert house.workers.idle_stages() == set()
    house.dies(75)
    assert house.workers.idle_stages() == {"fetch"}
    house.now += HEALTHY_S
    assert house.workers.idle_stages() == set()


def test_the_last_ends_of_workers_that_do_not_work_are_told(house: House) -> None:
    """One that asks to be started again is never given up, so nothing else tells why it does not work."""
    house.dies(75, words="state_refused")
    assert house.workers.ends({"fetch"}) == "worker fetch-0 ended with code 75: state_refused"
    assert house.workers.ends({"parse"}) == ""


def test_who_has_worked_is_not_given_up(house: House) -> None:
    """It may work again."""
    for _ in range(3 * MAX_FAILURES):
        house.worked.add(house.started[-1].pid)
        house.dies(1)


def test_a_kill_between_them_starts_the_count_of_failures_anew(house: House) -> None:
    """Only failures in a row say that nothing can be done."""
    for _ in range(3):
        for _ in range(MAX_FAILURES - 1):
            house.dies(1)
        house.dies(KILLED)


def test_wrong_settings_end_the_run_at_once(house: House) -> None:
    """They will be wrong tomorrow."""
    with pytest.raises(Misconfigured, match="ended with code 2: it is empty"):
        house.dies(2, words="it is empty")


def test_a_damaged_log_ends_the_run_at_once_with_the_words_of_the_worker(house: House) -> None:
    """No restart mends it; its message has several lines, and stands in one line of the log."""
    said = DamagedLog("t.urls", 3, 17, "its CRC does not fit")
    words = f"a line\n{LAST_WORDS}{json.dumps(str(said))}\n"
    with pytest.raises(EngineError, match=r"code 65: the log is damaged: t\.urls\[3\].* offset 17") as raised:
        house.dies(EX_DATAERR, words=words)
    assert str(said) in str(raised.value)


def test_an_offset_that_fell_ends_the_run_only_if_it_falls_there_again_and_again(house: House) -> None:
    """A worker whose log was cut begins anew, and reads it in order."""
    house.worked = Everything()
    error = OffsetFell("t.pages", 3, 17, "its offset is not above 18")
    for _ in range(MAX_FAILURES):
        house.dies(code_of(error), words=f"{LAST_WORDS}{json.dumps(str(error))}\n")
    with pytest.raises(EngineError, match=r"again and again; it ended .*t\.pages\[3\].* offset 17"):
        house.dies(code_of(error), words=f"{LAST_WORDS}{json.dumps(str(error))}\n")


def test_a_worker_that_is_denied_access_is_started_again_twice(house: House) -> None:
    """A change of passwords may be under way. What the cluster says is told once it lasts, though the worker worked."""
    house.worked = Everything()
    said = AccessDenied("there:9092", "SASL_SSL", "Authentication failed")
    words = f"a line\n{LAST_WORDS}{json.dumps(str(said))}\n"
    for _ in range(3):
        for _ in range(MAX_DENIALS - 1):
            house.dies(EX_NOPERM, words=words)
        house.dies(KILLED)
    assert not any("denies access" in line for line in house.said)
    for _ in range(MAX_DENIALS - 1):
        house.dies(EX_NOPERM, words=words)
    with pytest.raises(EngineError, match=r"code 77: The Kafka cluster at there:9092 .* denies access"):
        house.dies(EX_NOPERM, words=words)


def test_a_worker_that_breaks_at_the_same_record_again_and_again_is_given_up(house: House) -> None:
    """Though each has worked before: it would break, and be started again, for ever."""
    house.worked = Everything()
    for number in range(MAX_FAILURES):
        house.dies(EX_SOFTWARE, 20.0, f"{number} worker_stuck why=agent_failed offset=7\n")
    with pytest.raises(EngineError, match=r"again and again; it ended with code 70: 9 worker_stuck .*offset=7"):
        house.dies(EX_SOFTWARE, 20.0, "9 worker_stuck why=agent_failed offset=7\n")
    assert len(house.started) == MAX_FAILURES + 1


def test_a_worker_that_breaks_at_other_records_or_seldom_is_started_again(house: House) -> None:
    """It gets on between its deaths."""
    house.worked = Everything()
    for number in range(3 * MAX_FAILURES):
        house.dies(EX_SOFTWARE, 20.0, f"{number} worker_stuck why=agent_failed offset={number}\n")
    for number in range(3 * MAX_FAILURES):
        house.dies(EX_SOFTWARE, SAME_S, f"{number} worker_stuck why=agent_failed offset=7\n")


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        (KILLED, "", "worker fetch-0 killed by SIGKILL; started again in 0.5 s"),
        (-11, "", "worker fetch-0 killed by SIGSEGV; started again in 0.5 s"),
        (-35, "", "worker fetch-0 killed by signal 35; started again in 0.5 s"),
        (0, "one\nstopped", "worker fetch-0 ended with code 0: stopped; started again in 0.5 s"),
        (75, "worker_stuck why=x\n\n", "worker fetch-0 ended with code 75: worker_stuck why=x; started again in 0.5 s"),
        (70, "y" * 2000, f"worker fetch-0 ended with code 70: {'y' * 1000}; started again in 0.5 s"),
        (1, "", "worker fetch-0 ended with code 1: it said nothing; started again in 0.5 s"),
    ],
)
def test_the_reason_is_one_line(house: House, code: int, words: str, line: str) -> None:
    """How it ended, and what it said last."""
    house.dies(code, words=words)
    assert house.said == [line]


def test_the_next_one_is_told_what_the_first_was(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the log is; and its name."""
    told: list[dict[str, str]] = []
    monkeypatch.setattr(Process, "tell", lambda _self, environ: told.append(environ))
    house.workers.restart({"fetch": {"A": "b"}})
    house.dies(KILLED)
    assert told == [{"A": "b", "CRAWLOG_WORKER": "fetch-0"}] * 2


def test_a_forkserver_that_died_is_started_again_and_no_worker_is_touched(house: House) -> None:
    """A worker that dies meanwhile waits for it."""
    house.server.loads = True
    house.server.bearer.send_signal(9)
    house.workers.look()
    assert house.said == ["forkserver killed by SIGKILL; started again in 0.5 s"]
    assert house.workers.pids() == {"fetch-0": house.started[0].pid}
    house.now += 1
    house.workers.look()
    house.started[0].returncode = KILLED
    house.workers.look()
    house.now += 10
    house.workers.look()
    assert (house.server.starts, len(house.started)) == (2, 1), "it loads"
    house.server.has_worked = True
    house.workers.look()
    assert len(house.started) == 2


def test_a_forkserver_that_does_not_answer_is_replaced(house: House) -> None:
    """The worker that was to be forked comes from the next one."""
    house.server.is_silent = True
    house.started[0].returncode = KILLED
    for _ in range(3):
        house.workers.look()
        house.now += 1
    house.server.is_silent = False
    house.workers.look()
    assert (house.server.starts, len(house.started)) == (2, 2)


def test_a_forkserver_that_can_never_load_ends_the_run(house: House) -> None:
    """Its last words and its log are named."""
    house.server.loads = True
    house.server.log.write_text("no module")

    def dies() -> None:
        house.server.has_worked = False
        house.server.bearer.returncode = 1
        house.workers.look()
        house.now += MAX_BACKOFF_S
        house.workers.look()

    for _ in range(MAX_FAILURES - 1):
        dies()
    with pytest.raises(EngineError, match=r"forkserver fails again and again; it ended with code 1: no module\n.*log"):
        dies()


def test_a_closed_terminal_ends_nothing_under_nohup() -> None:
    """Without `nohup` it is a signal like SIGTERM."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert supervisor._heard() == [signal.SIGINT, signal.SIGTERM]
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert supervisor._heard() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_came_in_a_finalizer_is_obeyed_at_the_next_look(tmp_path: Path) -> None:
    """Python drops what a finalizer raises: `down` would wait for its end in vain."""
    with supervisor.Supervisor(load({"run.data": tmp_path}), "up", [], pytest.fail) as held:
        signal_in_a_finalizer(signal.SIGTERM)
        with pytest.raises(supervisor.Stop):
            held.look(0.0)


def test_a_closed_terminal_kills_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends SIGHUP twice within milliseconds; a user who insists takes longer."""
    ended: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite itself may run under `nohup`
    monkeypatch.setattr(supervisor, "INSIST_S", float("inf"))
    monkeypatch.setattr(supervisor.Supervisor, "_end_now", lambda _, number: ended.append(number))
    with supervisor.Supervisor(load({"run.data": tmp_path}), "run", [], pytest.fail):
        with pytest.raises(supervisor.Stop):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(supervisor, "INSIST_S", 0.0)
        signal.raise_signal(signal.SIGHUP)
        assert not ended
        signal.raise_signal(signal.SIGINT)
    assert ended == [signal.SIGINT]


class Broker:
    """Notes how long it may take to stop."""

    pid = 1

    def __init__(self, data: Path) -> None:
        self.data = data
        self.limits: list[float] = []

    def stop(self, timeout_s: float) -> None:
        """Ends at once."""
        self.limits.append(timeout_s)


@pytest.mark.parametrize(("what", "number", "limit_s"), [("run", 0, 20.0), ("run", 2, 1.2), ("up", 15, 15.0)])
def test_a_broker_is_killed_early_only_where_a_user_waits(
    tmp_path: Path, what: str, number: int, limit_s: float
) -> None:
    """A killed one has its whole log checked by the next command."""
    engine = Broker(tmp_path)
    with supervisor.Supervisor(load({"run.data": tmp_path}), what, [], pytest.fail) as held:
        held.engine = engine  # type: ignore[assignment]  # as much as is needed
        with pytest.raises(supervisor.Stop) if number else nullcontext():
            os.kill(os.getpid(), number)  # 0 is none
    assert engine.limits == [limit_s]


def test_a_failing_report_leaves_no_broker_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was late is reported before the broker is stopped."""

    def report(line: str) -> None:
        raise BrokenPipeError(line)

    monkeypatch.setattr(Workers, "stop", lambda *_: False)
    engine = Broker(tmp_path)
    held = supervisor.Supervisor(load({"run.data": tmp_path}), "run", [], report)
    held.engine = engine  # type: ignore[assignment]  # as much as is needed
    with pytest.raises(BrokenPipeError):
        held.close()
    assert engine.limits
    assert hold.holder(tmp_path) is None


@pytest.mark.broker
def test_a_broker_that_is_killed_before_the_log_is_reached_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it starts, and once it is ready."""
    said: list[str] = []
    moments = ["starting", "ready"]

    def kill(moment: str) -> None:
        process = broker.noted(tmp_path / "kafka")
        if moment in moments and process is not None:
            moments.remove(moment)
            process.kill()
            until(lambda: not broker.is_alive(process), "the broker to die")

    def ensure_topics(*given: Any) -> None:
        kill("ready")
        provision.ensure_topics(*given)

    monkeypatch.setattr(supervisor, "_load", lambda: kill("starting"))
    monkeypatch.setattr("crawlog.streams.log.ensure_topics", ensure_topics)
    with supervisor.Supervisor(load({"run.data": tmp_path}), "run", [], said.append) as held:
        held.connect()
        assert held.engine is not None
        assert held.engine.alive()
        assert provision.has_topics(held.settings)
    assert said == [
        "Apache Kafka was killed while it started; it is started again",
        "Apache Kafka died; it is started again, nothing is lost",
    ]


def test_the_end_of_a_holder_is_told_by_its_lock(tmp_path: Path) -> None:
    """Its pid may be a zombie's, or be that of another process by then."""
    held = hold.Hold(tmp_path, "up")
    who = hold.holder(tmp_path)
    assert who is not None
    assert not hold.wait_for_end(tmp_path, who, 0.1)
    held.release()
    assert hold.wait_for_end(tmp_path, who, 1.0)


def test_a_folder_is_never_noted_as_held_by_the_holder_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the new note fails: `down` would signal whoever has the old pid, or its own process group."""
    (tmp_path / "run").mkdir()
    files.write(tmp_path / "run" / "holder.json", json.dumps(hold.Holder(1, "up", {})._asdict()))
    monkeypatch.setattr(hold.Hold, "note", lambda *_: False)
    held = hold.Hold(tmp_path, "up")
    with pytest.raises(Misconfigured, match=r"another crawlog works on") as told:
        up.down(load({"run.data": tmp_path}))
    assert "kill" not in str(told.value)
    held.release()


def test_commands_on_a_held_folder_go_to_the_log_that_it_is_worked_on_with(tmp_path: Path) -> None:
    """`up --bootstrap` and then `why` without it would start an engine of its own beside, which knows of nothing."""
    settings = load({"run.data": tmp_path})
    held = hold.Hold(tmp_path, "up", "kafka:9092")
    assert hold.same_log(settings).kafka.bootstrap == "kafka:9092"
    assert hold.same_log(load({"run.data": tmp_path, "kafka.bootstrap": "b:1"})).kafka.bootstrap == "b:1"
    held.release()
    assert hold.same_log(settings) is settings
    local = hold.Hold(tmp_path, "up")
    assert hold.same_log(settings) is settings
    local.release()


def test_status_says_that_no_worker_lives(tmp_path: Path) -> None:
    """A folder that is held looks busy otherwise."""
    held = (hold.Holder(1, "up", pids) for pids in ({}, {"fetch-0": 2}))
    none, one = (fleet_text.status_lines(up.Status(tmp_path, holder=holder)) for holder in held)
    assert f"worker   none is alive; their logs: {tmp_path / 'logs'}" in none
    assert not any("none is alive" in line for line in one)


def test_status_tells_which_rules_dropped_links() -> None:
    """Of each job, with its other counts; a job of which nobody reports has none."""
    counts = dict.fromkeys(up.COUNTS, 0) | {"dropped": {"depth": 3, "scope": 12}}
    jobs: list[dict[str, Any]] = [{"name": "j", "state": "running"} | counts, {"name": "k", "state": "running"}]
    lines = fleet_text.status_lines(up.Status(Path("d"), jobs=jobs))
    assert lines[-2].endswith("0 refused, 15 dropped (12 by scope, 3 by depth)")
    assert lines[-1] == "job      k: running"


def test_status_names_exits_and_the_hosts_that_wait_for_one() -> None:
    """With their figures; an exit that does not rest says nothing of it."""
    worker = WorkerView("fetch-0", "fetch", "m", 1)
    figures = ExitFigures(requests=120, bans=1, failures=2, bytes=1_500_000, median_s=0.12)
    rests = replace(figures, rests_s=29.6, rests_at=2)
    views = tuple(ExitView(name, "fetch-0", of) for name, of in (("berlin", figures), ("paris", rests)))
    hosts = (HostView("http://a:80", 12, 29.6, "all its exits rest"), HostView("http://b:80", 9, 1.0))
    lines = fleet_text.status_lines(up.Status(Path("d"), fleet=FleetStatus((), (worker,), (), hosts, views)))
    told = "120 requests, 1 ban, 2 failures, 1.5 MB, median 0.12 s"
    assert [line for line in lines if line.startswith(("exit ", "host "))] == [
        f"exit     berlin of fetch-0: {told}",
        f"exit     paris of fetch-0: {told}, rests 30 s, rests for 2 hosts",
        "host     http://a:80: 12 URLs, all its exits rest, the first one wakes in 30 s",
    ]


def test_a_full_disk_ends_no_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds the folder is noted once there is room again."""
    held = hold.Hold(tmp_path, "run")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "write", full)
        assert not held.note({"fetch-0": 7})
    assert held.note({"fetch-0": 7})
    found = hold.holder(tmp_path)
    assert found is not None
    assert found.workers == {"fetch-0": 7}
    held.release()


def test_parse_goes_back_once_for_rows_that_a_fleets_sink_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further back again at once, and anew when none lacked meanwhile; never without workers of parse here."""
    moved: list[dict[int, int]] = []
    reports = [Progress("w", "sink", 0, 0.0, unmade={3: 40}), Progress("w", "sink", 1, 0.0, unmade={3: 30, 5: 7})]
    with supervisor.Supervisor(load({"run.data": tmp_path}), "up", [], pytest.fail) as held:
        held.picture = SimpleNamespace(of=lambda _: reports)  # type: ignore[assignment]  # as much as is asked
        monkeypatch.setattr(held, "parse_again", lambda back: moved.append({**back}))
        held._make_rows()
        assert moved == []
        held._more["parse"] = {}
        for unmade in ({3: 30, 5: 7}, {3: 35}, {3: 20}, {}, {3: 35}):
            reports[1].unmade = unmade
            reports[0].unmade = {3: 40} if unmade else {}
            held._make_rows()
        monkeypatch.setattr(held, "parse_again", refused)
        told: list[str] = []
        held.report = told.append
        reports[1].unmade = {6: 1}
        held._make_rows()
    assert moved == [{3: 30, 5: 7}, {3: 20}, {3: 35}]
    assert told == ["the group has members"]


def refused(*_: object) -> None:
    """Another command's workers have the group of parse."""
    raise EngineError("the group has members")


@pytest.mark.parametrize(
    ("given", "cores", "counts"),
    [
        ({}, 1, (1, 1)),
        ({}, 2, (1, 2)),
        ({}, 4, (1, 4)),
        ({}, 64, (16, 8)),
        ({"parse_workers": 1}, 8, (2, 1)),
        ({"fetch_workers": 0, "parse_workers": 0}, 8, (0, 0)),
    ],
)
def test_a_machine_has_workers_by_its_cores_unless_told(
    given: dict[str, int], cores: int, counts: tuple[int, int]
) -> None:
    """Each stage by itself."""
    assert tuple(worker_counts(load({f"run.{key}": value for key, value in given.items()}), cores).values()) == counts
