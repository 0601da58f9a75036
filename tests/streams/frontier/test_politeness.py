"""How long a host rests."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.frontier.politeness import backoff_s, crawl_delay_s, failures_of, retry_after_s

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows another time than GMT."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("floor_s", "wish_s", "expected"),
    [(1.0, None, 1.0), (1.0, 0.5, 1.0), (1.0, 7.0, 7.0), (1.0, 9999.0, 60.0), (90.0, 5.0, 90.0), (90.0, 9999.0, 90.0)],
)
def test_a_wish_raises_the_floor_and_never_lowers_it(floor_s: float, wish_s: float | None, expected: float) -> None:
    """Up to the longest one granted, here a minute."""
    assert crawl_delay_s(floor_s, wish_s, 60.0) == expected


@pytest.mark.parametrize(("failures", "expected"), [(1, 2.0), (2, 4.0), (5, 32.0), (6, 60.0), (10_000, 60.0)])
def test_a_back_off_doubles_up_to_its_limit(failures: int, expected: float) -> None:
    """The middle of the spread."""
    assert backoff_s(failures, 2.0, 60.0, 0.5) == expected


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_jitter_spreads_by_a_quarter(failures: int, jitter: float) -> None:
    """To both sides."""
    middle = backoff_s(failures, 2.0, 60.0, 0.5)
    assert 0.75 * middle <= backoff_s(failures, 2.0, 60.0, jitter) <= 1.25 * middle


@given(st.integers(1, 5), st.floats(0, 1, exclude_max=True))
def test_a_rest_tells_how_many_failures_it_is_of(failures: int, jitter: float) -> None:
    """Below the limit, here 6 of them."""
    assert failures_of(backoff_s(failures, 2.0, 60.0, jitter), 2.0) == failures


@pytest.mark.parametrize(
    ("rest_s", "base_s", "failures"), [(60.0, 2.0, 6), (0.0, 2.0, 1), (1.0, 2.0, 1), (8.0, 0.0, 14)]
)
def test_a_rest_that_no_back_off_made_has_a_number_too(rest_s: float, base_s: float, failures: int) -> None:
    """One by Retry-After, or of a job that does not wait."""
    assert failures_of(rest_s, base_s) == failures


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Tuesday, 14-Nov-23 22:14:20 GMT", 60.0),
        ("Tue Nov 14 22:14:20 2023", 60.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Tue, 31 Feb 2024 00:00:00 GMT", None),
        ("2.5", 2.5),
        ("120.", None),
        (".5", None),
        ("1e3", None),
        ("+5", None),
        ("5, 10", None),
        ("Tue, 14 Nov 2023 22:14:20", 60.0),
        ("Tue, 14 Nov 2023 22:14:20 -0000", 60.0),
        (None, None),
        ("", None),
        ("-5", None),
        ("soon", None),
        ("١٢", None),
        ("9" * 5000, 9_999_999_999.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, expected: float | None, in_tokyo: None) -> None:
    """RFC 9110 10.2.3; what makes no sense is no wish, and this machine's zone has no part in it."""
    assert retry_after_s(header, NOW) == expected


@given(st.text())
def test_no_header_breaks_retry_after(header: str) -> None:
    """A wait, never negative, or none."""
    wait_s = retry_after_s(header, NOW)
    assert wait_s is None or wait_s >= 0
