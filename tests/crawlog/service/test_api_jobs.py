"""Jobs over HTTP, as the live view of the fleet shows them."""

from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.commands.why import Story
from crawlog.schemas.control import JobCopy, key
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.service import api_jobs
from crawlog.service.endpoint import ApiCall
from crawlog.streams.fleet import FleetState, JobView
from crawlog.streams.fold import Event
from crawlog.streams.settings import Settings
from tests.support.serving import OWN_TOKEN, served, service_settings


def view_of(*records: JobCopy) -> tuple[FleetState, JobView]:
    """The state after these records, and the job `j` in it."""
    state = FleetState()
    for record in records:
        state.hear(key(record), record)
    view = state.job("j")
    assert view is not None
    return state, view


@pytest.mark.parametrize("begun_again", [False, True])
def test_a_submission_of_a_known_job_is_answered_with_its_state(monkeypatch: Any, *, begun_again: bool) -> None:
    """As it runs; one that begins again in a new epoch is not taken for the old one, which the view may still show."""
    old = JobCopy("j", JobSpec(rev=3))
    state, _ = view_of(old)
    state.report(Progress("fetch-0", "fetch", 0, 0.0, pid=7, jobs={"j": JobCounts(fetched=500)}), 1.0)
    _, written = view_of(JobCopy("j", JobSpec(rev=4), epoch=1) if begun_again else old)
    monkeypatch.setattr(api_jobs, "submit", lambda *_: written)
    fleet: Any = SimpleNamespace(job=state.job, wait_until=lambda holds, _: holds(state))
    answer = api_jobs._submit(ApiCall(Settings(), fleet, {}, None, None, ""))
    assert (answer.state, answer.epoch, answer.counts.fetched) == (
        ("pending", 1, 0) if begun_again else ("running", 0, 500)
    )


async def test_a_state_that_no_job_has_yet_is_a_filter_too() -> None:
    """Clients may ask for `watching` before there are recrawls by schedule."""
    async with served(service_settings()) as client:
        asked = await client.get(
            "/api/v1/jobs", params={"state": "watching"}, headers={"Authorization": f"Bearer {OWN_TOKEN}"}
        )
        assert (asked.status, await asked.json()) == (200, {"jobs": [], "total": 0})


@pytest.mark.parametrize(("role", "shown"), [("read", "********"), ("operate", "s3cret"), ("deploy", "s3cret")])
def test_why_shows_values_of_requests_by_role(role: Any, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are results, which every user sees; `meta` may hold a session."""
    row = {"headers": "s3cret", "request": {"meta": {"session": "s3cret"}}}
    events = [
        Event(1.0, "urls", 0, 0, "found", "", detail={"found": {"url": "u", "request": row["request"]}}),
        Event(2.0, "pages", 0, 0, "page", "", detail={"meta": {"headers": [["X-Key", "s3cret"]]}}),
        Event(3.0, "items", 0, 0, "items", "", detail={"items": [row]}),
    ]
    story = Story("u", "d", 0, 0.0, [], [], events, [], [], 0, [], 0, [], "")
    monkeypatch.setattr(api_jobs, "why", lambda *_: story)
    fleet: Any = None
    query = api_jobs.WhyQuery("http://a.com/")
    told = api_jobs.url_story(ApiCall(Settings(), fleet, {}, query, None, "", role)).events
    assert told[0].detail["found"]["request"]["meta"] == {"session": shown}
    assert told[1].detail["meta"]["headers"] == [["X-Key", shown]]
    assert told[2].detail["items"] == [row]
