"""The synthetic site (Go) as a context manager: built once, run on a free port, asked for its statistics.

    with Site(hosts=20, pages=300, log=path) as site:
        crawl(site.seeds)
        print(site.stats())

The sources are found by `BENCH_SITE` (default: `../shared/site` beside the repository). Run as a program it builds the
site and serves it until Ctrl-C: `python -m tests.support.synthetic_site --hosts 20 --pages 300 --port 8900`.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPO = Path(__file__).resolve().parents[2]
WORK = REPO / "bench" / ".work"
"""Everything the benchmarks build, download or write; ignored by git."""

READY_S = 120.0
"""Longest wait for the site to render its pages, seconds: 720 MB of them take about 10."""

STOP_S = 60.0
"""Longest wait for a process that was asked to end, seconds."""


def sources() -> Path:
    """The folder of the site's Go module."""
    return Path(os.environ.get("BENCH_SITE") or REPO.parent / "shared" / "site")


def build() -> Path:
    """The site's binary, compiled when its sources are newer.

    Raises: SystemExit: no sources, no Go, or it does not compile.
    """
    source, binary = sources(), WORK / "site"
    if not (source / "main.go").exists():
        sys.exit(f"no site at {source}: set BENCH_SITE to the folder with its main.go")
    newest = max(file.stat().st_mtime for file in source.iterdir())
    if binary.exists() and binary.stat().st_mtime > newest:
        return binary
    go = shutil.which("go")
    if go is None:
        sys.exit("no Go compiler: install golang (1.22 or newer) to build the site")
    WORK.mkdir(parents=True, exist_ok=True)
    made = binary.with_name(f"site.{os.getpid()}")  # whole when it gets its name: another process may be looking for it
    subprocess.run([go, "build", "-buildvcs=false", "-o", str(made), "."], cwd=source, check=True)
    return made.replace(binary)


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))  # the site listens on every address, so every address must be free
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Stats:
    """Requests since the last reset.

    Attributes:
        expected: Pages it has.
        unique: Pages fetched at least once.
        duplicates: Page requests beyond the first of a page.
        private: Requests that robots.txt forbids.
        first_ns: UTC epoch nanoseconds of the first request, 0 when there was none.
        cpu_s: CPU the site has used since it started.
        raw: All of `/__stats`.
    """

    expected: int
    unique: int
    duplicates: int
    private: int
    first_ns: int
    last_ns: int
    cpu_s: float
    raw: Mapping[str, Any] = field(repr=False)


class Site:
    """A running site.

    Args:
        hosts: Hosts, each a loopback address 127.1.A.B.
        pages: Pages on each host.
        port: Port on every address; 0 takes a free one.
        log: Access log, one line a request; None for none.
        flags: Any other flag of the site, e.g. `{"latency": "50ms", "robots": "off"}`.
    """

    def __init__(
        self,
        hosts: int = 20,
        pages: int = 300,
        *,
        port: int = 0,
        log: Path | None = None,
        flags: Mapping[str, object] | None = None,
    ) -> None:
        self.hosts = hosts
        self.pages = pages
        self.port = port or free_port()
        self.log = log
        self.flags = dict(flags or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def seeds(self) -> list[str]:
        """The front page of every host."""
        return [f"http://127.1.{host // 250}.{host % 250 + 1}:{self.port}/" for host in range(self.hosts)]

    def start(self) -> Self:
        """Starts the site and waits until it answers.

        Raises: RuntimeError: it ended or did not answer in time.
        """
        settings: dict[str, object] = {"hosts": self.hosts, "pages": self.pages, "port": self.port, **self.flags}
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            settings["log"] = self.log
        command = [str(build()), *(f"-{name}={value}" for name, value in settings.items())]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"the site ended with exit code {self._process.returncode}: {' '.join(command)}")
            try:
                self._ask("/__stats")
            except OSError:
                time.sleep(0.05)
            else:
                return self
        self.stop()
        raise RuntimeError(f"the site did not answer on port {self.port} within {READY_S:.0f} s")

    def stop(self) -> None:
        """Stops the site; its log is complete afterwards."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stats(self) -> Stats:
        """Requests since the last reset."""
        raw = json.loads(self._ask("/__stats"))
        return Stats(**{name: raw[name] for name in Stats.__dataclass_fields__ if name != "raw"}, raw=raw)

    def reset(self) -> None:
        """Forgets all requests; the access log is not cut."""
        self._ask("/__reset")

    def flush(self) -> None:
        """Writes out the access log."""
        self._ask("/__flush")

    def urls(self) -> set[str]:
        """Every page, by the hosts' sitemaps: the truth that a crawl is compared with. Resets the statistics."""
        if self.flags.get("robots", "on") != "on":
            raise ValueError("a site without robots has no sitemaps")
        found: set[str] = set()
        for seed in self.seeds:
            sitemap = self._ask("/sitemap.xml", host=seed.split("/")[2])
            found.update(loc.replace("&amp;", "&") for loc in re.findall(r"<loc>(.*?)</loc>", sitemap))
        self.reset()
        return found

    def _ask(self, target: str, host: str = "") -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", target, headers={"Host": host or f"127.1.0.1:{self.port}"})
            return connection.getresponse().read().decode()
        finally:
            connection.close()


def main() -> None:
    """Serves the site until Ctrl-C."""
    parser = argparse.ArgumentParser(
        description="Serves the synthetic site; other flags (-latency=50ms) go to the site."
    )
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--seeds", type=Path, help="write the hosts' front pages to this file")
    known, rest = parser.parse_known_args()
    flags = dict(flag.lstrip("-").split("=", 1) for flag in rest)
    with Site(known.hosts, known.pages, port=known.port, log=known.log, flags=flags) as site:
        if known.seeds is not None:
            known.seeds.write_text("\n".join(site.seeds) + "\n")
        sys.stderr.write(f"{known.hosts} hosts x {known.pages} pages: {site.seeds[0]} …\n")
        try:
            signal.pause()
        except KeyboardInterrupt:
            sys.stdout.write(json.dumps(site.stats().raw) + "\n")


if __name__ == "__main__":
    main()
