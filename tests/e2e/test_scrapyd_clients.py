"""The clients of Scrapyd's API from PyPI, unchanged, against a real fleet: deploy, schedule, read, cancel, delete."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from scrapyd_api import ScrapydAPI
from scrapyd_api.exceptions import ScrapydResponseError

from crawlog.streams.engine import Engine
from crawlog.streams.settings import Settings
from tests.support.both import copied
from tests.support.logins import login
from tests.support.processes import crawlog, done, ended, until
from tests.support.quotes import Quotes, quotes

__all__ = ["quotes"]  # a fixture

pytestmark = [pytest.mark.broker, pytest.mark.slow]

pytest.importorskip("crawlog.jobs.changes", reason="deployed projects cannot be submitted yet")

USER = ("ann", "her password")
QUICK = ("-s", "network.allow_private=true", "-s", "politeness.delay_s=0", "-s", "service.port=0")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[str]:
    """Of the service of a fleet, which ends after this module."""
    data = tmp_path_factory.mktemp("fleet") / "data"
    environ = os.environ | login(engine.point(Settings())) | {"CRAWLOG_SERVICE__USERS": json.dumps(dict([USER]))}
    there = ("--bootstrap", engine.bootstrap, "-s", "kafka.prefix=scrapyd.", "-s", "kafka.partitions=2")
    done(crawlog("up", "--data", data, *there, *QUICK, env=environ))
    note = data / "run" / "service.json"
    try:
        until(note.exists, "the service")
        yield f"http://127.0.0.1:{json.loads(note.read_text())['port']}"
    finally:
        ended(crawlog("down", "--data", data))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, quotes: Quotes, address: str) -> Path:
    """A Scrapy project whose scrapy.cfg names the service."""
    folder = copied("quotes", tmp_path_factory.mktemp("project"), quotes)
    deploy = {"url": f"{address}/", "project": "quotes", "username": USER[0], "password": USER[1]}
    lines = [f"{key} = {value}" for key, value in deploy.items()]
    with (folder / "scrapy.cfg").open("a") as file:
        file.write("\n".join(["\n[deploy]", *lines, ""]))
    return folder


@pytest.fixture(scope="module")
def api(address: str) -> ScrapydAPI:
    """python-scrapyd-api."""
    return ScrapydAPI(address, auth=USER)


def _client(project: Path, *words: str) -> str:
    """What scrapyd-client prints; it must succeed."""
    command = [str(Path(sys.executable).with_name("scrapyd-client")), *words]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def deployed(project: Path) -> None:
    """A version for the jobs of this module."""
    _client(project, "deploy", "--version", "r3")


def _has_ended(api: ScrapydAPI, job: str) -> None:
    until(lambda: api.job_status("quotes", job) == "finished", f"the end of {job}")


def test_a_project_goes_from_deploy_to_delete(project: Path, api: ScrapydAPI, address: str, quotes: Quotes) -> None:
    """With the words of scrapyd-client's and python-scrapyd-api's documentation."""
    deployed = json.loads(_client(project, "deploy", "--version", "r1"))
    assert (deployed["status"], deployed["project"], deployed["spiders"] > 5) == ("ok", "quotes", True)
    assert _client(project, "targets").split() == ["default", f"{address}/"]
    assert _client(project, "projects").split() == ["quotes"]
    assert "  pages\n" in _client(project, "spiders", "-p", "quotes")
    assert "pages" in api.list_spiders("quotes")

    said = re.fullmatch(r"quotes / pages => (\w{32})\n", _client(project, "schedule", "-p", "quotes", "pages"))
    assert said
    mine = api.schedule("quotes", "pages", settings={"DOWNLOAD_DELAY": "0"}, jobid="mine", _version="r1")
    for job in (said[1], mine):
        _has_ended(api, job)

    jobs = {job["id"]: job for job in api.list_jobs("quotes")["finished"]}
    assert set(jobs) == {said[1], "mine"}
    items = requests.get(address + jobs["mine"]["items_url"], auth=USER, timeout=20).text.splitlines()
    assert len(items) > 50
    assert set(json.loads(items[0])) >= {"text", "author", "tags"}
    log = requests.get(address + jobs["mine"]["log_url"], auth=USER, timeout=20)
    assert (log.status_code, log.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    before, _, dumped = log.text.partition("INFO: Dumping Scrapy stats:\n{")
    assert before.splitlines()[-2].endswith("[scrapy.core.engine] INFO: Closing spider (finished)")
    assert f" 'item_scraped_count': {len(items)},\n" in dumped
    assert dumped.endswith("[scrapy.core.engine] INFO: Spider closed (finished)\n")
    asked = requests.get(f"{address}/api/v1/jobs/mine/stats", auth=USER, timeout=20).json()["stats"]
    assert asked["item_scraped_count"] == len(items)
    page = requests.get(f"{address}/jobs", auth=USER, timeout=20).text
    assert "<td>mine</td>" in page

    _client(project, "deploy", "--version", "r2")
    assert api.list_versions("quotes") == ["r1", "r2"]
    assert api.delete_version("quotes", "r1")
    assert api.list_versions("quotes") == ["r2"]
    assert api.delete_project("quotes")
    assert api.list_projects() == []
    with pytest.raises(ScrapydResponseError, match="project 'quotes' not found"):
        api.schedule("quotes", "pages")
    assert api.job_status("quotes", "mine") == "finished"


def test_a_running_job_is_cancelled(deployed: None, api: ScrapydAPI, quotes: Quotes) -> None:
    """Its state before is told, and no second time."""
    quotes.latency_s = 0.5
    try:
        job = api.schedule("quotes", "pages")
        assert api.job_status("quotes", job) in {"pending", "running"}
        until(lambda: api.job_status("quotes", job) == "running", "its first page")
        assert api.cancel("quotes", job) == "running"
    finally:
        quotes.latency_s = 0.0
    assert api.job_status("quotes", job) == "finished"
    assert api.cancel("quotes", job) is None


def test_a_spider_that_cannot_be_made_is_a_finished_job_whose_log_says_why(
    deployed: None, api: ScrapydAPI, address: str
) -> None:
    """As in Scrapyd, which takes every job of a spider that it has listed."""
    assert api.schedule("quotes", "pages", settings={"DEPTH_LIMIT": "x"}, jobid="broken") == "broken"
    assert api.job_status("quotes", "broken") == "finished"
    log = requests.get(f"{address}/logs/quotes/pages/broken.log", auth=USER, timeout=20)
    assert "[spider_broken] ERROR" in log.text
    assert "invalid literal for int()" in log.text


def test_settings_that_name_code_or_files_are_refused_over_the_wire(api: ScrapydAPI, deployed: None) -> None:
    """They come from the project's own settings only. A job that is refused is not there."""
    for setting in ({"ITEM_PIPELINES": '{"os.system": 1}'}, {"LOG_FILE": "/tmp/x"}):
        with pytest.raises(ScrapydResponseError, match=next(iter(setting))):
            api.schedule("quotes", "pages", settings=setting, jobid="refused")
    assert api.job_status("quotes", "refused") == ""
