"""A crawl as processes, to be killed in part: the site with its access log, the engine, the supervisor, the workers."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pytest

from crawlog.streams.settings.settings import Settings
from tests.support.processes import Process, crawlog
from tests.support.synthetic_site import Site, sources

ROOT = Path(__file__).parents[2]


needs_site = pytest.mark.skipif(
    not (sources() / "main.go").exists() or shutil.which("go") is None, reason="no sources of the site, or no Go"
)


def log_of(settings: Settings) -> dict[str, object]:
    """Settings by name that lead a crawl to a broker that runs: to start and stop one of its own takes five CPU s."""
    return {"kafka.bootstrap": settings.kafka.bootstrap, "kafka.prefix": settings.kafka.prefix}


class Cluster:
    """A site and a crawl of it, that is killed and goes on.

    Args:
        folder: Everything is kept here.
        settings: By dotted name, beside what the site needs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hosts: int = 20,
        pages: int = 30,
        flags: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.output = folder / "out.jsonl"
        self.said = folder / "said.log"
        self.log = folder / "access.log"
        self.site = Site(hosts, pages, log=self.log, flags={"bytes": 3000, "links": 20} | dict(flags or {}))
        self.settings = {"network.allow_private": True, "fetch.user_agent": "crawlog-test"} | dict(settings or {})
        self.environment: dict[str, str] = {}
        self._run: Process | None = None

    def __enter__(self) -> Self:
        self.site.start()
        self.urls: set[str] = self.site.urls()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_all()
        self.site.stop()

    # The crawl

    def start(self, *options: str) -> None:
        """`crawlog run`, the same command each time; with more options on request."""
        pairs = [
            f"-s{key}={json.dumps(value) if isinstance(value, bool) else value}" for key, value in self.settings.items()
        ]
        where = ["--data", str(self.data), "-o", str(self.output)]
        command = ["run", *self.site.seeds, *where, "--json", *pairs, *options]
        with self.said.open("ab") as said:
            environ = os.environ | self.environment
            self._run = crawlog(*command, cwd=self.folder, stdout=said, stderr=said, env=environ)

    def finish(self, limit_s: float = 300.0) -> dict[str, Any]:
        """Wait for the end; the summary."""
        assert self._run is not None
        try:
            code = self._run.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the crawl did not end within {limit_s} s:\n{self.tail()}")
        assert code == 0, f"exit code {code}:\n{self.tail()}"
        summary: dict[str, Any] = json.loads(self.said.read_text().strip().splitlines()[-1])
        return summary

    @property
    def is_running(self) -> bool:
        """Whether the command goes on."""
        return self._run is not None and self._run.poll() is None

    def reaches(self, share: float, limit_s: float) -> bool:
        """Wait until the site has served this share of its pages; false when the command ends before."""
        assert self._run is not None
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self._run.poll() is None:
            if self.site.stats().unique >= share * len(self.urls):
                return True
            time.sleep(0.01)
        return False

    def interrupt(self) -> int:
        """Ctrl-C, and the command's exit code."""
        assert self._run is not None
        self._run.send_signal(signal.SIGINT)
        return self._run.wait(90)

    def ends(self, limit_s: float) -> int:
        """Wait for the end; the exit code."""
        assert self._run is not None
        return self._run.wait(limit_s)

    def tail(self) -> str:
        """What was said last, by the command and by the workers."""
        logs = [self.said, *sorted((self.data / "logs").glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs if log.exists())

    # Its processes

    def pids(self, stage: str) -> list[int]:
        """Live workers of a stage."""
        try:
            workers = json.loads((self.data / "run" / "holder.json").read_text())["workers"]
        except (OSError, ValueError):
            return []
        return [pid for name, pid in workers.items() if name.startswith(stage) and psutil.pid_exists(pid)]

    def kill(self, stage: str) -> int:
        """Kill -9 of every worker of a stage; returns how many there were."""
        pids = self.pids(stage)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def kill_broker(self) -> None:
        """Kill -9 of Apache Kafka."""
        os.kill(json.loads((self.data / "kafka" / "broker.json").read_text())["pid"], signal.SIGKILL)

    def kill_all(self) -> int:
        """Kill -9 of supervisor, workers and broker, all at once; returns how many fetch workers there were."""
        fetchers = len(self.pids("fetch"))
        if self._run is not None:
            family = (
                [self._run.pid, *(child.pid for child in psutil.Process(self._run.pid).children(recursive=True))]
                if (self._run.poll() is None)
                else []
            )
            for pid in family:
                _kill(pid)
            self._run.wait()
            self._run = None
        for process in psutil.process_iter(["pid", "cmdline"]):
            if any(str(self.data) in word for word in process.info["cmdline"] or ()):
                _kill(process.info["pid"])
        return fetchers

    # The judge

    def until(self, share: float, limit_s: float = 180.0) -> None:
        """Wait until the site has served this share of its pages."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self.site.stats().unique >= share * len(self.urls):
                return
            time.sleep(0.01)
        pytest.fail(f"{self.site.stats()} after {limit_s} s, waiting for {share}:\n{self.tail()}")

    def rows(self) -> Counter[str]:
        """How many results each URL has in the output."""
        return Counter(json.loads(line)["url"] for line in self.output.read_text().splitlines())

    def requests(self) -> Iterator[tuple[float, str, str]]:
        """(seconds, host, path) of each request, in the order of their arrival."""
        self.site.flush()
        for line in self.log.read_text().splitlines():
            at, host, path, _, agent = line.split("\t")
            if agent == "crawlog-test":
                yield int(at) / 1e9, host, path


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
