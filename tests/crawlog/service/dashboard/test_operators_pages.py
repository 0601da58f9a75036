"""Each action of the pages Dead letters, Schedules, Projects and Replay in a real Chromium, on a real fleet."""

import io
import zipfile

import pytest
from playwright.async_api import FilePayload, Locator

from tests.support.dashboard import SPIDER, ShownFleet, Viewer
from tests.support.processes import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.broker, pytest.mark.slow]


async def _note(ann: Viewer) -> str:
    """What became of the action; nothing went wrong in the browser meanwhile."""
    note = ann.page.locator(".note").first
    assert await note.get_attribute("role") == "status", await note.inner_text()
    assert ann.faults == []
    return await note.inner_text()


async def _confirm(part: Locator, label: str) -> None:
    """Opens a question, and answers it."""
    await part.locator("summary", has_text=label).click()
    await part.locator("details[open] button").click()


async def test_letters_are_redriven_by_kind_and_dropped_when_chosen(fleet: ShownFleet, ann: Viewer) -> None:
    """A record that fails again is a letter again; a dropped one is among the closed ones."""
    (crashed,) = fleet.api("/dead?stage=parse")["letters"]
    await ann.goto("/ui/dead")
    await _confirm(ann.page.locator(".card", has_text="parse"), "Redrive")
    assert "1 record went back to the log" in await _note(ann)
    until(lambda: [one["tries"] for one in fleet.api("/dead?stage=parse")["letters"]] == [crashed["tries"] + 1], "it")
    (garbage,) = fleet.api("/dead?stage=frontier")["letters"]
    await ann.goto("/ui/dead?stage=frontier")
    await ann.page.get_by_label(f"Choose letter {garbage['offset']}").check()
    await ann.page.get_by_role("button", name="Drop", exact=True).click()
    assert "1 dead letter laid aside" in await _note(ann)
    await ann.goto(f"/ui/dead/{garbage['offset']}")
    assert "laid aside" in await ann.page.locator("h1").inner_text()
    assert await ann.page.locator("summary").count() == 0


async def test_a_schedule_is_added_paused_resumed_run_and_removed(fleet: ShownFleet, ann: Viewer) -> None:
    """By a form and by the boxes of its row; its run is in its history."""
    await ann.goto("/ui/schedules?add=1")
    fields = {"name": "clicked", "every": "6h", "submit.urls": f"{fleet.site}/robots.txt"}  # no link
    for name, value in fields.items():
        await ann.page.locator(f"[name='{name}']").fill(value)
    await ann.page.get_by_role("button", name="Add schedule").click()
    assert "schedule clicked runs next at" in await _note(ann)
    row = ann.page.locator("tr", has_text="clicked")
    for action, state in (("Pause", "paused"), ("Resume", "in ")):
        await row.get_by_role("checkbox").check()
        await ann.page.get_by_role("button", name=action).click()
        assert "1 of 1" in await _note(ann)
        assert state in await row.inner_text()
    await row.get_by_role("link", name="clicked").click()
    await ann.page.get_by_role("button", name="Run now").click()
    told = await _note(ann)
    assert "a run of clicked begins now" in told
    job = told.rpartition(" ")[2]
    until(lambda: [one["name"] for one in fleet.api("/schedules/clicked/runs")["jobs"]] == [job], "the job of the run")
    await ann.goto("/ui/schedules/clicked")
    assert await ann.page.get_by_role("link", name=job).count() == 1
    await ann.goto("/ui/calendar")
    assert await ann.page.get_by_role("link", name="clicked").count() >= 3
    await ann.goto("/ui/schedules/clicked")
    await _confirm(ann.page.locator("main"), "Remove")
    assert "clicked is removed" in await _note(ann)
    assert await row.count() == 0


async def test_a_project_is_deployed_by_upload_and_deleted(ann: Viewer) -> None:
    """A version, then the whole project."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("other.py", SPIDER)
    file = FilePayload(name="other.zip", mimeType="application/zip", buffer=packed.getvalue())
    for version in ("1", "2"):
        await ann.goto("/ui/projects")
        await ann.page.locator("summary", has_text="Deploy").click()
        await ann.page.get_by_label("Project", exact=True).fill("other")
        await ann.page.get_by_label("Version", exact=True).fill(version)
        await ann.page.locator("[type=file]").set_input_files(file)
        await ann.page.get_by_role("button", name="Deploy").click()
        assert f"other {version} is deployed with 1 spider" in await _note(ann)
    await ann.page.get_by_role("link", name="other").click()
    await ann.page.get_by_label("Choose version 1").check()
    await _confirm(ann.page.locator("#picked"), "Delete")
    assert "1 of 1" in await _note(ann)
    assert await ann.page.locator("tbody tr").count() == 1
    await ann.page.locator("summary", has_text="Delete project").click()
    await ann.page.get_by_role("button", name="Delete all versions").click()
    assert "1 version deleted" in await _note(ann)
    assert await ann.page.locator("tr", has_text="other").count() == 0


async def test_a_replay_is_planned_and_an_output_is_filled_again(fleet: ShownFleet, ann: Viewer) -> None:
    """A group with living workers has a plan and no button; an output of a fleet needs no stopped worker."""
    await ann.goto("/ui/replay")
    await ann.page.get_by_label("Group").fill("parse")
    await ann.page.locator("[name=to]").select_option("to-earliest")
    await ann.page.get_by_role("button", name="Plan").click()
    assert "pages are parsed again" in await ann.page.locator("#live").inner_text()
    assert "The group is live" in await ann.page.locator("#live").inner_text()
    assert await ann.page.locator("summary", has_text="Execute").count() == 0
    fleet.api("/jobs", {"urls": [f"{fleet.site}/item/2"], "job": "filled", "depth": 0, "outputs": ["filled.jsonl"]})
    until(lambda: fleet.api("/jobs/filled")["state"] == "finished", "the end of the job")
    await ann.goto("/ui/replay?group=sink&to=to-earliest&job=filled&output=filled.jsonl")
    await _confirm(ann.page.locator("#live"), "Execute")
    assert "output filled.jsonl is emptied, and filled from the log again" in await _note(ann)


async def test_the_settings_of_a_fleet_name_who_has_set_them(ann: Viewer) -> None:
    """`up` passes them on to the service, with their sources."""
    await ann.goto("/ui/settings?q=politeness.delay_s")
    assert (await ann.page.locator("tbody td").all_inner_texts())[:2] == ["0.0", "-s"]
