"""The crawl under test, as processes that can be hurt one by one.

Two ways to run it. `local`: one `crawlog run` with its own broker and workers, as on a laptop; its supervisor
mends the damage. `apart`: the harness owns the broker and starts `crawlog worker` processes as an operator would,
each with a User-Agent of its own, which tells the site the worker; a `crawlog run` without workers only conducts.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import psutil

from bench.faults import owners, reader
from bench.faults.graph import Graph
from bench.faults.judge import Evidence, Poison, State
from bench.faults.site import REPO, Site
from crawlog.streams.engine import engine
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from crawlog.streams.state.verify import verify
from tests.support.logins import login, start
from tests.support.three_brokers import Cluster

JOB = "judged"
AGENT = "judge"
"""The User-Agent is `judge/NAME of the worker`; under `crawlog run` all have one."""

RESTART_S = 1.0
"""How soon the harness starts a worker again that ended, when it owns the workers."""

ENGINE_CODE = 3
"""`crawlog run` cannot reach its log."""

LOOK_S = 0.05
GONE_S = 10.0
"""How long a process may take to vanish after SIGKILL."""

REPORTS_S = 60.0
"""How long the workers may take to report all that the log has: a rebalance, a start and a restore."""

TELL_S = 10.0
STATUS_S = 40.0


@dataclass(frozen=True)
class Size:
    """How large a crawl is and how it behaves.

    Attributes:
        delay_s: Politeness; hosts × 1 / (delay + latency) pages a second.
        latency_s: Least and longest wait of the site.
    """

    hosts: int
    pages: int
    delay_s: float
    latency_s: tuple[float, float]
    fetch: int = 3
    parse: int = 1
    concurrency: int = 64

    @property
    def calm_s(self) -> float:
        """About how long it takes when nothing happens."""
        return 1.3 * self.pages * (self.delay_s + sum(self.latency_s) / 2) + 20


@dataclass
class Event:
    """One thing that the schedule did, and how far the crawl was then."""

    at: float
    what: str
    served: int
    pages: int

    @property
    def is_pending(self) -> bool:
        """Whether there was work to do."""
        return self.served < self.pages


@dataclass
class Worker:
    """A worker that the harness owns."""

    name: str
    stage: str
    command: list[str]
    environ: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    ended_at: float = 0.0
    codes: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Starts its process, which dies with the harness."""
        setpriv = shutil.which("setpriv")
        guard = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*guard, *self.command], env=os.environ | self.environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    @property
    def is_alive(self) -> bool:
        """Whether its process runs; a stopped one does."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        """A signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class Crawl:
    """A site and a crawl of it.

    Args:
        folder: Everything is kept here.
        apart: The harness owns broker and workers.
        brokers: More than one are a cluster of so many, which the harness owns too.
        machines: Each worker has a data folder of its own, as on a machine of its own.
        settings: By dotted name, beside those that follow from `size`.
        said: Called with a line of progress now and then.
    """

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        size: Size,
        *,
        apart: bool = False,
        brokers: int = 1,
        machines: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.folder, self.graph, self.size, self.apart, self.machines = folder, graph, size, apart, machines
        self.data = folder / "data"
        self.output = folder / "out.jsonl"
        self.said = folder / "said.log"
        self._samples = folder / "owners.jsonl"
        self.events: list[Event] = []
        self.poison: list[Poison] = []
        self.excused: set[str] = set()
        self.is_cut = False
        self.spoilt: set[str] = set()
        self.recounts = True
        self.spider: Path | None = None
        self.workers: dict[str, Worker] = {}
        self.engine: engine.Engine | None = None
        self.cluster: Cluster | None = None
        self._brokers = brokers
        self.bootstrap = ""
        self.worker_bootstrap = ""
        self.environ: Mapping[str, str] = {}
        self.title = ""
        self.started = time.monotonic()
        self._told = 0.0
        self._conduct_at = 0.0
        self._run: subprocess.Popen[bytes] | None = None
        self._owners: Worker | None = None
        self._removed: list[Worker] = []
        self._settings = {
            "network.allow_private": True,
            "fetch.concurrency": size.concurrency,
            "fetch.retry_delay_s": 0.5,
            "politeness.delay_s": size.delay_s,
        } | dict(settings or {})
        if not self.apart:
            self._settings["fetch.user_agent"] = f"{AGENT}/local"
        self.site = Site(graph, folder / "access.log", size.latency_s)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "seeds.txt").write_text("\n".join(self.graph.seeds) + "\n")
        self.site.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in (*self.workers.values(), *self._removed, *([self._owners] if self._owners else [])):
            worker.send(signal.SIGKILL)
            if worker.process is not None:
                worker.process.wait()
        self.kill_all()
        self.site.__exit__(kind, error, trace)

    # --- starting and stopping

    def start(self) -> None:
        """Begins, or goes on with the same command; in `apart` the conductor and all workers."""
        if self.apart and self.engine is None and self.cluster is None:
            self.start_broker()
            self.worker_bootstrap = self.worker_bootstrap or self.bootstrap
        self.conduct()
        if self.apart:
            for stage, count in (("fetch", self.size.fetch), ("parse", self.size.parse)):
                for number in range(count):
                    self.add(stage, f"{stage}-{number}")
            self._watch_owners()

    def _watch_owners(self) -> None:
        if self._owners is None:
            command = [sys.executable, "-m", "bench.faults.owners", self.bootstrap, str(self._samples)]
            environ = self._login() | {"PYTHONPATH": str(REPO)}
            self._owners = Worker("owners", "", command, environ, self.folder / "owners.log")
            self._owners.start()

    def conduct(self) -> None:
        """`crawlog run`; the same command each time."""
        more = ["--spider", str(self.spider)] if self.spider else []
        if self.apart:
            more += ["--bootstrap", self.bootstrap, "-s", "run.fetch_workers=0", "-s", "run.parse_workers=0"]
        else:
            more += ["--workers", f"fetch={self.size.fetch},parse={self.size.parse}"]
        command = ["run", "--seeds", "seeds.txt", "--job", JOB, "--data", str(self.data), "-o", str(self.output)]
        self._conduct_at = time.monotonic() + RESTART_S
        self._run = start([*command, "--json", *self._pairs(), *more], self.said, self._login())

    def _pairs(self, **more: object) -> list[str]:
        named = self._settings | {key.replace("__", "."): value for key, value in more.items()}
        return [f"-s{key}={json.dumps(value) if isinstance(value, bool) else value}" for key, value in named.items()]

    def start_broker(self) -> None:
        """The harness' own broker, or all of them; again after it was killed, at the same address."""
        if self._brokers > 1:
            self.cluster = self.cluster or Cluster(self.folder / "cluster", self._brokers)
            self.cluster.start()
            self.bootstrap = self.cluster.bootstrap
            return
        while self.engine is not None and self.engine.alive():
            time.sleep(LOOK_S)  # SIGKILL takes a moment
        settings = load({"run.data": str(self.folder / "broker")})
        self.engine = engine.start(settings, self.folder / "broker", lambda _: None, died=self.engine)
        self.bootstrap = self.engine.bootstrap

    @property
    def log(self) -> Settings:
        """Settings that lead to the log: the harness' own, or that of the running crawl."""
        running = self.engine or (None if self.bootstrap else engine.running(self.data))
        return running.point(Settings()) if running else load({"kafka.bootstrap": self.bootstrap})

    def _login(self) -> dict[str, str]:
        """Login of the harness' own processes to its own log; a crawl has its own login."""
        return login(self.log) if self.apart else {}

    def add(self, stage: str, name: str) -> Worker:
        """A worker, new or known by name; running when this returns."""
        worker = self.workers.get(name)
        if worker is None:
            data = self.folder / (f"machine-{name}" if self.machines else "workers")
            words = ["worker", stage, "--data", str(data), "--bootstrap", self.worker_bootstrap or self.bootstrap]
            pairs = self._pairs(fetch__user_agent=f"{AGENT}/{name}")
            if self.spider:  # its data folder is not that of `run`, which names the file
                pairs.append(f"-ssecurity.spider_folders={self.spider.parent.absolute()}")
            command = [sys.executable, "-P", "-m", "crawlog", *words, *pairs]
            environ = {"CRAWLOG_WORKER": name, **self._login(), **self.environ}
            worker = Worker(name, stage, command, environ, self.folder / f"{name}.log")
            self.workers[name] = worker
        if not worker.is_alive:
            worker.start()
        return worker

    def remove(self, name: str) -> None:
        """A planned stop of a worker; it is not started again."""
        worker = self.workers.pop(name)
        worker.send(signal.SIGTERM)
        self._removed.append(worker)

    @property
    def has_ended(self) -> bool:
        """Whether `crawlog run` is over; in `apart` one that could not reach the broker is not, it is started again."""
        code = 1 if self._run is None else self._run.poll()
        return code is not None and not (self.apart and code == ENGINE_CODE)

    @property
    def code(self) -> int | None:
        """The exit code of `crawlog run`; None while it runs."""
        return None if self._run is None else self._run.poll()

    def stop(self, limit_s: float = 60.0) -> None:
        """Ctrl-C of `crawlog run`, unless it has ended: its workers and its broker stop in order."""
        if self._run is not None and self._run.poll() is None:
            self._run.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._run.wait(limit_s)

    def tend(self) -> None:
        """Starts ended processes again, as an operator would."""
        now = time.monotonic()
        if self.apart and self._run is not None and self._run.poll() == ENGINE_CODE and now > self._conduct_at:
            self.conduct()
        for worker in (*self.workers.values(), *([self._owners] if self._owners else [])):
            if worker.process is None or worker.is_alive:
                continue
            if not worker.ended_at:
                worker.ended_at = now
                worker.codes.append(worker.process.returncode)
            elif now - worker.ended_at >= RESTART_S:
                worker.ended_at = 0.0
                worker.start()

    def sleep(self, seconds: float) -> bool:
        """Waits, seeing after the workers; False as soon as the crawl has ended."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self.has_ended:
                return False
            self.tend()
            self._tell()
            time.sleep(min(LOOK_S, left))
        return not self.has_ended

    def until(self, share: float, limit_s: float) -> bool:
        """Waits until this share of the pages was served; False when the crawl ended or it takes too long."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            now = self.site.stats()
            if now["served"] >= share * now["pages"]:
                return True
            if not self.sleep(0.1):
                return False
        return False

    def until_asked(self, since: float, limit_s: float = 120.0) -> float:
        """Waits for a request that came after a moment; seconds from there to it, 0 when nothing was left to ask."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            now = self.site.stats()
            if now["last"] > since:
                return now["last"] - since
            if now["served"] >= now["pages"] or not self.sleep(0.02):
                return 0.0
        return float("inf")

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told < TELL_S:
            return
        self._told = now
        stats = self.site.stats()
        took = now - self.started
        print(
            f"   {self.title}: {stats['served']:,.0f} of {stats['pages']:,.0f} pages, {took:.0f} s, "
            f"{len(self.events)} faults",
            file=sys.stderr,
            flush=True,
        )

    def note(self, what: str) -> bool:
        """Puts on record that a fault hits now; True when there was work left."""
        stats = self.site.stats()
        event = Event(time.monotonic(), what, int(stats["served"]), int(stats["pages"]))
        self.events.append(event)
        return event.is_pending

    def finish(self, limit_s: float) -> bool:
        """Waits for the end of `crawlog run`; False when it did not come in time."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self.sleep(1.0):
            pass
        return self.has_ended

    # --- hurting

    def pids(self, *stages: str) -> list[int]:
        """Live workers of some stages."""
        if self.apart:
            found = [(one.stage, one.process.pid) for one in self.workers.values() if one.process and one.is_alive]
            return [pid for stage, pid in found if stage in stages]
        try:
            noted = json.loads((self.data / "run" / "holder.json").read_text())["workers"]
        except (OSError, ValueError):
            return []
        return [pid for name, pid in noted.items() if name.split("-")[0] in stages and self._is_of_run(pid)]

    def _is_of_run(self, pid: int) -> bool:
        """Whether a process is a child of our command: another crawl's may have the number of one that has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self._run is not None and psutil.Process(pid).ppid() == self._run.pid
        return False

    def broker_pid(self) -> int | None:
        """The broker's process; None while none runs."""
        if self.engine is not None:
            return self.engine.pid if self.engine.alive() else None
        try:
            pid = int(json.loads((self.data / "kafka" / "broker.json").read_text())["pid"])
        except (OSError, ValueError):
            return None
        return pid if psutil.pid_exists(pid) else None

    def kill_all(self) -> None:
        """Kill -9 of everything of crawlog's, at once; in `apart` the broker too."""
        for worker in self.workers.values():
            worker.send(signal.SIGKILL)
        left = self._left()  # the broker among them, a child of the conductor's
        self.kill_conductor()
        for process in left:
            kill(process.pid)
        psutil.wait_procs(left, GONE_S)  # SIGKILL takes a moment, and a dying broker would be adopted
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.wait()
        if self.cluster is not None:
            self.cluster.kill()
        self._forget_broker()

    def _forget_broker(self) -> None:
        """Reaps the harness' own broker, which has just ended."""
        while self.engine is not None and self.engine.alive():
            time.sleep(LOOK_S)
        self.engine = None

    def kill_conductor(self) -> None:
        """Kill -9 of `crawlog run` and all that it started."""
        if self._run is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._run.pid)
            for process in (family, *family.children(recursive=True)):
                kill(process.pid)
        self._run.wait()
        self._run = None

    def _left(self) -> list[psutil.Process]:
        """Processes that name this folder, except the site: the broker, which has a session of its own."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = process.info["cmdline"] or []
            if any(f"{self.folder}/" in word for word in words) and "bench.faults.site" not in words:
                found.append(process)
        return found

    def states(self) -> list[Path]:
        """Folders of states."""
        folders = [self.data, *sorted(self.folder.glob("machine-*")), self.folder / "workers"]
        return [folder / "state" for folder in folders if (folder / "state").is_dir()]

    # --- what was seen

    def evidence(self) -> Evidence:
        """Stops the workers, then reads everything that there is to read; of their reports, only those before."""
        reports = self._last_reports() if self.engine or self.cluster else []
        if self._owners is not None:
            self._owners.send(signal.SIGKILL)
        self._stop_workers()
        with self._log() as settings:
            states = self._verdicts(settings)
            urls, items, dead, progress = (
                reader.read(settings, f"crawl.{name}") for name in ("urls", "items", "dead", "progress")
            )
            status = self._recount(settings) if self.recounts else {}
        return Evidence(
            graph=self.graph, job=JOB, delay_s=self.size.delay_s, requests=self.site.requests(), rows=self.rows(),
            summary=self.summary(), status=status, recounts=self.recounts, states=states,
            ownership=owners.read(self._samples), poison=self.poison, is_cut=self.is_cut,
            excused=frozenset(self.excused),
            spoilt=frozenset(self.spoilt), has_spider=self.spider is not None,
            urls=urls, items=items, dead=dead, progress=reports or progress,
        )  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """The lines of FILE; none while it is partial."""
        return [json.loads(line) for line in self.output.read_text().splitlines()] if self.output.exists() else []

    def _stop_workers(self) -> None:
        """Ends the harness' workers."""
        for worker in self.workers.values():
            worker.send(signal.SIGCONT)
            worker.send(signal.SIGTERM)
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.wait(30)

    def _last_reports(self) -> list[reader.Record]:
        """All reports, as soon as the newest ones count the whole log; those that there are if they never do."""
        end = time.monotonic() + REPORTS_S
        while True:
            ends = reader.ends(self.log, "crawl.urls")
            reports = reader.read(self.log, "crawl.progress")
            if reader.have_passed(reports, ends) or time.monotonic() > end:
                return reports
            self.tend()
            time.sleep(LOOK_S)

    def summary(self) -> dict[str, Any]:
        """The last summary of `crawlog run --json`; empty when it never came to its end."""
        for line in reversed(self.said.read_text().splitlines()):
            if line.startswith('{"job"'):
                return cast("dict[str, Any]", json.loads(line))
        return {}

    @contextlib.contextmanager
    def _log(self) -> Iterator[Settings]:
        """The settings with a broker that answers."""
        if self.cluster is not None:
            yield load({"run.data": str(self.folder / "cluster"), "kafka.bootstrap": self.bootstrap})
            return
        folder = self.folder / "broker" if self.apart else self.data
        settings = load({"run.data": str(folder)})
        running = engine.start(settings, folder, lambda _: None)
        try:
            yield running.point(settings)
        finally:
            running.stop()
            self._forget_broker()

    def _verdicts(self, settings: Settings) -> list[State]:
        return [
            State(one.partition, one.kept, one.folded) for folder in self.states() for one in verify(settings, folder)
        ]

    def _recount(self, log: Settings) -> dict[str, Any]:
        """The job as `crawlog status` shows it, reported by workers that start once more on a state of their own."""
        data = self.folder / "recount" if self.apart else self.data
        words = ["--data", str(data), "--bootstrap", log.kafka.bootstrap]
        environ = login(log)
        if self._crawlog("up", *words, *self._pairs(), environ=environ) is None:
            return {}
        job: dict[str, Any] = {}
        end = time.monotonic() + STATUS_S
        wanted = self.summary().get("fetched", 1)
        while time.monotonic() < end and job.get("fetched", -1) < wanted:  # reports come partition by partition
            jobs = json.loads(self._crawlog("status", "--json", *words, environ=environ) or '{"jobs": []}')["jobs"]
            job = next((one for one in jobs if one["name"] == JOB), {})
        self._crawlog("down", *words, environ=environ)
        return job

    def _crawlog(self, *words: str, environ: Mapping[str, str]) -> str | None:
        """Output of a crawlog command; None when it fails."""
        command = [sys.executable, "-P", "-m", "crawlog", *words]
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.folder, env={**os.environ, **environ}
        )
        return None if answer.returncode else answer.stdout

    def tail(self) -> str:
        """The last lines of output."""
        logs = [self.said, *sorted((self.data / "logs").glob("*.log")), *sorted(self.folder.glob("*-*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs if log.exists())


def kill(pid: int) -> None:
    """Kill -9, whether it is still there or not."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """SIGSTOP."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    """SIGCONT."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
