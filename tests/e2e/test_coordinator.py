"""The coordinator on real workers: jobs under `crawlog up` end by themselves, once, and run again for new URLs."""

import os
import signal
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest

from crawlog.agents.seed.planting import plant
from crawlog.agents.seed.source import Source
from crawlog.schemas import control, items
from crawlog.schemas.control import Finished, JobCopy
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.control import known_job, read_control
from crawlog.streams.crash_points import POINTS, VARIABLE
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.support.cluster import log_of
from tests.support.crawls import PAGES, Numbered, data, run, site, there, workers
from tests.support.processes import crawlog, done, ended, until

__all__ = ["data", "site", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PRIVATE = [
    "-s",
    "network.allow_private=true",
    "-s",
    "politeness.delay_s=0",
    "-s",
    "robots.obey=false",
    "-s",
    "fetch.attempts=1",
]


def said(cluster: Settings, kind: str) -> dict[str, JobCopy | Finished]:
    """The copies of jobs, or their ends, by name."""
    entries = read_control(cluster, Topics(cluster.kafka.prefix)).records.items()
    return {key.decode().partition("/")[2]: one for key, one in entries if key.startswith(f"{kind}/".encode())}  # type: ignore[misc]  # by its key


def end_of(cluster: Settings, job: str) -> Finished | None:
    """The end of a job's present revision."""
    copy, end = known_job(cluster, Topics(cluster.kafka.prefix), job), said(cluster, "finished").get(job)
    assert end is None or isinstance(end, Finished)
    return end if copy is not None and end is not None and end.rev == copy.spec.rev else None


def state_of(cluster: Settings, job: str) -> tuple[str, str]:
    """State and reason of a job."""
    copy = known_job(cluster, Topics(cluster.kafka.prefix), job)
    return (copy.spec.state, copy.spec.reason) if copy is not None else ("", "")


def seed(data: Path, there: list[str], job: str, *urls: str) -> None:
    """Seeds of a job; its workers are those of `up`."""
    done(crawlog("seed", *urls, "--job", job, "--data", data, *there, *PRIVATE))


def test_jobs_under_up_end_and_run_again_for_new_urls(
    site: Numbered, data: Path, there: list[str], cluster: Settings
) -> None:
    """Nobody waits for them: the worker with partition 0 sees that nothing is left."""
    site.holds_from = 10 * PAGES
    done(crawlog("up", "--data", data, *there, *PRIVATE))
    seed(data, there, "one", site.url)
    until(lambda: end_of(cluster, "one"), "the end of the job")
    end = end_of(cluster, "one")
    assert end is not None
    assert end.counts is not None
    assert (end.reason, end.counts.fetched, state_of(cluster, "one")) == ("finished", PAGES, ("finished", ""))

    before = end.rev
    seed(data, there, "one", f"{site.origin}/nowhere")
    until(lambda: (now := end_of(cluster, "one")) is not None and now.rev > before, "the job's next end")
    again = end_of(cluster, "one")
    assert again is not None
    assert again.counts is not None
    assert again.counts.fetched + again.counts.failed == PAGES + 1
    assert set(site.pages().values()) == {1}

    code, summary, err = ended(run(site, data.with_name("other"), "--job", "two", *there))
    assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err
    assert state_of(cluster, "two") == ("finished", "")


JOBS = 100
STEPS = [name for name in POINTS if name.startswith("coordinator.")]


def plant_jobs(cluster: Settings, site: Numbered, count: int) -> list[str]:
    """Jobs of one page each, as the topic producer writes them."""
    chosen = {"network.allow_private": True, "robots.obey": False, "politeness.delay_s": 0.0, "run.depth": 0}
    settings = load(log_of(cluster) | chosen)
    producer = Producer(settings, "test")
    jobs = [f"job{number}" for number in range(count)]
    for job in jobs:
        plant(settings, producer, job, Source([f"{site.origin}/1"]), report=lambda _: None)
    return jobs


def ends_written(cluster: Settings) -> dict[str, list[control.Control]]:
    """All that crawl.control ever said of each job's record and end, in order."""
    topic = Topics(cluster.kafka.prefix).control
    found: dict[str, list[control.Control]] = defaultdict(list)
    for record in read_records(cluster, topic, 0, *log_bounds(cluster, topic, [0])[0]):
        one = control.decode(record.key(), record.value())
        if isinstance(one, JobCopy | Finished):
            found[one.job].append(one)
    return found


def items_of(cluster: Settings) -> Counter[tuple[str, str]]:
    """Jobs and URLs that have items."""
    topic, found = Topics(cluster.kafka.prefix).items, Counter[tuple[str, str]]()
    for partition, (start, end) in log_bounds(cluster, topic, list(range(8))).items():
        for record in read_records(cluster, topic, partition, start, end):
            one = items.decode(record.value())
            found[one.job, one.url] += 1
    return found


@pytest.mark.long
def test_a_coordinator_that_dies_at_every_step_ends_each_of_100_jobs_once(
    site: Numbered, data: Path, there: list[str], cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill -9 at each of its points, with two fetch workers, so that the duty moves too."""
    spent = tmp_path / "spent"
    spent.mkdir()
    monkeypatch.setenv(VARIABLE, " ".join([str(spent), *(f"{name}:2" for name in STEPS)]))
    done(crawlog("up", "--data", data, *there, *PRIVATE, "-s", "run.fetch_workers=2"))
    monkeypatch.delenv(VARIABLE)
    jobs = plant_jobs(cluster, site, JOBS)
    until(lambda: {file.name for file in spent.iterdir()} >= set(STEPS), "a death at each step")
    until(lambda: set(said(cluster, "finished")) == set(jobs), "the ends of all jobs")
    for job, records in ends_written(cluster).items():
        (rev,) = {one.rev for one in records if isinstance(one, Finished)}
        states = {(one.spec.rev, one.spec.state) for one in records if isinstance(one, JobCopy)}
        assert states == {(1, "running"), (rev, "finished")}, job
    assert {one for one, _ in items_of(cluster)} == set(jobs)


@pytest.mark.long
def test_a_coordinator_that_was_stopped_cannot_end_a_job_that_was_resumed(
    site: Numbered, data: Path, there: list[str], cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP just before its order; another worker ends the job, a new URL resumes it, and the first one goes on."""
    monkeypatch.setenv(VARIABLE, f"{tmp_path} coordinator.ordering:1:stop")
    done(crawlog("up", "--data", data, *there, *PRIVATE, "-s", "run.fetch_workers=2"))
    monkeypatch.delenv(VARIABLE)
    (job,) = plant_jobs(cluster, site, 1)
    until(lambda: zombie(data), "a coordinator that is stopped before its order")
    try:
        until(lambda: end_of(cluster, job), "the end of the job, by another coordinator")
        site.holds_from = 0
        seed(data, there, job, f"{site.origin}/2")
        until(lambda: site.asked["/2"], "a request of the resumed job")
        topics = Topics(cluster.kafka.prefix)
        resumed = known_job(cluster, topics, job)
        assert resumed is not None
        assert (resumed.spec.state, resumed.refusal) == ("running", "")
    finally:
        os.kill(zombie(data), signal.SIGCONT)
    refusals: list[JobCopy] = []

    def is_refused() -> bool:
        copy = known_job(cluster, topics, job)
        refusals.extend([copy] if copy is not None and copy.refusal else [])
        return bool(refusals)

    until(is_refused, "the answer to the zombie")
    [copy] = refusals  # read once: a late copy of the zombie's may follow, until the coordinator writes its own again
    assert "expects revision" in copy.refusal
    assert (copy.spec.rev, copy.spec.state, end_of(cluster, job)) == (resumed.spec.rev, "running", None)
    site.goes_on.set()
    until(lambda: end_of(cluster, job), "the end of the resumed job")


def zombie(data: Path) -> int:
    """The pid of a fetch worker that stands still; 0 if there is none."""
    for name, pid in workers(data).items():
        if name.startswith("fetch") and psutil.pid_exists(pid) and psutil.Process(pid).status() == "stopped":
            return pid
    return 0
