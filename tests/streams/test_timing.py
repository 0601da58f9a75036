"""`eta`, `countdown` and `expires` of requests: what they may be, and the times of the log that they become."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.timing import MAX_TIME, epoch_s, iso, timing

NOW = 1_700_000_000.0
BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("given", "eta", "expires"),
    [
        ({"eta": 1.8e9}, 1.8e9, 0.0),
        ({"eta": "1800000000"}, 1.8e9, 0.0),
        ({"eta": "2027-01-15T08:00:00"}, 1.8e9, 0.0),
        ({"eta": "2027-01-15T09:00:00+01:00"}, 1.8e9, 0.0),
        ({"eta": datetime(2027, 1, 15, 8)}, 1.8e9, 0.0),  # noqa: DTZ001  # without a zone: UTC
        ({"eta": datetime(2027, 1, 15, 9, tzinfo=BERLIN)}, 1.8e9, 0.0),
        ({"countdown": 90}, NOW + 90, 0.0),
        ({"countdown": "1d12h"}, NOW + 129_600, 0.0),
        ({"countdown": timedelta(days=365)}, NOW + 31_536_000, 0.0),
        ({"countdown": 0}, 0.0, 0.0),
        ({"expires": 60}, 0.0, NOW + 60),
        ({"expires": "2h", "countdown": "1h"}, NOW + 3600, NOW + 7200),
        ({"expires": timedelta(hours=1)}, 0.0, NOW + 3600),
        ({"expires": "2027-01-15"}, 0.0, 1.8e9 - 28_800),
        ({"expires": 0, "age": "6h", "itag": 3}, 0.0, 0.0),
        ({"expires": datetime(2027, 1, 15, 8, tzinfo=UTC)}, 0.0, 1.8e9),
    ],
)
def test_times_and_lengths_of_time_become_times_of_the_log(given: dict[str, Any], eta: float, expires: float) -> None:
    """As Celery has them: a number is seconds from now for countdown and expires, and an instant for eta."""
    when = timing(**{"eta": None, "countdown": None, "expires": None} | given)
    assert when is not None
    assert when.counted_from(NOW) == (eta, expires)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"eta": "tomorrow"}, "write 2026-11-21T10:30:00"),
        ({"eta": "6h"}, "write 2026-11-21T10:30:00"),
        ({"eta": float("nan")}, "between 1970 and 9999"),
        ({"eta": -1}, "a length of time is a `countdown`"),
        ({"countdown": "soon"}, "write 45s, 30m, 6h, 7d"),
        ({"countdown": -1}, "above 0"),
        ({"expires": "2027-13-01"}, "write 2026-11-21T10:30:00"),
        ({"eta": 1, "countdown": 1}, "one of eta and countdown"),
    ],
)
def test_what_is_no_time_is_refused_with_the_form(given: dict[str, Any], told: str) -> None:
    """Where the request is made, so the traceback has its line."""
    with pytest.raises(ValueError, match=told):
        timing(**{"eta": None, "countdown": None, "expires": None} | given)


@given(st.floats(0.001, MAX_TIME))
def test_a_time_of_a_found_is_read_back_as_written(at: float) -> None:
    """To the microsecond that ISO 8601 has; another client's time beyond the year 9999 is cut."""
    assert epoch_s(iso(at) or "") == pytest.approx(at, abs=1e-4)
    assert iso(1e300) == "9999-12-31T23:59:59+00:00"
    assert iso(0.0) is None
