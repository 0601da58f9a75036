"""What people are shown of requests: never a secret, whatever shows it."""

import json
from typing import Any

import msgspec
import pytest

from crawlog.commands.shown_records import header_for_reader, shown_header, value_for_reader, without_secrets
from crawlog.schemas import pages, urls
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import CookieGiven, RequestRecord, packed
from crawlog.schemas.urls import CookieChange, FoundUrl, JobSpec, Result, ScopeSpec
from crawlog.streams.fold import rows
from crawlog.streams.fold.explained import decoded
from crawlog.streams.fold.history import History
from crawlog.streams.redaction import for_readers, named_request, shown_found, shown_page, shown_request
from crawlog.streams.url.place import Places

SECRET = "s3cret"  # of nobody
RECORD = RequestRecord(
    "POST",
    url=f"http://ann:{SECRET}@a.com/x",
    headers=(("Authorization", f"Basic {SECRET}"), ("cookie", f"a={SECRET}"), ("X-Shown", "1")),
    body=f"password={SECRET}".encode(),
    cookies=(CookieGiven("sid", SECRET),),
    proxy=f"http://ann:{SECRET}@proxy.com:8080",
    callback="two",
    meta={"proxy": f"http://ann:{SECRET}@proxy.com:8080", "n": [{"deep": f"socks5://:{SECRET}@p"}], "price": 1},
)
FOUND = FoundUrl("http://a.com/x", id=0xAB, request=RECORD)
PAGE = PageMeta(
    "http://a.com/x", "j", id=0xAB, request=RECORD, headers=(("Set-Cookie", f"a={SECRET}"), ("Date", "today"))
)


def is_hidden(told: Any) -> bool:
    """Whether no secret is in it, as JSON or base64."""
    text = json.dumps(told, default=str)
    return SECRET not in text and "czNjcmV0" not in text and "cGFzc3dvcmQ" not in text


def test_a_request_is_shown_without_its_secrets() -> None:
    """Names and all else stay."""
    told = shown_request(RECORD)
    assert is_hidden(told)
    assert told["headers"] == [["Authorization", "********"], ["cookie", "********"], ["X-Shown", "1"]]
    assert told["cookies"] == [{"name": "sid", "value": "********"}]
    assert (told["method"], told["callback"], told["meta"]["price"]) == ("POST", "two", 1)
    assert (told["body"], told["proxy"]) == ("******** (15 bytes)", "http://********@proxy.com:8080")


def test_founds_pages_and_rows_are_shown_so() -> None:
    """In the history of a URL, in the rows that differ, in a dead letter."""
    assert is_hidden(shown_found(FOUND))
    assert is_hidden(shown_page(PAGE))
    row = rows.QueueRow("http://a.com/x", id=0xAB, request=packed(RECORD))
    assert is_hidden(decoded(rows.queue_key(0, 1, 0, 1, lifo=False), rows.pack(row)))
    assert is_hidden(decoded(rows.parked_key(1, "j"), rows.pack(FOUND)))
    assert is_hidden(shown_header(pages.HEADER, pages.encode(PAGE)))
    value = urls.encode(urls.UrlsRecord("j", 0, urls=[FOUND]))
    assert is_hidden((without_secrets(value) or b"").decode())


OWN = RequestRecord(
    headers=(("X-Session", SECRET), ("Accept", "text/html")), meta={"session": SECRET}, kwargs={"key": SECRET}
)


def test_a_user_who_may_only_look_sees_no_value_that_may_be_a_secret() -> None:
    """Names stay; those who steer the crawl are shown the values too."""
    told = for_readers(shown_found(FoundUrl("http://a.com/x", request=OWN)))
    assert is_hidden(told)
    assert told["request"]["headers"] == [["X-Session", "********"], ["Accept", "text/html"]]
    assert told["request"]["meta"] == {"session": "********"}
    page = PageMeta("http://a.com/x", "j", request=OWN, headers=(("X-Key", SECRET), ("Date", "today")))
    told = for_readers(shown_page(page))
    assert is_hidden(told)
    assert told["headers"] == [["X-Key", "********"], ["Date", "today"]]
    assert header_for_reader(pages.HEADER, pages.encode(page)) == msgspec.json.encode(told).decode()
    assert not is_hidden(shown_page(page))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (urls.encode(urls.UrlsRecord("j", 0, urls=[FoundUrl("http://a.com/x", request=OWN)])), b'"http://a.com/x"'),
        (f'{{"url": "http://a.com/x", "token": "{SECRET}"}}'.encode(), b'"http://a.com/x"'),
        (f'{{"v":1,"urls":[{{"url":"http://a.com/","request":{{"body":"{SECRET}!"}}}}]}}'.encode(), b"********"),
        (f"\xff{SECRET}".encode("latin-1"), b"******** (7 bytes)"),
        (urls.encode(urls.UrlsRecord(job="j", spec=JobSpec(args=(("key", SECRET),)))), b"********"),
        (None, None),
    ],
)
def test_a_dead_letter_is_shown_to_them_so_far_as_it_can_be_read(value: bytes | None, shown: bytes | None) -> None:
    """A record that is broken holds its secrets anywhere; so does that of a job."""
    told = value_for_reader(value, is_page=False)
    assert is_hidden((told or b"").decode())
    assert told == shown if told is None or shown is None else shown in told
    assert value_for_reader(value, is_page=True) == value
    assert header_for_reader("x-own", SECRET.encode()) == "********"
    assert header_for_reader(pages.HEADER, SECRET.encode()) == "********"
    assert header_for_reader(pages.CODING, b"gzip") == "gzip"


@pytest.mark.parametrize("value", [b"<html>", b"", None, b'{"v":1,"job":"j","urls":[{"url":"http://a.com/"}]}'])
def test_other_records_are_shown_as_they_are(value: bytes | None) -> None:
    """To the byte."""
    assert without_secrets(value) == value
    plain = pages.encode(pages.PageMeta("http://a.com/", "j"))
    assert shown_header(pages.HEADER, plain) == plain.decode()


def test_the_history_of_a_url_names_its_requests() -> None:
    """By method, callback and id."""
    history = History(FOUND.url, Places(1))
    history.take(urls.encode(urls.UrlsRecord(job="j", spec=JobSpec(scope=ScopeSpec(kind="any")))), 0, 1.0)
    both = [FOUND, FoundUrl("http://a.com/x")]
    history.take(urls.encode(urls.UrlsRecord("j", 0, urls=both)), 1, 2.0)
    posted, plain = history.events[1:]
    assert posted.what == "found as a seed (POST for two, id 00000000000000ab), depth 0 → queued"
    assert plain.what == "found as a seed, depth 0 → queued"
    assert is_hidden([msgspec.to_builtins(event) for event in history.events])


def test_a_done_tells_which_cookies_changed_and_not_to_what() -> None:
    """In `crawlog why`, and in a dead letter."""
    cookies = (CookieChange("sid", "7777", "a.com"), CookieChange("old", domain="a.com", gone=True))
    record = urls.UrlsRecord(job="j", results=[Result("http://a.com/x", 1 << 16, "fetched", cookies=cookies)])
    history = History("http://a.com/x", Places(1))
    history.take(urls.encode(urls.UrlsRecord(job="j", spec=JobSpec(scope=ScopeSpec(kind="any")))), 0, 1.0)
    history.take(urls.encode(urls.UrlsRecord(job="j", urls=[FoundUrl("http://a.com/x")])), 1, 2.0)
    history.take(urls.encode(record), 2, 3.0)
    assert history.events[-1].what == "attempt 1: fetched, cookies sid, -old"
    for told in (history.events[-1].detail, (without_secrets(urls.encode(record)) or b"").decode()):
        assert "sid" in str(told)
        assert "7777" not in str(told)


@pytest.mark.parametrize(
    ("request_id", "record", "text"),
    [
        (0, None, ""),
        (0, RequestRecord(), ""),
        (0, RequestRecord(callback="two"), "GET for two"),
        (1, None, "GET, id 0000000000000001"),
        (1, RequestRecord("PUT"), "PUT, id 0000000000000001"),
    ],
)
def test_a_plain_get_needs_no_name(request_id: int, record: RequestRecord | None, text: str) -> None:
    """Its URL is enough."""
    assert named_request(request_id, record) == text
