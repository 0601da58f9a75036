"""Records of topics as people read them."""

import time

import pytest
from confluent_kafka import Message

from crawlog.commands.shown_records import MOST_RECORDS, SHOWN_BYTES, shown_record, topic_records
from crawlog.schemas import pages, urls
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import FoundUrl, UrlsRecord
from crawlog.streams.errors import UnknownName
from crawlog.streams.log import Producer, Topics, ensure_topics
from crawlog.streams.settings import Settings

SECRET = "s3cret"

REQUEST = RequestRecord("POST", headers=(("Authorization", SECRET),), meta={"session": SECRET})
FOUND = urls.encode(UrlsRecord("j", urls=[FoundUrl("http://a.com/", request=REQUEST)]))
PAGE = pages.encode(PageMeta("http://a.com/", "j", request=REQUEST, content_type="text/html"))


@pytest.mark.parametrize("to_reader", [True, False])
@pytest.mark.parametrize(
    ("topic", "value", "headers", "of_reader", "of_operator"),
    [
        ("urls", b'{"v": 9}', [], "******** (8 bytes)", '{\n  "v": 9\n}'),
        ("pages", b"<p>caf\xc3\xa9", [(pages.HEADER, PAGE)], "<p>caf\xe9", "<p>caf\xe9"),
        ("items", b'{"a":1}', [], '{\n  "a": 1\n}', '{\n  "a": 1\n}'),
        ("control", b"\xff\x00", [("x", b"1")], "********", "\ufffd\x00"),
        ("dead", b"{}", [("x", b"1")], "********", "{}"),
        ("code", b"PK", [], "********", ""),
        ("progress", None, [], "", ""),
    ],
    ids=["urls", "pages", "items", "control", "dead", "code", "tombstone"],
)
def test_a_record_is_shown_decoded_and_as_far_as_its_reader_may_see_it(
    topic: str,
    value: bytes | None,
    headers: list[tuple[str, str | bytes | None]],
    of_reader: str,
    of_operator: str,
    to_reader: bool,
) -> None:
    """Of commands, letters and code a user who may only look sees nothing."""
    message = Message(topic=topic, partition=0, offset=3, key=b"k\xff", value=value, headers=headers)
    shown = shown_record(topic, message, 1 << 20, to_reader=to_reader)
    assert (shown.key, shown.value) == ("k\ufffd", of_reader if to_reader else of_operator)
    assert shown.size_bytes == (None if value is None else len(value))
    assert shown.headers.get("x", "********") == ("********" if to_reader or "x" not in shown.headers else "1")


@pytest.mark.parametrize("to_reader", [True, False])
@pytest.mark.parametrize(("topic", "value", "headers"), [("urls", FOUND, []), ("pages", b"", [(pages.HEADER, PAGE)])])
def test_no_secret_of_a_request_is_shown(
    topic: str, value: bytes, headers: list[tuple[str, str | bytes | None]], to_reader: bool
) -> None:
    """In a found, and in the metadata of a page; an operator sees `meta`, as `why` shows it."""
    message = Message(topic=topic, partition=0, offset=3, value=value, headers=headers)
    told = str(shown_record(topic, message, 1 << 20, to_reader=to_reader))
    assert "POST" in told
    assert told.count(SECRET) == (0 if to_reader else 1)


def test_a_large_record_shows_its_beginning() -> None:
    """A page may have 8 MiB."""
    message = Message(topic="items", partition=0, offset=3, value=b"x" * (SHOWN_BYTES + 1))
    shown = shown_record("items", message, 1 << 20, to_reader=False)
    assert (len(shown.value), shown.is_cut, shown.size_bytes) == (SHOWN_BYTES, True, SHOWN_BYTES + 1)


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 1


@pytest.mark.broker
def test_records_are_read_from_an_offset_a_time_or_the_end(cluster: Settings) -> None:
    """At most 20; an offset that is not there leads to the nearest one that is."""
    ensure_topics(cluster)
    topic, producer = Topics(cluster.kafka.prefix).urls, Producer(cluster, "test")
    for number in range(MOST_RECORDS + 5):
        producer.send(topic, b"%d" % number, partition=0)
    assert producer.flush(30)
    between_ms = round(time.time() * 1000) + 1
    while time.time() * 1000 <= between_ms:
        time.sleep(0.001)
    producer.send(topic, b"last", partition=0)
    assert producer.flush(30)
    newest = topic_records(cluster, "urls")
    assert (newest.start, newest.next, newest.first, newest.end) == (6, 26, 0, 26)
    first = topic_records(cluster, "urls", 0, 0)
    assert ([one.value for one in first.records], first.next) == ([str(number) for number in range(20)], 20)
    assert [one.value for one in topic_records(cluster, "urls", 0, at_ms=between_ms).records] == ["last"]
    assert topic_records(cluster, "urls", 0, 999).records == []
    for wrong in (("nothing", 0), ("urls", 1), ("control", 1)):
        with pytest.raises(UnknownName, match=r"there is no topic|has no partition"):
            topic_records(cluster, *wrong)
