"""Requests of a spider's page, and redirects of requests."""

import msgspec
import pytest

from crawlog.schemas import items
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import CookieGiven, RequestRecord
from crawlog.schemas.urls import FoundUrl, JobSpec, ScopeSpec
from crawlog.streams.parse.founds import Batch
from crawlog.streams.parse.job import Job
from crawlog.streams.parse.outputs import PageOutputs, outputs_of
from crawlog.streams.parse.requested import are_known, parsed_of, wants_spider
from crawlog.streams.spiders import CallResult, RequestOut, SpiderFacts, unfiltered_id
from crawlog.streams.timing import Timing
from crawlog.streams.url import Names, Places, fingerprint

A, B = "http://a.com/", "http://a.com/b"
FACTS = SpiderFacts("/s.py:S", "s@1")
SCRAPY = SpiderFacts("/s.py:S", "s@1", is_scrapy=True)
POST = RequestRecord(
    "POST", headers=(("Content-Type", "x"), ("Authorization", "b"), ("X", "1")), body=b"a", callback="c"
)


def job(**changes: object) -> Job:
    """A job with a spider, in the scope of a.com."""
    spec = JobSpec(spider="/s.py:S", scope=ScopeSpec("domain", ("a.com",)))
    spec = msgspec.structs.replace(spec, **changes)
    return Job("j", spec, Places(1), Names())


def page(url: str = A, request: RequestRecord | None = None, **fields: object) -> PageMeta:
    """A page that was answered."""
    meta = PageMeta(url, "j", http=200, content_type="text/html", request=request, id=9 if request else 0)
    return msgspec.structs.replace(meta, **fields)


def outputs(meta: PageMeta, *requests: RequestOut, facts: SpiderFacts = FACTS, of: Job | None = None) -> PageOutputs:
    """What a page gives whose spider made these requests."""
    parsed = parsed_of(CallResult(requests=list(requests)), facts, meta)
    return outputs_of(of or job(), (0, 5), meta, parsed)


def founds(meta: PageMeta, *requests: RequestOut, facts: SpiderFacts = FACTS) -> list[FoundUrl]:
    """The founds of a page."""
    return [found for _, found in outputs(meta, *requests, facts=facts).founds]


def test_a_request_goes_out_with_all_it_carries() -> None:
    """One deeper than its page, with its priority and its parent."""
    [found] = founds(page(depth=2), RequestOut(B, 7, 1000, POST))
    assert found == FoundUrl(B, 3, 1000, "link", A, id=7, request=POST)


def test_a_countdown_counts_from_the_fetch_of_its_page() -> None:
    """So a page that is parsed again a year later gives the same found."""
    asked = (
        RequestOut(B, timing=Timing(countdown=60.0, expires=2e9)),
        RequestOut(f"{A}c", timing=Timing(eta=9.0, lasts=5.0)),
    )
    assert founds(page(fetched_at=1_000.0), *asked) == [
        FoundUrl(B, 1, 0, "link", A, eta=1_060.0, expires=2e9),
        FoundUrl(f"{A}c", 1, 0, "link", A, eta=9.0, expires=1_005.0),
    ]


def test_a_rule_refuses_requests_as_links() -> None:
    """It is counted."""
    given = outputs(page(), RequestOut("http://b.com/", 7, request=POST), RequestOut("ftp://a.com/"))
    assert (list(given.founds), given.dropped) == ([], {"scope": 1})


def test_a_request_that_is_in_the_log_is_not_sent_again() -> None:
    """By its identity: another POST to the same URL is sent."""
    of = job()
    of.sent(0).newest[7] = 1
    given = outputs(page(), RequestOut(B, 7, request=POST), RequestOut(B, 8, request=POST), of=of)
    assert [found.id for _, found in given.founds] == [8]


@pytest.mark.parametrize(
    ("request_id_of_page", "key"),
    [(0, b"j http://a.com/"), (fingerprint(A), b"j http://a.com/"), (9, b"j http://a.com/ 0000000000000009")],
)
def test_two_posts_to_one_url_give_two_rows(request_id_of_page: int, key: bytes) -> None:
    """A row's key names the request where the URL alone does not."""
    given = outputs(page(request=POST, id=request_id_of_page)).item
    assert given is not None
    assert given[0] == key
    assert (items.decode(given[1]).spider, items.key("j", A, items.decode(given[1]).id)) == ("s@1", key)


@pytest.mark.parametrize(
    ("method", "http", "then", "has_body"),
    [
        ("POST", 301, "GET", False),
        ("POST", 302, "GET", False),
        ("POST", 303, "GET", False),
        ("POST", 307, "POST", True),
        ("POST", 308, "POST", True),
        ("PUT", 302, "PUT", True),
        ("PUT", 303, "GET", False),
        ("HEAD", 303, "HEAD", True),
        ("POST", 200, "GET", False),  # its script went elsewhere
        ("PUT", 403, "GET", False),
    ],
)
def test_a_redirect_changes_the_method_by_the_standard(method: str, http: int, then: str, has_body: bool) -> None:
    """RFC 9110 15.4, and a page's own navigation: the body and its headers go with it."""
    before = msgspec.structs.replace(POST, method=method)
    [found] = founds(page(request=before, http=http, location="/b"))
    assert found.request is not None
    assert (found.request.method, bool(found.request.body), found.hops) == (then, has_body, 1)
    names = [name for name, _ in found.request.headers]
    assert names == (["Content-Type"] if has_body else []) + ["Authorization", "X"]
    assert found.request.callback == "c"


def test_a_login_that_leads_to_a_known_page_reaches_its_callback() -> None:
    """The target of a redirected POST is unfiltered; that of a GET is not."""
    [found] = founds(page(request=POST, http=302, location="/b"))
    assert found.request is not None
    assert found.request.unfiltered
    assert found.id == unfiltered_id(9, 1, fingerprint(B), 0)
    get = RequestRecord(callback="c")
    [found] = founds(page(request=get, id=fingerprint(A), http=302, location="/b"))
    assert (found.id, found.request) == (fingerprint(B), get)


def test_another_origin_gets_no_credentials() -> None:
    """Nor the cookies that the request brought along."""
    get = RequestRecord(headers=POST.headers, cookies=(CookieGiven("a", "b"),), callback="c")
    [found] = founds(page(request=get, http=302, location="http://www.a.com/"))
    assert found.request is not None
    assert [name for name, _ in found.request.headers] == ["Content-Type", "X"]
    assert found.request.cookies == ()


def test_a_redirect_of_a_plain_get_stays_plain() -> None:
    """It has no identity and no request."""
    [found] = founds(page(http=302, location="/b"))
    assert (found.id, found.request) == (0, None)


@pytest.mark.parametrize(
    ("meta", "wanted"),
    [
        (page(), True),
        (page(http=404), False),
        (page(http=404, request=RequestRecord(errback="e")), True),
        (page(http=404, request=RequestRecord(answers=(404,))), True),
        (page(http=500, request=RequestRecord(all_answers=True)), True),
        (page(http=302, location="/b"), False),
        (page(http=302, location="/b", request=RequestRecord(callback="c")), False),
        (page(http=302, location="/b", request=RequestRecord(follows=False)), True),
        (page(http=302, location="/b", request=RequestRecord(answers=(302,))), True),
        (page(http=None, error="timeout"), False),
        (page(http=None, error="timeout", request=RequestRecord(errback="e")), True),
        (page(http=None, error="timeout", request=RequestRecord(callback="c")), False),
        (page(kind="sitemap"), False),
        (page(kept=False), False),
    ],
)
def test_a_spider_gets_the_pages_that_it_wants(meta: PageMeta, wanted: bool) -> None:
    """By status and by what its request says; Scrapy's get every answer."""
    assert wants_spider(meta, FACTS) is wanted
    assert wants_spider(meta, SCRAPY) is (meta.kind == "page")


def test_scrapys_spiders_follow_redirects_themselves() -> None:
    """The worker adds no found of its own."""
    out = RequestOut(B, 7, request=RequestRecord(), hops=1, depth=0)
    [found] = founds(page(http=302, location="/b"), out, facts=SCRAPY)
    assert (found.id, found.source, found.hops, found.depth) == (7, "redirect", 1, 0)


def test_a_spider_that_closes_stops_its_job() -> None:
    """As the operator's command does."""
    parsed = parsed_of(CallResult(closes="enough"), FACTS, page())
    [(key, value)] = outputs_of(job(), (0, 5), page(), parsed).controls
    assert key == b"command/job/j"
    assert b'"stop"' in value


def test_a_request_that_is_only_named_must_be_in_the_workers_memory() -> None:
    """In the log or on its way; else the page is asked for once more."""
    sent = job().sent(0)
    named = [RequestOut(B, 7, is_known=True), RequestOut(B, 8, request=POST)]
    assert not are_known(named, sent)
    sent.newest[7] = 1
    assert are_known(named, sent)


def test_a_page_waits_for_the_batch_of_a_request_that_is_only_named() -> None:
    """And sends nothing for it."""
    of = job()
    batch = Batch("j", 0, "a.com", 0, of.sent(0))
    of.sent(0).on_way[7] = (1, batch)
    given = outputs(page(), RequestOut(B, 7, is_known=True), of=of)
    assert (list(given.founds), set(given.awaited)) == ([], {batch})


@pytest.mark.parametrize(
    "request_of_page", [RequestRecord(follows=False), RequestRecord(answers=(302,)), RequestRecord(all_answers=True)]
)
def test_a_redirect_that_goes_to_the_callback_is_not_followed(request_of_page: RequestRecord) -> None:
    """The callback decides; crawlog's own spiders said so, and the worker followed it all the same."""
    assert founds(page(http=302, location="/b", request=request_of_page)) == []
    assert [found.url for found in founds(page(http=302, location="/b", request=RequestRecord(callback="c")))] == [B]


@pytest.mark.parametrize(("http", "is_taken"), [(302, True), (301, False), (200, False)])
def test_a_redirect_whose_status_the_spider_takes_is_not_followed(http: int, is_taken: bool) -> None:  # a parameter
    """A page of a browser that left by itself is one too, with any status: that one is followed."""
    facts = SpiderFacts("/s.py:S", "s@1", statuses=(302, 200))
    meta = page(http=http, location="/b")
    assert wants_spider(meta, facts) is is_taken
    assert founds(meta, facts=facts) == (
        [] if is_taken else [FoundUrl(B, 0, 0, "redirect", A, 1, via=fingerprint(A).to_bytes(8, "big"))]
    )
