"""Stored pages that are parsed again by the owner of their partition, from its note on."""

import asyncio
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.agents.control import StageCommands
from crawlog.agents.parse import stored_pages
from crawlog.agents.parse.stored_pages import StoredBatch, StoredPages
from crawlog.schemas import items, pages
from crawlog.schemas.control import Command, JobCopy, ParsedAgain
from crawlog.schemas.job_orders import JobStateName, ParseAgain
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.log import Producer, Topics, ensure_topics
from crawlog.streams.parse import KeptRecord
from crawlog.streams.settings import Settings
from tests.support.parsing import HTML, NAMES, Stage

PARTITION = 3
ORDER = ParseAgain(1, (0, 0, 0, 2), (0, 0, 0, 6))  # the job's pages are at 2 to 5 of partition 3
SPEC = JobSpec(scope=ScopeSpec(names=("a.test",)), parse_again=ORDER)


def copy(number: int = 1, state: JobStateName = "running", rev: int = 2) -> JobCopy:
    """The job with an order."""
    order = ParseAgain(number, ORDER.start, ORDER.end)
    return JobCopy("j", JobSpec(rev=rev, state=state, scope=SPEC.scope, parse_again=order))


def stored(offset: int) -> tuple[KeptRecord, PageMeta]:
    """A stored page."""
    meta = PageMeta(url=f"http://a.test/{offset}", job="j", http=200, content_type=HTML)
    return KeptRecord(PARTITION, offset, b"a.test", b"<title>t</title>", pages.headers(meta)), meta


class Worker:
    """The stored pages of one worker that owns a partition, without a broker: a batch is two pages."""

    def __init__(self, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = Stage(job=SPEC)
        self.read: list[tuple[int, int]] = []
        self.notes: list[ParsedAgain] = []
        self.orders = StageCommands("parse")
        self.orders.caught_up()
        app: Any = SimpleNamespace(
            positions=SimpleNamespace(owned={PARTITION}, next=lambda _: place),
            watchdog=SimpleNamespace(beat=lambda: None),
            should_stop=False,
            crawl=None,
            input_name="",
        )
        self.app = app
        self.stored = StoredPages(app, self.stage.stage, self.orders, lambda: False, self._note, self._flush)
        monkeypatch.setattr(stored_pages, "_batches", self._batches)
        monkeypatch.setattr(stored_pages, "LOOK_S", 0)

    def _note(self, note: ParsedAgain) -> None:
        self.notes.append(note)
        self.stored.learn(note)

    def _flush(self) -> None:
        self.stage.stage.flush()
        self.stage.log.acknowledge()

    def _batches(self, _settings: object, _topic: str, left: ParsedAgain) -> Generator[StoredBatch]:
        self.read.append((left.next, left.end))
        for at in range(left.next, left.end, 2):
            end = min(at + 2, left.end)
            yield StoredBatch([stored(offset) for offset in range(at, end)], end)

    def rows(self) -> list[int]:
        """The offsets of the pages whose items were sent."""
        return [items.decode(value).page[1] for value in self.stage.log.values(NAMES.items)]

    async def until(self, is_so: Callable[[], object]) -> None:
        """Works until something is so."""
        task = asyncio.ensure_future(self.stored.run())
        async with asyncio.timeout(30):
            while not is_so():  # noqa: ASYNC110  # it looks at each step
                await asyncio.sleep(0)
        self.app.should_stop = True
        await task
        self.app.should_stop = False


async def test_stored_pages_are_parsed_up_to_the_place_where_new_ones_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not up to the end at the order: until the owner knew of it, it parsed new pages by the former record."""
    worker = Worker(9, monkeypatch)
    worker.stored.learn(copy())
    await worker.until(lambda: worker.notes)
    assert worker.rows() == list(range(2, 9))
    assert worker.notes == [ParsedAgain("j", PARTITION, 0, 1, 9, 9, pages=7)]
    assert (worker.stage.done, worker.stage.stage.undone, worker.stage.stage.parsed) == ([], 0, {"j": 7})


async def test_the_next_owner_goes_on_at_the_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the noted end, and earlier if it reads new pages from before that: it parses these anyway."""
    noted = ParsedAgain("j", PARTITION, 0, 1, 4, 8, pages=2)
    for place, end in ((20, 8), (7, 7)):
        worker = Worker(place, monkeypatch)
        worker.stored.learn(copy())
        worker.stored.learn(noted)
        await worker.until(lambda worker=worker: worker.notes)  # type: ignore[misc]  # its own worker
        assert worker.rows() == list(range(4, end))
        assert worker.notes == [ParsedAgain("j", PARTITION, 0, 1, end, end, pages=end - 2)]


async def test_an_older_note_of_a_former_owner_is_worked_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the job would never end: the coordinator reads that note, too."""
    worker = Worker(6, monkeypatch)
    worker.stored.learn(copy())
    await worker.until(lambda: worker.notes)
    worker.stored.learn(ParsedAgain("j", PARTITION, 0, 1, 4, 6))
    await worker.until(lambda: len(worker.notes) == 2)
    assert worker.rows() == [2, 3, 4, 5, 4, 5]
    assert [one.is_done for one in worker.notes] == [True, True]


async def test_what_a_rebalance_interrupts_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner parses it once more."""
    worker = Worker(6, monkeypatch)
    monkeypatch.setattr(stored_pages, "MOST", 2)
    worker.stored._flush_soon = lambda: None  # nothing is acknowledged
    worker.stored.learn(copy())

    def moves() -> bool:
        if is_full := worker.stage.stage.again.undone == 2:
            worker.stored.moved()
            worker.orders.rebalance_started()
            worker.stage.stage.give_up()
        return is_full

    await worker.until(moves)
    assert (worker.notes, worker.rows()) == ([], [2, 3])


@pytest.mark.parametrize(
    "records",
    [
        (copy(state="cancelled"),),
        (JobCopy("j", JobSpec(rev=2)),),
        (copy(), ParsedAgain("j", PARTITION, 0, 1, 6, 6)),
        (copy(), JobCopy("j", JobSpec(rev=3, state="deleted"))),
        (Command("pause", stage="parse"), copy()),
    ],
    ids=["cancelled", "no order", "done", "deleted", "paused"],
)
async def test_nothing_is_read_without_need(records: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker reads the records of all jobs; a pause of the stage is one of this, too."""
    worker = Worker(6, monkeypatch)
    for record in records:
        worker.stored.learn(record)
        worker.orders.take(record)
    looks = iter(range(5))
    await worker.until(lambda: next(looks, None) is None)
    assert worker.read == []


async def test_another_order_begins_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of the former one does not count."""
    worker = Worker(6, monkeypatch)
    worker.stored.learn(ParsedAgain("j", PARTITION, 0, 1, 6, 6))
    worker.stored.learn(copy(number=2, rev=3))
    await worker.until(lambda: worker.notes)
    assert (worker.read, worker.notes[0].number) == ([(2, 6)], 2)


def test_a_page_that_waits_for_its_older_body_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new one: it is not committed before it has its body. The stored one does not wait, and takes no place."""
    worker = Worker(6, monkeypatch)
    worker.stage.take(offset=4, http=304, same_as=(3, 1), content_type="")
    record, meta = stored(4)
    not_modified = PageMeta(url=meta.url, job="j", http=304, same_as=(3, 1))
    worker.stage.stage.take_again(record._replace(value=b"", headers=pages.headers(not_modified)), not_modified)
    assert (worker.stage.stage.again.undone, worker.stage.done) == (0, [])
    worker.stage.stage.body_came((PARTITION, 4), meta, b"<title>t</title>")
    worker._flush()
    assert (worker.rows(), worker.stage.done) == ([4], [(PARTITION, 5)])


@pytest.mark.broker
def test_the_pages_of_the_job_are_read_between_those_of_others(cluster: Settings) -> None:
    """Not those of an earlier epoch, nor records that are no pages; in batches that are not too large."""
    ensure_topics(cluster)
    topic, producer = Topics(cluster.kafka.prefix).pages, Producer(cluster, "test")
    others = (PageMeta(url="http://a.test/", job="k"), PageMeta(url="http://a.test/", job="j", epoch=1))
    for number in range(600):
        headers = [("x", b"")] if number == 7 else pages.headers(others[number % 2] if number % 10 else stored(0)[1])
        producer.send(topic, b"x", key=b"a.test", partition=PARTITION, headers=headers)
    assert producer.flush(30)
    batches = list(stored_pages._batches(cluster, topic, ParsedAgain("j", PARTITION, 0, 1, 5, 598)))
    assert [one.next for one in batches] == [261, 517, 598]
    found = [record for batch in batches for record, _ in batch.pages]
    assert [record.offset for record in found] == list(range(10, 598, 10))
    assert (found[0].key, found[0].value, found[0].partition) == (b"a.test", b"x", PARTITION)
