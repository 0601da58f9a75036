"""Pages that change at rates from minutes to never, over the real fold and dispatcher, in simulated time."""

import random
from bisect import bisect
from math import exp, log

import pytest

from crawlog.schemas import urls as u
from crawlog.streams.frontier.host import Task
from tests.support.dispatching import WALL, Rests, World
from tests.support.folding import State

PAGES = 1_000
FASTEST_S, SLOWEST_S = 600.0, 30 * 86_400.0
NEVER = 0.2  # Part of the pages that do not change
RULES = u.RecrawlRules(3600.0, adaptive=True, min_age=60.0)


class ChangingSite(World):
    """A site of one host whose pages change by a Poisson process each, and the crawl of it.

    Attributes:
        changes: When each page changes, by its URL.
        log: Each record that was folded.
        requests, spared: Pages asked for, and those of them that were a 304.
        found: Requests that met a change.
    """

    def __init__(self, hours: float, seed: int = 1) -> None:
        super().__init__(Rests(0.0))
        draw = random.Random(seed)
        self.began, self.end = self.wall, self.wall + hours * 3600
        self.changes: dict[str, list[float]] = {}
        for number in range(PAGES):
            every_s = FASTEST_S * exp(draw.random() * log(SLOWEST_S / FASTEST_S))
            times, at = [], self.wall
            while number >= NEVER * PAGES and (at := at + draw.expovariate(1 / every_s)) < self.end:
                times.append(at)
            self.changes[f"http://a.com/{number}"] = times
        self.log: list[bytes] = []
        self.seen: dict[str, int] = {}
        self.requests = self.spared = self.found = 0

    def take(self, value: bytes) -> None:
        """Fold a record, and keep it."""
        self.log.append(value)
        super().take(value)

    def crawl(self) -> None:
        """Ask for each page when it is due, until the end."""
        self.job(recrawl=RULES)
        self.find(*self.changes)
        while self.wall < self.end:
            task = self.frontier.next()
            if task is None:
                at = self.frontier.next_at()
                assert at is not None, "nothing is due any more"
                self.pass_time(max(at - self.clock, 0.001))
                continue
            assert isinstance(task, Task)
            self.frontier.finished(task.host, 0.0, task.job.number)
            url, version = task.row.url, bisect(self.changes[task.row.url], self.wall)
            is_new = self.seen.get(url) != version
            self.requests += 1
            self.spared += not is_new
            self.found += is_new and url in self.seen
            self.seen[url] = version
            self.write(task, "fetched" if is_new else "not_modified")
            for value in self.unfolded:
                self.take(value)
            self.unfolded.clear()
            if is_new:
                change = u.PageChange(url, task.sequence, self.requests, version + 2, (0, self.requests))
                self.take(u.encode(u.UrlsRecord("j", at=self.wall, changes=[change])))

    def found_by_fixed(self, requests: int) -> int:
        """Changes that the same number of requests meets, spread evenly over pages and time."""
        every_s = PAGES * (self.end - self.began) / requests
        found = 0
        for number, times in enumerate(self.changes.values()):
            first = self.began + every_s * number / PAGES
            found += len({int((at - first) // every_s) for at in times if at > first and at + every_s <= self.end})
        return found


@pytest.mark.parametrize("hours", [8, pytest.param(7 * 24, marks=pytest.mark.long)])
def test_adaptive_intervals_find_more_changes_than_a_fixed_one_with_twice_their_requests(hours: float) -> None:
    """At least nine in ten was wanted. An unchanged page costs a 304, and the log alone gives the same due times."""
    site = ChangingSite(hours)
    site.crawl()
    assert site.found >= 0.9 * site.found_by_fixed(2 * site.requests)
    assert site.spared == site.requests - site.found - PAGES
    site.checkpoint()
    again = State(*site.log)
    again.checkpoint()
    assert dict(again.base.scan(b"")) == dict(site.base.scan(b""))


def test_a_sitemap_that_is_read_every_half_hour_spares_the_requests_of_unchanged_pages() -> None:
    """Each page is asked for once, and once more for each time that the sitemap lists it with a later `lastmod`."""
    site = ChangingSite(8)
    site.job(recrawl=u.RecrawlRules(3600.0))
    for read in range(16):
        changed = {url: times[at - 1] for url, times in site.changes.items() if (at := bisect(times, site.wall))}
        wanted = {url for url, at in changed.items() if at > site.wall - 1800} if read else set(site.changes)
        urls = [u.FoundUrl(url, lastmod=changed.get(url, site.began - 60)) for url in site.changes]
        site.take(u.encode(u.UrlsRecord("j", at=site.wall, urls=urls)))
        site.done.clear()
        assert set(site.drain_until(1799)) == wanted
        assert set(site.done.values()) == {1}
        site.pass_time(site.began + 1800 * (read + 1) - site.wall)


@pytest.mark.parametrize(("rules", "soon_s"), [(u.RecrawlRules(600.0), 30.0), (RULES, 3.0)])
def test_a_job_waits_for_urls_that_are_due_within_a_twentieth_of_its_shortest_interval(
    rules: u.RecrawlRules, soon_s: float
) -> None:
    """Else a run of a job with a busy page would never end."""
    world = World(Rests(0.0))
    world.job(recrawl=rules)
    world.find("http://a.com/")
    world.fetched(world.next_page())
    world.fold_dones()
    (job,), waits = world.fold.jobs.values(), world.frontier.owned[0].waits
    age_s = rules.age or 0.0
    for left_s, due in ((soon_s + 1, 0), (soon_s - 1, 1)):
        world.wall = WALL + age_s - left_s
        assert waits.due_again(job) == due


def test_a_job_that_watches_is_looked_through_only_when_something_may_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them are looked at every second; what is found meanwhile counts at once."""
    world = World(Rests(0.0))
    world.job(recrawl=u.RecrawlRules(600.0))
    world.find("http://a.com/", itag="1")
    world.fetched(world.next_page())
    world.fold_dones()
    (job,), waits = world.fold.jobs.values(), world.frontier.owned[0].waits
    assert waits.due_again(job) == 0
    with monkeypatch.context() as patched:
        patched.setattr(world.fold.rows, "scan", lambda *_: pytest.fail("it is looked through once more"))
        assert waits.due_again(job) == 0
    world.find("http://a.com/", itag="2")
    assert waits.due_again(job) == 1
