"""`crawlog up`, `down` and `status`: engine and workers in the background, for all jobs of a data folder.

`up` starts `crawlog/processes/background.py` in its own session, with its settings in the environment. The first
line that it writes to standard output tells whether it came up.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from crawlog.processes.hold import Holder, holder, same_log, wait_for_end
from crawlog.schemas.control import Command, JobCopy
from crawlog.schemas.urls import DEFAULT_SPEC
from crawlog.streams import engine, files
from crawlog.streams.errors import EngineError, Misconfigured, Unreadable
from crawlog.streams.exit_codes import EX_DATAERR
from crawlog.streams.fleet import FleetStatus

if TYPE_CHECKING:
    from crawlog.streams.fleet import FleetState, FleetView
    from crawlog.streams.settings import Settings

# The counts of a job that `status` shows.
COUNTS = ("queued", "paused", "held", "in_flight", "fetched", "redirected", "failed", "refused")

STOP_TIMEOUT_S = 30.0  # How long `down` waits; a clean stop takes at most 5 s

REPORTS_TIMEOUT_S = 3.0  # How long `status` waits for the workers' reports; there is one a second


class Started(msgspec.Struct):
    """The engine and workers that `up` has started.

    Attributes:
        service: Address of the HTTP service; empty if it is not enabled.
        refuses: Why its workers run no deployed code; empty if they do.
    """

    bootstrap: str
    workers: int
    data: Path
    service: str = ""
    refuses: str = ""


class Stopped(msgspec.Struct):
    """The processes that `down` has stopped.

    Attributes:
        was_up: Whether they were started by `up`.
        broker: The pid of a broker on a folder that nobody held: of a killed command, or of one such as `verify`.
    """

    data: Path
    was_up: bool
    broker: int | None = None


class Status(msgspec.Struct):
    """The processes of a data folder, and its jobs.

    Attributes:
        bootstrap: Address of the log; empty if none runs.
        engine: The pid of the local engine.
        jobs: Each with its name, epoch, state and reason, and with its counts if workers have ever reported;
            `is_counted` says whether these are those of all reported partitions.
        commands: The commands in force.
        fleet: Workers of all machines, jobs, stages and hosts; None if no log runs.
    """

    data: Path
    bootstrap: str = ""
    engine: int | None = None
    holder: Holder | None = None
    jobs: list[dict[str, Any]] = []
    commands: list[Command] = []
    fleet: FleetStatus | None = None


def up(settings: "Settings", *, accepts_skipped: bool = False) -> Started:
    """Starts engine and workers in the background; returns when they run.

    Args:
        accepts_skipped: Whether records stay unread that another program had a group skip.
    """
    from crawlog.agents.sandbox import why_root
    from crawlog.processes.background import ACCEPTS_SKIPPED
    from crawlog.streams.settings import to_environ

    data = settings.run.data.absolute()
    log = data / "logs" / "up.log"
    files.own(log.parent)
    with files.append(log) as out:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "crawlog.processes.background"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            env=os.environ
            | to_environ(settings)
            | {"CRAWLOG_RUN__DATA": str(data)}
            | ({ACCEPTS_SKIPPED: "1"} if accepts_skipped else {}),
            start_new_session=True,
        )
    assert child.stdout is not None
    with child.stdout:
        try:
            told = child.stdout.readline()
        except KeyboardInterrupt:
            child.terminate()
            raise
    came_up = json.loads(told or b"{}")
    if "bootstrap" not in came_up:
        _raise(came_up, log, child.wait())
    refuses = why_root(is_own_user=settings.spider.own_user)
    return Started(came_up["bootstrap"], came_up["workers"], data, came_up.get("service", ""), refuses)


def _raise(answer: dict[str, Any], log: Path, code: int) -> NoReturn:
    if (
        code == EX_DATAERR
    ):  # a supervisor that librdkafka aborted (`streams/cluster/aborts.py`) answers in its log alone
        raise Unreadable(answer.get("message") or log.read_text(errors="replace").rpartition("\ncrawlog: ")[2].strip())
    kind = Misconfigured if answer.get("kind") == "Misconfigured" else EngineError
    raise kind(answer.get("message") or f"the supervisor ended while it started; what it said is in {log}")


def down(settings: "Settings") -> Stopped:
    """Stops what `up` started, or a broker on a folder that nobody holds."""
    data = settings.run.data
    held = holder(data)
    if held is None:
        return Stopped(data, was_up=False, broker=engine.stop(data))
    if held.what != "up":
        who, kill = "another crawlog", ""
        if held.pid:
            who, kill = f"`crawlog {held.what}` (pid {held.pid})", f", or with `kill {held.pid}`"
        raise Misconfigured(
            f"{who} works on {data}; `crawlog down` stops what `crawlog up` started.\n"
            f"End it with Ctrl-C where it runs{kill}."
        )
    with suppress(ProcessLookupError):
        os.kill(held.pid, signal.SIGTERM)
    if not wait_for_end(data, held, STOP_TIMEOUT_S):
        raise EngineError(
            f"the supervisor (pid {held.pid}) does not end; `kill -9 {held.pid}` ends it, nothing is lost"
        )
    return Stopped(data, was_up=True)


def status(settings: "Settings") -> Status:
    """The processes of the folder, and the whole fleet of its log: workers of all machines, jobs, lag."""
    from crawlog.streams.log import has_topics, partition_count_if_any

    data = settings.run.data
    held, local = holder(data), engine.running(data)
    settings = same_log(settings)
    if local and not settings.kafka.bootstrap:
        settings = local.point(settings)
    found = Status(data, settings.kafka.bootstrap, local.pid if local else None, held)
    if settings.kafka.bootstrap and has_topics(settings):
        kafka = settings.kafka.model_copy(update={"partitions": partition_count_if_any(settings)})
        _look(settings.model_copy(update={"kafka": kafka}), found)
    return found


def _look(settings: "Settings", found: Status) -> None:
    """Adds the fleet of the log."""
    from crawlog.streams.fleet import FleetView

    count = settings.kafka.partitions

    def is_whole(view: FleetView) -> bool:
        if found.holder is None:
            return bool(view.workers()) or not view.look(lambda state: state.had_fleet())
        return len(_owned(view)) >= count

    view = FleetView.read(settings, until=is_whole, wait_s=REPORTS_TIMEOUT_S)
    found.fleet = view.status()
    found.jobs = view.look(lambda state: _jobs(state, count))
    found.commands = view.look(lambda state: state.control.commands.in_force_at(time.time()))


def _owned(view: "FleetView") -> set[int]:
    return {number for one in view.workers() if one.stage == "fetch" for number in one.partitions}


def _reported(state: "FleetState") -> set[int]:
    return {report.partition for report in state.picture.of("fetch")}


def _jobs(state: "FleetState", count: int) -> list[dict[str, Any]]:
    """The jobs in the log, with their counts if workers have ever reported; also those of bare URLs."""
    reported = len(_reported(state))
    jobs: list[dict[str, Any]] = []
    for name in sorted({*state.names(), *state.unrecorded()}):
        copy = state.copy(name) or JobCopy(name, DEFAULT_SPEC)
        end = state.end(copy)
        view = state.job(name)
        now = "running" if view is None or view.state == "pending" else view.state
        job = {"name": name, "epoch": copy.epoch, "state": now, "reason": view.reason if view is not None else ""}
        if reported:
            counts = state.counts(copy, end)
            job |= {field: getattr(counts, field) for field in (*COUNTS, "dropped", "needs")}
            job |= {"reported": reported, "partitions": count, "is_counted": state.is_counted(copy, end)}
        behind = [one for one in view.outputs if one.error or one.waiting] if view is not None else []
        job["outputs"] = [{"name": one.name, "waiting": one.waiting, "error": one.error} for one in behind]
        jobs.append(job)
    return jobs
