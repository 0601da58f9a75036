"""How fast a job goes."""

from crawlog.jobs.live import Pace


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
