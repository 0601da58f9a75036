"""Dones that are made of pages: which pages get one, and what it says."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import CookieGiven, RequestRecord
from crawlog.streams.fetch.lost_dones import OTHER_JOBS_PAGES, LostDones, first_page
from crawlog.streams.job_spec import own_policy
from crawlog.streams.requests.request_rules import UNLIMITED, RequestPolicy
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url import hashed
from tests.support.folding import AT, PLACES, A, B, State, done, found, job, sequence

OWN = own_policy(Settings())
KEEPS = RequestPolicy(msgspec.structs.replace(OWN.rules, cookies=True))
POST = RequestRecord("POST", cookies=(CookieGiven("lang", "en"),), jar="anna")


def page(url: str = A, index: int = 0, **fields: Any) -> PageMeta:
    """A page of job j whose row is of the record at offset 1."""
    said: dict[str, Any] = {"row": sequence(1, index), "http": 200, "fetched_at": AT + 7, "depth": 0} | fields
    return PageMeta(url, "j", **said)


def lost(state: State, *pages: PageMeta, first: int = 0, usual: RequestPolicy = OWN) -> list[u.Result]:
    """The dones of pages from an offset on."""
    dones = LostDones(state.fold, PLACES, usual, UNLIMITED)
    made = [dones.of(meta, first + number, 70) for number, meta in enumerate(pages)]
    return [result for result in made if result is not None]


def take(state: State, results: list[u.Result]) -> None:
    """Fold dones."""
    state.take(u.encode(u.UrlsRecord(job="j", results=results)))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "fetched"),
        ({"http": 404}, "fetched"),
        ({"http": 302, "location": "/x"}, "redirected"),
        ({"http": 304, "same_as": (0, 1)}, "not_modified"),
        ({"http": None, "error": "timeout", "rest_s": 2.0}, "failed"),
        ({"http": None, "error": "robots"}, "refused"),
    ],
)
def test_a_page_says_what_its_done_said(fields: dict[str, Any], status: str) -> None:
    """Its status, its error, its time: the host's last request is as the page has it."""
    state = State(job(), found(A, B))
    [result] = lost(state, page(**fields), first=5)
    assert (result.status, result.reason, result.page) == (status, fields.get("error", ""), (0, 5))
    assert result.bytes == 70
    take(state, [result])
    assert (state.urls(), state.counts.queued, state.counts.page_end) == ([B], 1, 6)
    if status != "refused":
        [(_, stored)] = state.rows.scan(b"h")
        assert msgspec.msgpack.decode(stored)[0] == AT + 7


@pytest.mark.parametrize(
    "fields",
    [
        {"row": None},
        {"row": sequence(3)},
        {"row": -1},
        {"row": 1 << 70},
        {"url": "http://b.com/"},
        {"url": "mailto:x"},
        {"epoch": 1},
        {"job": "k"},
        {"job": "unknown"},
        {"attempt": 2},
        {"id": 7},
        {"priority": 3},
    ],
)
def test_a_page_of_another_row_gets_none(fields: dict[str, Any]) -> None:
    """Each part of a row's identity counts."""
    state = State(job(), found(A), job("k"))
    assert lost(state, msgspec.structs.replace(page(), **fields)) == []
    assert len(lost(state, page())) == 1


def test_two_pages_of_one_row_give_one_done() -> None:
    """Nor does a page whose done is folded give one, now or when two owners do the same."""
    state = State(job(), found(A, B))
    dones = lost(state, page(), page())
    assert [result.page for result in dones] == [(0, 0)]
    take(state, dones)
    before = state.digest()
    take(state, dones)
    assert (state.digest(), state.counts.page_back, state.counts.fetched) != (before, 1, 2)
    assert (state.counts.page_back, state.counts.fetched) == (0, 1)
    assert lost(state, page(), page()) == []


def test_the_second_attempt_is_told_from_the_first() -> None:
    """A waiting row awaits its next attempt alone."""
    state = State(job(), found(A))
    state.take(done(A, sequence(1), "failed", next_at=AT + 9, delay_s=9.0))
    assert lost(state, page(attempt=1)) == []
    take(state, lost(state, page(attempt=2)))
    assert (state.queued(b"w"), state.counts.fetched) == ([], 1)


def test_a_page_answers_a_request_by_its_identity() -> None:
    """Also one that is never sent twice and had begun."""
    state = State(
        job(), u.encode(u.UrlsRecord("j", 0, urls=[u.FoundUrl(A, id=7, request=RequestRecord("POST", once=True))]))
    )
    state.take(done(A, sequence(1), "began"))
    take(state, lost(state, page(id=7)))
    assert (state.urls(), state.counts.fetched) == ([], 1)


def test_the_cookies_of_a_page_come_into_its_jar() -> None:
    """Those of the request too, in the order of the pages; a job or a request that keeps none has none."""
    asked = [u.FoundUrl(A, id=7, request=POST), u.FoundUrl(f"{A}2"), u.FoundUrl(f"{A}3")]
    state = State(job(), u.encode(u.UrlsRecord("j", 0, urls=asked)))
    pages = [
        page(id=7, request=POST, headers=(("Set-Cookie", "sid=1"), ("set-cookie", "b=2; Max-Age=5"))),
        page(f"{A}2", 1, headers=(("Set-Cookie", "sid=2"),)),
        page(f"{A}3", 2, headers=(("Set-Cookie", "sid=; Max-Age=0"), ("Set-Cookie", "c=3"))),
    ]
    assert [result.cookies for result in lost(state, *pages)] == [(), (), ()]
    dones = lost(state, *pages, usual=KEEPS)
    assert [(result.jar, [(one.name, one.value) for one in result.cookies]) for result in dones] == [
        ("anna", [("lang", "en"), ("sid", "1"), ("b", "2")]),
        ("", [("sid", "2")]),
        ("", [("sid", ""), ("c", "3")]),
    ]
    take(state, dones)
    jars = state.fold.dones.jars
    assert [one.name for one in jars.read(1, hashed("a.com"), "anna")] == ["lang", "sid", "b"]
    assert [one.name for one in jars.read(1, hashed("a.com"), "")] == ["c"]


def test_a_cookie_has_the_bytes_that_its_server_set() -> None:
    """In UTF-8, as the live jar has it; other bytes are in neither."""
    state = State(job(), found(A))
    headers = [("Set-Cookie", said.decode("latin-1")) for said in ("a=прага".encode(), b"b=\xe9", b"c=1")]
    [result] = lost(state, page(headers=tuple(headers)), usual=KEEPS)
    assert [(one.name, one.value) for one in result.cookies] == [("a", "прага"), ("c", "1")]


def test_a_host_that_turned_the_request_away_rests() -> None:
    """As long as its page says, in a job that keeps no headers too, within the limit of the job."""
    state = State(job(), found(A, B))
    pages = [page(http=503, rest_s=40.0), page(B, 1, http=None, error="timeout", rest_s=1e300)]
    rests = [result.host_wait_s for result in lost(state, *pages)]
    assert rests == [40.0, OWN.rules.max_delay_s]
    assert [result.host_wait_s for result in lost(state, page())] == [0.0]


def test_pages_are_read_from_where_the_last_done_ends() -> None:
    """Not at all where nothing is queued; a little before it where another job's dones may be missing."""
    state = State(job(), found(A))
    assert first_page(state.fold) == 0
    state.take(done(A, sequence(1), page=(0, 5000)))
    assert first_page(state.fold) is None
    state.take(found(f"{A}2"))
    assert first_page(state.fold) == 5001
    state.take(job("k"), found(B, job="k"))
    assert first_page(state.fold) == 5001 - OTHER_JOBS_PAGES
    state.take(done(B, sequence(5), job="k", page=(0, 4900), next_at=1.0, status="failed"))
    assert first_page(state.fold) == 4901


_headers = st.lists(st.tuples(st.sampled_from(["Set-Cookie", "Retry-After", "x"]), st.text())).map(tuple)
_numbers = {name: st.integers() for name in ("id", "priority", "attempt")}
_pages = st.builds(
    PageMeta,
    st.text(),
    st.sampled_from(["j", "k", ""]),
    row=st.none() | st.integers(),
    fetched_at=st.floats(allow_nan=False),
    headers=_headers,
    **_numbers,
)


@given(_pages)
def test_no_page_breaks_it(meta: PageMeta) -> None:
    """Whatever a record of crawl.pages says."""
    state = State(job(), found(A))
    for one in (meta, msgspec.structs.replace(meta, url=A, job="j", row=sequence(1), id=0, priority=0, attempt=1)):
        for result in lost(state, one, usual=KEEPS):
            take(state, [result])
    state.digest()
