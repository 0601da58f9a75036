"""The Faust apps against a real broker: commits, starts, stops, rebalances; probe agents in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka.protocol.group import HeartbeatRequest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.cluster.client import commit_metadata, committed_offsets, kafka_config
from crawlog.streams.engine import engine as local
from crawlog.streams.engine.engine import Engine
from crawlog.streams.exit_codes import EX_DATAERR, EX_SOFTWARE, heard
from crawlog.streams.groups.commits import (
    OURS,
    HeldRange,
    Position,
    ReplayPlan,
    WrittenEnds,
    is_ours,
    reached_offset,
    replay_order,
    without_written,
    written_ends,
)
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.settings import Settings, to_environ
from crawlog.streams.sink.private import PrivateOutputs
from crawlog.streams.worker.lease import Lease
from crawlog.streams.worker.member import watched
from crawlog.streams.worker.positions import Positions, first_offset
from tests.support.damaging import WAYS, batches
from tests.support.processes import Process, forked

STRANGE = ("", "x;", "-9;", "9", "9 9;", "\u0669;", "9" * 5000 + ";", "6;")
"""What stands for no offset after the mark of a commit at 7."""

ROOT = Path(__file__).parents[3]
PROBE = ROOT / "tests" / "support" / "probe.py"
PARTITIONS = 8

QUICK_S = 150.0
"""What takes a tenth of a second on a machine at rest; half of a LONG_S."""

LONG_S = 300.0
"""A session's timeout, and an event, in tests that show that nobody waited for their end, seconds."""

SHORT_S = 3.0
"""A session's timeout in tests that wait for its end, seconds."""

Line = dict[str, Any]


def wait_for(what: Callable[[], Any], limit_s: float = 180.0) -> Any:  # whatever `what` finds
    """The first true answer of `what`; a failure of the test after `limit_s`."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.01)
    pytest.fail(f"waited {limit_s} s in vain")


def with_session(settings: Settings, timeout_s: float) -> Settings:
    """The same settings with sessions of this length."""
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"session_timeout_s": timeout_s})})


def outputs(settings: Settings, group: str = "") -> PrivateOutputs:
    """Named after the test: a group to itself, so that the dead of the test before are no members of it."""
    return PrivateOutputs(group or settings.kafka.prefix.rstrip("."), ())


class Probe:
    """A worker process of probe agents, and what it wrote."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        name: str = "w-0",
        *,
        command: Sequence[str] = (),
        group: str = "",
        **options: object,
    ) -> None:
        self.file = folder / f"{name}-{time.monotonic_ns()}.jsonl"
        self.errors = self.file.with_suffix(".log")
        environ = {
            "PROBE_STAGE": "sink",
            "PROBE_FILE": str(self.file),
            "CRAWLOG_WORKER": name,
        } | outputs(settings, group).environ()
        environ |= {f"PROBE_{key.upper()}": str(value) for key, value in options.items()}
        environ = os.environ | to_environ(settings) | environ
        self.process: Process
        with self.errors.open("wb") as errors:
            if command:
                self.process = Process(command, cwd=PROBE.parent, env=environ, stderr=errors, stdout=errors)
            else:
                code = f"import runpy, sys; sys.path.insert(0, {str(PROBE.parent)!r})"
                code += f"; runpy.run_path({str(PROBE)!r}, run_name='__main__')"
                self.process = forked(code, PROBE.parent, environ, errors)

    def lines(self, what: str) -> list[Line]:
        """What it wrote of one kind; of all for an empty name."""
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        whole = text.rpartition("\n")[0].splitlines()  # the last line may be half written
        return [line for line in map(json.loads, whole) if what in ("", line["what"])]

    def offsets(self, what: str = "event") -> list[tuple[int, int]]:
        """(partition, offset) of each line of a kind, in order."""
        return [(line["partition"], line["offset"]) for line in self.lines(what)]

    def owned(self) -> list[int] | None:
        """Partitions of the newest assignment; None before the first."""
        owned = self.lines("owned")
        return owned[-1]["partitions"] if owned else None

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> float:
        """SIGTERM; returns the seconds that the end took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() == 0, self.errors.read_text()
        return time.monotonic() - began


@pytest.fixture
def ready(cluster: Settings) -> Settings:
    """A cluster with topics."""
    ensure_topics(cluster)
    return cluster


@pytest.fixture
def start(ready: Settings, tmp_path: Path) -> Iterator[Callable[..., Probe]]:
    """Starts probe workers; what still runs is killed at the end."""
    probes: list[Probe] = []

    def start(name: str = "w-0", settings: Settings = ready, **options: Any) -> Probe:
        probes.append(Probe(settings, tmp_path, name, **options))
        return probes[-1]

    yield start
    for probe in probes:
        probe.process.kill()
        probe.process.wait()


def publish(settings: Settings, per_partition: int) -> set[tuple[int, int]]:
    """Put records into each partition of crawl.items; returns their places."""
    producer = Producer(settings, "test")
    places: set[tuple[int, int]] = set()
    for partition in range(PARTITIONS):
        for i in range(per_partition):
            producer.send(
                Topics(settings.kafka.prefix).items,
                b"%d" % i,
                partition=partition,
                on_delivery=lambda p, o: places.add((p, o)),
            )
    assert producer.flush(10)
    return places


def farthest(settings: Settings) -> set[int]:
    """How far the group's commits say that their workers are."""
    topic = Topics(settings.kafka.prefix).items
    found = committed_offsets(settings, stage_group(settings, f"sink-{outputs(settings).id}"), topic, range(PARTITIONS))
    return {reached_offset(offset, metadata) for offset, metadata in found.values()}


def committed(settings: Settings) -> dict[int, int]:
    """The group's offsets as the broker holds them; -1001 for none."""
    consumer = Consumer(kafka_config(settings) | {"group.id": stage_group(settings, f"sink-{outputs(settings).id}")})
    topic = Topics(settings.kafka.prefix).items
    rows = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=10)
    consumer.close()
    return {row.partition: row.offset for row in rows}


@pytest.mark.broker
def test_a_new_group_starts_at_the_log_start(ready: Settings, start: Callable[..., Probe]) -> None:
    """What was written before the first worker is read, though aiokafka must not reset positions."""
    places = publish(ready, 5)
    probe = start()
    wait_for(lambda: set(probe.offsets()) == places)


@pytest.mark.broker
def test_commits_never_pass_what_was_said(ready: Settings, start: Callable[..., Probe]) -> None:
    """Later events end, the one before them does not: the commit stays before it, also after a restart.

    It says how far the worker is, and goes on doing so while the offset stands.
    """
    publish(ready, 6)
    probe = start(skip=3)
    wait_for(lambda: len(probe.offsets("done")) == 6 * PARTITIONS)
    wait_for(lambda: set(committed(ready).values()) == {3})
    wait_for(lambda: farthest(ready) == {6})
    publish(ready, 1)
    wait_for(lambda: farthest(ready) == {7})
    probe.kill()
    again = start(skip=3)
    wait_for(lambda: len(again.offsets("done")) == 4 * PARTITIONS)
    assert {min(o for p, o in again.offsets() if p == partition) for partition in range(PARTITIONS)} == {3}
    assert set(committed(ready).values()) == {3}


@pytest.mark.broker
def test_a_killed_worker_loses_nothing(ready: Settings, start: Callable[..., Probe]) -> None:
    """Kill -9 amid the work, again and again: every record is worked off in the end."""
    places = publish(ready, 50)
    seen: set[tuple[int, int]] = set()

    def got_on(probe: Probe) -> Callable[[], bool]:
        return lambda: len(probe.offsets("done")) > 90

    for _ in range(3):
        probe = start(hold=0.005)
        wait_for(got_on(probe))
        probe.kill()
        seen |= set(probe.offsets())
    last = start()
    wait_for(lambda: seen | set(last.offsets()) == places)


@pytest.mark.broker
def test_one_of_two_workers_of_one_name_ends_and_the_other_works(ready: Settings, start: Callable[..., Probe]) -> None:
    """Each join puts the other out; for ever, if both stayed."""
    first = start("w-0")
    wait_for(first.owned)
    probes = first, start("w-0")
    wait_for(lambda: any(probe.process.poll() is not None for probe in probes))
    ended, stays = sorted(probes, key=lambda probe: probe.process.poll() is None)
    assert ended.process.poll() == 2
    assert "has the name w-0 too" in ended.errors.read_text()
    places = publish(ready, 5)
    wait_for(lambda: set(stays.offsets()) == places)


def generations(probe: Probe) -> list[int]:
    """Of the group, at each assignment."""
    return [line["generation"] for line in probe.lines("owned")]


@pytest.mark.broker
def test_a_planned_stop_moves_the_partitions_at_once(ready: Settings, start: Callable[..., Probe]) -> None:
    """SIGTERM ends a worker quickly, and the other one has all partitions without a session timeout."""
    stays, leaves = (start(name, with_session(ready, LONG_S)) for name in ("w-0", "w-1"))
    wait_for(lambda: len(stays.owned() or []) == len(leaves.owned() or []) == PARTITIONS / 2)
    began = time.monotonic()
    assert leaves.stop() < QUICK_S
    wait_for(lambda: len(stays.owned() or []) == PARTITIONS)
    assert stays.lines("owned")[-1]["at"] - began < QUICK_S
    assert leaves.lines("revoking")
    assert generations(stays)[-1] == generations(stays)[-2] + 1, (
        "what it kept nobody else had (streams/frontier/politeness.py)"
    )


@pytest.mark.broker
def test_a_stop_commits_what_was_done(ready: Settings, start: Callable[..., Probe]) -> None:
    """The last commit of a planned stop leaves nothing to do again."""
    publish(ready, 20)
    probe = start()
    wait_for(lambda: len(probe.offsets("done")) == 20 * PARTITIONS)
    probe.stop()
    assert set(committed(ready).values()) == {20}


@pytest.mark.broker
def test_a_stop_is_bounded(ready: Settings, start: Callable[..., Probe]) -> None:
    """An event and a hook that hang do not hold up a stop: 4 s on a machine at rest."""
    publish(ready, 1)
    probe = start(hold=LONG_S, revoke=LONG_S)
    wait_for(probe.offsets)
    assert probe.stop() < QUICK_S


@pytest.mark.broker
def test_the_dispatch_is_told_before_anything_is_waited_for(ready: Settings, start: Callable[..., Probe]) -> None:
    """A rebalance starts with the hook, though an event in flight takes long, and it ends though it never ends."""
    publish(ready, 1)
    probe = start("w-0", with_session(ready, LONG_S), hold=LONG_S)
    wait_for(probe.offsets)
    other = start("w-1", with_session(ready, LONG_S))
    wait_for(other.owned)
    began = probe.lines("started")[-1]["at"]
    assert probe.lines("revoking")[-1]["at"] - began > 0.4, "the event in flight was waited for, after the hook"
    assert len(other.lines("owned")[0]["partitions"]) == PARTITIONS / 2, "the first one came in time: none was dropped"
    assert wait_for(lambda: len(probe.owned() or []) == PARTITIONS / 2)


@pytest.mark.broker
def test_partitions_stay_where_they_were(ready: Settings, start: Callable[..., Probe]) -> None:
    """The assignor is sticky: a third worker takes from each, and moves nothing between the first two."""
    first, second = start("w-0"), start("w-1")
    wait_for(lambda: len(first.owned() or []) == len(second.owned() or []) == PARTITIONS / 2)
    before = set(first.owned() or []), set(second.owned() or [])
    third = start("w-2")
    wait_for(third.owned)
    wait_for(lambda: sum(len(probe.owned() or []) for probe in (first, second, third)) == PARTITIONS)
    assert set(first.owned() or []) <= before[0]
    assert set(second.owned() or []) <= before[1]


@pytest.mark.broker
@pytest.mark.parametrize(("why", "options"), [("no_progress", {"hold": 60}), ("loop_blocked", {"block": 60})])
def test_a_stuck_worker_ends_and_says_why(
    ready: Settings, start: Callable[..., Probe], why: str, options: dict[str, object]
) -> None:
    """Records wait and nothing moves, or the loop stands still: exit code 75 asks for a restart."""
    publish(ready, 2)
    probe = start(stuck=1, **options)
    assert probe.process.wait(180) == 75
    last = probe.errors.read_text().splitlines()[-1]
    assert f"critical worker_stuck why={why} " in last


@pytest.mark.broker
def test_an_agent_that_fails_ends_the_worker_before_the_next_record(
    ready: Settings, start: Callable[..., Probe]
) -> None:
    """Faust would start the agent again behind the record, which nobody would read any more."""
    publish(ready, 3)
    probe = start(fail=1)
    assert probe.process.wait(180) == EX_SOFTWARE
    [failed] = set(probe.offsets()) - set(probe.offsets("done"))
    assert probe.offsets()[-1] == failed
    last = probe.errors.read_text().splitlines()[-1]
    assert "critical worker_stuck why=agent_failed " in last
    assert f" partition={failed[0]} offset=1" in last
    again = start()
    wait_for(lambda: failed in again.offsets("done"))


@pytest.mark.broker
def test_an_idle_worker_is_not_stuck(ready: Settings, start: Callable[..., Probe]) -> None:
    """Nothing moves because nothing waits."""
    publish(ready, 2)
    probe = start(stuck=0.5)
    wait_for(lambda: len(probe.offsets("done")) == 2 * PARTITIONS)
    with pytest.raises(subprocess.TimeoutExpired):
        probe.process.wait(2)


@pytest.mark.broker
def test_no_thread_of_a_worker_or_a_broker_interrupts_another_process(
    engine: Engine, ready: Settings, start: Callable[..., Probe]
) -> None:
    """Neither threads of Python nor of Java."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # to start the broker has changed it
    probe = start(command=(sys.executable, str(PROBE)))
    wait_for(lambda: probe.owned() == [*range(PARTITIONS)])
    for pid in (probe.process.pid, engine.pid):
        threads = psutil.Process(pid).threads()
        assert {os.sched_getscheduler(thread.id) for thread in threads} == {os.SCHED_BATCH}


@pytest.mark.broker
def test_faust_itself_runs_the_worker(ready: Settings, start: Callable[..., Probe]) -> None:
    """`faust -A module:app worker` finds the app by attribute, its agents by name, and stops as cleanly.

    GHSA-76g3-c3x4-crvx, GHSA-v6wp-4m6f-gcjg, CVE-2024-23334, CVE-2025-69226, CVE-2022-30034: it listens nowhere, though
    Faust would serve pages.
    """
    places = publish(ready, 2)
    faust = (sys.executable, "-m", "faust", "-A", "probe:app", "worker", "-l", "info")
    probe = start(command=faust)
    wait_for(lambda: set(probe.offsets()) == places)
    sockets = psutil.Process(probe.process.pid).net_connections("inet")
    assert sockets  # to the broker
    assert [one.laddr for one in sockets if one.status == psutil.CONN_LISTEN] == []
    assert probe.stop() < QUICK_S
    assert f"stopped group={stage_group(ready, 'sink')}" in probe.errors.read_text()


@pytest.mark.broker
def test_a_missing_agent_is_named(ready: Settings, tmp_path: Path) -> None:
    """A worker whose agents are not there says which, and does not start without them."""
    code = (
        "from crawlog.streams import app, stages; rows = stages.STAGES\n"
        "rows['sink'] = rows['sink']._replace(agents=('crawlog.agents.nowhere',)); app.worker('sink')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | to_environ(ready),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert ran.returncode == 1
    assert "crawlog.agents.nowhere is not there, and a sink worker needs it" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_app_is_not_imported_under_a_second_name() -> None:
    """From the repository's root the folder is importable too; that app would have no agents."""
    ran = subprocess.run(
        [sys.executable, "-c", "import streams.app"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=180
    )
    assert "ImportError: import crawlog.streams, not streams" in ran.stderr


# Lease


def test_a_lease_runs_from_when_the_heartbeat_was_sent() -> None:
    """Held for the session timeout less a margin, counted from the sending."""
    lease = Lease(6.0)
    assert not lease.held(0.1), "none before the first heartbeat"
    lease.renew(100.0)
    assert lease.held(105.4)
    assert not lease.held(105.5)


def test_a_lease_never_gets_shorter_by_a_late_answer() -> None:
    """Answers may arrive out of order."""
    lease = Lease(6.0)
    lease.renew(100.0)
    lease.renew(99.0)
    assert lease.held(105.4)


async def test_a_stopped_process_finds_its_lease_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is read after SIGCONT; what counts is when the request was sent."""
    clock = [1000.0]
    monkeypatch.setattr("crawlog.streams.worker.member.boottime", lambda: clock[0])
    lease = Lease(6.0)

    async def send(_: object) -> object:
        clock[0] += 10.0  # stopped, and continued
        return type("Response", (), {"error_code": 0})()

    await watched(send, lease)(HeartbeatRequest("g", 1, "m"))
    assert not lease.held(clock[0])


@pytest.mark.parametrize(("code", "held"), [(0, True), (27, True), (25, False), (22, False), (15, False)])
async def test_only_an_answer_that_counts_us_renews(code: int, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance in progress counts us as a member; an unknown member and an unknown coordinator do not."""
    monkeypatch.setattr("crawlog.streams.worker.member.boottime", lambda: 1000.0)
    lease = Lease(6.0)

    async def send(_: object) -> object:
        return type("Response", (), {"error_code": code})()

    await watched(send, lease)(HeartbeatRequest("g", 1, "m"))
    assert lease.held(1001.0) is held


@pytest.mark.parametrize(
    ("code", "late_s", "ends"), [(25, 0.0, True), (82, 0.0, True), (22, 0.0, False), (25, 6.0, False)]
)
async def test_a_worker_that_is_put_out_though_its_lease_is_held_has_a_namesake(
    code: int, late_s: float, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that timed out has outlived the lease: such a worker joins again, as often as it takes."""
    clock, codes, said = [1000.0], [0, code] * 3, list[str]()
    monkeypatch.setattr("crawlog.streams.worker.member.boottime", lambda: clock[0])

    async def send(_: object) -> object:
        clock[0] += late_s if codes[0] else 1.0
        return type("Response", (), {"error_code": codes.pop(0)})()

    beat = watched(send, Lease(6.0), lambda: said.append("namesake"))
    while codes:
        await beat(HeartbeatRequest("g", 1, "m"))
    assert said == ["namesake"] * ends


# Positions


def positions(taken: bool = True, found: Position = Position(5, 5)) -> tuple[Positions, list[dict[int, Position]]]:  # noqa: B008  # frozen
    """Positions that own partitions 0 and 1, and what was committed."""
    written: list[dict[int, Position]] = []

    async def commit(said: dict[int, Position]) -> bool:
        written.append(said)
        return taken

    made = Positions(commit)
    made.begin({0: 5, 1: 7}, {0: found, 1: None})
    return made, written


async def test_only_what_was_said_is_committed() -> None:
    """A start is no claim, and nothing is committed twice."""
    made, written = positions()
    made.done(0, 9)
    assert await made.flush()
    assert await made.flush()
    assert written == [{0: Position(9, 9)}]
    assert (made.committed(0), made.next(0), made.next(1)) == (9, 9, 7)


async def test_a_refused_commit_is_written_again() -> None:
    """An offset counts as committed only once the broker took it."""
    made, written = positions(taken=False)
    made.done(0, 9)
    assert not await made.flush()
    assert not await made.flush()
    assert written == [{0: Position(9, 9)}] * 2
    assert made.committed(0) == 5


async def test_a_partition_that_is_gone_is_not_committed() -> None:
    """An event that ends after its partition was given up says nothing."""
    made, written = positions()
    made.end()
    made.done(0, 9)
    assert await made.flush()
    assert not written


async def test_a_commit_is_written_when_only_more_was_taken() -> None:
    """Whatever holds the offset back; what the broker holds already is not written again."""
    made, written = positions()
    made.taken = taken = {0: 6, 1: 7}
    assert await made.flush()
    assert await made.flush()
    taken |= {0: 9, 1: 8}
    made.done(0, 7)
    assert await made.flush()
    assert written == [{0: Position(5, 6)}, {0: Position(7, 9), 1: Position(7, 8)}]
    assert (made.committed(0), made.committed(1)) == (7, 7)


async def test_what_was_taken_and_given_up_counts_no_longer() -> None:
    """The last commit before a rebalance says so; and who follows one that was killed says it in his first."""
    made, written = positions()
    made.taken = taken = {0: 9}
    await made.flush()
    taken.clear()
    await made.flush()
    assert written == [{0: Position(5, 9)}, {0: Position(5, 5)}]
    made, written = positions(found=Position(5, 900))
    await made.flush()
    assert written == [{0: Position(5, 5)}]


async def test_a_commit_tells_what_was_in_the_log_before_it() -> None:
    """Also beside how far its worker is, and a replay; a worker that writes nothing says nothing of it."""
    made, commits = positions()
    made.written = WrittenEnds({3: 70, 0: 5}, {1: 8})
    made.done(0, 9)
    assert await made.flush()
    assert written_ends(commits[0][0].metadata) == WrittenEnds({0: 5, 3: 70}, {1: 8})
    both = Position(5, 9, ReplayPlan("j", 20), WrittenEnds({1: 2}, {2: 3})).metadata
    assert (written_ends(both), replay_order(both), reached_offset(5, both)) == (
        WrittenEnds({1: 2}, {2: 3}),
        ReplayPlan("j", 20),
        9,
    )
    assert without_written(both) == Position(5, 9, ReplayPlan("j", 20)).metadata
    assert written_ends(Position(5, 9).metadata) == WrittenEnds()


async def test_a_commit_tells_what_workers_before_this_one_had_written() -> None:
    """They may have written to partitions that this one has not come to."""
    made, commits = positions()
    made.begin({0: 5}, {0: None}, WrittenEnds({0: 9, 1: 4}, {2: 6}))
    made.written = WrittenEnds({1: 7}, {3: 2})
    made.done(0, 9)
    assert await made.flush()
    assert written_ends(commits[0][0].metadata) == WrittenEnds({0: 9, 1: 7}, {2: 6, 3: 2})


@pytest.mark.parametrize("list_of_ends", ["1:234:5", "1:2,", ",1:2", "1:2,,3:4", "1"])
def test_a_list_of_ends_that_is_none_says_nothing(list_of_ends: str) -> None:
    """Another program may write what it likes into a commit."""
    assert written_ends(f"{OURS} founds {list_of_ends};") == WrittenEnds()


def test_the_metadata_of_many_partitions_fits_into_a_commit() -> None:
    """What does not is left out; what is told is whole."""
    ends = {number: 10**18 + number for number in range(1000)}
    text = Position(5, 9, ReplayPlan("j" * 100, 10**18), WrittenEnds(ends, ends)).metadata
    assert len(text) <= 4096
    told = written_ends(text)
    assert len(told.founds) == len(told.items) > 50
    assert told.founds.items() <= ends.items()


@pytest.mark.parametrize("metadata", ["", "9;", OURS, *(f"{OURS} {word}" for word in STRANGE), "Crawlog 9;"])
def test_metadata_that_says_nothing_more_means_the_offset(metadata: str) -> None:
    """Of a commit by hand, by `crawlog replay`, by another program, by a worker that has nothing in hand."""
    assert reached_offset(7, metadata) == 7


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.binary(max_size=9))
def test_a_commits_metadata_says_how_far_its_worker_is(offset: int, beyond: int, junk: bytes) -> None:
    """And that a worker wrote it, whatever bytes librdkafka hands out behind it."""
    position = Position(offset, min(offset + beyond, 2**63 - 1))
    read = commit_metadata(HandedOut(position.metadata.encode() + junk))  # type: ignore[arg-type]  # all that is asked of it
    assert is_ours(read)
    assert reached_offset(offset, read) == position.reached
    assert not is_ours(commit_metadata(TopicPartition("t", 0, 5)))


@pytest.mark.parametrize("junk", ["", "\x00", "9;"])
@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (ReplayPlan("a.b-c_1", 20).metadata, ReplayPlan("a.b-c_1", 20)),
        (Position(5, 5, ReplayPlan("j", 20)).metadata, ReplayPlan("j", 20)),
        (Position(5, 9, ReplayPlan("j", 20)).metadata, ReplayPlan("j", 20)),
        (Position(5, 9).metadata, None),
        ("", None),
        ("replay j", None),
        ("somebody's replay j 20;", None),
    ],
)
def test_a_commits_metadata_says_which_job_alone_is_replayed(
    metadata: str, found: ReplayPlan | None, junk: str
) -> None:
    """In the order, and in each commit of a worker that obeys it, whatever bytes come behind."""
    assert replay_order(metadata + junk) == found
    assert is_ours(metadata) == metadata.startswith(OURS)


async def test_records_of_other_jobs_are_passed_over_up_to_where_they_were_done() -> None:
    """Each commit before it says so, for the successor of a killed worker; the first one beyond says so no more."""
    replayed = ReplayPlan("j", 8)
    made, written = positions(found=Position(5, 5, replayed))
    assert [made.passes_over(0, at, job) for at, job in ((5, "k"), (5, "j"), (7, "k"), (8, "k"))] == [
        True,
        False,
        True,
        False,
    ]
    assert not made.passes_over(1, 5, "k")
    made.taken = {0: 7}
    made.done(0, 6)
    await made.flush()
    made.done(0, 8)
    await made.flush()
    assert written == [{0: Position(6, 7, replayed)}, {0: Position(8, 8)}]
    made.end()
    assert not made.passes_over(0, 5, "k")


def test_a_log_that_was_made_anew_is_read_whole() -> None:
    """Reading starts over there, so what was replayed before says nothing of it."""
    made, _ = positions(found=Position(9, 9, ReplayPlan("j", 20)))
    assert not made.passes_over(0, 5, "k")


class HandedOut:
    """Stands in for a `TopicPartition`, which makes no copy of what it cannot decode."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata

    @property
    def metadata(self) -> str:
        """As librdkafka has it."""
        return self._metadata.decode()


@pytest.mark.parametrize(
    ("asked", "held", "offset", "noted"),
    [
        (None, HeldRange(None, 3, 9), 3, False),
        (None, HeldRange(5, 3, 9), 5, False),
        (None, HeldRange(9, 3, 9), 9, False),
        (7, HeldRange(5, 3, 9), 7, False),
        (None, HeldRange(2, 3, 9), 3, True),
        (None, HeldRange(10, 3, 9), 3, True),
        (0, HeldRange(5, 3, 9), 3, True),
    ],
)
def test_reading_starts_inside_the_log_and_says_where_it_differs(
    asked: int | None,
    held: HeldRange,
    offset: int,
    noted: bool,
) -> None:
    """The state's offset, else the commit, else the log's start."""
    start, note = first_offset(asked, held)
    assert start == offset
    assert (note is not None) is noted


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long  # `make test` has the same of a whole crawl: a_broker_that_dies_under_a_crawl_comes_back…
def test_workers_outlive_their_broker(tmp_path: Path) -> None:
    """Kill -9 of the broker: workers wait for it, go on where they were, and commit."""
    engine = local.start(Settings(), tmp_path / "data", lambda _: None)
    settings = with_session(engine.point(Settings()), SHORT_S)
    ensure_topics(settings)
    probes = [Probe(settings, tmp_path, name) for name in ("w-0", "w-1")]

    def seen() -> set[tuple[int, int]]:
        return {place for probe in probes for place in probe.offsets()}

    try:
        wait_for(lambda: sum(len(probe.owned() or []) for probe in probes) == PARTITIONS)
        places = publish(settings, 3)
        wait_for(lambda: seen() == places)
        os.kill(engine.pid, signal.SIGKILL)
        wait_for(lambda: not engine.alive())
        time.sleep(SHORT_S + 1)
        engine = local.start(Settings(), tmp_path / "data", lambda _: None, died=engine)
        places |= publish(settings, 3)
        wait_for(lambda: seen() == places)
        wait_for(lambda: set(committed(settings).values()) == {6})
        assert [probe.process.poll() for probe in probes] == [None, None]
    finally:
        for probe in probes:
            probe.kill()
        engine.stop()


@pytest.mark.broker
def test_a_worker_whose_broker_does_not_know_the_topic_yet_waits_for_it(
    ready: Settings, start: Callable[..., Probe]
) -> None:
    """A broker that was just started may say so; as the group's leader it would give everybody nothing."""
    places = publish(ready, 1)
    worker = start(unknown=4)
    wait_for(worker.owned)
    assert [line["partitions"] for line in worker.lines("owned")] == [list(range(PARTITIONS))]
    wait_for(lambda: set(worker.offsets()) == places)


@pytest.mark.broker
@pytest.mark.slow
def test_a_process_that_was_stopped_comes_back_as_a_stranger(ready: Settings, start: Callable[..., Probe]) -> None:
    """SIGSTOP beyond the session: the other takes over; continued, it holds no lease until it has joined anew."""
    places = publish(ready, 1)
    stays, sleeps = (start(name, with_session(ready, SHORT_S)) for name in ("w-0", "w-1"))
    wait_for(lambda: len(stays.owned() or []) == len(sleeps.owned() or []) == PARTITIONS / 2)
    sleeps.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: len(stays.owned() or []) == PARTITIONS)
    places |= publish(ready, 1)
    wait_for(lambda: places == set(stays.offsets()) | set(sleeps.offsets()))
    began = time.monotonic()
    sleeps.process.send_signal(signal.SIGCONT)
    wait_for(lambda: sleeps.lines("owned")[-1]["at"] > began)
    joined = sleeps.lines("owned")[-1]["at"]
    assert not any(line["lease"] for line in sleeps.lines("") if began < line["at"] < joined)
    assert generations(sleeps)[-1] > generations(sleeps)[-2] + 1, (
        "another had what it gets back (streams/frontier/politeness.py)"
    )
    wait_for(lambda: len(stays.owned() or []) == len(sleeps.owned() or []) == PARTITIONS / 2)


@pytest.mark.broker
@pytest.mark.parametrize("way", ["record", "length"])
def test_a_damaged_batch_ends_its_worker_for_good_and_no_commit_passes_it(
    way: str, ready: Settings, start: Callable[..., Probe], engine: Engine
) -> None:
    """A new worker would meet it again, in silence where the broker refuses the batch."""
    topic = Topics(ready.kafka.prefix).items
    for _ in range(5):
        publish(ready, 1)
    WAYS[way](batches(engine, topic, 3)[2])
    worker = start()
    assert worker.process.wait(120) == EX_DATAERR
    said = heard(worker.errors.read_text().splitlines()[-1])
    assert said.startswith(f"the log is damaged: {topic}[3] cannot be read at offset 2: ")
    committed = committed_offsets(ready, stage_group(ready, f"sink-{outputs(ready).id}"), topic, [3])
    assert committed.get(3, (0, ""))[0] <= 2
    assert {offset for partition, offset in worker.offsets() if partition == 3} <= {0, 1}
