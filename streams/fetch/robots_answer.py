"""What an answer to a request for robots.txt means, and for how long (RFC 9309 2.3.1, 2.4).

2xx counts as it is written. 4xx, and a redirect that leads nowhere, allows all. 5xx, 429 and silence forbid all, after
further attempts, unless older rules are at hand: these count on (RFC 9309 2.4). Rules are cached beside the state:
losing them costs a request.

A 2xx counts for all jobs; any other answer for jobs that ask in the same way: a server may turn one agent away.

    key:   b"robots " + <host key>, of an answer that is no 2xx followed by b" " + <RequestPolicy.asking>
    value: MessagePack [fetched at, status, body, unreachable at]

How long a host rests after an answer that is none is cached too, for a worker that starts meanwhile.

    key:   b"robots-rest " + <host key>
    value: MessagePack [asked at, seconds]
"""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.streams.frontier import backoff_s, retry_after_s
from crawlog.streams.robots import MAX_BYTES, MAX_TTL_S

if TYPE_CHECKING:
    from crawlog.streams.http import Answer
    from crawlog.streams.requests import RequestPolicy
    from crawlog.streams.settings import Robots

UNREACHABLE_TTL_S = 300.0  # Pause before a robots.txt that could not be read is tried again


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """A robots.txt that counts, as it is cached; an empty body allows all.

    Attributes:
        unreachable_at: When it was last asked for again in vain; 0 for never.
    """

    fetched_at: float
    status: int
    body: bytes
    unreachable_at: float = 0.0

    def left_s(self, ttl_s: float, now: float) -> float:
        """Seconds before it is asked for again; 0 if it is too old or comes from the future."""
        return max(_left_s(ttl_s, now - self.fetched_at), _left_s(UNREACHABLE_TTL_S, now - self.unreachable_at))

    def counts_for(self, asking: bytes) -> bytes:
        """The way of asking that it counts for, of an answer to this one; empty for all.

        That this one had no answer says nothing of others: they ask for themselves.
        """
        return b"" if self.status < 300 and not self.unreachable_at else asking

    def kept(self, now: float) -> "Counts":
        """The same rules for `UNREACHABLE_TTL_S` more, because newer ones cannot be had."""
        return msgspec.structs.replace(self, unreachable_at=now)


def _left_s(of_s: float, age_s: float) -> float:
    return max(of_s - age_s, 0.0) if age_s >= 0 else 0.0


class Rest(msgspec.Struct, frozen=True, array_like=True):
    """The rest of a host after a request for its robots.txt, as it is cached."""

    asked_at: float
    wait_s: float

    def left_s(self, now: float) -> float:
        """Seconds that are left of it; 0 if it comes from the future."""
        return _left_s(self.wait_s, now - self.asked_at)


class Later(NamedTuple):
    """Ask again after so many seconds."""

    wait_s: float


class Unreachable(NamedTuple):
    """It cannot be read, for a reason in a word: without older rules all is forbidden for `UNREACHABLE_TTL_S`.

    Attributes:
        wait_s: How long the answer asks to wait.
    """

    reason: str
    wait_s: float = 0.0


Meaning = Counts | Later | Unreachable


class Access:
    """Judges answers for robots.txt by the settings and by the rules of the job that asks."""

    def __init__(self, robots: "Robots") -> None:
        self.ttl_s = MAX_TTL_S
        self._attempts = robots.attempts
        self._window_s = robots.retry_window_s

    def is_last(self, attempt: int, since_s: float) -> bool:
        """Whether there is no attempt after this one.

        Args:
            attempt: Failed attempts in a row, this one included, >= 1.
            since_s: Seconds since the first of them.
        """
        return attempt >= self._attempts or since_s >= self._window_s

    def judged(
        self, answer: "Answer", now: float, attempt: int, jitter: float, policy: "RequestPolicy", *, is_last: bool
    ) -> Meaning:
        """What an answer at the end of redirects means.

        Args:
            now: UTC epoch seconds.
            attempt: Failed attempts in a row, this one included, >= 1; a proxy's failures are counted apart.
            jitter: In [0, 1).
            policy: The policy of the job that asks.
            is_last: Whether no attempt comes after this one.
        """
        status = answer.http
        if answer.private:
            return Unreachable(answer.reason)
        if status is not None and status < 500 and status != 429 and not (answer.error and status < 300):
            return Counts(now, status, whole_lines(answer.body) if status < 300 else b"")
        asked_s = min(retry_after_s(answer.retry_after, now) or 0.0, policy.rules.max_delay_s)
        if is_last:
            return Unreachable(answer.reason or f"http_{status}", asked_s)
        most = self._window_s / self._attempts
        backoff = backoff_s(attempt, policy.rules.retry_delay_s, most, jitter)
        return Later(max(asked_s, min(backoff, most), answer.again_s))


def whole_lines(robots: bytes) -> bytes:
    """A robots.txt without the line that its limit cut through: half a path forbids more than the whole one."""
    if len(robots) < MAX_BYTES:
        return robots
    return robots[: max(robots.rfind(b"\n"), robots.rfind(b"\r")) + 1]


def key(host: str, asking: bytes = b"") -> bytes:
    """The key of a host's row, given the host's key.

    Args:
        asking: The way of asking that it counts for; empty for all.
    """
    return b"robots " + host.encode() + (b" " + asking if asking else b"")


def is_of(row: bytes, host_key: bytes) -> bool:
    """Whether the key of a row is that of a host, for any way of asking; another port begins alike."""
    return row == host_key or row.startswith(host_key + b" ")


def rest_key(host: str) -> bytes:
    """The key of a host's rest, given the host's key."""
    return b"robots-rest " + host.encode()


pack = msgspec.msgpack.Encoder().encode
read = msgspec.msgpack.Decoder(Counts).decode
read_rest = msgspec.msgpack.Decoder(Rest).decode
