"""The watchdog: who is stuck is ended with the reason, who waits for good cause is not."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from crawlog.agents.parse import guard, turns
from crawlog.agents.sandbox import trial
from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import SUPERVISOR
from crawlog.streams import app
from crawlog.streams.cluster import client
from crawlog.streams.errors import DamagedLog
from crawlog.streams.exit_codes import DRAINED, EX_TEMPFAIL
from crawlog.streams.groups.commits import HeldRange
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics
from crawlog.streams.parse import waiting
from crawlog.streams.settings.machine import Kafka, Parse
from crawlog.streams.settings.settings import Settings, to_environ
from crawlog.streams.worker import crawl_app, own_process
from crawlog.streams.worker import watchdog as module
from crawlog.streams.worker.watchdog import Watchdog
from tests.support.processes import forked

STUCK_S = 0.2


@dataclass
class Worker:
    """As much of an app as is watched: two partitions, at the log's end."""

    moves: int = 0
    owned: frozenset[int] = frozenset({0, 1})
    assigned: frozenset[int] = frozenset({0, 1})
    rebalances: int = 1
    failure: str | None = None
    ends: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 5})
    is_silent: bool = False
    is_member: bool = True
    is_served: bool = True
    is_damaged: bool = False
    ended: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def app(self) -> Any:
        """The app."""
        return SimpleNamespace(
            reader=SimpleNamespace(thread=self, ranges=self.ranges, partitions=lambda: set(self.assigned)),
            positions=self,
            lease=SimpleNamespace(held=lambda _: self.is_member),
            crawl=Settings(),
            conf=SimpleNamespace(id="group"),
            input_name="t",
        )

    def next(self, _partition: int) -> int:
        """Where it is."""
        return 5

    def check_readable(self, _settings: Settings, topic: str, places: dict[int, int]) -> None:
        """A look whether the next records can be read."""
        if self.is_damaged:
            raise DamagedLog(topic, 1, places[1], "its CRC does not fit")

    async def ranges(self, partitions: set[int]) -> dict[int, HeldRange]:
        """What the log holds."""
        if self.is_silent:
            raise KafkaError
        return {partition: HeldRange(5, 0, self.ends[partition]) for partition in partitions}


@asynccontextmanager
async def watched(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, *, assigned: bool = True, guarded: bool = False
) -> AsyncIterator[Watchdog]:
    """A watchdog that notes an end instead of ending this process.

    Args:
        guarded: Whether its thread looks at the loop too, which on a busy machine stands still for a while.
    """
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "check_readable", worker.check_readable)
    if not guarded:
        monkeypatch.setattr(Watchdog, "_guard", lambda _: None)

    def faults(_: Settings) -> list[str]:
        return [] if worker.is_served else ["partitions without a leader that answers"]

    dog = Watchdog(worker.app(), stuck_s=STUCK_S, assignment_s=STUCK_S)
    monkeypatch.setattr(dog, "end", lambda why, *_, **fields: worker.ended.append((why, fields)))
    monkeypatch.setattr(module, "cluster_faults", faults)
    if assigned:
        dog.assigned()
    await dog.start()
    try:
        yield dog
    finally:
        await dog.stop()


async def why_ended(worker: Worker, monkeypatch: pytest.MonkeyPatch, *, ends: bool, assigned: bool = True) -> str:
    """The reason given for an end, once it comes, or after a while if none is to come; empty for none."""
    async with watched(worker, monkeypatch, assigned=assigned):
        await end_of(worker) if ends else await asyncio.sleep(4 * STUCK_S)
    return worker.ended[0][0] if worker.ended else ""


async def end_of(worker: Worker) -> None:
    """Wait until the watchdog ends it."""
    async with asyncio.timeout(60.0):
        while not worker.ended:  # noqa: ASYNC110  # a thread may end it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (Worker(), ""),
        (Worker(ends={0: 5, 1: 9}), "no_progress"),
        (Worker(ends={0: 5, 1: 9}, is_damaged=True), "log_damaged"),
        (Worker(failure="broken"), "coordination_ended"),
        (Worker(owned=frozenset()), "not_reading"),
        (Worker(owned=frozenset(), assigned=frozenset()), ""),
        (Worker(owned=frozenset(), is_silent=True), ""),
        (Worker(is_silent=True), ""),
        (Worker(is_silent=True, is_member=False), "heartbeats"),
        (Worker(is_silent=True, is_member=False, is_served=False), ""),
        (Worker(ends={0: 5, 1: 9}, is_served=False), ""),
        (Worker(owned=frozenset(), is_served=False), ""),
    ],
    ids=[
        "idle",
        "records wait",
        "damaged",
        "no coordination",
        "not begun",
        "nothing assigned",
        "not begun, broker away",
        "slow answer",
        "no heartbeats",
        "no heartbeats, cluster ails",
        "records wait, cluster ails",
        "not begun, cluster ails",
    ],
)
async def test_only_who_could_get_on_is_stuck(worker: Worker, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cluster keeps from working is not stuck: a new process could do nothing better."""
    said = await why_ended(worker, monkeypatch, ends=bool(why))
    if why == "heartbeats":
        assert worker.ended[0][1]["waiting"] == why
    else:
        assert said == why


@pytest.mark.parametrize(("is_served", "why"), [(True, "no_assignment"), (False, "")])
async def test_an_assignment_must_come(is_served: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is a broker that could give one."""
    worker = Worker(is_served=is_served)
    assert await why_ended(worker, monkeypatch, ends=bool(why), assigned=False) == why


async def test_a_worker_that_beats_and_reads_none_of_its_partitions_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat tells of work, not of reading; rebalances one after the other leave no time to begin."""
    worker = Worker(owned=frozenset())
    async with watched(worker, monkeypatch) as dog:
        for _ in range(20):
            await asyncio.sleep(STUCK_S / 5)
            worker.rebalances += 1
        assert worker.ended == []
        async with asyncio.timeout(60.0):
            while not worker.ended:
                await asyncio.sleep(STUCK_S / 10)
                dog.beat()
    assert worker.ended[0][0] == "not_reading"


@pytest.mark.parametrize("how", ["beat", "moves"])
async def test_who_moves_or_says_that_it_waits_is_not_stuck(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much waits: a paused stage, a full disk, back-pressure."""
    worker = Worker(ends={0: 5, 1: 9})
    async with watched(worker, monkeypatch) as dog:
        for _ in range(20):
            await asyncio.sleep(STUCK_S / 5)
            worker.moves += how == "moves"
            if how == "beat":
                dog.beat()
    assert worker.ended == []


async def test_a_blocked_loop_is_told_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line it stands at; what the worker holds then may be the cause."""
    worker = Worker()
    blamed: list[str] = []
    async with watched(worker, monkeypatch, guarded=True) as dog:
        dog.on_blocked = blamed.append
        until = time.monotonic() + 60.0
        while not worker.ended and time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251  # on purpose
    assert worker.ended[0][0] == "loop_blocked"
    assert f"{__file__}:" in str(worker.ended[0][1]["at"])
    assert blamed[0].startswith("loop_blocked at ")


def test_a_stopped_process_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP stops the loop and its watchdog alike: the hours that nobody had count as one look."""
    worker, looks = Worker(), 0
    dog = Watchdog(worker.app(), assignment_s=STUCK_S, stuck_s=3 * module.LOOK_S)
    monkeypatch.setattr(dog, "end", lambda why, **_: worker.ended.append((why, {})))

    def rest(*_: object) -> None:
        """An hour passes; the loop gets its turn after every second look."""
        nonlocal looks
        looks += 1
        dog._loop_at += 3600.0 if looks % 2 else 0.0
        if looks == 10:
            dog._stopped.set()

    monkeypatch.setattr("time.sleep", rest)
    dog._watch_loop()
    assert (worker.ended, looks) == ([], 10)


@pytest.mark.parametrize(("by_s", "stops"), [(3600.0, 1), (6.0, 1), (4.0, 0), (-3600.0, 0)])
def test_a_worker_whose_clock_was_set_back_ends_for_a_restart(
    monkeypatch: pytest.MonkeyPatch, by_s: float, stops: int
) -> None:
    """Kafka's client would wait until the clock is where it was. A clock that is set forward ends its waits early."""
    told: list[int] = []
    looks, now = 0, time.time()
    dog = Watchdog(Worker().app(), assignment_s=STUCK_S)
    monkeypatch.setattr(own_process, "_ordered", {})
    monkeypatch.setattr("crawlog.streams.worker.own_process.os.kill", lambda _pid, what: told.append(what))

    def rest(*_: object) -> None:
        nonlocal looks, now
        looks += 1
        dog._loop_at += 1.0
        now -= by_s if looks == 2 else 0.0
        if looks == 5:
            dog._stopped.set()

    monkeypatch.setattr("time.sleep", rest)
    monkeypatch.setattr("time.time", lambda: now)
    dog._watch_loop()
    assert told == [signal.SIGTERM] * stops
    assert own_process.exit_code_of_stop() == (EX_TEMPFAIL if stops else 0)
    assert own_process.reason_of_restart() == ("clock_set_back" if stops else "")
    own_process._ordered["drain"] = "somebody"
    monkeypatch.setenv(SUPERVISOR, "up")
    assert own_process.exit_code_of_stop() == DRAINED  # the supervisor starts no other one


async def test_a_watchdog_that_breaks_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on without its guard: a blocked loop would hold its partitions for ever."""

    def broken(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("time.sleep", broken)
    worker = Worker()
    async with watched(worker, monkeypatch, guarded=True):
        await end_of(worker)
    assert worker.ended == [("watchdog_broken", {"error": "OSError(22, 'Invalid argument')"})]


def test_a_watchdog_that_breaks_at_the_end_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops has its own exit code."""
    worker = Worker()
    dog = Watchdog(worker.app(), assignment_s=STUCK_S)
    monkeypatch.setattr(dog, "end", lambda why, **fields: worker.ended.append((why, fields)))

    def broken(*_: object) -> None:
        dog._stopped.set()
        raise OSError

    monkeypatch.setattr("time.sleep", broken)
    dog._guard()
    assert worker.ended == []


# The waits of a worker


PARSE_MOST_S = max(bound.le for bound in Parse.model_fields["timeout_s"].metadata if hasattr(bound, "le"))


@pytest.mark.parametrize(
    "longest_s",
    [
        waiting.HELD_LOOKS * turns.LOOK_AFTER_S,
        trial.PATIENCE_S,
        guard.PATIENCE * PARSE_MOST_S,
        client.CLUSTER_TIMEOUT_S,
    ],
    ids=["unknown job", "trial", "page", "answer"],
)
def test_no_wait_of_a_worker_is_longer_than_its_watchdogs(longest_s: float) -> None:
    """Else the watchdog ends the worker first, the next worker waits from the start, and so for ever."""
    assert longest_s < module.STUCK_S


@pytest.mark.parametrize("session_s", [6.0, 45.0])
def test_an_assignment_may_take_as_long_as_the_group_waits(session_s: float) -> None:
    """The group waits for a member that does not join, and the user says how long for one that died."""
    client = Kafka(bootstrap="127.0.0.1:1", session_timeout_s=session_s)
    assert app.build("parse", Settings(kafka=client)).watchdog.assignment_s >= crawl_app.REBALANCE_S + session_s


UNKNOWN = """
from crawlog.agents.parse import turns
from crawlog.streams import app

FASTER = 12
turns.LOOK_AFTER_S /= FASTER
app.parse.watchdog.stuck_s /= FASTER
app.worker("parse")
"""
"""A parse worker whose waits and whose watchdog's patience are shorter, by the same factor."""


@pytest.mark.broker
def test_a_page_of_an_unknown_job_is_buried_by_the_worker_that_held_it(cluster: Settings, tmp_path: Path) -> None:
    """The watchdog lets it wait: were it ended, the next worker would hold the page anew, and so for ever."""
    ensure_topics(cluster)
    names = Topics(cluster.kafka.prefix)
    header = (pages.HEADER, pages.encode(PageMeta("http://a.com/", "nobody", http=200)))
    producer = Producer(cluster, "test")
    producer.send(names.pages, b"<title>x</title>", key=b"a.com", partition=0, headers=[header])
    assert producer.flush(30)
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": tmp_path})})
    environ = os.environ | to_environ(settings) | {"CRAWLOG_WORKER": "parse-0"}
    said = tmp_path / "said"
    with said.open("w") as output:
        worker = forked(UNKNOWN, tmp_path, environ, output)
    letters = Consumer(client.consumer_config(cluster))
    letters.assign([TopicPartition(names.dead, 0, OFFSET_BEGINNING)])
    try:
        letter = None
        while letter is None and worker.poll() is None:
            letter = letters.poll(0.1)
        assert letter is not None, said.read_text()
        assert dict(letter.headers() or ())["error"] == b"UnknownJob: crawl.control has no job 'nobody'"
    finally:
        letters.close()
        worker.kill()
        worker.wait()
