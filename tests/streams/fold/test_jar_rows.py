"""Cookie jars in the fold, and requests that have begun."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.fold import decoded
from crawlog.streams.fold import rows as r
from crawlog.streams.printable import HIDDEN
from crawlog.streams.session.cookies import MOST_BYTES, MOST_COOKIES, CookieJar
from crawlog.streams.url import hashed
from tests.support.folding import AT, A, B, State, done, found, job, sequence

SID = u.CookieChange("sid", "1", "a.com")
GONE = u.CookieChange("sid", "", "a.com", gone=True)


def header(state: State, url: str = A, domain: str = "a.com", name: str = "", now: float = AT) -> str:
    """The cookies that a request would be sent with, by the jar's row."""
    return CookieJar(state.fold.dones.jars.read(1, hashed(domain), name)).header(url, now)


def asked(*urls: str) -> State:
    """Job 1 with these URLs queued by one record, at offset 1."""
    return State(job(), found(*urls))


def test_a_done_changes_its_jar_in_the_order_of_the_log() -> None:
    """The last one counts, and a cookie that is removed is gone; an empty jar has no row."""
    state = asked(A, f"{A}2", f"{A}3")
    state.take(done(A, sequence(1), cookies=(SID,)))
    assert header(state) == "sid=1"
    state.take(done(f"{A}2", sequence(1, 1), cookies=(u.CookieChange("sid", "2", "a.com"),)))
    assert header(state) == "sid=2"
    state.take(done(f"{A}3", sequence(1, 2), cookies=(GONE,)))
    assert list(state.rows.scan(b"k")) == []


def test_jars_belong_to_a_job_a_domain_and_a_name() -> None:
    """A second jar of the domain, another domain and another job have cookies of their own."""
    state = asked(A, f"{A}2", B)
    state.take(job("k"), done(A, sequence(1), cookies=(SID,)))
    state.take(done(f"{A}2", sequence(1, 1), jar="anna", cookies=(u.CookieChange("sid", "2", "a.com"),)))
    assert (header(state), header(state, name="anna"), header(state, B, "b.com")) == ("sid=1", "sid=2", "")
    assert {key[:5] for key, _ in state.rows.scan(b"k")} == {b"k\0\0\0\1"}


@pytest.mark.parametrize(
    "again",
    [
        done(A, sequence(1), cookies=(GONE,)),
        done(A, sequence(7), cookies=(GONE,)),
        done(f"{A}2", sequence(1, 1), epoch=3, cookies=(GONE,)),
        done(f"{A}2", sequence(1, 1), "failed", attempt=5, cookies=(GONE,)),
    ],
)
def test_a_done_that_changes_no_row_changes_no_jar(again: bytes) -> None:
    """The same done twice, one without a row, one of another epoch, one of another attempt."""
    state = asked(A, f"{A}2")
    state.take(done(A, sequence(1), cookies=(SID,)))
    row = list(state.rows.scan(b"k"))
    state.take(again)
    assert list(state.rows.scan(b"k")) == row


def test_an_attempt_that_is_repeated_keeps_what_its_answer_set() -> None:
    """A cookie check: the next attempt is sent with the cookie."""
    state = asked(A)
    state.take(done(A, sequence(1), "failed", next_at=AT + 9, delay_s=9.0, cookies=(SID,)))
    assert header(state) == "sid=1"


def test_a_cookie_ends_at_its_time() -> None:
    """Counted from the log, never from a clock of the fold's."""
    state = asked(A)
    state.take(done(A, sequence(1), at=AT, cookies=(u.CookieChange("sid", "1", "a.com", expires=AT + 60),)))
    assert (header(state, now=AT + 59), header(state, now=AT + 60)) == ("sid=1", "")


def test_jars_go_with_the_epoch_of_their_job() -> None:
    """A job that begins again is a new visitor."""
    state = asked(A)
    state.take(done(A, sequence(1), cookies=(SID,)))
    state.checkpoint()
    state.take(u.encode(u.UrlsRecord(job="j", epoch=1, rewind=u.Rewind())))
    assert (header(state), list(state.rows.scan(b"k"))) == ("", [])


def test_a_jar_stays_within_its_limits() -> None:
    """Of number and of bytes; a cookie longer than any server may set is left out, a jar's long name too."""
    state = asked(A, f"{A}2", f"{A}3")
    many = tuple(u.CookieChange(f"n{n}", "x" * 90, "a.com") for n in range(2 * MOST_COOKIES))
    state.take(done(A, sequence(1), cookies=(u.CookieChange("long", "x" * 5000, "a.com"), *many)))
    [(_, stored)] = state.rows.scan(b"k")
    assert len(r.read_jar(stored).cookies) == MOST_COOKIES
    long = tuple(u.CookieChange(f"m{n}", "x" * 4000, "a.com") for n in range(9))
    state.take(done(f"{A}2", sequence(1, 1), jar="b", cookies=long))
    assert max(len(stored) for _, stored in state.rows.scan(b"k")) < 2 * MOST_BYTES
    state.take(done(f"{A}3", sequence(1, 2), jar="n" * 300, cookies=(SID,)))
    assert (state.counts.bad, len(list(state.rows.scan(b"k")))) == (1, 2)


def test_a_row_tells_people_no_value() -> None:
    """`verify` shows rows that differ."""
    state = asked(A)
    state.take(done(A, sequence(1), jar="anna", cookies=(SID,)))
    [row] = [decoded(*row) for row in state.rows.scan(b"k")]
    assert (row.kind, row.key["name"], row.value["cookies"][0]["value"]) == ("cookie jar", "anna", HIDDEN)
    assert "'1'" not in repr(row)


_texts = st.one_of(st.text(max_size=12), st.text(min_size=3000, max_size=5000), st.just("a.com"))
_numbers = st.one_of(st.none(), st.integers(), st.floats())
_changes = st.fixed_dictionaries(
    {"name": _texts},
    optional={
        "value": _texts, "domain": _texts, "path": _texts, "expires": _numbers, "wide": st.booleans(),
        "secure": st.booleans(), "gone": st.booleans(),
    },
)  # fmt: skip


@given(st.lists(st.tuples(_texts, st.lists(_changes, max_size=6), _numbers), max_size=5))
def test_no_cookies_of_a_record_break_the_fold(dones: list[tuple[str, list[dict[str, Any]], Any]]) -> None:
    """Rows stay readable and small, and another fold of the same records has the same rows."""
    urls = [f"{A}{n}" for n in range(len(dones))]
    log = [job(), found(*urls)]
    for n, (jar, cookies, at) in enumerate(dones):
        result = {"url": urls[n], "row": sequence(1, n), "status": "fetched", "jar": jar, "cookies": cookies, "at": at}
        log.append(json.dumps({"v": 1, "job": "j", "results": [result]}).encode(errors="surrogatepass"))
    one, other = State(), State()
    for value in log:
        one.take(value)
        other.take(value)
        other.checkpoint()
        other.open()
    for _, stored in one.rows.scan(b"k"):
        CookieJar(r.read_jar(stored).cookies).header(A, AT).encode()
        assert len(stored) < 2 * MOST_BYTES
    assert one.digest() == other.digest()


# ---------------------------------------------------------------------- requests that have begun


def begun(kind: bytes = b"q") -> State:
    """A request that is never sent twice, about to be sent; `w`: at its second attempt."""
    request = u.FoundUrl(A, id=7, request=RequestRecord("POST", once=True))
    state = State(job(), u.encode(u.UrlsRecord("j", 0, urls=[request])))
    if kind == b"w":
        state.take(done(A, sequence(1), "failed", next_at=AT + 9, delay_s=9.0))
    state.take(done(A, sequence(1), "began", attempt=2 if kind == b"w" else 1))
    return state


@pytest.mark.parametrize("kind", [b"q", b"w"])
def test_a_request_that_began_keeps_its_row_with_a_mark(kind: bytes) -> None:
    """It is counted as queued until its attempt ends; the mark is found before and after a checkpoint."""
    state = begun(kind)
    for _ in range(2):
        assert [(row.began, row.attempt) for row in state.queued(kind)] == [(True, kind == b"w")]
        assert (state.counts.queued, state.counts.fetched) == (1, 0)
        state.checkpoint()
    state.take(done(A, sequence(1), "failed", attempt=2 if kind == b"w" else 1, reason="interrupted"))
    assert (state.queued(kind), state.counts.queued, state.counts.failed) == ([], 0, 1)


def test_the_mark_is_of_one_attempt() -> None:
    """Another attempt begins anew; a mark of an attempt that is over changes nothing."""
    state = begun()
    state.take(done(A, sequence(1), "failed", next_at=AT + 9, delay_s=9.0))
    state.take(done(A, sequence(1), "began", attempt=1))
    assert [(row.began, row.attempt) for row in state.queued(b"w")] == [(False, 1)]
    state = begun()
    state.take(done(A, sequence(1), "began", epoch=4), done(B, sequence(1), "began"), done(A, sequence(9), "began"))
    assert (len(state.queued()), state.counts.bad) == (1, 0)
