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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from crawlog.processes.hold import Holder, holder, same_log, wait_for_end
from crawlog.progress.picture import Picture
from crawlog.schemas.control import Command, Control, Finished, JobCopy
from crawlog.schemas.urls import DEFAULT_SPEC
from crawlog.streams import engine, files
from crawlog.streams.errors import EngineError, Misconfigured

from .control import in_force

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

COUNTS = ("queued", "paused", "held", "in_flight", "fetched", "redirected", "failed", "refused")
"""The counts of a job that `status` shows."""

STOP_TIMEOUT_S = 30.0
"""How long `down` waits; a clean stop takes at most 5 s."""

REPORTS_TIMEOUT_S = 3.0
"""How long `status` waits for the workers' reports; there is one a second."""

REPORTS_LOOK_S = 0.02
"""Pause between two looks for these reports, seconds."""

RECENT_S = 1.5
"""`status` accepts earlier reports up to this age, seconds."""


class Started(msgspec.Struct):
    """The engine and workers that `up` has started."""

    bootstrap: str
    workers: int
    data: Path


class Stopped(msgspec.Struct):
    """The processes that `down` has stopped.

    Attributes:
        was_up: Whether they were started by `up`.
        left_behind: The pid of a broker that a killed command had left behind.
    """

    data: Path
    was_up: bool
    left_behind: int | None = None


class Status(msgspec.Struct):
    """The processes of a data folder, and its jobs.

    Attributes:
        bootstrap: Address of the log; empty if none runs.
        engine: The pid of the local engine.
        jobs: Each with its name, epoch and state, and with its counts if workers report.
        commands: The commands in force.
    """

    data: Path
    bootstrap: str = ""
    engine: int | None = None
    holder: Holder | None = None
    jobs: list[dict[str, Any]] = []
    commands: list[Command] = []


def up(settings: "Settings") -> Started:
    """Starts engine and workers in the background; returns when they run."""
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
            env=os.environ | to_environ(settings) | {"CRAWLOG_RUN__DATA": str(data)},
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
        _raise(came_up, log)
    return Started(came_up["bootstrap"], came_up["workers"], data)


def _raise(answer: dict[str, Any], log: Path) -> None:
    kind = Misconfigured if answer.get("kind") == "Misconfigured" else EngineError
    raise kind(answer.get("message") or f"the supervisor ended while it started; what it said is in {log}")


def down(settings: "Settings") -> Stopped:
    """Stops what `up` started, or a broker that a killed command left behind."""
    data = settings.run.data
    held = holder(data)
    if held is None:
        return Stopped(data, was_up=False, left_behind=engine.stop(data))
    if held.what != "up":
        raise Misconfigured(
            f"`crawlog {held.what}` (pid {held.pid}) works on {data}; `crawlog down` stops what `crawlog up` started.\n"
            f"End it with Ctrl-C where it runs, or with `kill {held.pid}`."
        )
    os.kill(held.pid, signal.SIGTERM)
    if not wait_for_end(held.pid, STOP_TIMEOUT_S):
        raise EngineError(
            f"the supervisor (pid {held.pid}) does not end; `kill -9 {held.pid}` ends it, nothing is lost"
        )
    return Stopped(data, was_up=True)


def status(settings: "Settings") -> Status:
    """The processes of the folder, and the progress of its jobs."""
    from crawlog.streams.log import Topics, control_entries, partition_count_if_any

    data = settings.run.data
    held, local = holder(data), engine.running(data)
    settings = same_log(settings)
    if local and not settings.kafka.bootstrap:
        settings = local.point(settings)
    jobs, commands = ([], [])
    if settings.kafka.bootstrap and (count := partition_count_if_any(settings)):
        said = control_entries(settings, Topics(settings.kafka.prefix))
        jobs, commands = _jobs(settings, said, count, has_workers=held is not None), in_force(said)
    return Status(data, settings.kafka.bootstrap, local.pid if local else None, held, jobs, commands)


def _jobs(
    settings: "Settings", said: Mapping[bytes, Control], count: int, *, has_workers: bool
) -> list[dict[str, Any]]:
    """The jobs in the log, with their counts if workers report; also jobs without a record, made by bare URLs."""
    copies = {entry.job: entry for entry in said.values() if isinstance(entry, JobCopy)}
    picture = _picture(settings, count) if has_workers else Picture()
    jobs: list[dict[str, Any]] = []
    for name in sorted(copies.keys() | picture.jobs()):
        copy = copies.get(name, JobCopy(name, DEFAULT_SPEC))
        end = said.get(f"finished/{name}".encode())
        job = {"name": name, "epoch": copy.epoch, "state": _state(copy, end)}
        if picture.newest:
            counts, reports = picture.counts(name), [name in report.jobs for report in picture.of("fetch")]
            if not all(reports) and isinstance(end, Finished) and end.counts is not None:  # it ended long ago
                counts = end.counts
            job |= {field: getattr(counts, field) for field in (*COUNTS, "dropped", "needs")}
            job |= {"reported": len(reports), "partitions": count}
        jobs.append(job)
    return jobs


def _state(copy: JobCopy, end: Control | None) -> str:
    if isinstance(end, Finished) and end.epoch >= copy.epoch:
        return end.reason
    return copy.spec.state


def _picture(settings: "Settings", partitions: int) -> Picture:
    """The recent reports of all partitions that arrive in time."""
    from crawlog.progress.watch import Watch

    picture = Picture()
    watch = Watch(settings, picture, since=time.time() - RECENT_S)
    deadline = time.monotonic() + REPORTS_TIMEOUT_S
    while time.monotonic() < deadline and len(list(picture.of("fetch"))) < partitions:
        watch.poll(REPORTS_LOOK_S)
    watch.close()
    return picture
