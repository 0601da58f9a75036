"""`crawlog up`, `down` and `status`: engine and workers in the background, for all jobs of a data folder.

`up` starts `python -m crawlog.background` in a session of its own, which holds the folder like a `run` does and never
finishes; its first line on standard output tells whether it came up. Its settings travel in the environment.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from . import outcome
from .control import described, in_force
from .picture import Picture
from .schemas.control import Control, Finished, JobCopy
from .schemas.urls import DEFAULT_SPEC
from .streams import engine
from .streams.errors import CrawlError, EngineError, Misconfigured
from .supervisor import Holder, Stop, Supervisor, holder, names, same_log, wait_for_end

if TYPE_CHECKING:
    from .streams.settings import Settings

SHOWN = ("queued", "paused", "in_flight", "fetched", "redirected", "failed", "refused")
"""Of a job's counts."""

LOOK_S = 0.5
"""Between two looks at workers and engine: nobody waits for this one."""

STOP_TIMEOUT_S = 10.0
"""How long `down` waits; a clean stop takes at most 5 s."""

REPORTS_TIMEOUT_S = 3.0
"""How long `status` waits for the workers' reports; there is one a second."""


def up(settings: "Settings") -> int:
    """Starts engine and workers in the background; returns when they run."""
    from .streams.settings import to_environ

    data = settings.run.data.absolute()
    log = data / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "crawlog.background"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=out,
            env=os.environ | to_environ(settings) | {"CRAWLOG_RUN__DATA": str(data)},
            start_new_session=True,
        )
    assert child.stdout is not None
    with child.stdout:
        told = child.stdout.readline()
    answer = json.loads(told or b"{}")
    if "bootstrap" not in answer:
        _raise(answer, log)
    _tell(f"Apache Kafka   {answer['bootstrap']}")
    _tell(f"workers        {answer['workers']}, logs in {log.parent}")
    _tell(f"data           {data}")
    _tell("seed it with   crawlog seed URL… --job NAME")
    _tell("stop it with   crawlog down")
    return outcome.FINISHED


def _raise(answer: dict[str, Any], log: Path) -> None:
    kind = Misconfigured if answer.get("kind") == "Misconfigured" else EngineError
    raise kind(answer.get("message") or f"the supervisor ended while it started; what it said is in {log}")


def down(settings: "Settings") -> int:
    """Stops what `up` started, or a broker that a killed command left behind."""
    data = settings.run.data
    held = holder(data)
    if held is None:
        left = engine.running(data)
        if left is None:
            _tell(f"nothing runs on {data}")
            return outcome.FINISHED
        left.stop()
        _tell(f"stopped Apache Kafka (pid {left.pid}), which a killed command had left behind")
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
    _tell(f"stopped; the data stay in {data}")
    return outcome.FINISHED


def status(settings: "Settings", *, as_json: bool = False) -> int:
    """Tells on standard output what runs on the folder, and how far its jobs are."""
    data = settings.run.data
    held, local = holder(data), engine.running(data)
    settings = same_log(settings)
    if local and not settings.kafka.bootstrap:
        settings = local.point(settings)
    jobs, commands = ([], [])
    if settings.kafka.bootstrap:
        jobs, commands = _jobs(settings, has_workers=held is not None), in_force(settings)
    found = {
        "data": str(data),
        "bootstrap": settings.kafka.bootstrap or None,
        "engine": local.pid if local else None,
        "holder": held._asdict() if held else None,
        "jobs": jobs,
        "commands": [to_builtins(command) for command in commands],
    }
    sys.stdout.write(json.dumps(found) + "\n" if as_json else _status_text(found, held, map(described, commands)))
    return outcome.FINISHED


def _status_text(found: dict[str, Any], held: Holder | None, commands: Iterable[str]) -> str:
    foreign = "not started by crawlog" if found["bootstrap"] else "not running"
    broker = f"pid {found['engine']}" if found["engine"] else foreign
    lines = [f"data     {found['data']}", f"kafka    {found['bootstrap'] or '-'} ({broker})"]
    lines.append(f"held by  crawlog {held.what} (pid {held.pid})" if held else "held by  nobody")
    lines += [f"worker   {name} (pid {pid})" for name, pid in (held.workers if held else {}).items()]
    for job in found["jobs"]:
        counts = ", ".join(f"{job[name]} {name}" for name in SHOWN if name in job and (job[name] or name != "paused"))
        if job.get("reported", 0) < job.get("partitions", 0):
            counts += f" (only {job['reported']} of {job['partitions']} partitions have reported)"
        lines.append(f"job      {job['name']}: {job['state']}{', ' + counts if counts else ''}")
    lines += [f"command  {command}" for command in commands]
    return "\n".join(lines) + "\n"


def _jobs(settings: "Settings", *, has_workers: bool) -> list[dict[str, Any]]:
    """The jobs in the log, with their counts where workers report; also those of bare records, which have no record."""
    from .streams.jobs import known
    from .streams.topics import Topics

    said = known(settings, Topics(settings.kafka.prefix))
    copies = {entry.job: entry for entry in said.values() if isinstance(entry, JobCopy)}
    picture = _picture(settings) if has_workers else Picture()
    jobs: list[dict[str, Any]] = []
    for name in sorted(copies.keys() | picture.jobs()):
        copy = copies.get(name, JobCopy(name, DEFAULT_SPEC))
        job = {"name": name, "epoch": copy.epoch, "state": _state(copy, said.get(f"finished/{name}".encode()))}
        if picture.newest:
            counts = picture.counts(name)
            job |= {field: getattr(counts, field) for field in SHOWN}
            job |= {"reported": len(list(picture.of("fetch"))), "partitions": settings.kafka.partitions}
        jobs.append(job)
    return jobs


def _state(copy: JobCopy, end: Control | None) -> str:
    if isinstance(end, Finished) and end.epoch >= copy.epoch:
        return end.reason
    return copy.spec.state


def _picture(settings: "Settings") -> Picture:
    """A report of every partition, as far as they come."""
    from .watch import Watch

    picture = Picture()
    watch = Watch(settings, picture)
    deadline = time.monotonic() + REPORTS_TIMEOUT_S
    while time.monotonic() < deadline and len(list(picture.of("fetch"))) < settings.kafka.partitions:
        watch.poll(0.2)
    watch.close()
    return picture


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  # this is the command line


def main() -> None:
    """The supervisor in the background, until SIGTERM."""
    from .streams.producer import Producer
    from .streams.rewind import settled
    from .streams.settings import load
    from .streams.topics import Topics

    out, sys.stdout = sys.stdout, sys.stderr
    settings = load()
    try:
        with Supervisor(settings, "up", names(settings, with_sink=False), _tell) as supervisor:
            supervisor.launch()
            supervisor.connect()
            own = supervisor.settings
            settled(own, Producer(own, "crawlog-up"), Topics(own.kafka.prefix))
            supervisor.go(("fetch", "parse"))
            supervisor.look(0)
            workers = len(names(settings, with_sink=False))
            out.write(json.dumps({"bootstrap": supervisor.settings.kafka.bootstrap, "workers": workers}) + "\n")
            out.close()
            while True:
                supervisor.look(LOOK_S)
    except Stop:
        sys.exit(0)
    except CrawlError as error:
        if out.closed:
            _tell(str(error))
        else:
            out.write(json.dumps({"kind": type(error).__name__, "message": str(error)}) + "\n")
        sys.exit(outcome.ENGINE)


if __name__ == "__main__":
    main()
