"""Founds with a request: identity, rows, strangers' records."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import urls as u
from crawlog.schemas.requests import MAX_REQUEST_BYTES, RequestRecord, packed, unpacked
from tests.support.folding import A, State, done, job, sequence

POST = RequestRecord("POST", body=b"page=2", callback="parse_list", meta={"page": 2})


def asked(*founds: u.FoundUrl) -> bytes:
    """A record of founds of job j."""
    return u.encode(u.UrlsRecord("j", 0, urls=list(founds)))


def test_two_posts_to_one_url_are_two_urls() -> None:
    """Their identities tell them apart, and from the plain GET."""
    state = State(job(), asked(u.FoundUrl(A), u.FoundUrl(A, id=1, request=POST), u.FoundUrl(A, id=2, request=POST)))
    assert [(row.url, row.id, unpacked(row.request)) for row in state.queued()] == [
        (A, 0, None),
        (A, 1, POST),
        (A, 2, POST),
    ]


def test_a_request_is_known_by_its_identity() -> None:
    """Also after its done, and whatever else it carries."""
    other = RequestRecord("POST", callback="parse_other")
    state = State(job(), asked(u.FoundUrl(A, id=7, request=POST)), done(A, sequence(1)))
    state.take(asked(u.FoundUrl(A, id=7, request=other)))
    assert (state.urls(), state.counts.seen) == ([], 1)


def test_a_plain_get_is_known_by_its_url() -> None:
    """A record may hold plain GETs beside other requests."""
    state = State(job(), asked(u.FoundUrl(A)), asked(u.FoundUrl(A), u.FoundUrl(A, id=7, request=POST)))
    assert ([row.id for row in state.queued()], state.counts.seen) == ([0, 7], 1)


def test_a_request_waits_for_its_job() -> None:
    """A parked found keeps its request."""
    state = State(asked(u.FoundUrl(A, id=7, request=POST)), job())
    assert [(row.id, unpacked(row.request)) for row in state.queued()] == [(7, POST)]


def test_a_failed_request_waits_with_all_it_carries() -> None:
    """The waiting row is the queue row."""
    state = State(job(), asked(u.FoundUrl(A, id=7, request=POST)))
    state.take(done(A, sequence(1), "failed", next_at=1_700_000_100.0, delay_s=5.0))
    [row] = state.queued(b"w")
    assert (row.id, row.attempt, unpacked(row.request)) == (7, 1, POST)


def test_a_request_goes_on_to_its_partition_whole() -> None:
    """As a record of the version that an older worker refuses."""
    from crawlog.streams.url.place import Places

    places = Places(8)
    state = State(job(), places=places, partition=(places.of(A).partition + 1) % 8)
    [effects] = state.take(asked(u.FoundUrl(A, id=7, request=POST)))
    [record] = effects.forward.values()
    assert u.decode(u.encode(record)).urls == [u.FoundUrl(A, id=7, request=POST)]


@pytest.mark.parametrize(
    "request_of_a_stranger",
    [
        {"meta": {"n": 1 << 70}},
        {"meta": {"deep": json.loads("[" * 200 + "]" * 200)}},
        {"body": "A" * (2 * MAX_REQUEST_BYTES)},
        {"jar": "j" * 257},
        {"attempts": -1},
        {"method": 5},
    ],
)
def test_a_request_that_cannot_be_kept_is_dead(request_of_a_stranger: dict[str, Any]) -> None:
    """The dead letter says why; nothing else happens."""
    state = State(job())
    before = state.digest()
    value = {"v": 1, "job": "j", "urls": [{"url": A, "id": 7, "request": request_of_a_stranger}]}
    [effects] = state.take(json.dumps(value).encode())
    assert effects.dead
    assert state.digest() == before


@pytest.mark.parametrize("identity", [-1, 1 << 64])
def test_an_identity_has_64_bits(identity: int) -> None:
    """Another one is dead."""
    [effects] = State(job()).take(json.dumps({"v": 1, "job": "j", "urls": [{"url": A, "id": identity}]}).encode())
    assert effects.dead


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _values, max_size=4), st.binary(max_size=50))
def test_what_a_request_carries_comes_through_the_log_unchanged(meta: dict[str, Any], body: bytes) -> None:
    """Found, row and page say the same."""
    carried = RequestRecord("POST", body=body, meta=json.loads(json.dumps(meta)))
    state = State(job(), asked(u.FoundUrl(A, id=7, request=carried)))
    [row] = state.queued()
    assert packed(unpacked(row.request)) == packed(carried)
