"""When requests of a spider are sent: `countdown`, `expires`, `priority`, `attempts`; and `crawlog jobs retry`."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crawls import data, there
from tests.support.processes import Process, crawlog, done, ended, until
from tests.support.sites import Answer, Threaded

__all__ = ["data", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SPIDER = """
from crawlog import Request, Spider

class Later(Spider):
    name = "later"
    settings = {"network.allow_private": True, "politeness.delay_s": 0.01, "robots.obey": False}

    def __init__(self, origin):
        self.origin = origin

    def start(self):
        yield Request(self.origin + "/first", self.first)

    def first(self, response):
        yield response.follow("/later", self.page, countdown=4)
        yield response.follow("/soon", self.page, countdown="2s", priority=-5)
        yield response.follow("/never", self.page, countdown=3, expires=1)
        yield response.follow("/low", self.page, priority=1)
        yield response.follow("/high", self.page, priority=9)
        yield response.follow("/broken", self.page, priority=-1, attempts=2, cb_kwargs={"said": "kept"})

    def page(self, response, said=""):
        yield {"path": response.url.rpartition("/")[2], "said": said}
"""


class Site:
    """Notes when it was asked for what; `/broken` is broken until it is mended."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.is_mended = False
        self._server = Threaded(self._answer)
        self.origin, self.close = self._server.origin, self._server.close

    def _answer(self, path: str) -> Answer:
        self.asked.append((path, time.time()))
        return 503 if path == "/broken" and not self.is_mended else 200, "text/html", b"<p>x"

    @property
    def paths(self) -> list[str]:
        """What it was asked for, in order."""
        return [path for path, _ in self.asked]


@pytest.fixture
def site() -> Iterator[Site]:
    """A site of this test alone."""
    made = Site()
    yield made
    made.close()


def run(site: Site, data: Path, there: list[str]) -> Process:
    """The crawl, started, or gone on with."""
    spider, rows = data.with_name("later.py"), data.with_name("rows.jsonl")
    spider.write_text(SPIDER)
    options = ["--spider", spider, "-a", f"origin={site.origin}", "--job", "later", "-o", rows, "--json"]
    return crawlog("run", *options, "--data", data, "-s", "fetch.retry_delay_s=0.1", *there)


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_requests_are_sent_in_time_and_failed_ones_again(
    site: Site, data: Path, there: list[str], is_killed: bool
) -> None:
    """Once each, whatever is killed while they wait; a retry of the mended page reaches its callback."""
    first = run(site, data, there)
    if is_killed:
        until(lambda: site.paths.count("/broken") == 2, "the first pages", first)
        first.kill()
        first.wait()
        first = run(site, data, there)
    code, summary, err = ended(first)
    assert (code, summary.get("refused")) == (0, 1), (summary, err)
    paths, times = site.paths, dict(reversed(site.asked))
    assert sorted(paths) == ["/broken", "/broken", "/first", "/high", "/later", "/low", "/soon"]
    assert [path for path in paths if path in ("/high", "/low")] == ["/high", "/low"]
    assert (times["/soon"] - times["/first"] >= 2, times["/later"] - times["/first"] >= 4) == (True, True)

    site.is_mended = True
    done(crawlog("jobs", "retry", "later", "--failed", "--data", data, *there))
    code, summary, err = ended(run(site, data, there))
    assert (code, site.paths[7:], summary["statuses"]) == (0, ["/broken"], {"200": 6}), err
    rows = map(json.loads, data.with_name("rows.jsonl").read_text().splitlines())
    assert {row["path"]: row["said"] for row in rows} == {
        **dict.fromkeys(["high", "low", "soon", "later"], ""),
        "broken": "kept",
    }
