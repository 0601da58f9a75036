"""What becomes of a URL: its page and its done, by its answer or without one."""

from types import SimpleNamespace

import msgspec
import pytest

from crawlog.schemas.pages import PageMeta, decode, encode
from crawlog.schemas.progress import JobCounts
from crawlog.schemas.requests import CookieGiven, RequestRecord, packed
from crawlog.schemas.urls import MAX_URL_BYTES, JobSpec, RequestRules, Result
from crawlog.streams.fetch import outcome
from crawlog.streams.fetch.outcome import Unasked
from crawlog.streams.fetch.retry import Again
from crawlog.streams.fold.jobs import JobState
from crawlog.streams.fold.overlay import InMemory, Rows
from crawlog.streams.fold.rows import JobRow, QueueRow
from crawlog.streams.frontier.host import Host, Task
from crawlog.streams.http.answer import Answer
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.robots.robots import RobotsRules
from crawlog.streams.url import fingerprint

NOW = 1_700_000_000.0
URL = "http://a.com/x"
FORBIDS = RobotsRules.parse(b"User-agent: *\nDisallow: /x")


def answered(http: int | None, error: str = "", **more: object) -> Answer:
    """An answer with such facts."""
    answer = Answer(http, error)
    answer.took_s = 0.12345
    for name, value in more.items():
        setattr(answer, name, value)
    return answer


def host(rules: RobotsRules | None = None, unreachable: str = "") -> Host:
    """A host with these rules."""
    one = Host("http://a.com:80", "a.com", None, 1.0)  # type: ignore[arg-type]  # no queue
    one.rules = rules
    if unreachable:
        one.close(unreachable, 1.0, asking=RequestPolicy(RequestRules()).asking)
    return one


ROW = QueueRow(URL, 2, 1, seed=True, attempt=1, priority=5, via=b"8 bytes.")


def task(row: QueueRow = ROW, spider: str = "", *, cookies: bool = False) -> Task:
    """The row of sequence 7 in revision 3 and epoch 4 of a job."""
    job = JobState(0, JobRow("j", 4, JobSpec(rev=3, spider=spider)), JobCounts(), Rows(InMemory()))
    partition = SimpleNamespace(policy=lambda _: RequestPolicy(RequestRules(cookies=cookies)))
    return Task(host(), job, b"q" + (7).to_bytes(8, "big"), row, partition)


@pytest.mark.parametrize(
    ("of_url", "request_", "plain"),
    [
        (True, RequestRecord(callback="item", kwargs={"a": 1}, meta={"b": 2}, errback="failed", timeout_s=9.0), True),
        (True, RequestRecord(headers=(("Accept-Language", "de"),)), False),
        (True, RequestRecord(without=("Accept-Language",)), False),
        (True, RequestRecord(cookies=(CookieGiven("a", "1"),)), False),
        (True, RequestRecord(jar="me"), False),
        (True, RequestRecord(keeps_cookies=False), False),
        (True, RequestRecord(proxy="http://p.test"), False),
        (True, RequestRecord(once=True), False),
        (False, RequestRecord("POST"), False),
    ],
)
def test_a_get_that_sends_nothing_of_its_own_is_plain(of_url: bool, request_: RequestRecord, plain: bool) -> None:
    """Its page is the one of its URL; a session or another proxy may get another, and a 304 may need a second one."""
    identity = fingerprint(URL) if of_url else 7
    row = QueueRow(URL, 2, 1, seed=True, id=identity, request=packed(request_))
    assert outcome.is_plain(task(row)) == plain
    assert not outcome.is_plain(task(row, cookies=True)), "the page may be the one of a session"


@pytest.mark.parametrize(
    ("one", "obey", "end"),
    [
        (host(), True, None),
        (host(FORBIDS), True, Unasked("refused", "robots", "Disallow: /x")),
        (host(FORBIDS), False, None),
        (host(RobotsRules.parse(b"")), True, None),
        (host(FORBIDS, "http_503"), True, Unasked("failed", "robots_unreachable: http_503")),
        (host(FORBIDS, "http_503"), False, None),
    ],
)
def test_what_may_not_be_asked_for_ends_without_it(one: Host, obey: bool, end: Unasked | None) -> None:
    """By robots.txt, where it is obeyed."""
    assert outcome.unasked(one, URL, RequestPolicy(RequestRules(robots=obey)), 0.0) == end


@pytest.mark.parametrize(
    ("answer", "status", "kept"),
    [
        (answered(200, kept=True), "fetched", True),
        (answered(404), "fetched", False),
        (answered(503), "fetched", False),
        (answered(301, location="/y", kept=True), "redirected", False),
        (answered(301), "fetched", False),
        (answered(200, location="/y", rendered="auto", kept=True), "redirected", False),
        (answered(304, same_as=(0, 9)), "not_modified", False),
        (answered(304), "fetched", False),
        (answered(None, "dns"), "failed", False),
        (answered(200, "too_large"), "fetched", False),
    ],
)
def test_a_final_answer_is_a_page_and_a_done(answer: Answer, status: str, kept: bool) -> None:
    """Both name the URL as it was queued; a redirect has no body of its own."""
    meta, done = outcome.page(task(), answer, NOW, 3.0), outcome.done(task(), answer, NOW, 3.0)
    assert meta == PageMeta(
        URL,
        "j",
        rev=3,
        epoch=4,
        depth=2,
        hops=1,
        via=b"8 bytes.",
        seed=True,
        http=answer.http,
        error=answer.error,
        location=answer.location,
        fetched_at=NOW,
        took_s=0.1235,
        kept=kept,
        rendered=answer.rendered,
        same_as=answer.same_as,
        attempt=2,
        row=7,
        priority=5,
        rest_s=3.0,
    )
    assert (done.status, done.reason, done.http) == (status, answer.error, answer.http)
    assert (done.url, done.row, done.priority, done.depth, done.attempt) == (URL, 7, 5, 2, 2)
    assert (done.at, done.took_s, done.host_wait_s, done.next_at, done.page) == (NOW, 0.1235, 3.0, 0.0, None)


@pytest.mark.parametrize(
    ("answer", "unkept"),
    [
        (answered(200, content_type="Application/JSON; charset=utf-8"), "application/json"),
        (answered(200, content_type="text/html", sniffed="image/png"), "image/png"),
        (answered(200, content_type="text/html", kept=True), ""),
        (answered(200, "too_large", content_type="image/png"), ""),
        (answered(404, content_type="text/plain"), ""),
        (answered(None, "dns"), ""),
        (answered(302, location="/y"), ""),
    ],
)
def test_a_done_names_the_type_for_which_a_body_was_not_kept(answer: Answer, unkept: str) -> None:
    """A page says the same, so that a done which is made of it is equal."""
    assert outcome.done(task(), answer, NOW, 0.0).unkept == unkept
    assert outcome.unkept(outcome.page(task(), answer, NOW)) == unkept
    assert outcome.done(task(), answer, NOW, 0.0, Again("x", 1.0)).unkept == ""


@pytest.mark.parametrize(
    ("request_", "seed", "spider", "kept"),
    [
        (None, True, "s.py:S", True),
        (RequestRecord(callback="item"), False, "s.py:S", True),
        (None, False, "s.py:S", False),
        (None, True, "", False),
        (RequestRecord(headers=(("X", "1"),)), True, "", False),
        (RequestRecord("POST"), False, "", True),
    ],
)
def test_a_spider_gets_what_it_asked_for_whatever_its_type(
    request_: RequestRecord | None,
    seed: bool,  # a parameter
    spider: str,
    kept: bool,  # a parameter
) -> None:
    """And anybody the answer to a POST; of links that were only found the setting decides."""
    row = QueueRow(URL, seed=seed, request=packed(request_))
    assert outcome.keeps_any_type(task(row, spider)) == kept


def test_another_attempt_is_a_done_with_its_time() -> None:
    """It failed, whatever the status code."""
    done = outcome.done(task(), answered(503), NOW, 3.0, Again("http_503", 4.0))
    expected = ("failed", "http_503", 503, NOW + 4.0, 4.0, 3.0)
    assert (done.status, done.reason, done.http, done.next_at, done.delay_s, done.host_wait_s) == expected


def test_what_is_refused_names_its_rule() -> None:
    """And asks for no rest."""
    end = Unasked("refused", "robots", "Disallow: /" + "x" * 1000)
    expected = Result(URL, 7, "refused", 5, "robots", end.rule[:200], attempt=2, depth=2, at=NOW)
    assert outcome.refused(task(), end, NOW) == expected


def test_the_page_of_a_request_repeats_it() -> None:
    """Whole, with its identity, its attempt and all headers: parse and a replay need nothing else."""
    record = RequestRecord("POST", body=b"a=\xff", callback="two", meta={"a": [1]})
    row = msgspec.structs.replace(ROW, id=9, request=packed(record))
    headers = (("Set-Cookie", "a=1"), ("X-A", "\xe9"))
    meta = outcome.page(task(row), answered(200, headers=headers), NOW)
    assert (meta.id, meta.request, meta.attempt, meta.headers) == (9, record, 2, headers)
    assert decode(encode(meta)) == meta
    assert outcome.done(task(row), answered(200), NOW, 0.0).id == 9


def test_a_plain_page_is_a_record_that_older_workers_read() -> None:
    """Also one with all headers, which a job with a spider keeps."""
    for spider in ("", "shop.py:Shop"):
        meta = outcome.page(task(spider=spider), answered(200), NOW)
        assert (type(meta), meta.id, meta.request) == (PageMeta, 0, None)
        assert outcome.wants_headers(task(spider=spider)) == bool(spider)
    assert outcome.wants_headers(task(QueueRow(URL, request=packed(RequestRecord()))))
    assert outcome.wants_headers(task(cookies=True))


def test_a_page_keeps_the_exchange_where_its_job_asks_for_that() -> None:
    """`pages.headers=full`; without it a spider's page has the headers of its response alone."""
    answer = answered(200, headers=(("A", "1"),), sent=(("Host", "a.com"),), status_line="HTTP/1.1 200 OK")
    for is_full in (True, False):
        one = task(spider="s.py:S")
        one.job.spec = JobSpec(spider="s.py:S", full_headers=is_full)
        meta = outcome.page(one, answer, NOW)
        kept = (answer.sent, answer.status_line) if is_full else ((), "")
        assert (meta.headers, (meta.sent, meta.status_line)) == (answer.headers, kept)
    one = task()
    one.job.spec = JobSpec(full_headers=True)
    assert outcome.wants_headers(one)


@pytest.mark.parametrize(
    ("answer", "spider", "kept"),
    [
        (answered(301, location="/y", kept=True), "", False),
        (answered(301, location="/y", kept=True), "s.py:S", True),
        (answered(301, location="/y"), "s.py:S", False),
        (answered(404, kept=True), "", True),
        (answered(404, kept=True), "s.py:S", True),
        (answered(200, location="/y", rendered="auto", kept=True), "s.py:S", False),
    ],
)
def test_a_spider_may_want_the_body_of_a_redirect(answer: Answer, spider: str, kept: bool) -> None:
    """But a page that went elsewhere in the browser has no body of its own."""
    assert outcome.page(task(spider=spider), answer, NOW).kept == kept


def test_servers_do_not_fill_records() -> None:
    """What is too large all the same loses its body and its links."""
    answer = answered(301, location="/" * 2 * MAX_URL_BYTES, content_type="t" * 5000, link=("<a>",), kept=True)
    meta = outcome.page(task(QueueRow(URL, sitemap=True)), answer, NOW)
    assert (len(meta.location), len(meta.content_type), meta.kind) == (MAX_URL_BYTES, 1000, "sitemap")
    cut = outcome.without_body(meta, "too_large")
    assert (cut.error, cut.kept, len(cut.content_type), cut.link) == ("too_large", False, 100, ())
