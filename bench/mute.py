"""Good hosts beside very many that never answer: how much of their pace do they keep?

    python -m bench.mute            5,000 mute hosts, 3,000 names with a mute DNS, 1,000 hosts of a byte a second
    python -m bench.mute --short    50 of each and 5 good hosts; nothing is written

Good are 20 hosts of 40 pages, alone first and then beside each kind. Their seeds are spread evenly among the others'.
A crawl is stopped once every good page was served: what becomes of the others is the suite's to test. Mute hosts are
loopback addresses: one half accepts and never answers, the other half never accepts. Two paces: that of a host
from its own first page to its last, the mean of all; and that of all together, which holds the time until the last of
them is met.
"""

import argparse
import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from bench import results
from bench.politeness import Request, read_log
from tests.support.synthetic_site import REPO, WORK, Site

FOLDER = WORK / "mute"
GOAL = 0.8
LIMIT_S = 150.0
DELAY_S = 0.5
BACKLOG = 4096


class Crawled(NamedTuple):
    """Result of a crawl.

    Attributes:
        pages: Good pages served.
        own: Pages a second of one host, from its first page on, the mean of all hosts.
        pace: Of all hosts together, from the first request to the last.
        met_s: From the first page of any host to the first page of the last host.
        load: Of the machine, before it.
        cpu_ms: Of all its processes, a good page.
    """

    pages: int
    own: float
    pace: float
    met_s: float
    load: float
    cpu_ms: float


@contextmanager
def never_answering() -> Iterator[int]:
    """A port of every loopback address that accepts connections, reads, and never answers."""
    with socket.create_server(("0.0.0.0", 0), backlog=BACKLOG) as server:
        yield server.getsockname()[1]


@contextmanager
def never_accepting() -> Iterator[int]:
    """A port of every loopback address where connections are not accepted, once one of them fills the queue."""
    with socket.create_server(("0.0.0.0", 0), backlog=0) as server, ExitStack() as held:
        for _ in range(2):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(server.getsockname())
        yield server.getsockname()[1]


@contextmanager
def mute_dns() -> Iterator[int]:
    """A name server that answers nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        yield server.getsockname()[1]


@contextmanager
def dripping() -> Iterator[int]:
    """A port of every loopback address that sends one byte of an endless answer a second."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100000\r\n\r\n" + b"x" * 1000
    taken: list[tuple[socket.socket, float]] = []
    stop = threading.Event()

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.setblocking(False)
                taken.append((connection, time.monotonic()))

    def drip() -> None:
        while not stop.wait(1.0):
            for connection, since in taken:
                with contextlib.suppress(OSError):
                    at = int(time.monotonic() - since)
                    connection.send(answer[at : at + 1])

    with socket.create_server(("0.0.0.0", 0), backlog=BACKLOG) as server:
        for work in (lambda: accept(server), drip):
            threading.Thread(target=work, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            server.shutdown(socket.SHUT_RDWR)
            for connection, _ in taken:
                connection.close()


@contextmanager
def waking(after_s: float) -> Iterator[tuple[int, set[str]]]:
    """A port of every loopback address, and the addresses whose page was sent.

    An answer takes so long until one was waited for; later ones of that address come at once.
    """
    awake: set[str] = set()
    sent: set[str] = set()

    class Waking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # the name that http.server asks for
            """robots.txt is missing, all else is a page."""
            address = self.connection.getsockname()[0]
            if address not in awake:
                time.sleep(after_s)
                if select.select([self.connection], [], [], 0)[0]:  # closed by then
                    self.close_connection = True
                    return
                awake.add(address)
            body = b"<title>awake</title>"
            if self.path != "/robots.txt":
                sent.add(address)
            self.send_response(200 if address in sent else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("0.0.0.0", 0), Waking)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], sent
    finally:
        server.shutdown()
        server.server_close()


def addresses(count: int, port: int, second: int) -> list[str]:
    """URLs of so many loopback addresses `127.SECOND.x.y`."""
    return [f"http://127.{second}.{n // 250}.{n % 250 + 1}:{port}/" for n in range(count)]


def mixed(good: Sequence[str], others: Sequence[str]) -> list[str]:
    """All seeds, the good ones spread evenly among the others."""
    every = len(others) // len(good)
    seeds = [url for n, one in enumerate(good) for url in (*others[n * every : (n + 1) * every], one)]
    return seeds + list(others[len(good) * every :])


def crawl(  # what is crawled, how, and until when
    folder: Path,
    hosts: int,
    pages: int,
    others: Sequence[str],
    settings: Sequence[str] = (),
    also: Callable[[], bool] = lambda: True,
) -> Crawled:
    """One crawl, until all good pages were served and something else holds, or for `LIMIT_S`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    access = folder / "access.log"
    with (
        Site(hosts, pages, log=access, flags={"bytes": 3000, "links": 20}) as site,
        (folder / "log.txt").open("wb") as log,
    ):
        wanted = len(site.urls())
        (folder / "seeds.txt").write_text("\n".join(mixed(site.seeds, others)) + "\n")
        words = ["network.allow_private=true", f"politeness.delay_s={DELAY_S}", *settings]
        command = [sys.executable, "-P", "-m", "crawlog", "run", "--seeds", str(folder / "seeds.txt"), "-v"]
        command += ["--data", str(folder / "data"), "-o", str(folder / "rows.jsonl")]
        load, before = os.getloadavg()[0], _cpu_s()
        running = subprocess.Popen(
            [*command, *(word for setting in words for word in ("-s", setting))], cwd=REPO, stderr=log
        )
        try:
            until = time.monotonic() + LIMIT_S
            while (
                not (site.stats().unique >= wanted and also()) and running.poll() is None and time.monotonic() < until
            ):
                time.sleep(0.5)
            stats = site.stats()
        finally:
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(60)
            running.kill()
        cpu_ms = 1000.0 * (_cpu_s() - before) / max(stats.unique, 1)
        site.flush()
    times = times_of(read_log(access), stats.first_ns)
    paces = [(len(at) - 1) / (at[-1] - at[0]) for at in times.values() if len(at) > 1]
    firsts = [at[0] for at in times.values()]
    took_s = (stats.last_ns - stats.first_ns) / 1e9
    own = sum(paces) / hosts  # of one that was never met there is none
    return Crawled(stats.unique, own, stats.unique / max(took_s, 0.001), max(firsts) - min(firsts), load, cpu_ms)


def times_of(requests: Iterable[Request], since_ns: int) -> dict[str, list[float]]:
    """Seconds at which pages were asked for, by host.

    Raises: SystemExit: none was.
    """
    times: dict[str, list[float]] = {}
    for request in requests:
        if request.target not in {"/robots.txt", "/sitemap.xml"} and request.at_ns >= since_ns:
            times.setdefault(request.host, []).append(request.at_ns / 1e9)
    if not times:
        sys.exit(f"no good page was served; see log.txt in {FOLDER}")
    return times


def _cpu_s() -> float:
    """Of all processes that have ended and were waited for, by their parents too: the site still runs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(many: int, names: int, slow: int, hosts: int, pages: int) -> list[tuple[str, Crawled]]:
    """The good hosts alone, and beside so many of each kind."""
    with never_answering() as mute, never_accepting() as closed, mute_dns() as dns, dripping() as drip:
        half = addresses(many // 2, mute, 30), addresses(many - many // 2, closed, 40)
        servers = [f"network.dns_servers=127.0.0.1:{dns}"]
        nameless = [f"http://n{n}.mute{n}.example/" for n in range(names)]
        mixed_half = [url for pair in zip(*half, strict=False) for url in pair]
        return [
            ("alone", crawl(FOLDER / "alone", hosts, pages, [])),
            (f"{many:,} mute hosts", crawl(FOLDER / "mute", hosts, pages, mixed_half)),
            (f"{names:,} names with a mute DNS", crawl(FOLDER / "dns", hosts, pages, nameless, servers)),
            (f"{slow:,} hosts of a byte a second", crawl(FOLDER / "slow", hosts, pages, addresses(slow, drip, 50))),
        ]


def report(found: Sequence[tuple[str, Crawled]]) -> str:
    """The table."""
    alone = found[0][1]
    rows = []
    for name, one in found:
        own, together = one.own / alone.own, one.pace / alone.pace
        met = f"{one.met_s:.0f}"
        row = [name, f"{one.pages:,}", f"{one.cpu_ms:.0f}", met, f"{one.own:.2f}", f"{own:.2f}", f"{one.pace:.1f}"]
        row.append(f"{together:.2f}")
        for share in (own, together):
            reached = share >= GOAL and one.pages == alone.pages
            row.append("" if one is alone else "reached" if reached else "MISSED")
        rows.append(row)
    head = [
        "good hosts beside",
        "their pages",
        "CPU ms a page",
        "last one met after, s",
        "pages/s of a host",
        "of it alone (≥ 0.80)",
    ]
    head += ["pages/s of all", "of it alone (≥ 0.80)", "of a host", "of all"]
    return results.table(head, rows)


def main() -> int:
    """0 when the good hosts keep their pace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    args = results.options_of(parser)
    found = measure(50, 50, 50, 5, 20) if args.short else measure(5000, 3000, 1000, 20, 40)
    text = report(found)
    print(text)
    if args.write:
        loads = ", ".join(f"{one.load:.1f}" for _, one in found)
        site = f"20 hosts x 40 pages of 3 kB, a delay of {DELAY_S} s"
        facts = {"run": results.run_as("mute"), "site": site, "load before each": loads}
        results.section("mute", "Good hosts beside mute ones", text, facts)
    return int("MISSED" in text)


if __name__ == "__main__":
    sys.exit(main())
