"""When a request is sent: `eta`, `countdown` and `expires`, as in Celery; and again: `age` and `itag`, as in pyspider.

A spider and a seed give them. They become times of the log where the request is made: those of a page's requests count
from its `fetched_at`, so that the page gives the same when it is parsed again; those of seeds count from the clock.
"""

from datetime import UTC, datetime, timedelta

import msgspec

from crawlog.schemas.urls import FoundUrl

from .spans import span_s

MAX_TIME = 253_402_300_799.0  # The last second of the year 9999

Time = float | str | datetime  # UTC epoch seconds, ISO 8601 (UTC without a zone), or a datetime

Length = float | str | timedelta  # Seconds, or `45s`, `30m`, `6h`, `7d`, `1d12h`


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times of a request; 0 for none.

    Attributes:
        eta, expires: UTC epoch seconds.
        countdown, lasts: The same, in seconds from when the request is made.
        age, itag: As in a found.
    """

    eta: float = 0.0
    expires: float = 0.0
    countdown: float = 0.0
    lasts: float = 0.0
    age: float = 0.0
    itag: str = ""

    @property
    def is_again(self) -> bool:
        """Whether a URL that the job knows is found once more by it: it may be due earlier."""
        return bool(self.age or self.itag)

    def on(self, found: FoundUrl, now: float) -> FoundUrl:
        """A found with these times."""
        eta, expires = self.counted_from(now)
        return msgspec.structs.replace(found, eta=eta, expires=expires, age=self.age, itag=self.itag)

    def counted_from(self, now: float) -> tuple[float, float]:
        """The request's `eta` and `expires` as a found has them."""
        eta = now + self.countdown if self.countdown else self.eta
        return eta, now + self.lasts if self.lasts else self.expires


def timing(
    eta: Time | None,
    countdown: Length | None,
    expires: Time | Length | None,
    age: Length | None = None,
    itag: str | float | None = None,
) -> Timing | None:
    """The times that a request was given; None for none.

    Args:
        expires: A number, a timedelta and a text such as `1h` count from when the request is made.

    Raises: ValueError: one of them is no time or length of time, or there are both `eta` and `countdown`.
    """
    if all(one is None for one in (eta, countdown, expires, age, itag)):
        return None
    if eta is not None and countdown is not None:
        raise ValueError("a request takes one of eta and countdown")
    is_time = isinstance(expires, datetime) or (isinstance(expires, str) and "-" in expires)
    return Timing(
        0.0 if eta is None else epoch_s(eta),
        epoch_s(expires) if is_time else 0.0,  # type: ignore[arg-type]  # the lengths are left out
        _length_s(countdown),
        0.0 if is_time else _length_s(expires),  # type: ignore[arg-type]  # the times are left out
        _length_s(age),
        "" if itag is None else str(itag),
    )


def epoch_s(given: Time) -> float:
    """UTC epoch seconds of a time, which has no zone or an own one. Raises: ValueError: it is none."""
    try:
        at = float(given)  # type: ignore[arg-type]  # a datetime is the next case
    except (TypeError, ValueError):
        try:
            read = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
        except ValueError:
            raise ValueError(f"{given!r:.60} is no time; write 2026-11-21T10:30:00, in UTC, or epoch seconds") from None
        at = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    if not 0 <= at <= MAX_TIME:  # nan too
        raise ValueError(f"{given!r:.60} is no time between 1970 and 9999; a length of time is a `countdown`")
    return at


def iso(at: float) -> str | None:
    """A time of a found as `epoch_s` reads it; None for none."""
    return datetime.fromtimestamp(min(at, MAX_TIME), UTC).isoformat() if at > 0 else None


def _length_s(given: Length | None) -> float:
    """Seconds of a length of time; 0 for none. Raises: ValueError."""
    if given is None:
        return 0.0
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    return 0.0 if seconds == 0 else span_s(seconds)
