"""`crawlog run` of a Scrapy project's spider against the quotes site, as processes that can be killed."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support.both import Items, items_in
from tests.support.processes import Process, crawlog, ended, until
from tests.support.quotes import Quotes

QUICK = ("-s", "network.allow_private=true", "-s", "politeness.delay_s=0", "-s", "fetch.retry_delay_s=0.05")
"""The site is on loopback, and nobody's."""


class QuotesRun:
    """One crawl: the same command each time.

    Args:
        project: The folder in which the command is run.
        folder: For its data and its output.
        options: Further ones, such as those that name a broker.
    """

    def __init__(self, project: Path, spider: str, folder: Path, *options: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.output = folder / "rows.jsonl"
        self._command = ["run", "--spider", spider, "--data", self.data, "-o", self.output, "--json", *QUICK, *options]
        self.environment: dict[str, str] = {}
        self._project = project
        self._run: Process | None = None

    def start(self, *more: object) -> "QuotesRun":
        """The command, started."""
        self._run = crawlog(*self._command, *more, cwd=self._project, env=os.environ | self.environment)
        return self

    def end(self) -> tuple[int, dict[str, Any], str]:
        """Exit code, summary and standard error."""
        assert self._run is not None
        return ended(self._run)

    def items(self) -> Items:
        """Of the output."""
        return items_in(self.output)

    def reaches(self, site: Quotes, count: int) -> None:
        """Wait until the site was asked for so much; fails if the command ends before."""

        def there() -> bool:
            assert self._run is not None
            assert self._run.poll() is None, self._run.communicate()
            return len(site.asked) >= count

        until(there, f"{count} requests, there are {len(site.asked)}")

    def kill_all(self) -> None:
        """Kill -9 of supervisor, workers, their children and broker, all at once."""
        assert self._run is not None
        for pid in self.family():
            _kill(pid)
        self._run.communicate()
        for process in psutil.process_iter(["pid", "cmdline"]):
            if any(str(self.data) in word for word in process.info["cmdline"] or ()):
                _kill(process.info["pid"])

    def family(self) -> list[int]:
        """The command, its workers and their children."""
        assert self._run is not None
        try:
            return [self._run.pid, *(one.pid for one in psutil.Process(self._run.pid).children(recursive=True))]
        except psutil.NoSuchProcess:
            return []


def arguments(given: Mapping[str, str]) -> list[str]:
    """`-a` for each."""
    return [word for name, value in given.items() for word in ("-a", f"{name}={value}")]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        time.sleep(0)
