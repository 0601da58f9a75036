"""When a spider that is fed is asked for more: at once while it gives, after a pause, and when its job is idle."""

from crawlog.processes.feeding import AGAIN_S, MOST_FED, Feeding
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.streams.jobs import FleetReports
from crawlog.streams.spiders import FEED, IDLE, CallResult, RequestOut

PART = CallResult(waits=True, requests=[RequestOut("http://a.test/")])
NOTHING = CallResult(waits=True)


def reports_of(*, queued: int = 0, in_flight: int = 0, parsed: int = 5) -> FleetReports:
    """One partition, whose log ends at 5."""
    made = FleetReports()
    jobs = {"j": JobCounts(folded=5, queued=queued, in_flight=in_flight)}
    made.take(Progress("fetch-0", "fetch", 0, 1.0, 5, jobs=jobs))
    made.take(Progress("parse-0", "parse", 0, 1.0, parsed))
    return made


def ends(_: str) -> tuple[int, ...]:
    """Of each topic."""
    return (5,)


def wish(feeding: Feeding, waiting: int, now: float, reports: FleetReports | None = None) -> bytes:
    """The wish with these reports."""
    return feeding.wish(waiting, reports or reports_of(in_flight=1), ends, now)


def test_a_spider_that_gives_is_asked_at_once_until_many_requests_wait() -> None:
    """What it takes from outside is better left there."""
    feeding = Feeding("j")
    feeding.took(PART)
    assert feeding.waits
    assert [wish(feeding, waiting, 0.0) for waiting in (0, 16, MOST_FED - 1, MOST_FED)] == [FEED, FEED, FEED, b""]
    assert wish(feeding, 0, AGAIN_S / 2) == b""
    assert wish(feeding, 0, AGAIN_S) == FEED


def test_a_spider_that_gives_nothing_is_asked_after_a_pause() -> None:
    """Pages of the job are on their way."""
    feeding = Feeding("j")
    feeding.took(NOTHING)
    assert [wish(feeding, 0, now * AGAIN_S / 2) for now in range(4)] == [FEED, b"", FEED, b""]


def test_a_job_is_idle_when_nothing_of_it_is_left() -> None:
    """Neither queued, nor in flight, nor to parse; then again after a pause."""
    feeding = Feeding("j")
    feeding.took(NOTHING)
    for busy in (reports_of(queued=1), reports_of(in_flight=1), reports_of(parsed=4)):
        assert feeding.wish(0, busy, ends, feeding._again_at) == FEED
    assert wish(feeding, 0, feeding._again_at, reports_of()) == IDLE
    assert wish(feeding, 0, feeding._again_at - 0.1, reports_of()) == b""
    assert wish(feeding, 0, feeding._again_at, reports_of()) == IDLE
