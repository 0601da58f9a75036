"""What an answer to a request for robots.txt means: as tables."""

import msgspec
import pytest

from crawlog.schemas.urls import RequestRules
from crawlog.streams.fetch import robots_answer
from crawlog.streams.fetch.robots_answer import UNREACHABLE_TTL_S, Access, Counts, Later, Meaning, Rest, Unreachable
from crawlog.streams.http.answer import Answer
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.robots.robots import MAX_BYTES
from crawlog.streams.settings.sections import Robots

NOW = 1_700_000_000.0
FORBIDS = b"User-agent: *\nDisallow: /"


def judge(attempts: int = 3, window_s: float = 60.0) -> Access:
    """Two seconds before the second try, then four; a host may ask for a minute."""
    robots = Robots(attempts=attempts, retry_window_s=window_s)
    return Access(robots)


ASKED = RequestPolicy(RequestRules(retry_delay_s=2.0, max_delay_s=60.0))


def answered(http: int | None, error: str = "", **more: object) -> Answer:
    """An answer with such facts."""
    answer = Answer(http, error)
    answer.body = FORBIDS
    for name, value in more.items():
        setattr(answer, name, value)
    return answer


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        (answered(200), Counts(NOW, 200, FORBIDS)),
        (answered(206), Counts(NOW, 206, FORBIDS)),
        *((answered(status), Counts(NOW, status, b"")) for status in (301, 308, 400, 401, 403, 404, 410, 451)),
        (answered(404, "chunk_timeout"), Counts(NOW, 404, b"")),
        *((answered(status), Unreachable(f"http_{status}")) for status in (429, 500, 503)),
        (answered(None, "timeout"), Unreachable("timeout")),
        (answered(200, "chunk_timeout"), Unreachable("chunk_timeout")),
    ],
)
def test_a_status_has_its_meaning(answer: Answer, meant: Meaning) -> None:
    """By the last try. Half a file is none; what is left of redirects allows all, as what is missing does."""
    assert judge().judged(answer, NOW, 3, 0.5, ASKED, is_last=True) == meant


@pytest.mark.parametrize(
    ("answer", "attempt", "since_s", "meant"),
    [
        (answered(503), 1, 0.0, Later(2.0)),
        (answered(503), 2, 2.0, Later(4.0)),
        (answered(503), 3, 6.0, Unreachable("http_503")),
        (answered(503), 1, 60.0, Unreachable("http_503")),
        (answered(503, retry_after="30"), 3, 6.0, Unreachable("http_503", 30.0)),
        (answered(503, retry_after="86400"), 3, 6.0, Unreachable("http_503", 60.0)),
        (answered(503, retry_after="30"), 1, 0.0, Later(30.0)),
        (answered(503, retry_after="86400"), 1, 0.0, Later(60.0)),
        (answered(None, "dns"), 1, 0.0, Later(2.0)),
        (answered(None, "proxy", by_proxy=True, again_s=90.0), 1, 0.0, Later(90.0)),
        (answered(None, "private_address: loopback", private=True), 1, 0.0, Unreachable("private_address: loopback")),
    ],
)
def test_what_is_away_is_asked_again_within_its_window(
    answer: Answer, attempt: int, since_s: float, meant: Meaning
) -> None:
    """Not before the time that it names; a closed address is as closed the next time."""
    judging = judge()
    assert judging.judged(answer, NOW, attempt, 0.5, ASKED, is_last=judging.is_last(attempt, since_s)) == meant


def test_the_tries_share_the_window() -> None:
    """However long the back-off has become."""
    assert judge(attempts=10, window_s=20.0).judged(answered(503), NOW, 9, 0.99, ASKED, is_last=False) == Later(2.0)


@pytest.mark.parametrize(
    ("robots", "kept"),
    [
        (b"Disallow: /private\n" * 40_000, b"Disallow: /private\n" * 26_947),
        (b"Disallow: /short\nDisallow: /long", b"Disallow: /short\nDisallow: /long"),
        (b"x" * 600_000, b""),
    ],
)
def test_the_line_that_the_limit_of_robots_txt_cuts_does_not_count(robots: bytes, kept: bytes) -> None:
    """`Disallow: /` would close the host."""
    meant = judge().judged(answered(200, body=robots[:MAX_BYTES]), NOW, 1, 0.5, ASKED, is_last=False)
    assert meant == Counts(NOW, 200, kept)


@pytest.mark.parametrize(("age_s", "left_s"), [(0.0, 100.0), (99.0, 1.0), (100.0, 0.0), (-1.0, 0.0)])
def test_rules_count_for_their_time(age_s: float, left_s: float) -> None:
    """None from the future: the clock was set back, and nobody knows how old they are. The cache keeps them whole."""
    stored = robots_answer.pack(Counts(NOW - age_s, 200, FORBIDS))
    assert robots_answer.read(stored) == Counts(NOW - age_s, 200, FORBIDS)
    assert robots_answer.read(stored).left_s(100.0, NOW) == left_s


@pytest.mark.parametrize(("since_s", "left_s"), [(0.0, 60.0), (59.0, 1.0), (60.0, 0.0), (-1.0, 0.0)])
def test_a_rest_goes_on_after_a_restart(since_s: float, left_s: float) -> None:
    """None from the future, as of rules."""
    stored = robots_answer.pack(Rest(NOW - since_s, 60.0))
    assert robots_answer.read_rest(stored).left_s(NOW) == left_s


@pytest.mark.parametrize(("since_s", "left_s"), [(0.0, UNREACHABLE_TTL_S), (299.0, 1.0), (300.0, 0.0), (-1.0, 0.0)])
def test_old_rules_count_on_while_newer_ones_cannot_be_had(since_s: float, left_s: float) -> None:
    """Until the next attempt, also after a restart: a row without that time is read as one without attempts."""
    old = Counts(NOW - 1000.0, 200, FORBIDS)
    assert robots_answer.read(msgspec.msgpack.encode([NOW - 1000.0, 200, FORBIDS])) == old
    kept = robots_answer.read(robots_answer.pack(old.kept(NOW - since_s)))
    assert (kept.body, kept.left_s(100.0, NOW)) == (FORBIDS, left_s)


def test_that_newer_rules_cannot_be_had_is_true_of_one_way_of_asking() -> None:
    """A robots.txt counts for all; that a job with little time, say, got no newer one keeps no other from asking."""
    old = Counts(NOW, 200, FORBIDS)
    assert (old.counts_for(b"hasty"), old.kept(NOW).counts_for(b"hasty")) == (b"", b"hasty")
