"""`jobs update` on a log: what changes in the record of a job, and what it refuses."""

from pathlib import Path

import msgspec
import pytest

from crawlog.commands import projects
from crawlog.jobs.request import JobRequest, Value
from crawlog.jobs.submit import submit
from crawlog.jobs.update import JobUpdate, update_job
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import write_job
from crawlog.streams.errors import InvalidState, Misconfigured, UnknownName
from crawlog.streams.log import Producer, Topics
from crawlog.streams.settings import Settings
from tests.support.deployed import deployed, job

pytestmark = pytest.mark.broker


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


SHOP = """
import crawlog

class Shop(crawlog.Spider):
    name = "shop"
    settings = {"politeness.delay_s": 2.0}

    def parse(self, response): ...
"""


def submitted(cluster: Settings, /, **given: object) -> JobSpec:
    """The record of a new job named `j`."""
    submit(cluster, msgspec.convert({"urls": ("http://a.test/",), "job": "j", **given}, JobRequest))
    return job(cluster, "j").spec


def in_state(settings: Settings, state: JobStateName, reason: str = "") -> None:
    """Writes the job's record in another state."""
    spec = msgspec.structs.replace(job(settings, "j").spec, rev=99, state=state, reason=reason)
    write_job(settings, Producer(settings, "test"), Topics(settings.kafka.prefix), "j", spec)


def test_an_update_changes_what_it_names_and_nothing_else(cluster: Settings) -> None:
    """Settings of the job, its limits, scope and rules of requests; all else stays as it was submitted."""
    before = submitted(cluster, settings={"politeness.delay_s": 3.0, "robots.obey": False}, depth=4)
    given: dict[str, Value] = {
        "politeness.delay_s": 0.5,
        "scope.exclude": "/old/",
        "run.max_pages": 50,
        "traps.calendar": False,
    }
    view = update_job(cluster, "j", JobUpdate(settings=given, priority=7))
    after = job(cluster, "j").spec
    assert view.rev == after.rev > before.rev
    assert before.requests is not None
    assert after == msgspec.structs.replace(
        before,
        rev=after.rev,
        changed_at=after.changed_at,
        scope=msgspec.structs.replace(before.scope, exclude=("/old/",)),
        traps=msgspec.structs.replace(before.traps, calendar=False),
        requests=msgspec.structs.replace(before.requests, delay_s=0.5),
        max_pages=50,
        priority=7,
    )


REFUSED = (
    (JobUpdate(), "nothing to change"),
    (JobUpdate(settings={"dedup.mode": "bloom"}), "dedup.mode: job j keeps it.*--fresh"),
    (JobUpdate(settings={"canonical.sort_query": True, "scope": "any"}), "canonical.sort_query, scope.kind: job j"),
    (JobUpdate(settings={"kafka.prefix": "x"}), "kafka.prefix: of workers, not of a job"),
    (JobUpdate(settings={"politeness.delay": 1}), "unknown setting.*politeness.delay_s"),
    (JobUpdate(settings={"politeness.delay_s": "soon"}), "politeness.delay_s"),
    (JobUpdate(settings={"DOWNLOAD_DELAY": 1}), "a setting of Scrapy's"),
    (JobUpdate(version="2"), "--version: the code of job j is not deployed"),
)


def test_an_update_that_a_job_cannot_have_is_refused(cluster: Settings) -> None:
    """With the reason; its record stays."""
    before = submitted(cluster)
    for update, why in REFUSED:
        with pytest.raises(Misconfigured, match=why):
            update_job(cluster, "j", update)
    assert job(cluster, "j").spec == before


def test_an_update_of_a_job_that_has_ended(cluster: Settings) -> None:
    """A finished one runs until its end is behind the change; one at its limit goes on with a larger one."""
    submitted(cluster, max_pages=10)
    with pytest.raises(UnknownName, match="no job 'k'"):
        update_job(cluster, "k", JobUpdate(priority=1))
    in_state(cluster, "finished")
    assert update_job(cluster, "j", JobUpdate(priority=3)).reason == "it was updated"
    assert job(cluster, "j").spec.state == "running"
    in_state(cluster, "stopped", "max_pages")
    assert update_job(cluster, "j", JobUpdate(settings={"run.max_pages": 5})).state == "stopped"
    update_job(cluster, "j", JobUpdate(settings={"run.max_pages": 20}))
    assert (job(cluster, "j").spec.state, job(cluster, "j").spec.reason) == ("running", "")
    in_state(cluster, "cancelled")
    with pytest.raises(InvalidState, match="cancelled for good"):
        update_job(cluster, "j", JobUpdate(priority=1))


def test_another_version_of_the_code_brings_what_its_spider_sets_otherwise(cluster: Settings, tmp_path: Path) -> None:
    """What both versions set alike stays as the job has it; a version without the spider is refused."""
    settings = deployed(cluster, tmp_path, SHOP)
    before = submitted(settings, project="shop", spider="shop", settings={"politeness.per_host": 3})
    for version, code in (("2", SHOP.replace("2.0", "9.0")), ("3", SHOP.replace('"shop"', '"other"'))):
        (tmp_path / "shop" / "spiders.py").write_text(code)
        projects.deploy(settings, tmp_path / "shop", "shop", version)
    with pytest.raises(Misconfigured, match="no spider 'shop'; it has other"):
        update_job(settings, "j", JobUpdate(version="3"))
    with pytest.raises(Misconfigured, match="no version '4'; it has 1, 2, 3"):
        update_job(settings, "j", JobUpdate(version="4"))
    assert job(settings, "j").spec == before
    update_job(settings, "j", JobUpdate(version="2"))
    after = job(settings, "j").spec
    assert before.code is not None
    assert after.code is not None
    assert (before.code.version, after.code.version) == ("1", "2")
    assert before.code.sha256 != after.code.sha256
    assert after.requests is not None
    assert (after.requests.delay_s, after.requests.per_host) == (9.0, 3)
