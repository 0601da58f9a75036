"""Identity of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.requests import RequestRecord
from crawlog.streams.spiders.spider_request import request_id, unfiltered_id
from crawlog.streams.url.canonical import fingerprint

A = "http://a.com/"


def test_a_get_is_its_url_whatever_it_carries() -> None:
    """So a link and a request with a callback to one URL are one."""
    assert request_id(A, RequestRecord(callback="parse_item", meta={"a": 1}, headers=(("X", "1"),))) == fingerprint(A)


@pytest.mark.parametrize(
    "other",
    [
        RequestRecord("POST"),
        RequestRecord("POST", body=b"a"),
        RequestRecord(body=b"a"),
        RequestRecord("PUT", body=b"a"),
        RequestRecord(headers=(("X-Lang", "de"),)),
        RequestRecord(headers=(("X-Lang", "fr"),)),
    ],
)
def test_method_body_and_named_headers_tell_requests_apart(other: RequestRecord) -> None:
    """From the GET and from each other."""
    others = {request_id(A, RequestRecord(*given), ("x-lang",)) for given in [("GET",), ("POST",), ("PUT",)]}
    assert request_id(A, other, ("x-lang",)) == request_id(A, other, ("x-lang",))
    assert other == RequestRecord("POST") or request_id(A, other, ("x-lang",)) not in others


def test_the_spelling_of_a_headers_name_does_not_count() -> None:
    """Nor do headers that are not named."""
    one = RequestRecord(headers=(("X-Lang", "de"), ("Accept", "a")))
    two = RequestRecord(headers=(("x-lang", "de"), ("Accept", "b")))
    assert request_id(A, one, ("x-lang",)) == request_id(A, two, ("x-lang",))


@given(st.integers(0, 2**64 - 1), st.integers(1, 9), st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_an_unfiltered_request_moves(parent: int, attempt: int, filtered: int, count: int) -> None:
    """A page that asks for itself never meets its own identity, and each of its requests has another one."""
    ids = {unfiltered_id(parent, attempt, filtered, number) for number in range(count + 1)}
    assert len(ids) == count + 1
    assert parent not in ids
