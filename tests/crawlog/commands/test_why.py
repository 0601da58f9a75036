"""`crawlog why` over a log written by hand: every topic it reads, and the time it is asked as of."""

import gzip
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.cli.questions_text import _facts, _offered, story_lines
from crawlog.commands.one_page import page_at
from crawlog.commands.why import Inquiry, Story, moment, spelled, why
from crawlog.schemas import dead, items, pages, progress
from crawlog.schemas import urls as u
from crawlog.schemas.control import Command, JobCopy, encode, key
from crawlog.streams.errors import Misconfigured, UnknownName
from crawlog.streams.fold.history import History, Offer, Spelling, UrlState
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Places, hashed_to

URL = "http://a.example/x"
TARGET = "http://a.example/y"
SPEC = u.JobSpec(scope=u.ScopeSpec(kind="any"))
ROW = b'{"url":"http://a.example/y"}'


class Log:
    """Writes records where workers would."""

    def __init__(self, settings: Settings) -> None:
        self.names = Topics(settings.kafka.prefix)
        self.partition = Places(settings.kafka.partitions).of(URL).partition
        self._producer = Producer(settings, "test")

    def urls(self, **fields: object) -> None:
        """One record of crawl.urls."""
        record = u.UrlsRecord(job="j", **fields)  # type: ignore[arg-type]  # the record's own fields
        self._producer.send(self.names.urls, u.encode(record), partition=self.partition)
        self._producer.flush(10)

    def page(self, url: str, body: bytes, coding: str = "", **fields: object) -> tuple[int, int]:
        """One page; its place."""
        meta = pages.PageMeta(url, "j", **fields)  # type: ignore[arg-type]  # the record's own fields
        places: list[tuple[int, int]] = []
        self.send(self.names.pages, body, pages.headers(meta, coding), lambda *at: places.append(at))
        return places[0]

    def send(
        self,
        topic: str,
        value: bytes,
        headers: list[tuple[str, bytes]] | None = None,
        acknowledged: Callable[[int, int], None] | None = None,
        key: bytes | None = None,
    ) -> None:
        """One record, acknowledged."""
        at = self.partition if topic == self.names.pages else 0
        if topic == self.names.items:
            at = hashed_to(key or b"", 8)
        self._producer.send(topic, value, key=key, partition=at, headers=headers, on_delivery=acknowledged)
        self._producer.flush(10)


@pytest.mark.broker
def test_a_life_is_told_from_all_topics(cluster: Settings) -> None:
    """A redirect, its target with page, row and dead letter; then the same as of an earlier time."""
    ensure_topics(cluster)
    log = Log(cluster)
    log.urls(spec=SPEC)
    log.urls(urls=[u.FoundUrl(URL)])
    moved = log.page(URL, b"", http=302, location="/y")
    log.urls(results=[u.Result(URL, 1 << 16, "redirected", http=302, page=moved)])
    log.urls(urls=[u.FoundUrl(TARGET, 0, 0, "redirect", URL, 1)])
    time.sleep(0.02)
    before = time.time()
    time.sleep(0.02)
    place = log.page(TARGET, b"<title>", http=200, content_type="text/html", worker="fetch-0", exit="berlin")
    log.urls(results=[u.Result(TARGET, 3 << 16, "fetched", http=200, page=place)])
    record = items.ItemsRecord("j", TARGET, place, [msgspec.Raw(ROW)], spider="default@1")
    log.send(log.names.items, items.encode(record), key=items.key("j", TARGET))
    letter = dead.DeadLetter(log.names.pages, *place, "parse", "ValueError: no", job="j")
    log.send(log.names.dead, b"<title>", letter.headers())
    longer = pages.PageMeta(f"{TARGET}7", "j", location=f"{TARGET}?from={TARGET}7")
    of_longer = msgspec.structs.replace(letter, offset=place[1] + 1)
    log.send(log.names.dead, b"", [*of_longer.headers(), *pages.headers(longer)])

    story = Inquiry(cluster, None, "", lambda _: None).ask(TARGET + "?utm_source=z")
    assert [event.kind for event in story.events] == ["job", "found", "page", "done", "items", "dead"]
    assert [(state.status, state.page) for state in story.states] == [("fetched", place)]
    assert (story.redirects_from, story.redirects_to) == ([URL], [])
    assert story.events[4].what.endswith("1 row: " + ROW.decode())
    assert ", by worker fetch-0 and exit berlin; not parsed yet" in story.events[2].what
    assert Inquiry(cluster, None, "", lambda _: None).ask(URL).redirects_to == [TARGET]

    earlier = Inquiry(cluster, before, "", lambda _: None).ask(TARGET)
    assert [event.kind for event in earlier.events] == ["job", "found"]
    assert earlier.states[0].status == "queued"

    log.urls(urls=[u.FoundUrl("http://a.example/q")])
    pause = Command("pause", host="a.example")
    log.send(log.names.control, encode(pause), key=key(pause))
    report = progress.Progress("fetch-0", "fetch", log.partition, 0.0, barred=[("http://a.example:80", 1, 30.0)])
    log.send(log.names.progress, progress.encode(report), key=progress.key(report))
    held = list(story_lines(why(cluster, "http://a.example/q", None, "", lambda _: None)))
    assert "  held: a command for http://a.example:80: paused" in held
    assert "all exits rest for http://a.example:80: the first one wakes in 30 s, as fetch-0 reported" in "\n".join(held)

    unknown = "\n".join(story_lines(why(cluster, "http://a.example/z", None, "", lambda _: None)))
    assert "Nothing was ever found by this URL" in unknown
    assert "job j would take it as: queued" in unknown
    assert why(cluster, URL, None, "j", lambda _: None).domain == "a.example"

    tenth = log.page(f"{URL}10", b"", http=302, location="/x11", hops=10)
    log.urls(urls=[u.FoundUrl(f"{URL}10", hops=10)])
    log.urls(results=[u.Result(f"{URL}10", 6 << 16, "redirected", http=302, page=tenth)])
    told = "\n".join(story_lines(why(cluster, f"{URL}10", None, "", lambda _: None)))
    assert "redirect to /x11: dropped by redirects: 11 redirects in a row are over 10; not parsed yet" in told
    told = "\n".join(story_lines(why(cluster, f"{URL}11", None, "", lambda _: None)))
    assert "Nothing was ever found by this URL" in told
    assert f"redirect to it from {URL}10: dropped by redirects: 11 redirects in a row are over 10" in told


def test_the_canonical_url_is_told_for_the_jobs_that_met_it() -> None:
    """A log may have hundreds of jobs; one of them is not a job that met a URL because it knows how to spell it."""
    one, two, bare = (
        Spelling("one", URL, ()),
        Spelling("two", URL, ()),
        Spelling("three", TARGET, ("canonical.drop_params",)),
    )
    assert spelled([one, two, bare], {"two"}) == [two]
    assert spelled([one, two], ()) == [Spelling("", URL, ())]
    assert spelled([one, two, bare], ()) == [one, two, bare]
    assert spelled([Spelling("", URL, ())], {"deleted"}) == []


@pytest.mark.broker
def test_only_a_job_that_never_was_is_an_error(cluster: Settings) -> None:
    """The job of bare records has no record, and a deleted one still has its history."""
    ensure_topics(cluster)
    log = Log(cluster)
    gone = JobCopy("gone", u.JobSpec(state="deleted"))
    log.send(log.names.control, encode(gone), key=key(gone))
    for job in ("", u.DEFAULT_JOB, "gone"):
        assert why(cluster, URL, None, job, lambda _: None).states == []
    with pytest.raises(UnknownName, match="there is no job 'none' in the log"):
        why(cluster, URL, None, "none", lambda _: None)


@pytest.mark.broker
def test_a_page_in_a_coding_is_told_plain_or_with_the_reason_why_not(cluster: Settings) -> None:
    """Fetch saw no more than its first bytes; other commands read the same page."""
    ensure_topics(cluster)
    log = Log(cluster)
    log.urls(spec=SPEC)
    kind, large = "text/html", cluster.body_room + 1
    for row, (url, limit, told, size) in enumerate(
        (
            (URL, 1500, "page of 1,500 bytes, text/html, ", 1500),
            (TARGET, 1499, "page without a body: too_large, ", 0),
            (URL + "large", large, f"page of {large:,} bytes, text/html, ", large),
        ),
        1,
    ):
        packed = gzip.compress(b"p" * (size or 1500))
        log.urls(urls=[u.FoundUrl(url)])
        place = log.page(url, packed, "gzip", http=200, content_type=kind, limit=limit)
        log.urls(results=[u.Result(url, row << 16, "fetched", http=200, page=place)])
        events = why(cluster, url, None, "", lambda _: None).events
        event = next(event for event in events if (event.kind, event.offset) == ("page", place[1]))
        assert event.what.startswith(f"{told}{len(packed):,} in gzip")
        assert event.detail["bytes"] == size
        stored = page_at(cluster, *place)
        assert (len(stored.body), stored.meta.error) == (size, "" if size else "too_large")


def test_a_page_of_any_size_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service answers too, and any client may have written the page."""
    monkeypatch.setattr("crawlog.commands.why.partition_count", lambda _: 8)
    inquiry, size = Inquiry(Settings(), 1.0, "", lambda _: None), 1 << 26
    packed, headers = gzip.compress(bytes(size)), pages.headers(pages.PageMeta(URL, "j", limit=size), "gzip")
    record: Any = SimpleNamespace(value=lambda: packed, headers=lambda: headers, timestamp=lambda: (1, 0))
    tracemalloc.start()
    event = inquiry._page(record, 0, 5, History(URL, Places(8)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (event.detail["bytes"], peak < 1 << 21) == (size, True)


@pytest.mark.parametrize(
    ("reason", "is_told"),
    [
        ("robots_unreachable: private_address: private address 10.0.0.1", True),
        ("private_address: private name localhost", True),
        ("private_address: metadata address 169.254.169.254", False),
        ("timeout", False),
    ],
)
def test_who_was_not_asked_for_a_private_address_is_told_which_setting_has_it_asked(reason: str, is_told: bool) -> None:
    """Metadata addresses no setting opens."""
    states = [UrlState("j", URL, "failed", reason)]
    story = Story(URL, "a.example", 0, 1.0, [], states, [], [], [], 0, [], 0, [], "")
    assert ("network.allow_private=true" in "".join(_facts(story))) == is_told


def test_a_url_beyond_the_depth_is_told_with_the_pages_that_may_link_to_it() -> None:
    """The likely reason comes first."""
    offers = [
        Offer("j", URL, "dropped", "dropped by depth: depth 3 is over 2", 2, 7),
        Offer("j", URL, "queued", "queued"),
    ]
    told = list(_offered(Story(URL, "a.example", 0, 1.0, [], [], [], [], [], 0, [], 0, offers, "")))
    where = "On one of the 7 pages of its domain that were fetched at depth 2"
    assert told[:2] == [
        f"{where} a link to it is dropped by depth: depth 3 is over 2",
        "Found on a page of its domain now, job j would take it as: queued",
    ]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("0", 0.0),
        ("1700000000.5", 1_700_000_000.5),
        ("2023-11-14T22:13:20", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
    ],
)
def test_a_time_is_written_in_either_form(text: str, at: float) -> None:
    """UTC where no zone is named."""
    assert moment(text, 1.8e9) == at


@pytest.mark.parametrize("text", ["yesterday", "2100-01-01", "nan", "-1", "-inf"])
def test_a_time_that_is_none_or_to_come_is_told(text: str) -> None:
    """With the form that is meant."""
    with pytest.raises(Misconfigured, match=text):
        moment(text, 1.8e9)
