"""The HTTP service of a fleet: what it says of jobs and rows is what the log says, whichever copy is asked."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from crawlog.processes.folder import ServiceNote, service_note
from crawlog.streams.engine import Engine
from crawlog.streams.settings import Settings
from tests.support.crawls import PAGES, Numbered, site
from tests.support.logins import login
from tests.support.processes import crawlog, done, end, until
from tests.support.sites import Threaded

__all__ = ["site"]

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUICK = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0", "-s", "robots.obey=false"]


class Asked(NamedTuple):
    """A service that is asked."""

    note: ServiceNote

    def open(self, path: str, body: object = None, **headers: str) -> HTTPResponse:
        """An answer, still to be read."""
        content = None if body is None else json.dumps(body).encode()
        known = {"Authorization": f"Bearer {self.note.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.note.url + path, content, known | headers)
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=60)
        return answer

    def json(self, path: str, body: object = None) -> Any:
        """An answer."""
        with self.open(path, body) as answer:
            return json.load(answer)

    def rows(self, job: str) -> list[str]:
        """All rows of a job, sorted."""
        with self.open(f"api/v1/jobs/{job}/items", Accept="application/x-ndjson") as answer:
            return sorted(json.loads(line)["url"] for line in answer)


def _asked(data: Path) -> Asked:
    note = service_note(data)
    assert note is not None
    return Asked(note)


class Fleet(NamedTuple):
    """What `up` started, and how it is reached."""

    data: Path
    there: list[str]


@pytest.fixture(scope="module")
def fleet(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One for the tests here; it has a secret."""
    made = Fleet(
        tmp_path_factory.mktemp("fleet") / "data", ["--bootstrap", engine.bootstrap, "-skafka.prefix=service."]
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in login(engine.point(Settings())).items():
            patch.setenv(name, value)
        calling = made.data.parent / "call.sh"
        calling.write_text(f"cat >> {made.data.parent / 'called'}; echo >> {made.data.parent / 'called'}")
        own = [*QUICK, "-s", "service.port=0", "-s", "fetch.headers=X-Api-Key: hunter2"]
        own += ["-s", f"service.alert=sh {calling}"]
        done(crawlog("up", "--data", made.data, *made.there, *own))
        try:
            yield made
        finally:
            crawlog("down", "--data", made.data).communicate()


OWN = {"pace", "remarks"}  # What a copy of the service has of its own: it is made of the reports that the copy has met


def _jobs(service: Asked) -> list[dict[str, Any]]:
    """All jobs, as all copies have them."""
    found: list[dict[str, Any]] = service.json("api/v1/jobs")["jobs"]
    return [{name: value for name, value in one.items() if name not in OWN} for one in found]


def _events(stream: HTTPResponse, rows: int) -> tuple[list[str], str]:
    """URLs of so many rows of a stream, and the id after the last of them."""
    urls: list[str] = []
    for line in stream:
        name, _, value = line.decode().strip().partition(": ")
        if name == "data":
            urls.append(json.loads(value)["url"])
        if name == "id" and len(urls) >= rows:
            return urls, value
    raise AssertionError(f"the stream ended after {len(urls)} rows")


def test_copies_and_a_killed_service_say_what_the_log_says(site: Numbered, fleet: Fleet, tmp_path: Path) -> None:
    """Jobs and their counts, rows, and rows as they come: two copies agree, and the next process with them."""
    site.holds_from = 10
    one = _asked(fleet.data)
    wanted = {"urls": [site.url], "job": "numbers", "outputs": ["numbers.jsonl"]}
    assert one.json("api/v1/jobs", wanted)["name"] == "numbers"
    until(lambda: len(one.rows("numbers")) >= 5, "rows in the log")
    with one.open("api/v1/jobs/numbers/items/live") as stream:
        before, place = _events(stream, 5)
        site.goes_on.set()
        later, _ = _events(stream, PAGES - len(before))
    with one.open("api/v1/jobs/numbers/items/live", **{"Last-Event-ID": place}) as stream:
        again, _ = _events(stream, PAGES - len(before))
    until(lambda: one.json("api/v1/jobs/numbers")["rows"] == PAGES, "all rows in the output")
    until(lambda: one.json("api/v1/jobs/numbers")["state"] == "finished", "the end of the job")
    assert one.json("api/v1/jobs/numbers")["remarks"]["rows"] == PAGES
    expected = sorted(f"{site.origin}/{number}" for number in range(1, PAGES + 1))
    assert sorted(before + later) == sorted(before + again) == one.rows("numbers") == expected
    other = tmp_path / "other"
    process = crawlog("worker", "service", "--data", other, *fleet.there, "-s", "service.port=0")
    until(lambda: service_note(other), "the second service")
    two = _asked(other)
    first = _jobs(one)
    assert _jobs(two) == first
    assert first[0]["counts"]["fetched"] == PAGES == sum(site.pages().values())
    assert first[0]["counts"]["bytes"] == sum(len(site.page(number)) for number in range(1, PAGES + 1))
    assert two.rows("numbers") == expected
    os.kill(one.note.pid, signal.SIGKILL)
    until(lambda: (note := service_note(fleet.data)) and note.pid != one.note.pid, "the next service")
    three = _asked(fleet.data)
    assert (_jobs(three), three.rows("numbers")) == (first, expected)
    assert three.note.token == one.note.token
    end([process])


def test_the_hosts_of_a_job_are_shown_with_what_their_requests_came_to(site: Numbered, fleet: Fleet) -> None:
    """Through crawl.hosts, from the worker's memory to the list, the one host and the command line."""
    service = _asked(fleet.data)
    service.json("api/v1/jobs", {"urls": [site.url], "job": "hosts"})

    def listed() -> Any:
        return service.json(f"api/v1/hosts?q={site.origin.removeprefix('http://')}")["hosts"]

    until(lambda: [one["results"] for one in listed()] == [{"200": PAGES}], "the figures of all requests")
    (host,) = listed()
    assert (host["host"], host["kinds"], host["bad_row"]) == (site.origin, [], 0)
    assert service.json(f"api/v1/hosts/{quote(site.origin, safe='')}")["results"] == host["results"]
    until(lambda: listed()[0]["rate"] == listed()[0]["queued"] == 0, "the figures of a host at rest")
    shown, _ = crawlog("status", "--hosts", "--json", "--data", fleet.data, *fleet.there).communicate()
    assert site.origin in {json.loads(line)["host"] for line in shown.splitlines()}


def test_a_schedule_over_http_runs_now_and_is_seen_as_it_was_left(site: Numbered, fleet: Fleet) -> None:
    """Each change is answered when the next request sees it."""
    service = _asked(fleet.data)
    wanted = {"name": "hourly", "every": "1h", "submit": {"urls": [f"{site.origin}/1"], "depth": 0}}
    added = service.json("api/v1/schedules", wanted)
    assert service.json("api/v1/schedules")["schedules"] == [added]
    (_, second) = service.json("api/v1/next-runs?name=hourly&limit=2")["runs"]
    assert second[0] == added["next_at"] + 3_600
    _, _, (job,) = service.json("api/v1/schedules/hourly/run", {})
    until(lambda: job in {one["name"] for one in _jobs(service) if one["state"] == "finished"}, "the end of the run")
    assert service.rows(job) == [f"{site.origin}/1"]
    assert service.json("api/v1/schedules/hourly/pause", {})["next_at"] is None
    (shown,) = service.json("api/v1/schedules")["schedules"]
    assert (shown["paused"], shown["jobs"]) == (True, [{"job": job, "state": "finished"}])
    with pytest.raises(urllib.error.HTTPError) as caught:
        service.open("api/v1/schedules", wanted)
    with caught.value as refused:
        assert refused.code == 409
    done(crawlog("schedule", "remove", "hourly", "--data", fleet.data, *fleet.there))
    until(lambda: not service.json("api/v1/schedules")["schedules"], "a list without it")


def test_a_site_that_refuses_a_job_raises_an_alert_and_calls_once(fleet: Fleet) -> None:
    """The page of the fleet shows it, and what `service.alert` names gets it."""
    service, called = _asked(fleet.data), fleet.data.parent / "called"
    closed = Threaded(lambda _: (403, "text/html", b"no"))
    try:
        urls = [f"{closed.origin}/{number}" for number in range(3)]
        service.json("api/v1/jobs", {"urls": urls, "job": "turned-away"})
        until(lambda: "refused:turned-away" in (called.read_text() if called.exists() else ""), "a call")
    finally:
        closed.close()
    (alert,) = [one for one in service.json("api/v1/alerts") if one["subject"] == "turned-away"]
    assert (alert["rule"], alert["kind"], alert["severity"]) == ("refused", "job", "warning")
    calls = [json.loads(line) for line in called.read_text().splitlines()]
    assert [(one["id"], one["state"]) for one in calls] == [("refused:turned-away", "raised")]
    series = service.json("api/v1/history?job=turned-away&series=4xx,pages")["series"]
    assert series.keys() == {"4xx", "pages"}


def test_an_error_of_the_user_is_told_with_its_status(fleet: Fleet) -> None:
    """Wrong 400, unknown 404, not now 409; each with what to do. Secrets are not shown."""
    service = _asked(fleet.data)
    for path, body, status, told in (
        ("jobs", {"urls": ["no url"]}, 400, "is not a URL"),
        ("jobs", {"urls": ["http://a.example/"], "outputs": ["/etc/passwd"]}, 400, "plain names"),
        ("jobs", {"urls": ["http://a.example/"], "settings": {"ITEM_PIPELINES": "{}"}}, 400, "ITEM_PIPELINES"),
        ("jobs", {"urls": ["http://a.example/"], "surprise": 1}, 400, "surprise"),
        ("jobs/none", None, 404, "no job"),
        ("jobs?state=odd", None, 400, "state"),
        ("why?url=http://a.example/&job=none", None, 404, "no job"),
        ("why?url=nonsense", None, 400, "no URL"),
        ("schedules/none", None, 404, "no schedule"),
        ("schedules/none/run", {}, 404, "no schedule"),
        ("schedules", {"name": "s", "every": "soon", "submit": {"urls": ["http://a.example/"]}}, 400, "--every"),
        ("schedules", {"name": "s", "cron": "@daily", "submit": {"urls": ["/etc/passwd"]}}, 400, "is not a URL"),
        ("dead/7", None, 404, "no dead letter"),
        ("replay", {"group": "parse", "to": "to-earliest", "execute": True}, 409, "is live"),
        ("replay", {"group": "parse", "to": "from-file", "value": "/etc/passwd"}, 400, "from-file"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            service.open(f"api/v1/{path}", body)
        said = caught.value.read().decode()
        assert (caught.value.code, told in said) == (status, True), (path, said)
    assert "hunter2" not in json.dumps(service.json("api/v1/settings"))
    assert service.note.token not in json.dumps(service.json("api/v1/settings"))
