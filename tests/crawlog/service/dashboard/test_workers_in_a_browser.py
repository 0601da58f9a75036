"""The pages of workers and of records in a real Chromium, on a real fleet: each action once."""

import json
from collections.abc import Iterator

import pytest

from tests.support.dashboard import RITA, ShownFleet, Viewer
from tests.support.processes import Process, crawlog, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def guest(fleet: ShownFleet) -> Iterator[Process]:
    """A worker of its own that a test may end for good."""
    environ = fleet.environ | {"CRAWLOG_WORKER": "guest"}
    process = crawlog("worker", "start", "--data", fleet.data, *fleet.where, env=environ)
    until(lambda: "guest" in _workers(fleet), "the worker", process)
    yield process
    process.kill()


def _workers(fleet: ShownFleet) -> dict[str, bool]:
    """By name, whether a worker is paused."""
    return {one["id"]: one["paused"] for one in fleet.api("/workers")}


async def _press(viewer: Viewer, worker: str, button: str) -> str:
    """Chooses a worker and presses a button; returns what the page says then."""
    await viewer.goto(f"/ui/workers?q={worker}")
    page = viewer.page
    await page.get_by_label(f"Choose {worker}", exact=True).check()
    if button in ("Stop", "Drain"):
        await page.get_by_text("End", exact=True).click()
    await page.get_by_role("button", name=button, exact=True).click()
    return await page.get_by_role("status").inner_text()


async def test_a_worker_is_paused_resumed_and_stopped_by_buttons(fleet: ShownFleet, ann: Viewer) -> None:
    """One that is stopped is listed among the lost ones, with who did it; its supervisor starts another process."""
    name = next(name for name in _workers(fleet) if name.startswith("sink"))
    assert "Pause one worker: it keeps its partitions: done: 1 of 1" in await _press(ann, name, "Pause")
    until(lambda: _workers(fleet)[name], "the pause")
    await ann.goto("/ui/workers?state=paused")
    assert await ann.page.locator("tbody th").all_inner_texts() == [name]
    assert "done: 1 of 1" in await _press(ann, name, "Resume")
    until(lambda: not _workers(fleet)[name], "the end of the pause")
    assert "done: 1 of 1" in await _press(ann, name, "Stop")
    until(lambda: any(one["is_replaced"] for one in fleet.api("/workers/lost")), "another process")
    await ann.goto("/ui/workers/lost?name=back")
    assert "stopped by ann" in await ann.page.locator("tbody").inner_text()
    assert ann.faults == []


async def test_a_worker_is_drained_by_a_button(fleet: ShownFleet, ann: Viewer, guest: Process) -> None:
    """It ends, and nobody starts another one."""
    assert "done: 1 of 1" in await _press(ann, "guest", "Drain")
    assert guest.wait() == 0
    until(lambda: "guest" not in _workers(fleet), "the end of the worker")
    await ann.goto("/ui/workers/lost?name=gone")
    assert "drained by ann" in await ann.page.locator("tbody").inner_text()


async def test_records_are_reached_from_their_topic(fleet: ShownFleet, ann: Viewer) -> None:
    """By partition and offset; who may only look sees no job's record."""
    await ann.goto("/ui/topics")
    await ann.page.get_by_role("link", name="dashboard.control").click()
    await ann.page.get_by_label("From offset").fill("0")
    await ann.page.get_by_role("button", name="Show").click()
    values = await ann.page.locator("article pre").all_text_contents()
    assert any(json.loads(value)["v"] == 1 for value in values if value.startswith("{"))
    with fleet.open("/ui/topics/records?topic=control&offset=0", user=RITA) as answer:
        text = answer.read().decode()
    assert "********" in text
    assert "&#34;v&#34;" not in text
