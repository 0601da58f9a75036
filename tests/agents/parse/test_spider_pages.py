"""Pages for users' spiders: their order, what happens when a process ends, and which processes run."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from crawlog.agents.parse.spider_pages import (
    FAULT_S,
    FAULT_TIMES,
    MAX_COUNT,
    MAX_FLYING,
    MOST_FAULT_S,
    SpiderPage,
    SpiderPages,
)
from crawlog.agents.sandbox import DONE, FAILED, Died, Fault, SpiderFrame
from crawlog.schemas.job_orders import ParseAgain
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec
from crawlog.streams.parse import Job, Page
from crawlog.streams.spiders import CallResult, PageCall, Parsed, SpiderFacts, SpiderRef
from crawlog.streams.url import Names, Places

Then = Callable[[SpiderFrame | Died], None]


class FarChild:
    """A process whose answers come when a test says so."""

    def __init__(self, ref: SpiderRef, facts: SpiderFacts) -> None:
        self.ref = ref
        self.loaded: SpiderFacts | None = None
        self.fault: Fault | None = None
        self.died_of = ""
        self.heard_facts: Callable[[], None] = lambda: None
        self.calls: list[tuple[PageCall, Then]] = []
        self.loads = 0
        self.is_closed = False
        self._facts = facts

    def load(self) -> None:
        """Begin to load."""
        self.loads += 1

    def ready(self) -> None:
        """It is loaded."""
        self.loaded, self.died_of = self._facts, ""
        self.heard_facts()

    def submit_page(self, call: PageCall, then: Then) -> None:
        """Take a page."""
        self.calls.append((call, then))

    def answer(self, **result: Any) -> None:
        """Answer the first page."""
        self.calls.pop(0)[1](SpiderFrame(DONE, msgspec.json.encode(CallResult(**result))))

    def die(self, reason: str = "gone") -> None:
        """End; the next page starts it again."""
        calls, self.calls = self.calls, []
        self.died_of = reason
        for number, (_, then) in enumerate(calls):
            then(Died(f"spider_died: {reason}", ran=not number))

    def close(self) -> None:
        """End."""
        self.is_closed = True
        self.die("closed")

    def wait_ended(self) -> None:
        """It has."""


class World:
    """Lines, their processes, and what became of the pages."""

    def __init__(self, most: int = 4, **facts: Any) -> None:
        self.children: list[FarChild] = []
        self.given: list[tuple[str, list[bytes], str]] = []
        self.buried: list[tuple[str, str]] = []
        self._facts = SpiderFacts("/s.py:S", "S@1", **facts)
        self.jobs: dict[tuple[str, int], Job] = {}
        self.unread: list[str] = []
        self.logged: list[bool] = []
        self.pages = SpiderPages(self._new, self, most)

    def _new(self, ref: SpiderRef) -> FarChild:
        self.children.append(FarChild(ref, self._facts))
        return self.children[-1]

    def spider_gave(self, page: SpiderPage, parsed: Parsed, error: str = "", trace: str = "") -> None:  # noqa: ARG002  # as the stage has it
        """Note it."""
        self.given.append((page.meta.url, [bytes(item) for item in parsed.items], error))
        self.unread.append(parsed.unread)

    def bury_page(self, page: SpiderPage, error: str, trace: str = "", *, is_logged: bool = False) -> None:  # noqa: ARG002  # as the stage has it
        """Note it."""
        self.logged.append(is_logged)
        self.buried.append((page.meta.url, error))

    def add(
        self,
        *urls: str,
        job: str = "j",
        rev: int = 1,
        path: str = "/s.py:S",
        again: ParseAgain | None = None,
        **meta: Any,
    ) -> None:
        """Pages come."""
        if (job, rev) not in self.jobs:
            spec = JobSpec(rev=rev, spider=path, parse_again=again)
            self.jobs[job, rev] = Job(job, spec, Places(1), Names())
        for url in urls:
            message: Any = None
            fields = {"http": 200} | meta
            self.pages.add(
                SpiderPage(self.jobs[job, rev], message, PageMeta(url, job, **fields), Page(lambda: None), b"body")
            )

    def sent(self, child: int = -1) -> list[str]:
        """URLs in flight."""
        return [call.meta.url for call, _ in self.children[child].calls]


ITEM = msgspec.Raw(b'{"a":1}')


def test_pages_wait_until_the_spider_is_loaded_and_go_in_order() -> None:
    """Several are in flight, so that the process never waits."""
    world = World()
    world.add(*map(str, range(MAX_FLYING + 5)))
    (child,) = world.children
    assert (child.loads, child.calls) == (1, [])
    child.ready()
    assert world.sent() == list(map(str, range(MAX_FLYING)))
    child.answer(items=[ITEM])
    assert world.given == [("0", [b'{"a":1}'], "")]
    assert world.sent()[-1] == str(MAX_FLYING)
    assert world.pages.count == MAX_FLYING + 4


def test_a_page_that_is_not_for_the_spider_does_not_go_there() -> None:
    """Its redirect is the job's to follow."""
    world = World()
    world.add("a", http=302, location="/b")
    world.children[0].ready()
    assert world.given == [("a", [], "")]
    assert world.pages.count == 0


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({"http": 403}, "status 403"),
        ({"kept": False, "content_type": "application/json"}, "type application/json, which fetch.content_types does"),
        ({"kept": False, "error": "too_large"}, "too_large"),
        ({"http": 301, "location": "/b", "kept": False}, ""),
    ],
)
def test_a_page_that_no_callback_gets_says_why_in_its_record_and_in_the_jobs_log(
    meta: dict[str, Any], why: str
) -> None:
    """The first ones of a reason have a line each, and the last one of these says that it is the last."""
    world = World()
    with capture_logs() as logs:
        world.add(*map(str, range(30)), **meta)
        world.children[0].ready()
    assert len(world.unread) == 30
    assert all(one.startswith(why) and bool(one) == bool(why) for one in world.unread)
    lines = [line for line in logs if line["event"] == "no_callback"]
    assert [(line["job"], line["url"]) for line in lines] == ([("j", str(at)) for at in range(20)] if why else [])
    assert [line["reason"].endswith("counted only") for line in lines] == ([False] * 19 + [True] if why else [])


@pytest.mark.parametrize(("is_scrapy", "error"), [(False, "bad_url"), (True, "")])
def test_a_redirect_that_leads_nowhere_goes_to_the_errback(is_scrapy: bool, error: str) -> None:  # a parameter
    """Else a chain of requests would end without a word; Scrapy's own middleware decides about its redirects."""
    world = World(is_scrapy=is_scrapy)
    world.add("http://a.test/", http=302, location="mailto:b", request=RequestRecord(callback="c", errback="e"))
    world.children[0].ready()
    assert [call.meta.error for call, _ in world.children[0].calls] == [error]
    world.children[0].answer(items=[ITEM])
    assert world.given == [("http://a.test/", [b'{"a":1}'], "")]


@pytest.mark.parametrize(("is_final", "tries"), [(False, 3), (True, 1)])
def test_an_error_is_tried_again_and_then_a_dead_letter(is_final: bool, tries: int) -> None:  # a parameter
    """Unless it would come again."""
    world = World()
    world.add("a")
    (child,) = world.children
    child.ready()
    for _ in range(tries):
        assert not world.buried
        child.answer(error="ValueError: no", is_final=is_final)
    assert (world.buried, world.given, world.sent()) == ([("a", "ValueError: no")], [], [])


def test_scrapys_spiders_keep_what_they_gave_before_the_error() -> None:
    """As Scrapy does; the dead letter is beside it."""
    world = World(is_scrapy=True)
    world.add("a")
    world.children[0].ready()
    for _ in range(3):
        world.children[0].answer(items=[ITEM], error="ValueError: no")
    assert world.given == [("a", [b'{"a":1}'], "ValueError: no")]
    assert world.buried == []


def test_pages_of_a_process_that_died_are_tried_one_by_one() -> None:
    """The guilty one is dead in the end, and all others give their outputs."""
    world = World()
    world.add("a", "guilty", "b", "c")
    (child,) = world.children
    child.ready()
    child.answer()
    child.die()
    assert world.sent() == ["guilty"], "alone"
    child.die()
    assert world.sent() == ["guilty"]
    child.die("it exited with 7")
    assert world.buried == [("guilty", "spider_died: it exited with 7")]
    assert world.sent() == ["b"], "still one at a time"
    child.answer()
    assert world.sent() == ["c"]
    child.answer()
    world.add("d", "e")
    assert world.sent() == ["d", "e"]
    assert [url for url, _, _ in world.given] == ["a", "b", "c"]
    assert world.pages.count == 2


def test_a_spider_that_cannot_be_loaded_buries_its_pages() -> None:
    """Those that come later too; a later revision of the job tries again."""
    world = World()
    world.add("a", "b")
    world.children[0].fault = Fault("Misconfigured: --spider s.py: line 3")
    world.children[0].heard_facts()
    world.add("c")
    assert world.buried == [(url, "--spider s.py: line 3") for url in "abc"]
    assert (len(world.children), world.pages.count) == (1, 0)
    world.add("d", rev=2)
    world.children[1].ready()
    assert world.sent() == ["d"]


def test_a_spider_that_could_not_be_used_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code was deployed again, or the disk has room again: the redriven pages go to it."""
    now = [100.0]
    monkeypatch.setattr("crawlog.agents.parse.spider_pages.time.monotonic", lambda: now[0])
    world = World()
    world.add("a")
    now[0] += 1
    world.children[0].fault = Fault("Misconfigured: code_refused: it was revoked")
    world.children[0].heard_facts()
    now[0] += FAULT_TIMES - 0.1
    world.add("b")
    assert [url for url, _ in world.buried] == ["a", "b"], "not at each page: the try took a second"
    now[0] += 0.1
    world.add("a", "b")
    world.children[1].ready()
    assert (world.sent(), len(world.buried)) == (["a", "b"], 2)


def test_a_fault_that_stays_is_logged_once_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause ends with another try: a log of 300 lines about a missing key hides what else there is."""
    now = [100.0]
    monkeypatch.setattr("crawlog.agents.parse.spider_pages.time.monotonic", lambda: now[0])
    world = World()
    with capture_logs() as logs:
        for _ in range(3):
            world.add("a", "b")
            world.children[-1].fault = Fault("Misconfigured: code_refused: no key")
            world.children[-1].heard_facts()
            now[0] += MOST_FAULT_S
    assert world.logged == [True] * 6
    assert [(one["event"], one["error"]) for one in logs] == [("job_broken", "Misconfigured: code_refused: no key")]


@pytest.mark.parametrize(
    ("ran_s", "load_s", "pause_s"), [(3600.0, 0.1, FAULT_S), (3600.0, 1.0, FAULT_TIMES), (0.0, 45.0, MOST_FAULT_S)]
)
def test_the_time_that_a_process_ran_before_it_died_makes_no_pause_longer(
    monkeypatch: pytest.MonkeyPatch, ran_s: float, load_s: float, pause_s: float
) -> None:
    """Only that of the load that failed does, and no pause is very long."""
    now = [100.0]
    monkeypatch.setattr("crawlog.agents.parse.spider_pages.time.monotonic", lambda: now[0])
    world = World()
    world.add("a")
    world.children[0].ready()
    now[0] += ran_s
    world.children[0].die()
    now[0] += load_s
    world.children[0].fault = Fault("Misconfigured: code_refused: it was revoked")
    world.children[0].heard_facts()
    now[0] += pause_s - 0.01
    world.add("b")
    assert [url for url, _ in world.buried] == ["a", "b"]
    now[0] += 0.02
    world.add("c")
    assert (len(world.children), world.pages.count) == (2, 1)


def test_another_job_of_the_same_name_is_not_refused_for_the_first_one() -> None:
    """Deleted and submitted anew, it begins with revision 1 again."""
    world = World()
    world.add("a")
    world.children[0].fault = Fault("Misconfigured: code_refused: it was revoked")
    world.children[0].heard_facts()
    world.jobs.clear()
    world.add("b")
    world.children[1].ready()
    assert (world.sent(), [url for url, _ in world.buried]) == (["b"], ["a"])


def test_a_spider_whose_process_ends_while_it_is_loaded_is_given_up() -> None:
    """After three times."""
    world = World()
    world.add("a")
    for number in range(3):
        assert len(world.children) == number + 1
        world.children[-1].died_of = "its process exited with code 7"
        world.children[-1].heard_facts()
    assert world.buried == [("a", "spider_died: while it was loaded: its process exited with code 7")]


def test_a_file_that_is_broken_after_a_death_buries_its_pages() -> None:
    """The process loads it again."""
    world = World()
    world.add("a", "b")
    (child,) = world.children
    child.ready()
    fault = Fault("Misconfigured: line 3")
    calls, child.calls = child.calls, []
    for _, then in calls:
        then(SpiderFrame(FAILED, msgspec.json.encode(fault)))
    assert sorted(world.buried) == [("a", "line 3"), ("b", "line 3")]
    assert world.pages.count == 0


def test_pages_that_were_given_up_are_not_answered() -> None:
    """A rebalance took them; those that come next are."""
    world = World()
    world.add("a", "b")
    (child,) = world.children
    child.ready()
    world.pages.clear()
    world.add("c")
    for _ in range(3):
        child.answer(items=[ITEM])
    assert [url for url, _, _ in world.given] == ["c"]
    assert world.pages.count == 0


def test_another_spider_of_a_job_takes_its_pages() -> None:
    """Also those in flight; another revision with the same spider keeps the process."""
    world = World()
    world.add("a")
    world.children[0].ready()
    world.add("b", rev=2)
    assert len(world.children) == 1
    world.add("c", rev=3, path="/other.py:S")
    assert world.children[0].is_closed
    world.children[1].ready()
    assert sorted(world.sent()) == ["a", "b", "c"]
    assert world.children[1].ref.path == "/other.py:S"


def test_an_order_to_parse_pages_again_ends_the_process_with_the_former_code() -> None:
    """The spider may be a file that has changed; the process is a new one for each such order."""
    world = World()
    world.add("a")
    for number in (1, 2):
        world.add("b", rev=2 * number, again=ParseAgain(number, (0,), (9,)))
        world.add("c", rev=2 * number + 1, again=ParseAgain(number, (0,), (9,)))
        assert [one.is_closed for one in world.children] == [True] * number + [False]


def test_the_least_recently_used_process_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle one; if all are busy, the oldest one ends after a while, once nothing is in flight."""
    now = [100.0]
    monkeypatch.setattr("crawlog.agents.parse.spider_pages.time.monotonic", lambda: now[0])
    world = World(most=2)
    for name in "xy":
        world.add(name, job=name)
        world.children[-1].ready()
        now[0] += 1
    world.children[0].answer()
    world.add("z", job="z")
    assert [child.is_closed for child in world.children] == [True, False, False]
    world.children[2].ready()
    world.add("x2", job="x")
    assert len(world.children) == 3, "all are busy"
    now[0] += 10
    world.pages.tend()
    world.add("y2", job="y")
    assert world.sent(1) == ["y"], "it takes no more"
    world.children[1].answer()
    assert world.children[1].is_closed
    assert world.children[3].ref.job == "x"


def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for a fork is no fault of a page."""
    world = World()

    def fail(*_: object) -> None:
        raise OSError("Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(FarChild, "load", fail)
        world.add("a")
    world.pages.tend()
    world.children[-1].ready()
    with monkeypatch.context() as patched:
        patched.setattr(FarChild, "submit_page", fail)
        world.add("b")
    assert world.children[-2].is_closed
    world.children[-1].ready()
    assert world.sent() == ["a", "b"]
    assert (world.buried, world.pages.count) == ([], 2)


def test_no_page_goes_while_the_stage_is_paused() -> None:
    """It goes on when it is tended after that."""
    world = World()
    world.pages.may_go = lambda: False
    world.add("a")
    assert world.children == []
    world.pages.may_go = lambda: True
    world.pages.tend()
    assert world.children[0].loads == 1


def test_so_many_pages_are_enough() -> None:
    """No more are taken."""
    world = World()
    world.add(*map(str, range(MAX_COUNT - 1)))
    assert not world.pages.is_full
    world.add("last")
    assert world.pages.is_full
    world.pages.close()
    assert not world.pages.is_full
    assert world.children[0].is_closed


@pytest.mark.parametrize("text", [b"no JSON", b'{"items": 1}', b'{"requests": [{"url": "http://a/", "id": -1}]}'])
def test_an_answer_that_is_none_ends_its_page_alone(text: bytes) -> None:
    """User code runs where it is written. A request that the fold refuses would take those of other pages with it."""
    world = World()
    world.add("a", "b")
    (child,) = world.children
    child.ready()
    child.calls.pop(0)[1](SpiderFrame(DONE, text))
    child.answer(items=[ITEM])
    assert [url for url, error in world.buried if error.startswith("spider_answer: ")] == ["a"]
    assert world.given == [("b", [b'{"a":1}'], "")]


def test_a_fault_that_cannot_be_read_is_one() -> None:
    """The spider's own code may write where its process answers."""
    world = World()
    world.add("a")
    (child,) = world.children
    child.ready()
    child.calls.pop(0)[1](SpiderFrame(FAILED, b"garbage"))
    assert [error.partition(":")[0] for _, error in world.buried] == ["spider_answer"]
