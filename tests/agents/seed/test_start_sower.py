"""What the `start` of a spider gives: founds with their requests, names of the scope, items."""

import time
from collections.abc import Callable

import msgspec
import pytest

from crawlog.agents.seed.start_sower import StartSower
from crawlog.schemas import control, items
from crawlog.schemas.control import JobCopy, Join
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import MAX_BATCH_BYTES, CanonicalRules, JobSpec, ScopeSpec, UrlsRecord, decode
from crawlog.streams.jobs import FleetReports
from crawlog.streams.log.topics import Topics
from crawlog.streams.spiders import CallResult, RequestOut
from crawlog.streams.timing import Timing

PARTITIONS = 4

FORM = RequestRecord(method="POST", body=b"a=1", callback="parse_form", meta={"n": 1})


class FakeProducer:
    """Keeps what is sent, by topic; acknowledged at once, at the offset of its number."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes | None, bytes]] = []

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int,
        on_delivery: Callable[[int, int], None] | None = None,
    ) -> None:
        """Keeps a record."""
        self.sent.append((topic, key, value))
        if on_delivery is not None:
            on_delivery(partition, len(self.sent) - 1)

    def poll(self) -> int:
        """Nothing comes back."""
        return 0

    def flush(self, _: float) -> bool:
        """All is acknowledged."""
        return True

    def urls(self) -> list[UrlsRecord]:
        """The records of crawl.urls."""
        return [decode(value) for topic, _, value in self.sent if topic == "t.urls"]


def sower(producer: FakeProducer, spec: JobSpec | None = None, known: tuple[str, ...] = ()) -> StartSower:
    """The sower of a job in epoch 2."""
    copy = JobCopy("j", spec or JobSpec(), 2)
    return StartSower(producer, Topics("t."), PARTITIONS, copy, "s@1", known)  # type: ignore[arg-type]  # as much as is needed


def test_requests_are_seeds_that_carry_everything() -> None:
    """Headers, cookies, body and callback."""
    producer = FakeProducer()
    made = sower(producer, JobSpec(scope=ScopeSpec(kind="any")))
    made.sow(CallResult(requests=[RequestOut("http://a.test/login", 7, 5, FORM), RequestOut("http://a.test/#x")]))
    (record,) = producer.urls()
    assert (record.job, record.epoch) == ("j", 2)
    login, plain = list(record.urls or [])
    assert (login.url, login.id, login.priority, login.depth, login.source) == ("http://a.test/login", 7, 5, 0, "seed")
    assert login.request == FORM
    assert (plain.url, plain.id, plain.request) == ("http://a.test/", 0, None)
    assert made.requests == 2
    assert not made.items


def test_urls_of_scrapys_spiders_stay_as_they_are() -> None:
    """By the rules of the job."""
    producer = FakeProducer()
    spec = JobSpec(scope=ScopeSpec(kind="any"), canonical=CanonicalRules(verbatim=True))
    sower(producer, spec).sow(CallResult(requests=[RequestOut("http://a.test/x/../y?b&a&utm_source=1")]))
    assert [found.url for record in producer.urls() for found in record.urls or ()] == [
        "http://a.test/x/../y?b&a&utm_source=1"
    ]


def test_names_join_the_scope_before_the_founds_and_once() -> None:
    """Parse would drop links to a name that it does not know; each name costs a record."""
    producer = FakeProducer()
    made = sower(producer, JobSpec(scope=ScopeSpec(names=("a.test",))), known=("b.test",))
    for _ in range(2):
        made.sow(CallResult(requests=[RequestOut(f"http://www.{name}.test/") for name in "abc"]))
    assert [control.decode(key, value) for topic, key, value in producer.sent if topic == "t.control"] == [
        Join("j", "c.test")
    ]
    assert [record.joins for record in producer.urls() if record.joins] == [("c.test",)]
    kinds = [topic for topic, *_ in producer.sent]
    assert kinds.index("t.control") < next(n for n, (_, _, value) in enumerate(producer.sent) if b"www.c" in value)


def test_items_are_keyed_by_their_number() -> None:
    """A `start` that begins again replaces them."""
    producer = FakeProducer()
    for _ in range(2):
        made = sower(producer)
        made.sow(CallResult(items=[msgspec.Raw(b'{"n":1}')]))
        made.sow(CallResult(items=[msgspec.Raw(b'{"n":2}')], is_raw=True))
    found = [(key, items.decode(value)) for topic, key, value in producer.sent if topic == "t.items"]
    assert [key for key, _ in found] == [b"j start#0", b"j start#1"] * 2
    assert (found[0][1].page, found[0][1].epoch, found[0][1].spider) == ((0, 0), 2, "s@1")
    assert (found[0][1].raw, found[1][1].raw) == (False, True)
    assert made.items == 2


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3]], [[0], [], [1, 2], [3]], [[], [0, 1], [2, 3]]])
def test_parts_of_any_size_give_the_same_items_and_stats(parts: list[list[int]]) -> None:
    """A part is cut by time: `start` that begins again comes in others, and what the first ones gave must go."""
    producer = FakeProducer()
    for run in ([[0], [1], [2]], parts):
        made = sower(producer)
        for part in run:
            given = [msgspec.Raw(b'{"n":%d}' % number) for number in part]
            made.sow(CallResult(items=given, stats={"item_scraped_count": len(part), "parts": 1}))
    newest = {key: items.decode(value) for topic, key, value in producer.sent if topic == "t.items"}
    stats = newest.pop(b"j start#stats")
    assert (stats.items, stats.stats) == ([], {"item_scraped_count": 4, "parts": len(parts)})
    assert [bytes(row) for record in newest.values() for row in record.items] == [b'{"n":%d}' % n for n in range(4)]
    assert not any(record.stats for record in newest.values())


def test_what_was_sent_waits_until_it_is_fetched() -> None:
    """So an endless `start` goes at the pace of the job."""
    made = sower(FakeProducer())
    made.sow(CallResult(requests=[RequestOut(f"http://{n}.test/") for n in range(10)]))
    reports = FleetReports()
    assert made.waiting(reports) == 10
    for number in range(PARTITIONS):
        reports.take(Progress("w", "fetch", number, 0.0, offset=100, jobs={"j": JobCounts(queued=1)}))
    assert made.waiting(reports) == PARTITIONS


def test_a_url_that_is_none_is_counted_and_large_requests_fill_records() -> None:
    """A record has its size, whatever its requests carry."""
    producer = FakeProducer()
    made = sower(producer, JobSpec(scope=ScopeSpec(kind="any")))
    large = RequestRecord(body=b"x" * 40_000)
    made.sow(
        CallResult(
            requests=[RequestOut("nonsense"), *(RequestOut("http://a.test/", n, 0, large) for n in range(1, 12))]
        )
    )
    assert (made.requests, made.refused) == (11, 1)
    assert len(producer.urls()) > 1
    assert max(len(value) for _, _, value in producer.sent) < MAX_BATCH_BYTES + 1000


def test_items_that_no_record_takes_say_so() -> None:
    """The run tells of it as of any error of `start`."""
    from crawlog.streams.errors import GiveUp

    class Full(FakeProducer):
        def send(self, *_: object, **__: object) -> None:
            """No record is small enough."""
            raise GiveUp("too_large")

    with pytest.raises(ValueError, match="too_large for one record"):
        sower(Full()).sow(CallResult(items=[msgspec.Raw(b"{}")]))


def test_a_countdown_of_start_counts_from_when_it_is_sent() -> None:
    """There is no page whose time it could have."""
    producer, before = FakeProducer(), time.time()
    made = sower(producer, JobSpec(scope=ScopeSpec(kind="any")))
    made.sow(CallResult(requests=[RequestOut("http://a.test/", timing=Timing(countdown=60.0, expires=2e9))]))
    (record,) = producer.urls()
    found = (record.urls or [])[0]
    assert before + 60 <= found.eta <= time.time() + 60
    assert found.expires == 2e9
