"""Pages and spiders that raise, never end or kill: what becomes of them, and that others go on."""

import asyncio
import random
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawlog.agents.parse.guard import Guard, PageClock
from crawlog.schemas import items
from crawlog.schemas.control import JobCopy
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.spiders import Bounds, CallResult, PageCall
from crawlog.streams.spiders.page import Parsed
from tests.support.parsing import NAMES, Message, Noted, Stage, buried, spider_job


def test_a_page_that_fails_each_time_goes_to_the_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times in all, since memory may have been short; the next page is parsed."""
    tries = []

    def fail(meta: PageMeta, body: bytes, *_: Any) -> Parsed:
        tries.append(body)
        if body:
            raise MemoryError("no room")
        return Parsed([], [])

    monkeypatch.setattr("crawlog.streams.parse.job.parse_page", fail)
    stage = Stage()
    stage.take(b"x")
    stage.take(b"")
    assert tries == [b"x", b"x", b"x", b""]
    assert [dict(r.headers)["error"] for r in stage.log.records if r.topic == NAMES.dead] == [b"MemoryError: no room"]
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)


def test_a_job_that_cannot_be_used_stops_nobody() -> None:
    """Its pages are dead letters that say why."""
    stage = Stage()
    stage.stage.learn(JobCopy("bad", JobSpec(scope=ScopeSpec(exclude=("(",)))))
    stage.take(b"", job="bad")
    stage.log.acknowledge()
    assert b"scope.exclude" in dict(stage.log.records[0].headers)["error"]
    assert stage.done == [(3, 1)]


class Unprintable(Exception):
    """An error that raises when it is shown."""

    def __str__(self) -> str:
        raise ValueError("it cannot be said")


RAISED = (
    ValueError("no"),
    MemoryError(),
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    RecursionError("deep"),
    StopIteration(),
    Unprintable(),
)


def test_exceptions_in_one_call_of_a_hundred_lose_no_page(tmp_path: Path) -> None:
    """Of all kinds, in 5,000 pages: each page is an item record or a dead letter, never both, and all are done."""
    pages_in, tries = 5_000, Counter[int]()
    chance = random.Random(5)
    doomed = set(chance.sample(range(pages_in), 25))
    stage = Stage(job=spider_job(tmp_path, "yield {'url': response.url}\nyield response.follow('/' + response.text)"))
    stage.take(b"0", url="http://a.test/p0")
    runner = stage.children[0].service._runner
    answer = runner.page
    tries[0], doomed = 1, doomed - {0}

    async def failing(call: PageCall) -> CallResult:
        number = int(call.body)
        tries[number] += 1
        if number in doomed or chance.random() < 0.01:
            raise chance.choice(RAISED)
        result: CallResult = await answer(call)
        return result

    runner.page = failing
    for number in range(1, pages_in):
        stage.take(str(number).encode(), url=f"http://a.test/p{number}")
        if number % 100 == 99:
            stage.stage.flush()
            stage.log.acknowledge()
    given = [items.decode(value).page[1] for value in stage.log.values(NAMES.items)]
    dead = [offset for offset, _ in buried(stage)]
    assert sorted(given + dead) == list(range(pages_in))
    assert set(dead) >= doomed
    assert len(stage.founds()) == len(given)
    assert max(tries.values()) <= 3
    assert sum(tries.values()) > pages_in + 2 * len(doomed)
    assert stage.done[-1] == (3, pages_in)
    names = {"RuntimeError", *(type(one).__name__ for one in RAISED)}  # a coroutine's StopIteration
    assert all(error.split(":")[0] in names for _, error in buried(stage))


@pytest.fixture
def clock() -> Iterator[PageClock]:
    """A clock that ticks, with a limit of half a second."""
    made = PageClock(0.5, lambda _: None)
    made.start()
    yield made
    made.stop()


def parse_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """The default spider runs this code, which knows `meta`, and gives nothing."""

    def parse(meta: PageMeta, *_: Any) -> Parsed:
        exec(code, {"meta": meta})
        return Parsed([], [])

    monkeypatch.setattr("crawlog.streams.parse.job.parse_page", parse)


@pytest.mark.parametrize(
    "hang",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import re; re.match(r'(a*)*b', 'a' * 64)",
        "while True:\n    try:\n        while True: pass\n    except Exception: pass",
        "try:\n    raise ValueError\nfinally:\n    while True: pass",
    ],
)
def test_a_page_without_end_is_ended(clock: PageClock, monkeypatch: pytest.MonkeyPatch, hang: str) -> None:
    """Within its time, at the first try; the next page is parsed."""
    parse_instead(monkeypatch, f"if meta.depth:\n{textwrap.indent(hang, '    ')}")
    stage = Stage(guard=Guard(clock=clock))
    stage.take(b"", depth=1)
    assert clock.is_slow
    stage.take(b"")
    assert not clock.is_slow
    assert buried(stage) == [(0, "TimeUp: parsing took longer than parse.timeout_s = 0.5")]
    assert len(stage.log.values(NAMES.items)) == 1


def test_a_page_that_waits_for_the_processor_is_not_given_up(clock: PageClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is CPU time: a page that took longer by the clock, and used none of it, is parsed."""
    parse_instead(monkeypatch, "import time; time.sleep(0.9)")
    stage = Stage(guard=Guard(clock=clock))
    stage.take(b"")
    assert clock.is_slow
    assert not buried(stage)
    assert len(stage.log.values(NAMES.items)) == 1


def test_too_much_of_one_page_is_too_much(tmp_path: Path) -> None:
    """A generator without end stops at a number; it is not tried again."""
    stage = Stage(job=spider_job(tmp_path, "while True: yield {}"), guard=Guard(Bounds(outputs=10)))
    stage.take(b"")
    assert buried(stage) == [(0, "TooMuch: more than 10 items and requests from one page; see spider.max_items")]


def test_what_killed_its_workers_is_not_touched_again() -> None:
    """It is dead without being parsed; what is to be alone is told, and the others are noted while they are parsed."""
    notes = Noted(at_0="give_up", at_1="alone")
    stage = Stage(guard=Guard(notes=notes))
    stage.take(b"")
    assert buried(stage)[0][1].startswith("crash_loop")
    message = Message(3, 1, None, b"", [])
    assert stage.stage.is_suspect(message)
    assert not stage.stage.is_suspect(message._replace(offset=2))
    stage.take(b"")
    assert notes.said == ["touch 3:1", "release 3:1"]
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)


def test_a_spider_that_cannot_be_loaded_stops_nobody(tmp_path: Path) -> None:
    """Its job's pages are dead letters that say what is wrong with it; other jobs go on."""
    stage = Stage()
    stage.stage.learn(JobCopy("k", JobSpec(spider=str(tmp_path / "none.py:S"))))
    stage.take(b"", job="k")
    stage.take(b"")
    assert "No such file" in buried(stage)[0][1]
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)
