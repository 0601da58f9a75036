"""Commands on a data folder as users give them, and the site that they crawl: numbered pages that link to others."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from crawlog.streams.settings.settings import Settings
from tests.support.processes import LIMIT_S, Process, crawlog
from tests.support.sites import Answer, Threaded

PAGES = 40

LeadsTo = Callable[[int], Iterable[int]]


class Numbered:
    """A site of numbered pages that link to others; it counts what it is asked for.

    Args:
        last: The last page; the usual one is PAGES.
        leads_to: The pages that a page links to: the next one and its double, as a rule.

    Attributes:
        hidden: Pages that none links to.
        holds_from: From so many pages on it answers no more until it `goes_on`.
    """

    def __init__(self, last: float = PAGES, leads_to: LeadsTo = lambda number: (number + 1, number * 2)) -> None:
        self.asked: Counter[str] = Counter()
        self.hidden: set[int] = set()
        self.holds_from = last + 1
        self.goes_on = threading.Event()
        self._last, self._leads_to = last, leads_to
        self._server = Threaded(self._answer)
        self.origin = self._server.origin
        self.url = f"{self.origin}/1"

    def _answer(self, path: str) -> Answer:
        self.asked[path] += 1
        if len(self.pages()) >= self.holds_from:
            self.goes_on.wait(LIMIT_S)
        number = path.strip("/")
        if number.isdigit() and 1 <= int(number) <= self._last:
            return 200, "text/html", self.page(int(number))
        return 404, "text/html", b""

    def page(self, number: int) -> bytes:
        """The body of a page."""
        targets = [at for at in self._leads_to(number) if at <= self._last and at not in self.hidden]
        links = "".join(f'<a href="/{target}">{target}</a>' for target in targets)
        return f"<html><title>{number}</title><body>{links}</body></html>".encode()

    def pages(self) -> Counter[str]:
        """Requests of pages, without robots.txt."""
        return Counter({path: count for path, count in self.asked.items() if path != "/robots.txt"})

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


@pytest.fixture
def site() -> Iterator[Numbered]:
    """A site of this test alone."""
    made = Numbered()
    yield made
    made.close()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder; what still runs on it afterwards is ended."""
    data = tmp_path / "data"
    yield data
    if workers(data) or on_folder(data):
        crawlog("down", "--data", data).communicate()


@pytest.fixture
def there(cluster: Settings) -> list[str]:
    """Options for the session's broker, where how it starts and ends shows nothing."""
    return ["--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={cluster.kafka.prefix}"]


def on_folder(data: Path) -> list[psutil.Process]:
    """Brokers of a data folder that run."""
    mark = f"{data}/kafka/server.properties"
    return [found for found in psutil.process_iter(["cmdline"]) if mark in (found.info["cmdline"] or ())]


def run(site: Numbered, data: Path, *more: object, delay_s: float = 0.01) -> Process:
    """A crawl of the site, started."""
    options = ["-s", "network.allow_private=true", "-s", f"politeness.delay_s={delay_s}", *more]
    return crawlog("run", site.url, "--data", data, "-o", data.parent / "rows.jsonl", "--json", *options)


def rows(data: Path) -> list[str]:
    """Paths of the result rows."""
    lines = (data.parent / "rows.jsonl").read_text().splitlines()
    return [json.loads(line)["url"].rpartition("/")[2] for line in lines]


def workers(data: Path) -> dict[str, int]:
    """Pids of the live workers, by name."""
    try:
        holder: dict[str, dict[str, int]] = json.loads((data / "run" / "holder.json").read_text())
    except FileNotFoundError:
        return {}
    return holder["workers"]
