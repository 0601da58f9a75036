"""The pages of schedules: what an address shows, the calendar, and that a form becomes the API's request."""

import re
import time
from typing import Any

import pytest
from aiohttp import encode_basic_auth

from crawlog.jobs import schedules
from crawlog.jobs.request import JobRequest
from crawlog.jobs.schedules import HOUR_S, ScheduleRequest, run_calendar
from crawlog.schemas.control import JobCopy
from crawlog.schemas.schedules import JobSchedule, Planned, RunJob
from crawlog.schemas.urls import JobSpec
from crawlog.service.dashboard.schedules_page import by_hour, schedules_page
from crawlog.streams.settings import Settings
from tests.support.serving import Client, served, service_settings, told_fleet

BAD = "<script>window.hit=1</script>\"'><img src=x onerror=alert(1)>"

USERS = {"ann": {"password": "a", "role": "operate"}, "rita": {"password": "r", "role": "read"}}


def _schedule(name: str, **fields: Any) -> JobSchedule:
    since = int(time.time()) - 10
    return JobSchedule(name, since, (RunJob(JobSpec()),), {"submit": {"project": f"of-{name}"}}, **fields)


DAILY = _schedule("daily", cron="30 6 * * *", by=BAD)
OFTEN = _schedule("often", every_s=90)
PAUSED = _schedule("rests", every_s=HOUR_S, paused=True)
BROKEN = _schedule("broken", cron=BAD)
NOTE = Planned("daily", DAILY.since, 5, 5, ("daily-one",), error=BAD)
RUN = JobCopy("daily-one", JobSpec(by="schedule daily", state="finished"))
OTHER = JobCopy("daily-two", JobSpec(by=BAD))
RECORDS = (DAILY, OFTEN, PAUSED, BROKEN, NOTE, RUN, OTHER)


def test_an_address_chooses_schedules() -> None:
    """By name, project and state; those without a next time come last."""

    def names(**given: str) -> list[str]:
        return [one.name for one in schedules_page(told_fleet(*RECORDS), given).rows]

    assert names() == ["broken", "daily", "often", "rests"]
    assert names(sort="next")[:2] == ["often", "daily"]
    assert names(state="paused") == ["rests"]
    assert names(state="error") == ["broken", "daily"]
    assert names(q="OF-OFTEN") == ["often"]


def test_a_calendar_lists_runs_by_hour_and_names_frequent_ones_once() -> None:
    """A schedule of each minute would hide all others; paused and broken ones have no runs."""
    hourly = [_schedule(f"h{number}", every_s=HOUR_S) for number in range(3)]
    found = run_calendar([DAILY, OFTEN, PAUSED, BROKEN, *hourly], 24 * HOUR_S)
    assert [run.schedule for run in found.often] == ["often"]
    assert len(found.runs) == 1 + 3 * 24
    hours = by_hour(found)
    assert all(hour <= run.at < hour + HOUR_S for hour, runs in hours for run in runs)
    assert sum(len(runs) for _, runs in hours) == len(found.runs)
    cut = run_calendar(hourly, 24 * HOUR_S, most=10)
    assert (len(cut.runs), cut.upto) == (10, cut.runs[-1].at)


async def _text(client: Client, path: str, user: str = "ann") -> str:
    got = await client.get(path, headers={"Authorization": encode_basic_auth(user, user[0])})
    assert got.status == 200, path
    return await got.text()


async def test_pages_show_schedules_as_text_and_a_form_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client may have written the records; only who may operate has a form."""
    asked: list[ScheduleRequest] = []

    def add(_: Settings, wanted: ScheduleRequest, by: str) -> schedules.ScheduleView:
        asked.append(wanted)
        return schedules.show_schedule(told_fleet(*RECORDS).look(lambda state: state.control), "daily")

    monkeypatch.setattr(schedules, "add_schedule", add)
    async with served(service_settings(users=USERS), fleet=told_fleet(*RECORDS)) as client:
        for path in ("/ui/schedules", "/ui/schedules/daily", "/ui/calendar"):
            for user in USERS:
                text = await _text(client, path, user)
                assert "<script>w" not in text
                assert "<img" not in text
                assert user == "ann" or 'method="post"' not in text
        assert "daily-one" in text or "daily-one" in await _text(client, "/ui/schedules/daily")
        assert "daily-two" not in await _text(client, "/ui/schedules/daily")
        (token,) = set(re.findall(r'name="token" value="(\w+)"', await _text(client, "/ui/schedules")))
        fields = {"name": "new", "cron": "", "every": "6h", "tz": "", "catch_up": "last", "overlap": "skip"}
        job = {"submit.project": "shop", "submit.spider": "books", "submit.args": "a=1\nb=x=y", "submit.urls": ""}
        form = {"token": token, "back": "/ui/schedules"} | fields | job
        headers = {"Authorization": encode_basic_auth("ann", "a")}
        got = await client.post("/ui/do/schedules", data=form, headers=headers, allow_redirects=False)
        assert (got.status, got.headers["Location"]) == (303, "/ui/schedules")
        assert "schedule daily runs next at" in await _text(client, "/ui/schedules")
        wanted = JobRequest(project="shop", spider="books", args={"a": "1", "b": "x=y"})
        assert asked == [ScheduleRequest(name="new", every="6h", catch_up="last", submit=wanted)]
