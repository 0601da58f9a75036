"""The parse stage without a broker: what it sends, what it waits for, and when a page is done."""

import asyncio
import hashlib
import json
import random
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from crawlog.agents import parse_stage
from crawlog.agents.control import Obedience
from crawlog.agents.guard import Clock, Guard, NoNotes
from crawlog.agents.parse import Worker as ParseWorker
from crawlog.agents.parse_stage import MAX_ASIDE, MAX_UNDONE, MAX_UNTRIED, ParseStage
from crawlog.agents.trial import Trial
from crawlog.agents.waits import Waits
from crawlog.schemas import control, items, pages, urls
from crawlog.schemas.control import JobCopy, Join
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import MAX_BATCH_URLS, JobSpec, ScopeSpec, TrapRules
from crawlog.streams.consumer import LARGE_BYTES
from crawlog.streams.domain import Places, partition_of
from crawlog.streams.errors import GiveUp
from crawlog.streams.sections import Parse
from crawlog.streams.spider import Bounds, Parsed
from crawlog.streams.suspects import Verdict
from crawlog.streams.topics import Topics
from crawlog.streams.waiting import HELD_LOOKS, WAITING_BYTES

NAMES = Topics("crawl.")
PAGE = "http://a.test/p"
HTML = "text/html; charset=utf-8"


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


class Stage:
    """A stage, its log, and what it said to be done."""

    def __init__(self, largest: int = 1 << 20, job: JobSpec | None = None, guard: Guard | None = None) -> None:
        self.log = Log(largest)
        self.done: list[tuple[int, int]] = []
        self.stage = ParseStage(NAMES, Places(8), self.log, self.log, self._is_done, lambda: 7.0, guard or Guard())
        self.offsets = 0
        self.learn(job or JobSpec(scope=ScopeSpec(names=("a.test",))))

    def _is_done(self, partition: int, offset: int) -> None:
        self.done.append((partition, offset))

    def learn(self, spec: JobSpec) -> None:
        """A revision of the job becomes known."""
        self.stage.learn(JobCopy("j", spec))

    def take(self, body: bytes = b"", offset: int | None = None, *, aside: bool = False, **meta: Any) -> int:
        """A page comes; returns its offset."""
        offset = self.offsets if offset is None else offset
        self.offsets = offset + 1
        fields: dict[str, Any] = {"url": PAGE, "job": "j", "http": 200, "content_type": HTML} | meta
        header = (pages.HEADER, pages.encode(PageMeta(**fields)))
        self.stage.take(Message(3, offset, b"a.test", body, [header]), aside=aside)
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


def test_a_page_gives_a_row_with_all_its_keys() -> None:
    """As users read it."""
    stage = Stage()
    body = b"<title>T</title><a href=x><a href=http://other.test/>"
    stage.take(body, depth=2, fetched_at=1.5)
    assert stage.row() == {
        "url": PAGE,
        "status": 200,
        "error": None,
        "title": "T",
        "depth": 2,
        "links": 2,
        "fetched_at": 1.5,
        "sha256": hashlib.sha256(body).hexdigest(),
    }


@pytest.mark.parametrize(
    ("meta", "body", "row"),
    [
        ({"http": 404}, b"<title>no</title><a href=x>", {"status": 404, "title": "no", "links": 1}),
        ({"http": 503}, b"", {"status": 503, "title": None, "links": 0, "sha256": None}),
        (
            {"http": None, "error": "timeout", "content_type": ""},
            b"",
            {"status": None, "error": "timeout", "sha256": None},
        ),
        ({"content_type": "application/pdf", "kept": False}, b"", {"status": 200, "title": None, "links": 0}),
        ({"content_type": "text/plain"}, b"<title>x</title><a href=x>", {"title": None, "links": 0}),
        ({"content_type": ""}, b"<title>x</title>", {"title": "x"}),
    ],
)
def test_what_is_no_page_gives_a_row_too(meta: dict[str, Any], body: bytes, row: dict[str, Any]) -> None:
    """Errors, failures and other types; none of them leads anywhere."""
    stage = Stage()
    stage.take(body, **meta)
    stage.stage.flush()
    assert stage.row().items() >= row.items()
    assert stage.founds() == []


def test_links_in_scope_are_found_one_level_deeper() -> None:
    """One record per partition, keyed by the domain that all its URLs share."""
    stage = Stage()
    stage.take(links("x", "http://sub.a.test/y", "http://other.test/"), depth=1)
    stage.stage.flush()
    (record,) = [record for record in stage.log.records if record.topic == NAMES.urls]
    assert (record.key, record.partition) == (b"a.test", partition_of("a.test", 8))
    assert [(found.url, found.depth, found.source, found.parent) for found in stage.founds()] == [
        ("http://a.test/x", 2, "link", PAGE),
        ("http://sub.a.test/y", 2, "link", PAGE),
    ]


def test_a_batch_over_two_domains_has_no_key() -> None:
    """Only its partition."""
    twins = [n for n in range(200) if partition_of(f"d{n}.test", 8) == 0][:2]
    stage = Stage(job=JobSpec(scope=ScopeSpec(kind="any")))
    stage.take(links(*(f"http://d{n}.test/" for n in twins)))
    stage.stage.flush()
    assert [(r.key, r.partition) for r in stage.log.records if r.topic == NAMES.urls] == [(None, 0)]


def test_a_page_is_done_when_all_its_outputs_are_in_the_log() -> None:
    """Not before: a crash at any point reads it again."""
    stage = Stage()
    stage.take(links("x"))
    stage.log.acknowledge()
    assert stage.done == []
    stage.stage.flush()
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_pages_are_done_in_offset_order() -> None:
    """A later page waits for an earlier one."""
    stage = Stage()
    stage.take(links("x"))
    stage.take(b"")
    stage.log.acknowledge(NAMES.items)
    assert stage.done == []
    stage.stage.flush()
    stage.log.acknowledge()
    assert stage.done == [(3, 2)]


def test_a_link_is_sent_once_and_both_pages_wait_for_it() -> None:
    """While it is on its way it is not known yet, and not sent again either."""
    stage = Stage()
    stage.take(links("x"))
    stage.stage.flush()
    stage.take(links("x"))
    stage.log.acknowledge(NAMES.items)
    assert stage.done == []
    stage.log.acknowledge(NAMES.urls)
    assert stage.done[-1] == (3, 2)
    stage.take(links("x"))
    stage.stage.flush()
    assert len(stage.founds()) == 1


def test_a_shallower_link_is_always_sent() -> None:
    """With a depth limit it opens more of the site."""
    stage = Stage()
    for depth in (5, 5, 2, 3):
        stage.take(links("x"), depth=depth)
        stage.stage.flush()
        stage.log.acknowledge()
    assert [found.depth for found in stage.founds()] == [6, 3]


def test_a_new_revision_and_a_new_epoch_send_links_again() -> None:
    """What was known under other rules says nothing."""
    stage = Stage()
    for rev, epoch in ((1, 0), (1, 1), (2, 1)):
        stage.learn(JobSpec(rev=rev, scope=ScopeSpec(names=("a.test",))))
        stage.take(links("x"), rev=rev, epoch=epoch)
        stage.stage.flush()
        stage.log.acknowledge()
    assert len(stage.founds()) == 3


def test_a_full_batch_is_sent_at_once() -> None:
    """At most 500 URLs; the rest gathers on."""
    stage = Stage()
    stage.take(links(*(f"x{n}" for n in range(MAX_BATCH_URLS + 1))))
    assert [len(urls.decode(value).urls or ()) for value in stage.log.values(NAMES.urls)] == [MAX_BATCH_URLS]
    stage.stage.flush()
    assert len(stage.founds()) == MAX_BATCH_URLS + 1


def test_a_page_waits_for_its_jobs_revision() -> None:
    """And holds back what comes after it."""
    stage = Stage()
    stage.take(b"", rev=2)
    stage.take(b"", rev=1)
    stage.log.acknowledge()
    assert stage.done == []
    stage.learn(JobSpec(rev=2, scope=ScopeSpec(names=("a.test",))))
    stage.log.acknowledge()
    assert stage.done == [(3, 2)]


def test_a_page_of_a_job_that_nobody_knows_holds_nothing_up_for_ever() -> None:
    """In the end it is a dead letter; one of an unknown revision goes by the newest known one."""
    stage = Stage()
    stage.take(b"", job="nobody")
    stage.take(links("x"), rev=9)
    for _ in range(HELD_LOOKS - 1):
        stage.stage.look_after_held()
    assert stage.log.records == []
    stage.stage.look_after_held()
    assert buried(stage) == [(0, "UnknownJob: crawl.control has no job 'nobody'")]
    assert [found.url for found in stage.founds()] == ["http://a.test/x"]
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)


def test_a_redirect_gives_no_row_and_one_found() -> None:
    """Of the same depth, with one hop more."""
    stage = Stage()
    stage.take(b"moved", http=301, location="/y#f", depth=2, hops=1)
    stage.stage.flush()
    assert items.decode(stage.log.values(NAMES.items)[0]).items == []
    assert stage.founds() == [urls.FoundUrl("http://a.test/y", 2, 0, "redirect", PAGE, 2)]


def test_a_redirect_that_leads_back_has_its_target_asked_once_more() -> None:
    """With the cookie that came on the way it may be a page."""
    stage = Stage()
    stage.take(b"", http=302, location="/y", leads_back=True)
    stage.stage.flush()
    assert [(found.url, found.checked) for found in stage.founds()] == [("http://a.test/y", True)]


@pytest.mark.parametrize(
    "location",
    ["http://[/", "ftp://a.test/", "http://other.test/", "file:///etc/passwd", "data:text/html,<a href=/x>x"],
)
def test_a_redirect_to_nowhere_is_the_end(location: str) -> None:
    """GHSA-23j4-mw76-5v7h: no URL, no http, or out of scope."""
    stage = Stage()
    stage.take(b"", http=302, location=location)
    stage.stage.flush()
    stage.log.acknowledge()
    assert stage.founds() == []
    assert stage.done == [(3, 1)]


def test_where_a_seed_leads_joins_the_scope() -> None:
    """Said in crawl.control, before the page is done; links there are then taken."""
    stage = Stage()
    stage.take(b"", http=301, location="http://www.other.test/", seed=True)
    stage.stage.flush()
    assert [(found.url, found.joins) for found in stage.founds()] == [("http://www.other.test/", True)]
    (join,) = [record for record in stage.log.records if record.topic == NAMES.control]
    assert control.decode(join.key, join.value) == Join("j", "other.test")
    stage.log.acknowledge(NAMES.items, NAMES.urls)
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]
    stage.take(links("http://other.test/z"))
    stage.stage.flush()
    assert stage.founds()[-1].url == "http://other.test/z"


def test_a_join_that_another_worker_wrote_counts() -> None:
    """Before the job's record too: they come in any order after a compaction."""
    stage = Stage()
    stage.stage.learn(Join("k", "other.test"))
    stage.stage.learn(JobCopy("k", JobSpec(scope=ScopeSpec(names=("a.test",)))))
    stage.take(links("http://other.test/z"), job="k")
    stage.stage.flush()
    assert [found.url for found in stage.founds()] == ["http://other.test/z"]


def test_a_record_that_is_no_page_goes_to_the_dead_letters() -> None:
    """As it was, with its headers; then it is done."""
    stage = Stage()
    stage.stage.take(Message(3, 0, b"k", b"body", [("other", b"1"), (pages.HEADER, b"{")]))
    assert stage.done == []
    (record,) = stage.log.records
    assert (record.topic, record.key, record.value) == (NAMES.dead, b"k", b"body")
    assert {"other": b"1", "stage": b"parse", "offset": b"0", pages.HEADER: b"{"}.items() <= dict(
        record.headers
    ).items()
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_a_page_that_fails_each_time_goes_to_the_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times in all, since memory may have been short; the next page is parsed."""
    tries = []

    def fail(meta: PageMeta, body: bytes, *_: Any) -> Parsed:
        tries.append(body)
        if body:
            raise MemoryError("no room")
        return Parsed([], [])

    monkeypatch.setattr("crawlog.streams.parsing.parse_page", fail)
    stage = Stage()
    stage.take(b"x")
    stage.take(b"")
    assert tries == [b"x", b"x", b"x", b""]
    assert [dict(r.headers)["error"] for r in stage.log.records if r.topic == NAMES.dead] == [b"MemoryError: no room"]
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)


def test_a_dead_letter_too_large_for_a_record_names_its_page() -> None:
    """Its body stays in crawl.pages, where the headers point."""
    stage = Stage(largest=1000)
    stage.stage.take(Message(3, 0, None, b"x" * 2000, []))
    assert stage.log.values(NAMES.dead) == [None]
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_a_job_that_cannot_be_used_stops_nobody() -> None:
    """Its pages are dead letters that say why."""
    stage = Stage()
    stage.stage.learn(JobCopy("bad", JobSpec(scope=ScopeSpec(exclude=("(",)))))
    stage.take(b"", job="bad")
    stage.log.acknowledge()
    assert b"scope.exclude" in dict(stage.log.records[0].headers)["error"]
    assert stage.done == [(3, 1)]


def test_what_is_given_up_is_not_done() -> None:
    """Late acknowledgements of pages of an earlier assignment say nothing."""
    stage = Stage()
    stage.take(b"")
    stage.stage.give_up()
    stage.take(b"", offset=0)
    early, late = stage.log.unacknowledged
    early.on_delivery(0, 0)
    assert stage.done == []
    late.on_delivery(0, 0)
    assert stage.done == [(3, 1)]


def test_too_many_pages_without_an_acknowledgement_are_enough() -> None:
    """Then no more are taken."""
    stage = Stage()
    for _ in range(MAX_UNDONE):
        assert not stage.stage.is_full
        stage.take(b"")
    assert stage.stage.is_full
    stage.log.acknowledge()
    assert not stage.stage.is_full


# Spiders of users: what they raise, and what becomes of their pages.


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


def spider_job(tmp_path: Path, parse: str, **spec: Any) -> JobSpec:
    """A job with a spider whose `parse` has this body."""
    body = "\n".join(f"        {line}" for line in parse.splitlines())
    head = "from crawlog import Request, Spider\nclass S(Spider):\n    version = '7'\n    def parse(self, response):\n"
    path = tmp_path / "s.py"
    path.write_text(head + body)
    return JobSpec(scope=ScopeSpec(names=("a.test",)), spider=f"{path}:S", **spec)


def buried(stage: Stage) -> list[tuple[int, str]]:
    """Offset and error of each dead letter."""
    letters = [dict(record.headers) for record in stage.log.records if record.topic == NAMES.dead]
    return [(int(letter["offset"]), letter["error"].decode()) for letter in letters]


def test_a_spiders_items_and_requests_leave_together(tmp_path: Path) -> None:
    """With its name and version, one level deeper, with the priority asked for."""
    parse = (
        "yield {'a': 1}\nyield response.follow('/x', priority=3)\nyield Request('http://other.test/')\nyield {'b': [2]}"
    )
    stage = Stage(job=spider_job(tmp_path, parse))
    stage.take(b"", depth=4)
    stage.stage.flush()
    record = items.decode(stage.log.values(NAMES.items)[0])
    assert ([json.loads(bytes(item)) for item in record.items], record.spider) == ([{"a": 1}, {"b": [2]}], "S@7")
    assert stage.founds() == [urls.FoundUrl("http://a.test/x", 5, 3, "link", PAGE)]


def test_a_page_that_fails_half_way_gives_nothing(tmp_path: Path) -> None:
    """Neither the items before the failure nor the links; its dead letter says where it failed."""
    parse = "yield {'a': 1}\nyield response.follow('/x')\nif response.depth:\n    raise ValueError('half')"
    stage = Stage(job=spider_job(tmp_path, parse))
    stage.take(b"body", depth=1)
    stage.stage.flush()
    (letter,) = stage.log.records
    headers = dict(letter.headers)
    assert (letter.topic, letter.value, headers["error"]) == (NAMES.dead, b"body", b"ValueError: half")
    assert (headers["stage"], headers["job"], headers["offset"], headers["partition"]) == (b"parse", b"j", b"0", b"3")
    assert b"s.py" in headers["traceback"]
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_exceptions_in_one_call_of_a_hundred_lose_no_page(tmp_path: Path) -> None:
    """Of all kinds, in 5,000 pages: each page is an item record or a dead letter, never both, and all are done."""
    pages_in, tries = 5_000, Counter[int]()
    chance = random.Random(5)
    doomed = set(chance.sample(range(pages_in), 25))
    stage = Stage(job=spider_job(tmp_path, "yield {'url': response.url}\nyield response.follow('/' + response.text)"))
    job = stage.stage._jobs["j"]
    parse = job._parse

    def failing(meta: PageMeta, body: bytes, *more: Any) -> Parsed:
        number = int(body)
        tries[number] += 1
        if number in doomed or chance.random() < 0.01:
            raise chance.choice(RAISED)
        return parse(meta, body, *more)

    job._parse = failing
    for number in range(pages_in):
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
    assert all(error.split(":")[0] in {type(one).__name__ for one in RAISED} for _, error in buried(stage))


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A clock that ticks, with a limit of half a second."""
    made = Clock(0.5, lambda _: None)
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize(
    "hang",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import re; re.match(r'(a*)*b', 'a' * 64)",
        "while True:\n    try:\n        while True: pass\n    except Exception: pass",
        "try:\n    yield {}\n    raise ValueError\nfinally:\n    while True: pass",
    ],
)
def test_a_page_without_end_is_ended(tmp_path: Path, clock: Clock, hang: str) -> None:
    """Within its time, at the first try; the next page is parsed."""
    parse = f"if response.depth:\n{textwrap.indent(hang, '    ')}\nyield {{}}"
    stage = Stage(job=spider_job(tmp_path, parse), guard=Guard(clock=clock))
    began = time.monotonic()
    stage.take(b"", depth=1)
    assert clock.is_slow
    stage.take(b"")
    assert not clock.is_slow
    assert time.monotonic() - began < 120
    assert buried(stage) == [(0, "TimeUp: parsing took longer than parse.timeout_s = 0.5")]
    assert len(stage.log.values(NAMES.items)) == 1


def test_a_page_that_waits_for_the_processor_is_not_given_up(tmp_path: Path, clock: Clock) -> None:
    """Its limit is CPU time: a page that took longer by the clock, and used none of it, is parsed."""
    stage = Stage(job=spider_job(tmp_path, "import time; time.sleep(0.9); yield {}"), guard=Guard(clock=clock))
    stage.take(b"")
    assert clock.is_slow
    assert not buried(stage)
    assert len(stage.log.values(NAMES.items)) == 1


def test_too_much_of_one_page_is_too_much(tmp_path: Path) -> None:
    """A generator without end stops at a number; it is not tried again."""
    stage = Stage(job=spider_job(tmp_path, "while True: yield {}"), guard=Guard(Bounds(outputs=10)))
    stage.take(b"")
    assert buried(stage) == [(0, "TooMuch: more than 10 items and requests from one page; see spider.max_items")]


class Noted(NoNotes):
    """Remembers what is touched, and has a verdict on some."""

    def __init__(self, **verdicts: Verdict) -> None:
        self.said: list[str] = []
        self.verdicts = verdicts

    def touch(self, key: str) -> None:
        """About to be handled."""
        self.said.append(f"touch {key}")

    def release(self, key: str) -> None:
        """Handled."""
        self.said.append(f"release {key}")

    def verdict(self, key: str) -> Verdict:
        """As told."""
        return self.verdicts.get(f"at_{key.partition(':')[2]}", "normal")


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


def test_a_page_that_was_not_modified_is_parsed_with_the_old_ones_body() -> None:
    """Its row has its own status and the rest of the old page; its links are found in the new epoch."""
    stage, old = Stage(), links("x") + b"<title>T</title>"
    at = stage.take(http=304, same_as=(3, 7), content_type="", epoch=1, fetched_at=9.0)
    stage.take(links("y"))
    assert len(stage.log.values(NAMES.items)) == 1, "the next page did not wait"
    stage.stage.body_came((3, at), PageMeta(PAGE, "j", http=200, content_type=HTML, fetched_at=1.0), old)
    row = stage.row()
    assert (row["status"], row["title"], row["links"], row["fetched_at"]) == (304, "T", 1, 9.0)
    assert row["sha256"] == hashlib.sha256(old).hexdigest()
    stage.stage.flush()
    assert {found.url for found in stage.founds()} == {"http://a.test/x", "http://a.test/y"}
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)


def test_a_page_that_was_not_modified_is_buried_without_the_old_body() -> None:
    """As it was: sent back to its place it asks for the old body again, and for all that was said of it."""
    stage = Stage()

    def failing(*_: Any) -> Parsed:
        raise ValueError("never")

    stage.stage._jobs["j"]._parse = failing
    at = stage.take(http=304, same_as=(3, 7), content_type="")
    stage.stage.body_came((3, at), PageMeta(PAGE, "j", http=200, content_type=HTML), links("x"))
    [letter] = [record for record in stage.log.records if record.topic == NAMES.dead]
    assert not letter.value
    assert pages.decode(dict(letter.headers)[pages.HEADER]).same_as == (3, 7)
    stage.log.acknowledge()
    assert stage.done == [(3, at + 1)]


def test_a_page_whose_old_body_is_gone_is_fetched_once_more() -> None:
    """It gives no row; it is done when the log has the URL again."""
    stage = Stage()
    at = stage.take(http=304, same_as=(3, 7), depth=2)
    stage.stage.body_came((3, at), None, b"")
    stage.stage.flush()
    assert [(found.url, found.depth, found.again) for found in stage.founds()] == [(PAGE, 2, "not_modified")]
    assert stage.log.values(NAMES.items) == []
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done == [(3, at + 1)]


def test_a_body_that_comes_after_the_partition_went_is_dropped() -> None:
    """Whoever has the partition asks for it again."""
    stage = Stage()
    at = stage.take(http=304, same_as=(3, 7))
    stage.stage.give_up()
    stage.stage.body_came((3, at), PageMeta(PAGE, "j", http=200, content_type=HTML), links("x"))
    assert stage.log.records == []


def soft_site(stage: Stage) -> Any:
    """A host that answers 200 to whatever does not exist, and was asked: what the log has of it."""
    for number in range(5):
        stage.take(
            b"<title>Gone</title><p>There is nothing here, look <a href=elsewhere>elsewhere</a>", url=PAGE + str(number)
        )
    stage.stage.flush()
    (probe,) = [found for found in stage.founds() if "probe" in found.url]
    stage.take(b"<title>Gone</title><p>There is nothing here, look elsewhere", url=probe.url, depth=probe.depth)
    stage.log.acknowledge()
    (record,) = [one for one in stage.log.records if one.topic == NAMES.control]
    return control.decode(record.key, record.value)


def test_a_host_that_seems_to_answer_anything_is_asked_once_for_what_cannot_exist() -> None:
    """In the folder of its pages, as deep as they are; a probe waits for its record and gives no row."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), traps=TrapRules(soft_404=True)))
    missing = soft_site(stage)
    assert missing.job == "j"
    assert missing.url.startswith("http://a.test/crawlog-soft-404-probe-")
    assert items.decode(stage.log.values(NAMES.items)[-1]).items == []
    assert len(stage.done) == 6


def test_a_page_like_the_answer_to_a_probe_is_a_soft_404_whose_links_stay() -> None:
    """Once the log says so; others of its host, its seeds and its front page are as ever."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), traps=TrapRules(soft_404=True)))
    stage.stage.learn(soft_site(stage))
    gone = b"<title>Gone</title><p>There is nothing here, look <a href=%d>elsewhere</a>"
    told = []
    pages_of_it: list[dict[str, Any]] = [{}, {"seed": True}, {"url": "http://a.test/"}, {"url": "http://a.test:81/x"}]
    for number, meta in enumerate(pages_of_it):
        before = len(stage.founds())
        stage.take(gone % number, **{"url": PAGE + "?"} | meta)
        stage.stage.flush()
        told.append((stage.row()["error"], stage.row()["status"], len(stage.founds()) - before))
    assert told == [("soft_404", 200, 0), (None, 200, 1), (None, 200, 1), (None, 200, 1)]
    stage.take(b"<p>Quite another page, of which there are many on this host", url=PAGE + "!")
    assert stage.row()["error"] is None


def test_a_host_that_answers_a_probe_with_404_has_no_soft_404s() -> None:
    """Nor does one that redirects it; neither is asked again."""
    for answer in ({"http": 404}, {"http": 302, "location": "/"}, {"http": None, "error": "timeout"}):
        stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), traps=TrapRules(soft_404=True)))
        for number in range(20):
            stage.take(b"<p>Always the same <a href=x>link", url=f"http://a.test/d/{number}?q")
        stage.stage.flush()
        (probe,) = [found for found in stage.founds() if "probe" in found.url]
        assert probe.url.startswith("http://a.test/d/crawlog-soft-404-probe-")
        stage.take(b"<p>Always the same", url=probe.url, **answer)
        for number in range(20):
            stage.take(b"<p>Always the same <a href=x>link", url=f"http://a.test/e/{number}?q")
        stage.stage.flush()
        assert len([found for found in stage.founds() if "probe" in found.url]) == 1
        assert not stage.log.values(NAMES.control)
        assert len([found for found in stage.founds() if found.source == "redirect"]) == 0


def test_pages_without_words_are_no_soft_404s() -> None:
    """As of images or frames: their texts are the same, and say nothing; their links are followed."""
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), traps=TrapRules(soft_404=True)))
    for number in range(5):
        stage.take(b"<p>the same words on every page <a href=%d>" % number, url=PAGE + str(number))
    stage.stage.flush()
    (probe,) = [found for found in stage.founds() if "probe" in found.url]
    stage.take(b"<img src=gone>", url=probe.url)
    assert not stage.log.values(NAMES.control)


def test_nobody_is_asked_unless_told_to() -> None:
    """The setting is off by default."""
    stage = Stage()
    for number in range(20):
        stage.take(b"<p>Always the same <a href=x>link", url=f"http://a.test/d/{number}")
    stage.stage.flush()
    assert [found.url for found in stage.founds()] == ["http://a.test/d/x"]


LARGE = links("x").ljust(LARGE_BYTES)


def told(stage: Stage) -> list[str]:
    """The last part of the URL of each row sent, in order."""
    return [items.decode(value).url.rpartition("/")[2] for value in stage.log.values(NAMES.items)]


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
        watchdog=SimpleNamespace(beat=stage.log.acknowledge),
        positions=SimpleNamespace(owned={3}, next=lambda _: 0),
        reader=SimpleNamespace(is_behind=lambda taken: taken[3] < records),
    )
    worker = ParseWorker(app)
    worker.serve(stage.stage)
    worker._orders.caught_up()
    return worker


def waits_of(stage: Stage) -> Waits:
    """What gives pages their turn, without a worker."""
    app: Any = SimpleNamespace(watchdog=SimpleNamespace(beat=lambda: None))
    return Waits(app, stage.stage, Obedience("parse"), lambda: None)


def test_so_many_pages_beyond_one_that_waits_are_enough(trying: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are parsed again after a kill, and fetch goes by what was taken: this bounds how far it runs ahead."""
    monkeypatch.setattr(parse_stage, "MAX_BEYOND", 50)
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
    monkeypatch.setattr(parse_stage, "MAX_BEYOND", 5)
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


COMPLEX = b"<title>t</title>" + b"<div>x</p>" * 20_000
LONG = b"<title>t</title>" + b"<p>word</p>" * 3_000


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
    monkeypatch.setattr("crawlog.agents.trial.sys.executable", "/nothing")
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


def test_a_spider_may_parse_whatever_it_is_shown(trying: Stage, tmp_path: Path) -> None:
    """So all of that is tried."""
    trying.learn(spider_job(tmp_path, "yield {'links': len(response.css('a'))}", rev=2))
    trying.take(COMPLEX, content_type="application/xml", rev=2)
    assert len(trying.stage.untried) == 1


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
