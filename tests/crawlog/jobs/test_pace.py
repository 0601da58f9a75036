"""How fast a job goes, and when it may end."""

import pytest

from crawlog.jobs.live import Pace
from crawlog.schemas.progress import JobCounts


def test_the_rate_is_a_mean_over_the_last_seconds() -> None:
    """100 pages in the first second, none after."""
    pace = Pace()
    rates = [pace.rate()]
    for now, pages in ((0.0, 0), (1.0, 100), (11.0, 100), (17.0, 100)):
        pace.look(pages, now)
        rates.append(round(pace.rate(), 1))
    assert rates == [0.0, 0.0, 100.0, 0.0, 0.0]


def test_a_job_that_begins_again_has_no_negative_rate() -> None:
    """Its counts are 0 again."""
    assert looked((0.0, 100), (1.0, 0), (3.0, 4)).rate() == 2.0


def looked(*looks: tuple[float, int]) -> Pace:
    """The pace of a job that had so many pages at these moments."""
    pace = Pace()
    for now, pages in looks:
        pace.look(pages, now)
    return pace


def test_the_end_is_estimated_from_the_pace_of_the_last_minute() -> None:
    """100 pages in 50 s, and 300 queued; the estimate does not jump with each quiet second."""
    pace, counts = looked((0.0, 0), (50.0, 100)), JobCounts(queued=300)
    assert pace.left_s(counts, 0, 50.0, delay_s=0.0) == 150.0
    pace.look(100, 58.0)
    assert pace.left_s(counts, 0, 58.0, delay_s=0.0) == 174.0


def test_the_longest_queue_of_a_host_takes_its_rests() -> None:
    """Fifty hosts are quick together, but one of them has 200 URLs and rests 2 s after each."""
    pace = looked((0.0, 0), (20.0, 1000))
    assert pace.left_s(JobCounts(queued=300), 200, 20.0, delay_s=2.0) == 400.0


@pytest.mark.parametrize(
    ("at", "pages", "counts"),
    [
        (5.0, 100, JobCounts(queued=300)),
        (50.0, 0, JobCounts(queued=300)),
        (50.0, 100, JobCounts()),
        (50.0, 100, JobCounts(queued=300, paused=1)),
    ],
    ids=["too early", "no page", "nothing queued", "paused"],
)
def test_an_end_that_nobody_can_know_is_not_estimated(at: float, pages: int, counts: JobCounts) -> None:
    """No number is better than a wrong one."""
    assert looked((0.0, 0), (at, pages)).left_s(counts, 0, at, delay_s=1.0) is None
