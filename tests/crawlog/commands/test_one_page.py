"""A page asked for now: its redirects are a crawl's."""

from contextlib import closing

from crawlog.commands.one_page import fetched_page
from crawlog.schemas.requests import CookieGiven, RequestRecord
from crawlog.streams.settings import load
from tests.support.sites import Threaded


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
