"""`crawlog jobs` beside a `crawlog run` with workers of its own: the run ends as its job does."""

from pathlib import Path

import pytest

from tests.support.crawls import PAGES, Numbered, data, run, site, there
from tests.support.processes import Process, crawlog, done, ended, until

__all__ = ["data", "site", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def held_run(site: Numbered, data: Path, job: str, there: list[str]) -> Process:
    """A run that has asked for a page which the site does not give yet."""
    site.goes_on.clear()
    site.holds_from = 5
    asked = site.asked.total()
    crawl = run(site, data, "--job", job, *there)
    until(lambda: len(site.pages()) >= site.holds_from and site.asked.total() > asked, "a request that is held")
    return crawl


@pytest.mark.long
def test_a_run_whose_job_is_stopped_makes_no_file_until_it_is_resumed(
    site: Numbered, data: Path, there: list[str]
) -> None:
    """Its rows are not all rows, and its queue stays. The command that it names needs no workers."""
    crawl = held_run(site, data, "j", there)
    done(crawlog("jobs", "stop", "j", "--data", data, *there))
    site.goes_on.set()
    for is_second in (False, True):
        code, summary, err = ended(run(site, data, "--job", "j", *there) if is_second else crawl)
        assert (code, summary["reason"]) == (0, "stopped"), err
        assert summary["partial"] == f"{data.parent}/rows.jsonl.partial"
        assert summary["held"]
        assert not (data.parent / "rows.jsonl").exists()
    assert "`crawlog jobs resume j" in err
    done(crawlog("jobs", "resume", "j", "--data", data, *there))
    code, summary, err = ended(run(site, data, "--job", "j", *there))
    assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err


@pytest.mark.long
def test_a_run_whose_job_is_deleted_ends(site: Numbered, data: Path, there: list[str]) -> None:
    """No report names the job any more; its last request has not ended."""
    crawl = held_run(site, data, "j", there)
    done(crawlog("jobs", "delete", "j", "--data", data, *there))
    code, summary, err = ended(crawl)
    assert (code, summary["reason"]) == (7, "deleted"), err
    assert not (data.parent / "rows.jsonl").exists()
