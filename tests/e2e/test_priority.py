"""Jobs of different priority on one site, on a real `crawlog up`."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crawls import Numbered
from tests.support.processes import crawlog, done, until

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]

OPTIONS = ["-s", "network.allow_private=true", "-s", "robots.obey=false", "-s", "politeness.delay_s=0.02"]

URLS = 2_000

ASKED = 200  # Requests over which shares are counted


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of a running `up`."""
    monkeypatch.setenv("CRAWLOG_KAFKA__PARTITIONS", "2")
    data = tmp_path / "data"
    done(crawlog("up", "--data", data, "--workers", "fetch=1,parse=1", *OPTIONS))
    yield data
    crawlog("down", "--data", data).communicate()


def job_of(path: str) -> str:
    """The job whose page this is."""
    return "first" if int(path.strip("/")) <= URLS else "second"


def shares(site: Numbered) -> Counter[str]:
    """The requests of each job among the next ones, by the site's log."""
    before = site.pages()
    until(lambda: (site.pages() - before).total() >= ASKED, "more pages")
    return Counter(map(job_of, (site.pages() - before).elements()))


def test_the_site_sees_the_shares_of_two_jobs_and_those_after_an_update(fleet: Path) -> None:
    """Two steps are four requests of five; two steps the other way turn the shares round."""
    site = Numbered(last=2 * URLS, leads_to=lambda _: ())
    try:
        for name, first, priority in (("first", 1, 4), ("second", URLS + 1, 6)):
            seeds = fleet.parent / f"{name}.txt"
            seeds.write_text("".join(f"{site.origin}/{number}\n" for number in range(first, first + URLS)))
            given = ("--seeds", seeds, "--job", name, "--priority", priority)
            done(crawlog("submit", *given, *OPTIONS, "--data", fleet))
        until(lambda: len(set(map(job_of, site.pages()))) == 2, "pages of both jobs")
        assert abs(shares(site)["second"] - 0.8 * ASKED) <= 0.05 * ASKED
        done(crawlog("jobs", "update", "first", "--priority", 8, "--data", fleet))
        shares(site)  # those before the fetch worker has heard of it
        assert abs(shares(site)["first"] - 0.8 * ASKED) <= 0.05 * ASKED
    finally:
        site.close()
