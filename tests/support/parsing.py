"""The parse stage without a broker: its log in memory, pages that come, and what is sent."""

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from crawlog.agents.parse.guard import Guard, NoNotes
from crawlog.agents.parse.spider_pages import SpiderPages
from crawlog.agents.parse.stage import ParseStage
from crawlog.agents.sandbox.answers import Fault, fault_of
from crawlog.agents.sandbox.calls import Then
from crawlog.agents.sandbox.child_code import ChildRules
from crawlog.agents.sandbox.frames import LOAD, SpiderFrame
from crawlog.agents.sandbox.frames import PAGE as PAGE_FRAME
from crawlog.agents.sandbox.spider_child import LOADER
from crawlog.agents.sandbox.spider_process import LoadRequest, SpiderService
from crawlog.schemas import items, pages, urls
from crawlog.schemas.control import JobCopy
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.errors import GiveUp
from crawlog.streams.log.topics import Topics
from crawlog.streams.spiders import PageCall, SpiderFacts, SpiderRef
from crawlog.streams.spiders.trust import Trust
from crawlog.streams.url.place import Places
from crawlog.streams.worker.member import LARGE_BYTES
from crawlog.streams.worker.suspects import Verdict

T = TypeVar("T")

NAMES = Topics("crawl.")
PAGE = "http://a.test/p"
HTML = "text/html; charset=utf-8"


class Noted(NoNotes):
    """Remembers what is touched, and has a verdict on some, by their offsets: `at_0="alone"`."""

    def __init__(self, **verdicts: Verdict) -> None:
        self.said: list[str] = []
        self.verdicts = verdicts

    def touch(self, key: str) -> None:
        """About to be handled."""
        self.said.append(f"touch {key}")

    def release(self, key: str) -> None:
        """Handled."""
        self.said.append(f"release {key}")

    def lift(self, key: str) -> None:
        """Handled in part."""
        self.said.append(f"lift {key}")

    def verdict(self, key: str) -> Verdict:
        """As told."""
        return self.verdicts.get(f"at_{key.partition(':')[2]}", "normal")


class Sent(NamedTuple):
    """A record on its way."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    headers: list[tuple[str, bytes]]
    on_delivery: Any


class Log:
    """Takes records and acknowledges them when told to."""

    def __init__(self, largest: int = 1 << 20) -> None:
        self.records: list[Sent] = []
        self.unacknowledged: list[Sent] = []
        self.largest = largest

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: Any = None,
        partition: Any = None,
        headers: Any = None,
        on_delivery: Any = None,
    ) -> None:
        """As the producer."""
        if len(value or b"") > self.largest:
            raise GiveUp("too_large")
        record = Sent(topic, value, key, partition, headers or [], on_delivery)
        self.records.append(record)
        self.unacknowledged.append(record)

    def acknowledge(self, *topics: str) -> None:
        """What was sent to these topics, or to all, is in the log."""
        there = [record for record in self.unacknowledged if not topics or record.topic in topics]
        self.unacknowledged = [record for record in self.unacknowledged if record not in there]
        for record in there:
            if record.on_delivery:
                record.on_delivery(0, 0)

    def values(self, topic: str) -> list[Any]:
        """The values sent to a topic."""
        return [record.value for record in self.records if record.topic == topic]


class Message(NamedTuple):
    """A record of crawl.pages."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")


class NearChild:
    """A spider that runs in this process: what a `BackgroundChild` does, at once."""

    def __init__(self, ref: SpiderRef, rules: ChildRules, loader: str = LOADER) -> None:
        self.ref = ref
        self.loaded: SpiderFacts | None = None
        self.fault: Fault | None = None
        self.died_of = ""
        self.heard_facts: Callable[[], None] = lambda: None
        self.service = SpiderService()
        trust = rules.trust
        folders = None if trust is None else tuple(map(str, trust.folders))
        bounds = (rules.bounds.outputs, rules.bounds.size_bytes)
        self.order = LoadRequest(ref, loader, folders, bounds=bounds)

    def load(self) -> None:
        """Load it."""
        answer = self.service.load(SpiderFrame(LOAD, msgspec.json.encode(self.order)))
        try:
            self.loaded = msgspec.json.decode(answer.text, type=SpiderFacts)
        except msgspec.ValidationError:
            self.fault = fault_of(answer)
        self.heard_facts()

    def submit_page(self, call: PageCall, then: Then) -> None:
        """Run it for a page."""
        [answer] = at_once(self.service.answer(SpiderFrame(PAGE_FRAME, pages.encode(call.meta), call.body)))
        then(answer)

    def close(self) -> None:
        """Nothing."""

    def wait_ended(self) -> None:
        """There is no process."""


class Stage:
    """A stage, its log, and what it said to be done."""

    def __init__(
        self,
        largest: int = 1 << 20,
        job: JobSpec | None = None,
        guard: Guard | None = None,
        trust: Trust = Trust((Path("/"),)),  # noqa: B008  # immutable
    ) -> None:
        self.log = Log(largest)
        self.done: list[tuple[int, int]] = []
        guard = (guard or Guard())._replace(trust=trust)
        self.passed: set[int] = set()
        self.stage = ParseStage(NAMES, Places(8), self.log, self.log, self._is_done, lambda: 7.0, guard)
        rules = ChildRules(trust=guard.trust, bounds=guard.bounds)
        self.children: list[NearChild] = []
        self.stage.spiders = SpiderPages(lambda ref: self._new_child(ref, rules), self.stage)
        self.stage.passes_over = lambda _partition, offset, _job: offset in self.passed
        self.offsets = 0
        self.learn(job or JobSpec(scope=ScopeSpec(names=("a.test",))))

    def _new_child(self, ref: SpiderRef, rules: ChildRules) -> NearChild:
        self.children.append(NearChild(ref, rules))
        return self.children[-1]

    def _is_done(self, partition: int, offset: int) -> None:
        self.done.append((partition, offset))

    def learn(self, spec: JobSpec, epoch: int = 0) -> None:
        """A revision of the job becomes known."""
        self.stage.learn(JobCopy("j", spec, epoch))

    def take(  # a page, how it comes, and its metadata
        self,
        body: bytes = b"",
        offset: int | None = None,
        *,
        aside: bool = False,
        lends: bool = False,
        coding: str = "",
        **meta: Any,
    ) -> int:
        """A page comes; returns its offset."""
        offset = self.offsets if offset is None else offset
        self.offsets = offset + 1
        fields: dict[str, Any] = {"url": PAGE, "job": "j", "http": 200, "content_type": HTML} | meta
        headers = pages.headers(PageMeta(**fields), coding)
        self.stage.take(Message(3, offset, b"a.test", body, headers), aside=aside, lends=lends)
        return offset

    def founds(self) -> list[urls.FoundUrl]:
        """All URLs sent to crawl.urls."""
        return [found for value in self.log.values(NAMES.urls) for found in urls.decode(value).urls or ()]

    def row(self) -> dict[str, Any]:
        """The one row of the newest page."""
        (raw,) = items.decode(self.log.values(NAMES.items)[-1]).items
        told: dict[str, Any] = json.loads(bytes(raw))
        return told


def links(*names: str) -> bytes:
    """A page with links."""
    return "".join(f"<a href='{name}'>" for name in names).encode()


def told(stage: Stage) -> list[str]:
    """The last part of the URL of each row sent, in order."""
    return [items.decode(value).url.rpartition("/")[2] for value in stage.log.values(NAMES.items)]


def buried(stage: Stage) -> list[tuple[int, str]]:
    """Offset and error of each dead letter."""
    letters = [dict(record.headers) for record in stage.log.records if record.topic == NAMES.dead]
    return [(int(letter["offset"]), letter["error"].decode()) for letter in letters]


def spider_job(tmp_path: Path, parse: str, **spec: Any) -> JobSpec:
    """A job with a spider whose `parse` has this body."""
    body = "\n".join(f"        {line}" for line in parse.splitlines())
    head = "from crawlog import Request, Spider\nclass S(Spider):\n    version = '7'\n    def parse(self, response):\n"
    path = tmp_path / "s.py"
    path.write_text(head + body)
    return JobSpec(scope=ScopeSpec(names=("a.test",)), spider=f"{path}:S", **spec)


LARGE = links("x").ljust(LARGE_BYTES)
