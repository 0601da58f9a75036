"""What travels: records are read back as they were written, and what is no record says so."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from crawlog.schemas import control, dead, items, pages, progress, urls
from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import FoundUrl, JobSpec, PageChange, Result, UrlsRecord
from crawlog.streams.job_spec import resolve_spec
from crawlog.streams.settings import Settings

RECORDS = [
    UrlsRecord(job="j", urls=[FoundUrl("http://a.com/", 2, -3, "link", "http://b.com/", 1, joins=True)]),
    UrlsRecord(
        job="j", epoch=2, at=1.5, results=[Result("http://a.com/", 1 << 40, "failed", next_at=2.5, page=(1, 2))]
    ),
    UrlsRecord(job="j", spec=JobSpec(rev=3, max_depth=0, order="lifo", state="stopped")),
    UrlsRecord(job="j", epoch=1, changes=[PageChange("http://a.com/", 1 << 40, 3, (1 << 64) - 1, (1, 2), -3)]),
    UrlsRecord(job="j", epoch=1, joins=("a.com", "b.com")),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_urls_record_is_read_as_written(record: UrlsRecord) -> None:
    """JSON with the version in it."""
    value = urls.encode(record)
    assert json.loads(value)["v"] == 1
    assert urls.decode(value) == record


@pytest.mark.parametrize("identity", [-1, 1 << 64])
def test_a_page_whose_identity_has_more_than_64_bits_is_none(identity: int) -> None:
    """Parse would fail at it when it remembers what was sent."""
    with pytest.raises(ValueError, match="an identity has 64 bits"):
        pages.decode(b'{"v":2,"url":"http://a.com/","job":"j","id":%d}' % identity)


DEEP = b'{"v": 1, "deep": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"


@pytest.mark.parametrize(
    "decode",
    [
        urls.decode,
        pages.decode,
        items.decode,
        dead.decode_mark,
        lambda value: control.decode(b"job/j", value),
        lambda value: control.decode(b"command/host/a.com", value),
    ],
)
def test_a_record_nested_without_end_is_no_record(decode: Callable[[bytes], object]) -> None:
    """Who reads it expects a ValueError; an error of the stack ended whoever it was."""
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(DEEP)
    assert progress.decode(DEEP) is None


@pytest.mark.parametrize(
    "value",
    [
        b'{"url": "http://a.com/"}',
        b'{"v": 1, "url": "http://a.com/", "note": [1]}',
        b"http://a.com/",
        b"http://a.com/\r\n",
        b'\n {"url": "http://a.com/"}\r\n',
        b'\xef\xbb\xbf{"url": "http://a.com/"}',
        b"\xef\xbb\xbf http://a.com/",
    ],
)
def test_a_bare_record_is_a_found_of_one_seed(value: bytes) -> None:
    """From any Kafka client, with blanks or a BOM; what crawlog does not know is left alone."""
    record = urls.decode(value)
    assert (record.job, record.urls) == (None, [FoundUrl("http://a.com/")])


def test_a_plain_line_may_have_its_scheme_in_capitals() -> None:
    """The fold makes it canonical, as any found."""
    assert urls.decode(b"HTTPS://a.com/").urls == [FoundUrl("HTTPS://a.com/")]


@pytest.mark.parametrize("value", [b"http://a.com/ b", b"http://a.com/\tb", b"http://a.com/\nhttp://b.com/"])
def test_a_plain_line_with_blanks_in_it_says_so(value: bytes) -> None:
    """As a line of seeds does."""
    with pytest.raises(ValueError, match="more than one URL without blanks"):
        urls.decode(value)


def test_a_bare_record_keeps_its_fields() -> None:
    """As in a batch."""
    record = urls.decode(b'{"url": "http://a.com/", "job": "j", "depth": 1, "priority": 5, "source": "link"}')
    founds = [FoundUrl("http://a.com/", 1, 5, "link")]
    assert record == UrlsRecord(job="j", url="http://a.com/", depth=1, priority=5, source="link", urls=founds)


@pytest.mark.parametrize("value", [b"http://a.com/", b'{"url": "http://a.com/", "job": "j", "depth": 1}'])
def test_a_bare_record_that_is_sent_again_is_bare(value: bytes) -> None:
    """Its writer did not know the epoch, so it counts in every epoch."""
    record = urls.decode(value)
    again = urls.founds_again(record, record.urls or [])
    assert urls.decode(urls.encode(again)) == record


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"{", b"{}", b"[]", b"null", b"hello", b"ftp://a.com/", b"http://a.com/\nhttp://b.com/",
        b"http://\xff/",
        b'{"v": 3, "url": "http://a.com/"}', b'{"urls": [], "results": [], "job": "j"}', b'{"results": []}',
        b'{"spec": {}}', b'{"url": 1}', b'{"job": "j", "results": [{"url": "u", "row": 1, "status": "eaten"}]}',
    ],
)  # fmt: skip
def test_what_is_no_record_says_so(value: bytes | None) -> None:
    """With the error that the fold takes for a dead letter."""
    with pytest.raises(ValueError, match=r"."):
        urls.decode(value)


def test_defaults_do_not_travel() -> None:
    """A batch of 500 links is mostly URLs."""
    assert len(urls.encode(UrlsRecord(job="j", urls=[FoundUrl("u")]))) == len('{"v":1,"job":"j","urls":[{"url":"u"}]}')


CONTROLS: list[control.Control] = [
    control.JobCopy("j", JobSpec(rev=2), 1),
    control.Finished("j", 1.5, urls=(1, 2), counts=progress.JobCounts(fetched=3, dropped={"depth": 2})),
    control.Join("j", "a.com:8080"),
    control.Join("j", "a.com", ("b.com", "c.com")),
    JobSchedule("s", 1, (RunJob(JobSpec(rev=2), seeds=("http://a.com/",)),), cron="@daily", zone="Europe/Berlin"),
    Planned("s", 1, 60, 60, ("s-19700101T0001Z",), begun=True, waiting=(120,)),
]


@pytest.mark.parametrize("record", CONTROLS)
def test_a_control_record_is_read_by_its_key(record: control.Control) -> None:
    """The key says what it is."""
    assert control.decode(control.key(record), control.encode(record)) == record


def test_a_join_of_many_names_takes_the_place_of_no_other() -> None:
    """crawl.control is compacted by key."""
    names = [("a.com",), ("a.com", "b.com"), ("a.com", "c.com"), ("b.com", "c.com")]
    assert len({control.key(control.Join("j", first, tuple(more))) for first, *more in names}) == len(names)


@pytest.mark.parametrize(("key", "value"), [(b"job/j", None), (b"later/j", None), (b"job/j", b"")])
def test_tombstones_are_no_control_records(key: bytes | None, value: bytes | None) -> None:
    """Whatever they ended."""
    assert control.decode(key, value) is None


NO_CONTROLS = [
    (None, b"{}"),
    (b"later/j", b"{}"),
    (b"job/j", b"[]"),
    (b"job/j", b"{"),
    (b"missing/j/x", b'{"v":1,"job":"j","url":"x","sketch":1}'),
]


@pytest.mark.parametrize(("key", "value"), NO_CONTROLS)
def test_what_nobody_will_obey_is_garbage(key: bytes | None, value: bytes) -> None:
    """Nothing is said in vain: it becomes a dead letter."""
    with pytest.raises(ValueError, match=r"."):
        control.decode(key, value)


def test_a_dead_letter_is_read_from_its_headers() -> None:
    """What failed, where and why; of a long traceback the end."""
    letter = dead.DeadLetter("crawl.urls", 3, 17, "frontier", "bad ü", b"k", b"v", "j", "x" * 9000 + "end")
    back = dead.from_headers(dict(letter.headers()), b"k", b"v")
    assert back.traceback.endswith("end")
    assert len(back.traceback) == dead.MAX_TRACEBACK
    assert (back.topic, back.partition, back.offset, back.error, back.key, back.job) == (
        "crawl.urls",
        3,
        17,
        "bad ü",
        b"k",
        "j",
    )


@pytest.mark.parametrize("headers", [{}, {"partition": b"", "offset": b""}, {"partition": b"x", "offset": b"\xff"}])
def test_a_dead_letter_without_its_headers_is_still_one(headers: dict[str, bytes]) -> None:
    """Anyone may write to crawl.dead."""
    assert dead.from_headers(headers, None, None).offset == -1


def test_the_first_partition_and_offset_are_kept() -> None:
    """Zero is a number, not nothing."""
    letter = dead.from_headers({"partition": b"0", "offset": b"0"}, None, None)
    assert (letter.partition, letter.offset) == (0, 0)


def test_a_page_is_read_as_written() -> None:
    """The body is no part of the header."""
    meta = pages.PageMeta("http://a.com/", "j", http=200, seed=True, content_type="text/html", fetched_at=1.5)
    assert pages.decode(pages.encode(meta)) == meta


@pytest.mark.parametrize("version", [2, 3])
def test_records_of_logs_that_began_with_several_versions_are_read(version: int) -> None:
    """Pages in a coding had 3, records with a request 2; the fields are the same."""
    meta = pages.PageMeta("http://a.com/", "j", limit=9)
    found = UrlsRecord("j", urls=[FoundUrl("http://a.com/", id=7)])
    row = items.ItemsRecord("j", "u", (1, 2), [], id=7)
    earlier = b'{"v":%d,' % version
    assert pages.decode(pages.encode(meta).replace(b'{"v":1,', earlier)) == meta
    assert urls.decode(urls.encode(found).replace(b'{"v":1,', earlier)) == found
    assert items.decode(items.encode(row).replace(b'{"v":1,', earlier)) == row


def test_a_page_of_a_version_to_come_is_none() -> None:
    """The message names the version."""
    with pytest.raises(ValueError, match=r"Invalid value 4 - at `\$\.v`"):
        pages.decode(b'{"v":4,"url":"u","job":"j"}')


@pytest.mark.parametrize("header", [None, b"", b"{}", b'{"v": 4, "url": "u", "job": "j"}'])
def test_a_page_without_its_header_says_so(header: bytes | None) -> None:
    """Parse dead-letters it."""
    with pytest.raises(ValueError, match=r"."):
        pages.decode(header)


def test_a_start_has_one_note_a_job() -> None:
    """A later one replaces it."""
    ended = control.StartEnded("j", 1.0, 2, "abc", (("a", "1"),), requests=3, items=4, error="no")
    assert control.key(ended) == b"start/j"
    assert control.decode(control.key(ended), control.encode(ended)) == ended
    assert control.decode(b"start/j", None) is None


def test_items_are_read_as_written() -> None:
    """Each item stays the bytes it was."""
    value = b'{"v":1,"job":"j","url":"u","page":[1,2],"items":[{"a": 1},{}]}'
    record = items.decode(value)
    assert [bytes(item) for item in record.items] == [b'{"a": 1}', b"{}"]
    assert items.encode(record) == value
    assert items.key("j", "u") == b"j u"


@pytest.mark.parametrize("more", [{"id": 7}, {"raw": True}, {"stats": {"n": 1.0}}])
def test_items_of_a_request_are_read_as_written(more: dict[str, Any]) -> None:
    """Its key has the request's id."""
    record = items.ItemsRecord("j", "u", (1, 2), [msgspec.Raw(b"{}")], **more)
    read = items.decode(items.encode(record))
    assert {name: getattr(read, name) for name in more} == more
    assert items.encode(read) == items.encode(record)
    assert items.key("j", "u", 7) == b"j u 0000000000000007"


def test_stats_are_added_up_but_for_greatest_and_least_values() -> None:
    """Those have the spider's name for them in the end."""
    sums: dict[str, float] = {}
    for more in ({"n": 2.0, "<max>a": 3.0, "<min>b": 3.0}, {"n": 1.0, "<max>a": 1.0, "<min>b": 1.0}, {"<max>a": 2.0}):
        items.add_stats(sums, more)
    assert items.named_stats(sums) == {"a": 3, "b": 1, "n": 3}


def test_sums_of_stats_can_be_read_again_whatever_is_added_up() -> None:
    """JSON has no infinity: a sink could not open its state any more, and its other jobs waited for that."""
    sums: dict[str, float] = {}
    for _ in range(2):
        items.add_stats(sums, {"a": 1e308, "b": -1e308})
    items.add_stats(sums, {"b": 1e308})
    assert msgspec.json.decode(msgspec.json.encode(sums), type=dict[str, float]) == sums
    assert sums == {"a": items.LARGEST, "b": 1e308 - items.LARGEST}


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"v":1,"job":"j","url":"u","page":[1],"items":[]}'])
def test_what_are_no_items_says_so(value: bytes | None) -> None:
    """The sink dead-letters it."""
    with pytest.raises(ValueError, match=r"."):
        items.decode(value)


def test_a_report_is_read_as_written() -> None:
    """Counts by job."""
    report = progress.Progress("w", "fetch", 3, 1.5, jobs={"j": progress.JobCounts(queued=2, dropped={"scope": 1})})
    assert progress.decode(progress.encode(report)) == report
    assert progress.key(report) == b"w/fetch/3"
    idle = progress.Progress("w", progress.IDLE, -1, 1.5, idle_stage="fetch")
    assert progress.decode(progress.encode(idle)) == idle
    assert progress.key(idle) == b"w/fetch/-1"  # workers of several stages may have one name


@pytest.mark.parametrize(
    "forged",
    [
        '"partition": -7',
        '"partition": -1',
        f'"rss": 1{"0" * 400}',
        f'"pages": -1{"0" * 400}',
        f'"jobs": {{"j": {{"queued": 1{"0" * 400}}}}}',
    ],
)
def test_a_report_with_numbers_that_no_worker_has_is_none(forged: str) -> None:
    """One that a stranger wrote ended `crawlog up` and every command that looks at the fleet."""
    value = f'{{"v": 1, "worker": "w", "stage": "fetch", "partition": 0, "at": 1.0, {forged}}}'
    assert progress.decode(value.encode()) is None


@pytest.mark.parametrize("value", [None, b"", b"{", b'{"v": 2}', b"\xff"])
def test_what_is_no_report_is_none(value: Any) -> None:
    """The next one comes in a second."""
    assert progress.decode(value) is None


def test_a_page_that_was_not_modified_has_the_newer_headers() -> None:
    """And of the older page those that the answer did not repeat (RFC 9111 3.2)."""
    old = pages.PageMeta("http://a.com/", "j", headers=(("Content-Type", "text/html"), ("Date", "1"), ("ETag", "x")))
    new = pages.PageMeta("http://a.com/", "j", headers=(("date", "2"),))
    assert pages.with_body(new, old).headers == (("Content-Type", "text/html"), ("ETag", "x"), ("date", "2"))


@pytest.mark.parametrize(
    ("name", "was", "said"),
    [("link", ("</a>; rel=next",), ("</b>; rel=next",)), ("x_robots", (), ("noindex",)), ("refresh", "0; /a", "0; /b")],
)
def test_a_page_that_was_not_modified_is_read_by_the_newer_headers(name: str, was: Any, said: Any) -> None:
    """Its X-Robots-Tag decides on its row; an answer that does not repeat a header changes nothing (RFC 9111 3.2)."""
    old, new = (pages.PageMeta("http://a.com/", "j", **{name: value}) for value in (was, said))
    silent = pages.PageMeta("http://a.com/", "j")
    assert getattr(pages.with_body(new, old), name) == said
    assert getattr(pages.with_body(silent, old), name) == was


def test_a_job_of_before_takes_links_from_where_it_took_them() -> None:
    """Its record names no sources where they were the default of its time; new records name theirs."""
    assert JobSpec().links == ("a", "area")
    assert b'"links":["a","area","frame","refresh"]' in urls.encode(
        urls.UrlsRecord(job="j", spec=resolve_spec(Settings()))
    )
