"""Pages that wait in parse while others go on: large ones, those of a trial, and the worker that gives them a turn."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.agents import control
from crawlog.agents.control import StageCommands
from crawlog.agents.parse import stage as stage_module
from crawlog.agents.parse import turns as waits_module
from crawlog.agents.parse.guard import Guard
from crawlog.agents.parse.parse_agent import ParseWorker
from crawlog.agents.parse.stage import MAX_ASIDE, MAX_UNTRIED
from crawlog.agents.parse.turns import LENDING_LOOKS, LENDS_FROM, LENDS_ON, PageTurns
from crawlog.agents.sandbox.trial import Trial
from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.streams.parse.waiting import WAITING_BYTES
from crawlog.streams.settings.machine import Parse
from crawlog.streams.settings.settings import Settings
from tests.support.parsing import HTML, LARGE, NAMES, PAGE, Message, Stage, buried, links, spider_job, told


def test_a_page_put_aside_holds_back_the_commit_until_it_had_its_turn() -> None:
    """What is behind it is parsed first."""
    stage = Stage()
    stage.take(LARGE, aside=True, url="http://a.test/large")
    stage.take(b"", url="http://a.test/small")
    assert told(stage) == ["small"]
    stage.stage.flush()
    stage.log.acknowledge()
    assert (stage.done, stage.stage.undone) == ([], 0)
    stage.stage.parse_aside(b"")
    stage.stage.flush()
    stage.log.acknowledge()
    assert told(stage) == ["small", "large"]
    assert [found.url for found in stage.founds()] == ["http://a.test/x"]
    assert stage.done == [(3, 2)]


def test_of_pages_put_aside_only_so_many_bytes_stay_in_memory() -> None:
    """The bodies of the others are given back by whoever read them again; one that is gone is fetched again."""
    stage = Stage()
    fit = WAITING_BYTES // len(LARGE)
    for number in range(fit + 2):
        stage.take(LARGE, aside=True, url=f"http://a.test/{number}")
    assert stage.stage.aside.size_bytes == WAITING_BYTES
    for _ in range(fit):
        stage.stage.parse_aside(b"")
    stage.stage.parse_aside(links("again"))
    stage.stage.parse_aside(b"")
    stage.stage.flush()
    assert told(stage) == [str(number) for number in range(fit + 1)]
    founds = {found.url: found.again for found in stage.founds()}
    assert founds == {"http://a.test/x": None, "http://a.test/again": None, f"http://a.test/{fit + 1}": "not_modified"}


async def test_a_rebalance_waits_for_no_body() -> None:
    """A page that was not modified gave nothing yet: whoever has its partition next reads its body."""
    stage = Stage()
    stage.take(http=304, same_as=(3, 7), content_type="")
    worker = worker_of(stage, 1)
    worker._founds = worker._items = SimpleNamespace(flush=lambda _: None)  # type: ignore[assignment]  # the log has all
    async with asyncio.timeout(30):
        await worker.revoking({3})
    assert stage.stage.bodiless == {}


def test_no_more_than_so_many_pages_are_put_aside() -> None:
    """What is parsed behind them is parsed again after a kill."""
    stage = Stage()
    for number in range(MAX_ASIDE + 1):
        stage.take(b"x", aside=True, url=f"http://a.test/{number}")
    assert told(stage) == [str(MAX_ASIDE)]


def test_while_pages_wait_large_ones_have_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second large page has to wait until what came behind it took as long as the first."""
    stage = Stage()
    bodies = {"first": LARGE, "second": LARGE, "a": b"", "b": b"", "c": b"", "d": b""}
    costs = {"first": 10.0, "second": 10.0}

    async def records() -> Any:
        for offset, (name, body) in enumerate(bodies.items()):
            header = (pages.HEADER, pages.encode(PageMeta(f"http://a.test/{name}", "j", http=200, content_type=HTML)))
            yield Message(3, offset, b"a.test", body, [header])

    worker = worker_of(stage, len(bodies))
    monkeypatch.setattr(time, "thread_time", lambda: sum(costs.get(name, 4.0) for name in told(stage)))
    asyncio.run(worker.events(SimpleNamespace(records=records)))
    assert told(stage) == ["first", "a", "b", "c", "second", "d"]


def worker_of(stage: Stage, records: int) -> ParseWorker:
    """A worker whose log has so many records."""
    app: Any = SimpleNamespace(
        crawl=Settings(),
        watchdog=SimpleNamespace(beat=stage.log.acknowledge),
        positions=SimpleNamespace(owned={3}, next=lambda _: 0),
        reader=SimpleNamespace(behind=lambda taken: max(0, records - taken[3])),
    )
    worker = ParseWorker(app)
    worker.serve(stage.stage)
    worker._orders.caught_up()
    return worker


def waits_of(stage: Stage) -> PageTurns:
    """What gives pages their turn, without a worker."""
    app: Any = SimpleNamespace(watchdog=SimpleNamespace(beat=lambda: None))
    return PageTurns(app, stage.stage, StageCommands("parse"), lambda: None)


def test_so_many_pages_beyond_one_that_waits_are_enough(trying: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are parsed again after a kill, and fetch goes by what was taken: this bounds how far it runs ahead."""
    monkeypatch.setattr(stage_module, "MAX_BEYOND", 50)
    trying.take(LONG, url="http://a.test/long")
    while not trying.stage.is_full:
        trying.take(b"")
        trying.log.acknowledge()
    assert (trying.stage.taken, trying.done) == ({3: 50}, [])
    try_page(trying)
    assert (trying.done, trying.stage.is_full) == ([(3, 50)], False)
    trying.take(LONG)
    trying.stage.give_up()
    assert trying.stage.taken == {}, "what was given up is in nobody's hands"
    assert not trying.stage.is_far


async def test_a_page_put_aside_has_its_turn_when_so_many_others_had_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though more wait in the log and it is not due: else nothing would ever move again."""
    stage = Stage()
    monkeypatch.setattr(stage_module, "MAX_BEYOND", 5)
    monkeypatch.setattr(time, "thread_time", lambda: 100.0 * len({"first", "second"} & {*told(stage)}))
    names = ["first", "second", *"abcdefgh"]

    async def records() -> Any:
        for offset, name in enumerate(names):
            body = LARGE if name in ("first", "second") else b""
            header = (pages.HEADER, pages.encode(PageMeta(f"http://a.test/{name}", "j", http=200, content_type=HTML)))
            yield Message(3, offset, b"a.test", body, [header])
            stage.log.acknowledge()

    monkeypatch.setattr(ParseWorker, "_flush_soon", lambda _: stage.stage.flush())
    async with asyncio.timeout(30):
        await worker_of(stage, len(names)).events(SimpleNamespace(records=records))
    assert sorted(told(stage)) == sorted(names)


def test_a_page_that_waited_while_its_partition_was_given_up_is_not_taken() -> None:
    """A suspect waits until all before it is done; whoever has its partition by then reads it again."""
    stage = Stage()
    stage.take(b"", 6)
    owner = {"ours": True}
    flushed: list[bool] = []

    async def flush() -> bool:
        stage.stage.give_up()
        owner["ours"] = False
        flushed.append(True)
        return True

    async def records() -> Any:
        header = (pages.HEADER, pages.encode(PageMeta(PAGE, "j", http=200, content_type=HTML)))
        yield Message(3, 7, b"a.test", b"", [header])
        owner["ours"] = True
        yield Message(3, 6, b"a.test", b"", [header])

    app: Any = SimpleNamespace(
        crawl=Settings(),
        watchdog=SimpleNamespace(beat=lambda: None),
        positions=SimpleNamespace(flush=flush),
        reader=SimpleNamespace(is_ours=lambda _: owner["ours"]),
    )
    worker = ParseWorker(app)
    worker.serve(stage.stage)
    worker._orders.caught_up()
    stage.stage.is_suspect = lambda message: message.offset == 7  # type: ignore[method-assign]  # as if workers died of it
    stage.log.acknowledge()
    asyncio.run(worker.events(SimpleNamespace(records=records)))
    stage.stage.flush()
    stage.log.acknowledge()
    assert flushed
    assert stage.done[-1] == (3, 7)


async def test_a_page_put_aside_is_dropped_when_its_partition_goes_while_its_body_is_read() -> None:
    """Its body was let go; whoever has the partition then takes the page anew."""
    stage = Stage()
    for number in range(WAITING_BYTES // len(LARGE) + 1):
        stage.take(LARGE, aside=True, url=f"http://a.test/{number}")
    while stage.stage.aside.first is not None and stage.stage.aside.first.body is not None:
        stage.stage.parse_aside(b"")
    stage.stage.flush()
    parsed = told(stage)

    def read(wanted: dict[tuple[int, int], PageMeta]) -> Any:
        stage.stage.give_up()
        return {at: (meta, LARGE) for at, meta in wanted.items()}

    waits = waits_of(stage)
    waits._bodies = SimpleNamespace(read=read)  # type: ignore[assignment]  # what reads crawl.pages
    assert not await waits.parse_aside()
    stage.stage.flush()
    assert told(stage) == parsed


async def test_pages_that_wait_are_no_stuck_worker(trying: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """For their job, a trial or a body: the watchdog hears of each wait while it lasts, whichever follows which."""
    monkeypatch.setattr(waits_module, "LOOK_AFTER_S", 0.01)
    monkeypatch.setattr(control, "BEAT_S", 0.01)
    ends, is_read, beats = asyncio.Event(), threading.Event(), asyncio.Semaphore(0)
    app: Any = SimpleNamespace(watchdog=SimpleNamespace(beat=beats.release), should_stop=False)
    waits = PageTurns(app, trying.stage, StageCommands("parse"), lambda: None)
    trial: Any = SimpleNamespace(verdict=lambda *_: ends.wait())

    async def said(work: Any, least: int) -> None:
        working = asyncio.create_task(work)
        for _ in range(least):
            await beats.acquire()
        working.cancel()
        await asyncio.wait([working])

    async with asyncio.timeout(60):
        trying.take(LONG)
        await said(waits.try_page(trial), 5)
        waits._bodies = SimpleNamespace(read=lambda _: is_read.wait())  # type: ignore[assignment]  # reads crawl.pages
        assert trying.stage.untried.first is not None
        try:
            await said(waits._body_of(trying.stage.untried.first), 5)
        finally:
            is_read.set()
        trying.take(job="nobody")
        await said(waits._look_after_held(), 5)


COMPLEX = b"<title>t</title>" + b"<div>x</p>" * 20_000
LONG = b"<title>t</title>" + b"<p>word</p>" * 10_000


@pytest.fixture
def trying() -> Iterator[Stage]:
    """A stage that has pages tried, a quarter of a second each at most."""
    trial = Trial(Parse(timeout_s=1.0))
    yield Stage(guard=Guard(trial=trial))
    trial.close()


def try_page(stage: Stage) -> None:
    """The page that waited longest has its trial, as the worker does it."""
    trial = stage.stage.guard.trial
    assert trial is not None
    asyncio.run(waits_of(stage).try_page(trial))
    stage.stage.flush()
    stage.log.acknowledge()


def test_a_page_that_needs_a_trial_lets_others_go_and_holds_back_the_commit(trying: Stage) -> None:
    """Then it is parsed as any other."""
    trying.take(LONG, url="http://a.test/long")
    trying.take(links("b"), url="http://a.test/short")
    trying.stage.flush()
    trying.log.acknowledge()
    assert told(trying) == ["short"]
    assert trying.done == []
    assert trying.stage.undone == 0
    try_page(trying)
    assert told(trying) == ["short", "long"]
    assert trying.done == [(3, 2)]


def test_where_simple_pages_cost_much_others_of_their_domain_are_tried(trying: Stage) -> None:
    """Such as a page that is one tag of 20,000 attributes, which no count of tags tells; other domains go on."""
    tag = b"<title>t</title><a " + b" ".join(b"%x" % number for number in range(20_000)) + b">"
    trying.take(tag, url="http://a.test/first")
    trying.take(tag, url="http://www.a.test/second")
    trying.take(links("b"), url="http://b.test/other")
    trying.take(tag, url="http://a.test/third")
    trying.take(links("b"), url="http://a.test/fourth")
    assert told(trying) == ["first", "second", "other"]
    try_page(trying)
    try_page(trying)
    ((_, error),) = buried(trying)
    assert error.startswith("too_complex")
    assert told(trying) == ["first", "second", "other", "fourth"]


def test_a_page_that_fails_its_trial_is_dead_at_once(trying: Stage) -> None:
    """With a reason of its own, and as it was."""
    at = trying.take(COMPLEX)
    try_page(trying)
    ((offset, error),) = buried(trying)
    assert offset == at
    assert error.startswith("too_complex: its HTML takes the parser more than 0.")
    assert trying.log.values(NAMES.dead) == [COMPLEX]
    assert trying.log.values(NAMES.items) == []
    assert trying.done == [(3, at + 1)]


def test_a_page_that_nobody_can_try_is_parsed_under_the_workers_own_timer(
    trying: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no page's fault that no process can be started."""
    monkeypatch.setattr("crawlog.agents.sandbox.zygote_process.sys.executable", "/nothing")
    trying.take(LONG, url="http://a.test/long")
    try_page(trying)
    assert told(trying) == ["long"]


@pytest.mark.parametrize(
    "meta", [{"content_type": "image/svg+xml"}, {"http": 301, "location": "/b"}, {"kind": "sitemap"}]
)
def test_what_never_comes_to_the_parser_is_not_tried(trying: Stage, meta: dict[str, Any]) -> None:
    """Sitemaps have a parser of their own."""
    trying.take(COMPLEX, **meta)
    assert not trying.stage.untried
    assert buried(trying) == []


def test_a_page_for_a_users_spider_is_not_tried(trying: Stage, tmp_path: Path) -> None:
    """Its process dies in the worker's place."""
    trying.learn(spider_job(tmp_path, "yield {'links': len(response.css('a'))}", rev=2))
    trying.take(COMPLEX, content_type="application/xml", rev=2)
    assert not trying.stage.untried
    assert "links" in trying.row()


def test_the_body_of_a_page_that_was_not_modified_is_tried_too(trying: Stage) -> None:
    """It was not when it was new, where the limits or the rules were others."""
    trying.take(http=304, same_as=(3, 7), content_type="")
    old = PageMeta(PAGE, "j", http=200, content_type=HTML)
    trying.stage.body_came((3, 0), old, COMPLEX)
    assert trying.log.records == []
    try_page(trying)
    assert buried(trying)[0][1].startswith("too_complex")


def test_of_pages_that_wait_for_a_trial_only_so_many_bytes_stay_in_memory(trying: Stage) -> None:
    """The bodies of others are read again; one that is gone is fetched once more."""
    body = b"<p>" * 4_001 + b" " * (WAITING_BYTES // 2)
    for number in range(3):
        trying.take(body, url=f"http://a.test/{number}")
    assert [one.body is None for one in trying.stage.untried] == [False, True, True]
    trying.stage.tried(body, "")
    trying.stage.tried(b"", "")
    trying.stage.flush()
    assert [(found.url, found.again) for found in trying.founds()] == [("http://a.test/1", "not_modified")]
    trying.stage.tried(body, "")
    assert told(trying) == ["0", "2"]
    assert trying.stage.untried.size_bytes == 0


def test_no_more_than_so_many_pages_wait_for_a_trial(trying: Stage) -> None:
    """Then no more are taken; what is given up is whoever's who has the partition next."""
    for _ in range(MAX_UNTRIED):
        assert not trying.stage.is_full
        trying.take(LONG)
    assert trying.stage.is_full
    trying.stage.give_up()
    assert not trying.stage.is_full
    assert trying.stage.untried.size_bytes == 0


class Takes:
    """A stage that notes which pages may be lent."""

    def __init__(self) -> None:
        self.stage: Any = SimpleNamespace(take=self._take, lender=object(), taken={3: 0}, aside=())
        self.lent: list[bool] = []

    def _take(self, message: Message, *, aside: bool, lends: bool) -> None:
        self.lent.append(lends and not aside)
        self.stage.taken[3] = message.offset + 1


def lent_of(records: int, count: int, *, alone: bool = False, body: bytes = b"x") -> list[bool]:
    """Which of the first pages of a log of so many records may be lent."""
    takes = Takes()
    positions = SimpleNamespace(owned={3}, next=lambda _: 0)
    reader = SimpleNamespace(behind=lambda taken: records - taken[3])
    app: Any = SimpleNamespace(positions=positions, reader=reader)
    turns = PageTurns(app, takes.stage, StageCommands("parse"), lambda: None)
    for offset in range(count):
        turns.take(Message(3, offset, b"a.test", body, []), alone=alone)
    return takes.lent


def test_pages_of_a_long_partition_are_lent_until_few_are_left() -> None:
    """A helper takes a CPU second to start, so a short one is none of its business."""
    lent = lent_of(LENDS_FROM, LENDS_FROM)
    begun = LENDS_FROM - LENDS_ON - LENDING_LOOKS
    assert (all(lent[:begun]), any(lent[-LENDS_ON + LENDING_LOOKS :])) == (True, False)
    assert not any(lent_of(LENDS_FROM - 1, LENDS_FROM - 1))


def test_neither_large_pages_nor_those_that_are_parsed_alone_are_lent() -> None:
    """Large ones wait until others are parsed; with a page that killed workers nothing else is in flight."""
    assert not any(lent_of(10 * LENDS_FROM, 5, body=LARGE))
    assert not any(lent_of(10 * LENDS_FROM, 5, alone=True))
