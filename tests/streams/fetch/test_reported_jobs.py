"""How much a report holds where a log has a thousand finished jobs, and what those that follow one still see."""

from pathlib import Path

import pytest

from crawlog.schemas import progress
from crawlog.schemas.control import Finished, JobCopy, Join
from crawlog.schemas.progress import MAX_PARSED_TOLD, JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import write_finished
from crawlog.streams.fetch.reported_jobs import MOST_FINISHED, MOST_JOBS, ROTATED, ReportedJobs, ToldJobs
from crawlog.streams.jobs import FleetReports
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import PAGES, Numbered, data, run, site, there
from tests.support.fetching import running
from tests.support.processes import ended as ended_run

__all__ = ["data", "site", "there"]


def ended(count: int) -> ReportedJobs:
    """So many jobs have ended, job0 first."""
    jobs = ReportedJobs()
    for number in range(count):
        jobs.heard(JobCopy(f"job{number}", JobSpec()))
        jobs.heard(Finished(f"job{number}", at=1.0))
    return jobs


def test_few_finished_jobs_are_all_named() -> None:
    """As before."""
    assert ended(MOST_FINISHED).left_out == frozenset()


def test_of_many_those_that_ended_last_are_named() -> None:
    """The others need not be, while nothing of them is to do."""
    assert ended(1000).left_out == {f"job{number}" for number in range(1000 - MOST_FINISHED)}


def test_a_job_that_a_command_follows_again_is_named() -> None:
    """`run` and `seed` write its copy once more; new names join it."""
    jobs = ended(1000)
    assert {"job0", "job1"} <= jobs.left_out
    jobs.heard(JobCopy("job0", JobSpec()))
    jobs.heard(Join("job1", "a.com"))
    assert not {"job0", "job1"} & jobs.left_out
    assert len(jobs.left_out) == 1000 - MOST_FINISHED


def test_a_job_that_begins_again_is_open() -> None:
    """However many end after it."""
    jobs = ended(1)
    jobs.heard(JobCopy("job0", JobSpec(), epoch=1))
    for number in range(1, 1000):
        jobs.heard(Finished(f"job{number}", at=1.0))
    assert "job0" not in jobs.left_out
    jobs.heard(Finished("job0", at=2.0, epoch=1))
    for number in range(1000, 2000):
        jobs.heard(Finished(f"job{number}", at=1.0))
    assert "job0" in jobs.left_out


def test_a_job_is_named_until_its_end_is_on_record() -> None:
    """The coordinator needs its counts for that; a deleted job has no end."""
    jobs = ReportedJobs()
    jobs.heard(JobCopy("stopped", JobSpec(state="stopped")))
    jobs.heard(JobCopy("deleted", JobSpec(state="deleted")))
    for number in range(MOST_FINISHED):
        jobs.heard(Finished(f"job{number}", at=1.0))
    assert jobs.left_out == {"deleted"}
    jobs.heard(Finished("stopped", at=1.0, reason="max_pages"))
    assert "stopped" not in jobs.left_out
    for number in range(MOST_FINISHED):
        jobs.heard(Finished(f"more{number}", at=1.0))
    assert "stopped" in jobs.left_out


def test_a_job_that_an_order_reopened_is_open() -> None:
    """In the same epoch, as for a queued found of a finished job."""
    jobs = ended(1)
    jobs.heard(JobCopy("job0", JobSpec(rev=9), answers=9))
    for number in range(1, 1000):
        jobs.heard(Finished(f"job{number}", at=1.0))
    assert "job0" not in jobs.left_out


def counted(count: int) -> dict[str, JobCounts]:
    """So many open jobs."""
    return {f"job{number}": JobCounts(folded=1) for number in range(count)}


def test_the_first_report_names_all_jobs() -> None:
    """A reader of all reports of a process knows all counts."""
    jobs = counted(1000)
    assert ToldJobs().named(jobs, 5) == [jobs]


def test_a_report_names_changed_jobs_and_others_in_turns() -> None:
    """A reader that came late knows all of them after a while."""
    told, jobs, seen = ToldJobs(), counted(100), set[str]()
    told.named(jobs, 5)
    for look in range(100 // ROTATED):
        jobs = jobs | {"job7": JobCounts(folded=2 + look)}
        (named,) = told.named(jobs, 6 + look)
        assert named["job7"].folded == 2 + look
        assert len(named) <= ROTATED + 1
        seen |= named.keys()
    assert seen == jobs.keys()


def test_a_thousand_open_jobs_are_a_small_report() -> None:
    """They were 81 kB a second and partition."""
    told, jobs = ToldJobs(), counted(1000)
    told.named(jobs, 5)
    (named,) = told.named(jobs, 5)
    assert len(progress.encode(Progress("fetch-0", "fetch", 7, 1e9, jobs=named))) < 4_000


def test_very_many_changed_jobs_take_several_records() -> None:
    """Each fits into a record of the log."""
    jobs = counted(2 * MOST_JOBS + 1)
    pieces = ToldJobs().named(jobs, 5)
    assert [len(piece) for piece in pieces] == [MOST_JOBS, MOST_JOBS, 1]
    assert {name for piece in pieces for name in piece} == jobs.keys()


def test_a_job_that_is_left_out_from_now_on_is_gone() -> None:
    """Readers need not keep its counts."""
    told = ToldJobs()
    told.named(counted(3), 5)
    assert told.gone(counted(2)) == ["job2"]


def test_a_report_of_an_idle_worker_is_small() -> None:
    """With all counts of fifty jobs, and those of the pages that parse had of them."""
    counts = JobCounts(10**6, fetched=10**6, failed=10**4, seen=10**7, dropped={"scope": 10**6, "depth": 10**6})
    jobs = {f"job-{number:010}": counts for number in range(MOST_FINISHED)}
    parsed = {f"job-{number:010}": 10**6 for number in range(MAX_PARSED_TOLD)}
    assert len(progress.encode(Progress("fetch-0", "fetch", 7, 1e9, jobs=jobs))) < 10_000
    assert len(progress.encode(Progress("parse-0", "parse", 7, 1e9, parsed=parsed))) < 2_000


def test_pages_that_a_worker_no_longer_names_still_count() -> None:
    """Of a run whose job it has not had a page of for long."""
    picture = FleetReports(["parse-0"])
    picture.take(Progress("parse-0", "parse", 0, 1.0, parsed={"j": 3, "other": 1}))
    picture.take(Progress("parse-0", "parse", 0, 2.0, parsed={"other": 9}))
    assert (picture.parsed("j"), picture.parsed("other")) == (3, 9)


async def test_a_worker_leaves_old_finished_jobs_out_until_something_of_them_is_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is open it names, whenever it was given."""
    async with running(tmp_path, monkeypatch) as world:
        names = [f"job{number}" for number in range(MOST_FINISHED + 10)]
        for name in names:
            world.job(name)
            world.stage.reported_jobs.heard(Finished(name, at=1.0))
        await world.until(lambda: world.is_folded and "job0" in world.stage.live[0].fold.jobs)

        def named() -> set[str]:
            (report,) = world.stage.reports()
            return set(report.jobs)

        assert named() == {"j", *names[10:]}
        world.web.latency_s["http://a.com/"] = 60.0
        world.find("http://a.com/", job="job0")
        await world.until(lambda: named() == {"j", "job0", *names[10:]})
        world.job("job1", rev=2, state="cancelled")
        world.find("http://b.com/", job="job1")
        await world.until(lambda: world.is_folded)
        assert "job1" not in named()


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_a_run_of_a_job_that_ended_long_ago_ends(
    site: Numbered, data: Path, there: list[str], cluster: Settings
) -> None:
    """It waits for reports on its job, which workers leave out until the run has named it."""
    for _ in range(2):
        code, summary, err = ended_run(run(site, data, "--job", "j", *there))
        assert (code, summary["rows"]) == (0, PAGES), err
        producer, topics = Producer(cluster, "test"), Topics(cluster.kafka.prefix)
        for number in range(MOST_FINISHED):
            write_finished(producer, topics, Finished(f"other{number}", at=1.0))
