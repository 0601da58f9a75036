"""A day of an operator, by commands and the dashboard: a refusal, a broken spider, maintenance, a schedule.

a site refuses ─► the overview names the job ─► its refused URLs are fetched again
a spider breaks ─► mended, deployed, the job updated, its letters redriven, its pages parsed again, beside another job
one machine is emptied, while jobs go on      a schedule is added, missed, caught up
"""

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.crawls import there
from tests.support.processes import crawlog, done, until
from tests.support.sites import Answer, Threaded

__all__ = ["there"]  # a fixture

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]

PAGES = 60

log = logging.getLogger("crawlog")

OPEN = ("-s", "network.allow_private=true", "-s", "robots.obey=false")

SPIDERS = """
import crawlog

class Shop(crawlog.Spider):
    name = "shop"

    def parse(self, response):
        title = response.css("{selector}").get()
        if title is None:
            raise ValueError("no title")
        yield {{"title": title, "version": {version}}}
        for link in response.css("a::attr(href)").getall():
            yield response.follow(link)
"""


class Shop:
    """A site of `PAGES` pages; the first one links to all others.

    Attributes:
        refuses: Whether it answers 403.
        is_new: Whether its pages have another layout.
        asked: Answers by path and status.
    """

    def __init__(self, address: str) -> None:
        self.refuses = self.is_new = False
        self.asked: Counter[tuple[str, int]] = Counter()
        self._server = Threaded(self._answer, address=address)
        self.url = f"{self._server.origin}/1"

    def _answer(self, path: str) -> Answer:
        number = int(path.strip("/") or 0)
        status = 403 if self.refuses else 200 if 1 <= number <= PAGES else 404
        self.asked[path, status] += 1
        tag = "h2" if self.is_new and number % 2 else "h1"
        links = "".join(f'<a href="/{one}">{one}</a>' for one in range(2, PAGES + 1)) if number == 1 else ""
        return status, "text/html", f"<{tag}>Book {number}</{tag}>{links}".encode()

    def pages(self) -> int:
        """Pages that it has given."""
        return sum(1 for _, status in self.asked if status == 200)

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


@pytest.fixture
def shops() -> Iterator[tuple[Shop, Shop]]:
    """Two sites."""
    found = Shop("127.0.21.1"), Shop("127.0.21.2")
    yield found
    for one in found:
        one.close()


class Desk:
    """What an operator has: the commands, and the service of one of two machines, each a `crawlog up` of its own."""

    def __init__(self, folder: Path, there: list[str]) -> None:
        self.first, self.second = folder / "first", folder / "second"
        self._folder, self._there = folder, there
        self.up(self.first)
        trusted = f"security.trusted_keys={json.dumps([self.deploys(1, 'h1::text')])}"
        self.up(self.second, "-s", "service.enabled=false", "-s", trusted)

    def up(self, data: Path, *more: str) -> None:
        """Start a machine."""
        done(crawlog("up", "--data", data, *self._there, *OPEN, "-s", "service.port=0", *more))

    def down(self, data: Path) -> None:
        """Stop a machine."""
        done(crawlog("down", "--data", data))

    def does(self, *words: object) -> None:
        """A command."""
        done(crawlog(*words, "--data", self.first, *self._there))

    def asks(self, path: str) -> Any:
        """An answer of the API."""
        return self._get(f"/api/v1{path}").json()

    def overview(self) -> str:
        """The text of the first page, without its markup."""
        return " ".join(re.sub(r"<[^>]+>", " ", self._get("/ui/").text).split())

    def _get(self, path: str) -> requests.Response:
        note = json.loads((self.first / "run" / "service.json").read_text())
        answer = requests.get(f"http://127.0.0.1:{note['port']}{path}", auth=("", note["token"]), timeout=20)
        assert answer.status_code == 200, answer.text
        return answer

    def job(self, name: str) -> Any:
        """A job."""
        return self.asks(f"/jobs/{name}")

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a job."""
        file = self._folder / f"{name}.jsonl"
        self.does("export", "--job", name, "-o", file)
        return [json.loads(line) for line in file.read_text().splitlines()]

    def deploys(self, version: int, selector: str) -> str:
        """A version of the spider; the key that signs it, which the other machine has to trust."""
        project = self._folder / "project"
        project.mkdir(exist_ok=True)
        (project / "spiders.py").write_text(SPIDERS.format(selector=selector, version=version))
        words = ["deploy", project, "--project", "shops", "--version", version, "--data", self.first, *self._there]
        shown, err = crawlog(*words).communicate()
        key = re.search(r"signed by\s+(\S+)", shown)
        assert key is not None, err
        return key[1]

    def submits(self, job: str, shop: Shop) -> None:
        """A job of the spider."""
        spider = ["--project", "shops", "--spider", "shop", *OPEN, "-s", "politeness.delay_s=0.5"]
        self.does("submit", shop.url, "--job", job, *spider)


@pytest.fixture
def desk(tmp_path: Path, there: list[str]) -> Iterator[Desk]:
    """Two machines on one log."""
    found = Desk(tmp_path, there)
    yield found
    for data in (found.first, found.second):
        crawlog("down", "--data", data).communicate()


def test_an_operators_day(desk: Desk, shops: tuple[Shop, Shop]) -> None:
    """Each step by the commands that docs/operations.md names; in the end both jobs have the row of every page."""
    first, second = shops
    desk.submits("first", first)
    until(lambda: first.pages() >= 10, "pages of the first shop")

    log.warning("A site begins to refuse.")
    first.refuses, began = True, time.monotonic()
    until(lambda: _alert(desk, "refused", "first"), "the refusal on the overview")
    seen_s = time.monotonic() - began
    shown = desk.overview()
    assert "first" in shown
    assert "403" in shown
    log.warning("the overview shows the refusal after %.0f s", seen_s)

    log.warning("It takes us again: what it refused is a failed batch, which is retried.")
    first.refuses = False
    desk.does("jobs", "retry", "first", "--status", "403")
    before = first.pages()
    until(lambda: first.pages() > before, "pages after the retry")

    log.warning("Its layout changes, and the spider breaks, while another job goes on.")
    first.is_new = True
    desk.submits("second", second)
    until(lambda: desk.job("first")["dead"] > 0, "dead letters")
    until(lambda: _alert(desk, "dead", "first") or "dead" in desk.overview(), "the letters on the overview")
    desk.deploys(2, "h1::text, h2::text")
    desk.does("jobs", "update", "first", "--version", "2", "--parse-again")
    desk.does("jobs", "retry", "first", "--dead")

    log.warning("One machine is emptied for maintenance.")
    workers = {one["id"] for one in desk.asks("/workers")}
    own = {one["id"] for one in desk.asks("/workers") if str(desk.second) in _command(one["pid"])}
    assert own
    for one in own:
        desk.does("workers", "drain", one)
    until(lambda: not own & {one["id"] for one in desk.asks("/workers")}, "the machine to be empty")
    assert workers - own <= {one["id"] for one in desk.asks("/workers")}

    until(lambda: desk.job("second")["state"] == "finished", "the end of the second job")
    until(lambda: desk.job("first")["state"] == "finished", "the end of the first job")
    rows = desk.rows("first")
    assert sorted(row["title"] for row in rows) == sorted(f"Book {number}" for number in range(1, PAGES + 1))
    assert {row["version"] for row in rows} == {2}
    assert {row["version"] for row in desk.rows("second")} == {1}
    assert len(desk.rows("second")) == PAGES
    asked = [count for (_, status), count in first.asked.items() if status == 200]
    assert max(asked) == 1, "a page was fetched again"
    _misses_a_run(desk, second)


def _misses_a_run(desk: Desk, shop: Shop) -> None:
    log.warning("A schedule is added, missed, and caught up.")
    rule = ["--every", "5s", "--catch-up", "last", "--overlap", "queue"]
    desk.does("schedule", "add", "daily", *rule, "--", "submit", shop.url, "--depth", "0", *OPEN)
    until(lambda: _runs(desk), "the first run of the schedule")
    desk.down(desk.first)
    runs_before = len(shop.asked)
    time.sleep(11)  # two planned times pass while nothing runs
    desk.up(desk.first)
    until(lambda: len(_runs(desk)) >= 2, "the run that was missed")
    assert runs_before == len(shop.asked)
    desk.does("schedule", "remove", "daily")


def _alert(desk: Desk, rule: str, job: str) -> bool:
    return any(one["rule"].startswith(rule) and one["subject"] == job for one in desk.asks("/alerts"))


def _runs(desk: Desk) -> list[str]:
    return [one["name"] for one in desk.asks("/jobs?name=daily")["jobs"]]


def _command(pid: int) -> str:
    environ = Path(f"/proc/{pid}/environ").read_bytes() if pid else b""
    return (Path(f"/proc/{pid}/cmdline").read_bytes() + environ).decode(errors="replace")
