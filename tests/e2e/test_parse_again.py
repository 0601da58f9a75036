"""A job whose spider is mended while a fleet works: another version, letters redriven, stored pages parsed again."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from crawlog.commands import projects
from crawlog.jobs.changes import show_job
from crawlog.jobs.request import JobRequest, Value
from crawlog.jobs.submit import submit
from crawlog.jobs.update import JobUpdate, update_job
from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.fleet import JobView
from crawlog.streams.settings import Settings
from tests.support.crawls import PAGES, Numbered, data, site, there
from tests.support.processes import crawlog, done, until

__all__ = ["data", "site", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]

QUICK = ("-s", "network.allow_private=true", "-s", "service.enabled=false", "-s", "kafka.partitions=2")
FAST: dict[str, Value] = {"network.allow_private": True, "robots.obey": False, "politeness.delay_s": 0}

SHOP = """
import crawlog

class Shop(crawlog.Spider):
    name = "shop"
    follow_links = True

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        if number in {broken}:
            raise ValueError("the page has another layout")
        yield {{"version": {version}, "page": number}}
"""


@pytest.fixture
def partitions() -> int:
    """Two: each has stored pages of the job."""
    return 2


def test_a_mended_spider_parses_the_stored_pages_again_while_another_job_goes_on(
    tmp_path: Path, data: Path, there: list[str], cluster: Settings, site: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse workers die amid that. The rows are those of the new code, and no page is fetched again."""
    spent, folder, rows = tmp_path / "spent", tmp_path / "shop", data / "outputs" / "shop" / "rows.jsonl"
    spent.mkdir()
    folder.mkdir()
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": data})})

    def deploy(version: int, broken: set[int]) -> None:
        (folder / "spiders.py").write_text(SHOP.format(version=version, broken=broken or "()"))
        projects.deploy(settings, folder, "shop", str(version))

    def ends(name: str, dead: int = 0) -> None:
        """Waits until a job is finished, and its output is complete."""
        until(lambda: is_over(show_job(settings, name)), f"the end of {name}")
        assert show_job(settings, name).dead == dead

    monkeypatch.setenv(VARIABLE, f"{spent} parse.again.noting:1 parse.again.noted:1")
    done(crawlog("up", "--data", data, "--workers", "fetch=1,parse=2", *there, *QUICK))
    deploy(1, {7, 12})
    shop = JobRequest(project="shop", spider="shop", job="shop", urls=(site.url,), outputs=("rows.jsonl",))
    submit(settings, msgspec.structs.replace(shop, settings=FAST))
    ends("shop", dead=2)
    other = Numbered()
    submit(settings, JobRequest(urls=(other.url,), job="other", settings={**FAST, "politeness.delay_s": 3600}))
    until(lambda: other.asked.total() == 1, "the other job's first page")

    deploy(2, set())
    done(crawlog("jobs", "update", "shop", "--version", 2, "--parse-again", "--data", data, *there))
    done(crawlog("jobs", "retry", "shop", "--dead", "--data", data, *there))
    ends("shop")
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert Counter(one["page"] for one in found) == Counter(range(1, PAGES + 1))
    assert {one["version"] for one in found} == {2}
    assert set(site.asked.values()) == {1}
    assert {file.name for file in spent.iterdir()} == {"parse.again.noting", "parse.again.noted"}
    again = show_job(settings, "shop").parsed_again
    assert again is not None
    assert (again.is_done, again.read) == (True, 1.0)
    assert again.pages >= PAGES // 2  # some are found only by the pages that were redriven

    assert show_job(settings, "other").state == "running"
    update_job(settings, "other", JobUpdate(settings={"politeness.delay_s": 0}))  # it ends the rest that goes on, too
    ends("other")
    assert set(other.asked.values()) == {1}
    other.close()


def is_over(job: JobView) -> bool:
    """Whether a job is finished, and its outputs are complete."""
    return job.state == "finished" and all(one.state == "complete" for one in job.outputs)
