"""The fetch stage without a cluster: its own state and dispatcher, a log in memory, a web that says what it is told."""

import asyncio
import gzip
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, MutableSequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from crawlog.agents.client.body import BodyBudget
from crawlog.agents.client.client import Client
from crawlog.agents.client.exit_sources import Lists
from crawlog.agents.client.per_address import Addresses
from crawlog.agents.client.transport import HttpRequest, Transport
from crawlog.agents.fetch import fetch_agent
from crawlog.agents.fetch.fetch_agent import Fetcher
from crawlog.agents.fetch.robots import Robots
from crawlog.agents.fetch.task import Tasks
from crawlog.agents.frontier import frontier_agent, restoring
from crawlog.agents.frontier.frontier_agent import OwnedFrontier
from crawlog.schemas import pages as pg
from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.exits.exits import Exits
from crawlog.streams.exits.ways import Exit
from crawlog.streams.http.answer import Answer
from crawlog.streams.http.validators import of_headers
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state import partition
from crawlog.streams.url.place import Places

URLS, PAGES = "crawl.urls", "crawl.pages"


class Record(NamedTuple):
    """A record of the log in memory."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Log:
    """Stands in for the producer: a record is acknowledged, and crawl.urls folded, in the next turns of the loop."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.records: MutableSequence[Record] = []
        self.ends: Counter[str] = Counter()
        self.fold: Callable[[int, Record], None] = lambda _offset, _record: None
        self.is_silent = False
        self.outstanding = 0

    def connect(self) -> None:
        """It is there."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        on_delivery: Callable[[int, int], None] | None = None,
    ) -> None:
        """Put a record on its way; for ever, where the log is silent."""
        self.outstanding += 1
        record = Record(topic, key, value, headers or [])
        if not self.is_silent:
            asyncio.get_running_loop().call_soon(self._append, record, partition or 0, on_delivery)

    def _append(self, record: Record, partition: int, on_delivery: Callable[[int, int], None] | None) -> None:
        offset = self.ends[record.topic]
        self.ends[record.topic] += 1
        self.records.append(record)
        self.outstanding -= 1
        if on_delivery is not None:
            on_delivery(partition, offset)
        if record.topic == URLS:
            asyncio.get_running_loop().call_soon(self.fold, offset, record)

    def flush(self, _timeout_s: float) -> bool:
        """All is acknowledged."""
        return True

    def poll(self) -> int:
        """Nothing comes back by being asked."""
        return 0

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing to serve."""
        await stop.wait()

    @property
    def pages(self) -> list[tuple[pg.PageMeta, bytes]]:
        """What crawl.pages holds."""
        return [(pg.decode(dict(r.headers)[pg.HEADER]), r.value or b"") for r in self.records if r.topic == PAGES]

    @property
    def dones(self) -> list[u.Result]:
        """What crawl.urls says became of URLs."""
        records = [u.decode(record.value) for record in self.records if record.topic == URLS]
        return [result for record in records for result in record.results or []]


@dataclass
class Web:
    """Stands in for the client.

    Attributes:
        latency_s: How long an answer takes, by URL; `any` for all others.
        patience_s: For an answer, by URL, the caller must have so much time, or there is none; it comes at once.
        known_as: Addresses of host names, `any` for all others; each its own where none is named.
        mute_names: Host names whose addresses nobody tells.
        naming: URLs of which they were asked for.
        addresses: With the limit of the settings, once it runs.
        exits: Ways out; none for the direct way.
        status: What is answered, by URL; 200 for all others.
        etags: Of pages, by URL; asked for with the same one they are 304.
        conditions: URLs asked for with an ETag, and that.
        before: Called with each URL before it is answered.
        may_ask: Whether its lease is held.
        bodies: Of which each answer holds one byte.
        coding: Of pages that a caller takes as they come.
    """

    latency_s: dict[str, float] = field(default_factory=lambda: {"any": 0.0})
    known_as: dict[str, str] = field(default_factory=dict)
    mute_names: set[str] = field(default_factory=set)
    naming: set[str] = field(default_factory=set)
    status: dict[str, int] = field(default_factory=dict)
    robots: bytes | None = None
    etags: dict[str, str] = field(default_factory=dict)
    conditions: list[tuple[str, str]] = field(default_factory=list)
    bodies: BodyBudget = field(default_factory=lambda: BodyBudget(1000))
    coding: str = ""
    before: Callable[[str], None] = lambda _url: None
    may_ask: Callable[[], bool] = lambda: True
    patience_s: dict[str, float] = field(default_factory=dict)
    asked: list[tuple[float, str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    under_way: set[str] = field(default_factory=set)
    most: int = 0
    lists: Lists = field(default_factory=dict)
    addresses: Addresses = field(init=False)
    exits: Exits = field(default_factory=Exits)

    def as_client(self, *_: Any) -> Any:
        """What the fetcher has for a client."""
        return self

    def use(self, exits: tuple[Exit, ...]) -> None:
        """These are its exits from now on."""
        self.exits.change(exits)

    async def get(self, request: HttpRequest) -> Answer:
        """An HTML page, or the robots.txt."""
        url, within_s = request.url, request.within_s
        etag = (request.headers or {}).get("If-None-Match")
        self.asked.append((time.monotonic(), url))
        self.under_way.add(url)
        self.most = max(self.most, len(self.under_way))
        try:
            self.before(url)
            await asyncio.sleep(self.latency_s.get(url, self.latency_s["any"]))
        finally:
            self.under_way.discard(url)
        if within_s is not None and within_s < self.patience_s.get(url, 0.0):
            return Answer(None, "timeout")
        self.ended.append(url)
        answer = Answer(self.status.get(url, 200))
        answer.held = await self.bodies.take(1)
        answer.content_type, answer.kept, answer.body = "text/html", True, b"<title>x</title>"
        if self.coding and request.as_came:
            answer.body, answer.coding, answer.limit = gzip.compress(answer.body), self.coding, 1000
        if url in self.etags:
            answer.validators = of_headers(self.etags[url], None)
        if etag is not None:
            self.conditions.append((url, etag))
            if etag == self.etags.get(url):
                answer.http, answer.kept, answer.body, answer.validators = 304, False, b"", None
        if url.endswith("/robots.txt"):
            answer.http, answer.body = (404, b"") if self.robots is None else (200, self.robots)
        return answer

    async def addresses_of(self, url: str) -> tuple[str, ...]:
        """Where a host is, once that is known."""
        if (urlsplit(url).hostname or "") in self.mute_names:
            self.naming.add(url)
            await asyncio.sleep(600)
        return self.known(url)

    def known(self, url: str) -> tuple[str, ...]:
        """Where a host is, as far as that is known."""
        name = urlsplit(url).hostname or ""
        return () if name in self.mute_names else (self.known_as.get(name, self.known_as.get("any", name)),)

    async def close(self) -> None:
        """Nothing to close."""

    def times(self, url: str) -> int:
        """How often a URL was asked for."""
        return sum(one == url for _, one in self.asked)


class RealWeb(Web):
    """A real client that may reach this machine."""

    def as_client(self, settings: Settings, *others: Any) -> Client:
        """The fetcher's own client."""
        return Client(changed(settings, {"network.allow_private": True}), *others)


class World:
    """One partition and its fetcher, running."""

    def __init__(self, stage: OwnedFrontier, fetcher: Fetcher, log: Log, web: Web) -> None:
        self.stage = stage
        self.fetcher = fetcher
        self.log = log
        self.web = web
        log.fold = self.fold

    @property
    def tasks(self) -> Tasks:
        """What sees tasks to their end."""
        assert self.fetcher.tasks is not None
        return self.fetcher.tasks

    @property
    def robots(self) -> Robots:
        """What asks for robots.txt."""
        assert self.fetcher.robots is not None
        return self.fetcher.robots

    def fold(self, offset: int, record: Record) -> None:
        """What the agent does with a record."""
        self.stage.take(0, offset, record.key, record.value, time.time())
        self.stage.wake()

    def job(self, name: str = "j", rev: int = 1, **changes: Any) -> None:
        """A job record."""
        spec = u.JobSpec(rev=rev, **({"scope": u.ScopeSpec(kind="any")} | changes))
        self.log.send(URLS, u.encode(u.UrlsRecord(job=name, spec=spec)))

    def ask(self, url: str, request: RequestRecord, id: int, job: str = "j") -> None:  # noqa: A002  # as the field
        """A found with a request."""
        self.log.send(URLS, u.encode(u.UrlsRecord(job, 0, urls=[u.FoundUrl(url, id=id, request=request)])))

    def find(self, *urls: str, job: str = "j", epoch: int = 0) -> None:
        """Founds."""
        self.log.send(URLS, u.encode(u.UrlsRecord(job=job, epoch=epoch, urls=[u.FoundUrl(url) for url in urls])))

    def became(self) -> dict[str, tuple[str, str, str]]:
        """(status, reason, rule) of each URL's last done."""
        return {done.url: (done.status, done.reason, done.rule) for done in self.log.dones}

    @property
    def is_folded(self) -> bool:
        """Whether the state holds all that the log has: a done is in the log a turn of the loop before."""
        return all(partition.offset == self.log.ends[URLS] for partition in self.stage.live.values())

    async def until(self, holds: Callable[[], Any], limit_s: float = 90.0) -> None:
        """Wait until something holds."""
        end = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > end:
                pytest.fail(f"in vain for {limit_s} s; done: {self.became()}, asked: {self.web.asked}")
            await asyncio.sleep(0.005)

    async def all_done(self, *urls: str) -> None:
        """Wait until every URL has a done, the log holds it, and it is folded."""
        await self.until(lambda: set(urls) <= self.became().keys() and not self.fetcher.places and self.is_folded)


def changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    """Settings with others by dotted name."""
    for name, value in changes.items():
        section, _, item = name.partition(".")
        new = getattr(settings, section).model_copy(update={item: value})
        settings = settings.model_copy(update={section: new})
    return settings


PLAIN = {"politeness.delay_s": 0.0, "robots.obey": False, "fetch.retry_delay_s": 0.0, "fetch.user_agent": "tester"}


def alone(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> tuple[OwnedFrontier, Log]:
    """The stage of a fetch worker without Kafka, and the log it writes."""
    app = SimpleNamespace(
        crawl=settings,
        worker_name="fetch-0",
        lease=SimpleNamespace(held=lambda _now: True),
        watchdog=SimpleNamespace(beat=lambda: None, on_blocked=None),
        positions=SimpleNamespace(done=lambda *_: None),
        consumer_generation_id=1,
    )
    for module in (frontier_agent, restoring):
        monkeypatch.setattr(module, "Producer", Log)
    stage = OwnedFrontier(app)  # type: ignore[arg-type]  # as much of an app as a stage needs
    return stage, stage.producer  # type: ignore[return-value]  # patched above


async def own(stage: OwnedFrontier, number_0: partition.Partition) -> None:
    """Give a stage its one partition, as an assignment does."""
    stage.restoring.opened[0] = number_0
    await stage._go_live()
    stage.orders.caught_up()
    stage.states.places = Places(1)


@asynccontextmanager
async def running(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    web: Web | None = None,
    wrap: Callable[[Transport], Transport] = lambda web: web,
    /,
    **settings: Any,
) -> AsyncIterator[World]:
    """A world that runs; settings by name, with `__` for the dot."""
    web = web or Web()
    changes = PLAIN | {"run.data": folder} | {name.replace("__", "."): value for name, value in settings.items()}
    crawl = changed(Settings(), changes)
    web.addresses = Addresses(crawl.politeness, web.addresses_of)
    monkeypatch.setattr(fetch_agent, "Client", getattr(web, "as_client", lambda *_: web))  # or a real client
    stage, log = alone(crawl, monkeypatch)
    fetcher = Fetcher(stage, wrap)
    world = World(stage, fetcher, log, web)
    memory, identity = partition.StateMemory(8), LogIdentity("cluster", "topic")
    await own(stage, partition.Partition(folder / "state" / "0", 0, Places(1), identity, memory, 64))
    dispatching = asyncio.create_task(fetcher.run())
    await asyncio.sleep(0)  # it has its parts
    try:
        world.job()
        yield world
    finally:
        dispatching.cancel()
        await asyncio.wait([dispatching])
        for task in list(fetcher._running):
            task.cancel()
        await asyncio.sleep(0)
        stage._close()
