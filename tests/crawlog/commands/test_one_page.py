"""A page asked for now: its redirects are a crawl's. A page of the log: its body is its own."""

import gzip
from contextlib import closing
from types import SimpleNamespace

import msgspec
import pytest

from crawlog.commands.one_page import fetched_page, page_at, stored_page
from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import CookieGiven, RequestRecord
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import Settings, load
from tests.support.sites import Threaded

URL = "http://a.test/"
OLD = PageMeta(URL, "j", http=200, content_type="text/html")
NOT_MODIFIED = (pages.headers(PageMeta(URL, "j", http=304, same_as=(0, 5))), b"")


def test_a_redirect_to_another_origin_gets_no_secret_of_the_request() -> None:
    """A redirect within the origin keeps them; other headers go along."""
    settings = load({"network.allow_private": True, "politeness.delay_s": 0, "robots.obey": False}, environ={})
    headers = (("Authorization", "Bearer SECRET"), ("Cookie", "sid=SECRET"), ("X-Kind", "shown"))
    request = RequestRecord(headers=headers, cookies=(CookieGiven("own", "SECRET"),))
    with (
        closing(Threaded(lambda _: (200, "text/html", b"there"), address="127.0.0.2")) as other,
        closing(Threaded(lambda path: (302, "/b" if path == "/a" else other.origin, b""))) as site,
    ):
        page = fetched_page(settings, f"{site.origin}/a", request)
    got = [(path, headers.get("Authorization"), headers["X-Kind"]) for path, headers in site.heard]
    assert got == [("/a", "Bearer SECRET", "shown"), ("/b", "Bearer SECRET", "shown")]
    (_, headers_there) = other.heard[0]
    assert (page.body, headers_there["X-Kind"]) == (b"there", "shown")
    assert "SECRET" not in str(headers_there)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (None, "0:9 was not modified: its body, page 0:5, was trimmed"),
        ((pages.headers(PageMeta("http://a.test/other", "j")), b"x"), "another page"),
        ((pages.headers(OLD, "gzip"), b"no gzip"), "cannot be read"),
    ],
)
def test_a_page_whose_older_body_is_gone_is_no_page_of_the_log(
    monkeypatch: pytest.MonkeyPatch, there: tuple[list[tuple[str, bytes]], bytes] | None, told: str
) -> None:
    """As parse has it. What tells of a URL takes the next page of it, and says why it has none."""
    log = {(0, 2): (pages.headers(OLD), b"first"), (0, 5): there, (0, 9): NOT_MODIFIED}
    events = [SimpleNamespace(kind="page", at=at, partition=0, offset=at) for at in (2, 9)]
    monkeypatch.setattr("crawlog.commands.one_page._record", lambda _, *place: log.get(place))
    monkeypatch.setattr("crawlog.commands.why.why", lambda *_: SimpleNamespace(events=events))
    with pytest.raises(Misconfigured, match=told):
        page_at(Settings(), 0, 9)
    assert stored_page(Settings(), URL, "", print).body == b"first"
    del log[0, 2]
    with pytest.raises(Misconfigured, match=told):
        stored_page(Settings(), URL, "", print)


def test_a_page_of_the_log_that_was_not_modified_has_the_older_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the status of its own."""
    log = {(0, 5): (pages.headers(OLD), b"x"), (0, 9): NOT_MODIFIED}
    monkeypatch.setattr("crawlog.commands.one_page._record", lambda _, *place: log.get(place))
    page = page_at(Settings(), 0, 9)
    assert (page.meta.http, page.meta.content_type, page.body) == (304, "text/html", b"x")


@pytest.mark.parametrize("at", [5, 9])
def test_a_page_of_the_log_is_read_under_the_limit_that_it_was_fetched_under(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Its reader need not repeat `kafka.max_record_bytes`."""
    size, settings = 1_500_000, load({"kafka.max_record_bytes": 1 << 20, "fetch.max_body_bytes": 1024}, environ={})
    fetched = msgspec.structs.replace(OLD, limit=size)
    log = {(0, 5): (pages.headers(fetched, "gzip"), gzip.compress(bytes(size))), (0, 9): NOT_MODIFIED}
    monkeypatch.setattr("crawlog.commands.one_page._record", lambda _, *place: log.get(place))
    page = page_at(settings, 0, at)
    assert (len(page.body), page.meta.error) == (size, "")
