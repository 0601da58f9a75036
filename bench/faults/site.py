r"""Serves a `Graph`, and writes the access log that the judge believes.

    python -m bench.faults.site --hosts 10 --pages 20 --port 8900 --log access.log

A line of the log, at the end of a request, with tabs between:
`began ended host path status complete worker connection` – times in seconds on one monotonic clock, `complete` 1 when
the whole answer was handed to the kernel on a connection that still stood, `worker` the User-Agent. One process, small
pages: 50 µs a request, a crawler takes twenty times that.
"""

import argparse
import asyncio
import http.client
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TextIO, cast

import uvloop

from bench.faults.graph import Graph, Target

REPO = Path(__file__).resolve().parent.parent.parent

FLUSH_S = 0.2
"""How long a line may wait in memory."""

READY_S = 30.0
STOP_S = 60.0

REASONS = {200: "OK", 301: "Moved", 302: "Found", 307: "Temporary", 308: "Permanent", 404: "Missing", 500: "Broken"}


class Request(NamedTuple):
    """One line of the access log.

    Attributes:
        began: Monotonic seconds of its arrival.
        ended: When its answer was written, or its connection was lost.
        host: The host's address.
        complete: Whether the whole answer was written to a standing connection.
        worker: User-Agent.
        connection: Number of the connection.
    """

    began: float
    ended: float
    host: str
    path: str
    status: int
    complete: bool
    worker: str
    connection: int


def read_log(path: Path) -> list[Request]:
    """All requests, in the order of their arrival."""
    return sorted(_parsed(path.read_text().splitlines()))


def _parsed(lines: list[str]) -> Iterator[Request]:
    for line in lines:
        began, ended, host, path, status, complete, worker, connection = line.split("\t")
        yield Request(
            float(began), float(ended), host, path, int(status), complete == "1", worker, int(connection)
        )  # fmt: skip


# --- the server -----------------------------------------------------------------------------------------------------


class Server:
    """State that all connections share."""

    def __init__(self, graph: Graph, log: TextIO, latency_s: tuple[float, float]) -> None:
        self.graph = graph
        self.hosts = {graph.name(host): host for host in range(graph.hosts)}
        self.dice = random.Random(graph.seed)
        self.latency_s = latency_s
        self.connections = 0
        self.requests = 0
        self.last = 0.0
        self.served: set[str] = set()
        self.pages = sum(entry.kind not in ("forbidden", "cut") for entry in graph.expected.values())
        self._log = log

    def answer(self, host: str, path: str) -> tuple[int, bytes] | None:
        """Status and the whole response; None where the connection is cut instead."""
        number = self.hosts.get(host)
        plain = _without_tracking(path)
        if path == "/__stats":
            return 200, _response(200, json.dumps(self.stats()).encode(), "application/json")
        if number is None:
            return 404, _response(404, b"no such host")
        if path == "/robots.txt":
            rules = self.graph.robots(number)
            return (200, _response(200, rules.encode(), "text/plain")) if rules else (404, _response(404, b""))
        entry = self.graph.entries.get(Target(number, plain))
        if entry is None:
            return 404, _response(404, b"no such page")
        if entry.kind == "cut":
            return None
        body = b"" if entry.to else self.graph.body(Target(number, plain))
        return entry.status, _response(entry.status, body, location=entry.to)

    def stats(self) -> dict[str, float]:
        """For the harness: how far the crawl is."""
        return {"served": len(self.served), "pages": self.pages, "requests": self.requests, "last": self.last}

    def note(self, request: Request) -> None:
        """Puts a request into the log."""
        self.requests += 1
        self.last = max(self.last, request.began)
        if request.complete and request.path != "/robots.txt":
            self.served.add(request.host + _without_tracking(request.path))
        began, ended, host, path, status, complete, worker, connection = request
        self._log.write(
            f"{began:.6f}\t{ended:.6f}\t{host}\t{path}\t{status}\t{int(complete)}\t{worker}\t{connection}\n"
        )

    def flush(self) -> None:
        """Writes the log out, and again in a while."""
        self._log.flush()
        asyncio.get_running_loop().call_later(FLUSH_S, self.flush)


class Connection(asyncio.Protocol):
    """One connection: one request at a time, kept open."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._open: tuple[float, str, str, str] | None = None
        server.connections += 1
        self._number = server.connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end or self._open is not None:
            return
        self._received = rest
        began = time.monotonic()
        lines = head.decode("latin-1").split("\r\n")
        path = lines[0].split(" ")[1]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        host = headers.get("host", "").partition(":")[0]
        if path.startswith("/__"):
            self._write(self._server.answer(host, path))
            return
        self._open = began, host, path, headers.get("user-agent", "")
        least, most = self._server.latency_s
        if most:
            asyncio.get_running_loop().call_later(self._server.dice.uniform(least, most), self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if self._open is None or self._transport is None or self._transport.is_closing():
            return
        _, host, path, _ = self._open
        answer = self._server.answer(host, path)
        if answer is None:
            self._end(0, complete=True)
            self._transport.abort()
            return
        self._end(answer[0], complete=True)  # first noted, then sent: who was answered stands in the log
        self._write(answer)

    def _write(self, answer: tuple[int, bytes] | None) -> None:
        assert self._transport is not None
        assert answer is not None
        self._transport.write(answer[1])

    def _end(self, status: int, *, complete: bool) -> None:
        assert self._open is not None
        began, host, path, worker = self._open
        self._open = None
        self._server.note(Request(began, time.monotonic(), host, path, status, complete, worker, self._number))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        """A request without an answer is noted as such."""
        if self._open is not None:
            self._end(0, complete=False)


def _without_tracking(path: str) -> str:
    plain, _, query = path.partition("?")
    kept = "&".join(part for part in query.split("&") if part and not part.startswith("utm_"))
    return f"{plain}?{kept}" if kept else plain


def _response(status: int, body: bytes, kind: str = "text/html; charset=utf-8", location: str = "") -> bytes:
    more = f"Location: {location}\r\n" if location else ""
    head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


async def serve(graph: Graph, log: Path, latency_s: tuple[float, float]) -> None:
    """Serves until SIGTERM; says on standard output when it is ready."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    with log.open("w") as lines:
        server = Server(graph, lines, latency_s)
        listening = await loop.create_server(lambda: Connection(server), "0.0.0.0", graph.port, backlog=1024)
        server.flush()
        print("ready", flush=True)
        await stopped.wait()
        listening.close()


# --- its handle -----------------------------------------------------------------------------------------------------


@dataclass
class Site:
    """A site that runs as a process of its own.

    Args:
        latency_s: Least and longest wait before an answer.
    """

    graph: Graph
    log: Path
    latency_s: tuple[float, float] = (0.0, 0.0)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        graph = self.graph
        options: Mapping[str, object] = {
            "hosts": graph.hosts, "pages": graph.pages, "seed": graph.seed, "port": graph.port, "log": self.log,
            "bytes": graph.body_bytes, "latency": "-".join(map(str, self.latency_s)),
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "bench.faults.site", *words]
        self._process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the site did not start: {' '.join(command)}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def stats(self) -> dict[str, float]:
        """Pages served (each once), pages there are, requests, monotonic time of the last one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.graph.port, timeout=10)
        try:
            connection.request("GET", "/__stats")
            found: dict[str, float] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()

    def requests(self) -> list[Request]:
        """The access log so far."""
        time.sleep(2 * FLUSH_S)
        return read_log(self.log)


def main() -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("hosts", 10), ("pages", 20), ("seed", 1), ("port", 8900), ("bytes", 3000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--latency", default="0.0-0.0", help="least and longest wait before an answer, seconds")
    parser.add_argument("--log", type=Path, required=True)
    asked = parser.parse_args()
    graph = Graph(asked.hosts, asked.pages, asked.seed, asked.port, asked.bytes)
    least, _, most = asked.latency.partition("-")
    uvloop.run(serve(graph, asked.log, (float(least), float(most))))


if __name__ == "__main__":
    main()
