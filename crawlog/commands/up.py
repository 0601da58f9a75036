"""`crawlog up`, `down` and `status`: engine and workers in the background, for all jobs of a data folder.

`up` starts `python -P -m crawlog.commands.up` in a session of its own, which holds the folder like a `run` does and
never finishes; its first line on standard output tells whether it came up. Its settings travel in the environment.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from crawlog import outcome
from crawlog.processes.hold import Holder, holder, same_log, wait_for_end
from crawlog.processes.supervisor import Stop, Supervisor, names
from crawlog.progress.picture import Picture, by_rule, needed
from crawlog.schemas.control import Control, Finished, JobCopy
from crawlog.schemas.urls import DEFAULT_SPEC
from crawlog.streams import engine, files
from crawlog.streams.errors import CrawlError, EngineError, Misconfigured
from crawlog.terminal import answer, tell

from .control import described, in_force

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

SHOWN = ("queued", "paused", "held", "in_flight", "fetched", "redirected", "failed", "refused")
"""Of a job's counts."""

RARE = ("paused", "held")
"""Of these, those that are left out where they are 0."""

LOOK_S = 0.5
"""Between two looks at workers and engine: nobody waits for this one."""

WORKING_S = 60.0
"""How long `up` waits for workers that work; they need 2 s, and on a busy machine ten times as long."""

STOP_TIMEOUT_S = 10.0
"""How long `down` waits; a clean stop takes at most 5 s."""

REPORTS_TIMEOUT_S = 3.0
"""How long `status` waits for the workers' reports; there is one a second."""

REPORTS_LOOK_S = 0.02
"""Between two looks whether all have come, seconds."""

RECENT_S = 1.5
"""A report so old is as good for `status` as the next one, seconds."""


def up(settings: "Settings") -> int:
    """Starts engine and workers in the background; returns when they run."""
    from crawlog.streams.settings import to_environ

    data = settings.run.data.absolute()
    log = data / "logs" / "up.log"
    files.own(log.parent)
    with files.append(log) as out:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "crawlog.commands.up"],
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
    tell(f"Apache Kafka   {came_up['bootstrap']}")
    tell(f"workers        {came_up['workers']}, logs in {log.parent}")
    tell(f"data           {data}")
    tell("seed it with   `crawlog seed URL… --job NAME`")
    tell("stop it with   `crawlog down`")
    return outcome.FINISHED


def _raise(answer: dict[str, Any], log: Path) -> None:
    kind = Misconfigured if answer.get("kind") == "Misconfigured" else EngineError
    raise kind(answer.get("message") or f"the supervisor ended while it started; what it said is in {log}")


def down(settings: "Settings") -> int:
    """Stops what `up` started, or a broker that a killed command left behind."""
    data = settings.run.data
    held = holder(data)
    if held is None:
        left = engine.stop(data)
        tell(
            f"stopped Apache Kafka (pid {left}), which a killed command had left behind"
            if left
            else f"nothing runs on {data}"
        )
        return outcome.FINISHED
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
    tell(f"stopped; the data stay in {data}")
    return outcome.FINISHED


def status(settings: "Settings", *, as_json: bool = False) -> int:
    """Tells on standard output what runs on the folder, and how far its jobs are."""
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
    found = {
        "data": str(data),
        "bootstrap": settings.kafka.bootstrap or None,
        "engine": local.pid if local else None,
        "holder": held._asdict() if held else None,
        "jobs": jobs,
        "commands": [to_builtins(command) for command in commands],
    }
    if as_json:
        answer(json.dumps(found))
    else:
        answer(*_status_lines(found, held, map(described, commands)))
    return outcome.FINISHED


def _status_lines(found: dict[str, Any], held: Holder | None, commands: Iterable[str]) -> list[str]:
    foreign = "not started by crawlog" if found["bootstrap"] else "not running"
    broker = f"pid {found['engine']}" if found["engine"] else foreign
    lines = [f"data     {found['data']}", f"kafka    {found['bootstrap'] or '-'} ({broker})"]
    lines.append(f"held by  crawlog {held.what} (pid {held.pid})" if held else "held by  nobody")
    lines += [f"worker   {name} (pid {pid})" for name, pid in (held.workers if held else {}).items()]
    if held and not held.workers:
        lines.append(f"worker   none is alive; their logs: {Path(found['data']) / 'logs'}")
    for job in found["jobs"]:
        counts = ", ".join(f"{job[name]} {name}" for name in SHOWN if name in job and (job[name] or name not in RARE))
        if job.get("dropped"):
            counts += f", {sum(job['dropped'].values())} dropped ({by_rule(job['dropped'])})"
        if job.get("needs"):
            counts += f"; {needed(job['needs'])}"
        if job.get("reported", 0) < job.get("partitions", 0):
            counts += f" (only {job['reported']} of {job['partitions']} partitions have reported)"
        lines.append(f"job      {job['name']}: {job['state']}{', ' + counts if counts else ''}")
    return [*lines, *(f"command  {command}" for command in commands)]


def _jobs(
    settings: "Settings", said: Mapping[bytes, Control], count: int, *, has_workers: bool
) -> list[dict[str, Any]]:
    """The jobs in the log, with their counts where workers report; also those of bare records, which have no record."""
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
            job |= {field: getattr(counts, field) for field in (*SHOWN, "dropped", "needs")}
            job |= {"reported": len(reports), "partitions": count}
        jobs.append(job)
    return jobs


def _state(copy: JobCopy, end: Control | None) -> str:
    if isinstance(end, Finished) and end.epoch >= copy.epoch:
        return end.reason
    return copy.spec.state


def _picture(settings: "Settings", partitions: int) -> Picture:
    """A recent report of every partition, as far as they come."""
    from crawlog.progress.watch import Watch

    picture = Picture()
    watch = Watch(settings, picture, since=time.time() - RECENT_S)
    deadline = time.monotonic() + REPORTS_TIMEOUT_S
    while time.monotonic() < deadline and len(list(picture.of("fetch"))) < partitions:
        watch.poll(REPORTS_LOOK_S)
    watch.close()
    return picture


def main() -> None:
    """The supervisor in the background, until SIGTERM."""
    from crawlog.streams.log import Producer, Topics, settled_control
    from crawlog.streams.settings import NO_FILE, load

    out, sys.stdout = sys.stdout, sys.stderr
    settings = load(config=NO_FILE)
    try:
        with Supervisor(settings, "up", names(settings, with_sink=False), tell) as supervisor:
            supervisor.launch()
            supervisor.connect()
            own = supervisor.settings
            settled_control(own, Producer(own, "crawlog-up"), Topics(own.kafka.prefix))
            supervisor.go(("fetch", "parse"))
            supervisor.until_working(WORKING_S)
            workers = len(names(settings, with_sink=False))
            out.write(json.dumps({"bootstrap": supervisor.settings.kafka.bootstrap, "workers": workers}) + "\n")
            out.close()
            while True:
                supervisor.look(LOOK_S)
    except Stop:
        sys.exit(0)
    except CrawlError as error:
        if out.closed:
            tell(*str(error).split("\n"))
        else:
            out.write(json.dumps({"kind": type(error).__name__, "message": str(error)}) + "\n")
        sys.exit(outcome.ENGINE)


if __name__ == "__main__":
    main()
