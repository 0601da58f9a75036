"""The actions of the pages of hosts and exits, once each, in a real Chromium on a real fleet."""

import pytest

from tests.support.dashboard import ShownFleet, Viewer
from tests.support.processes import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.broker, pytest.mark.slow]


def commands(fleet: ShownFleet, target: str) -> list[tuple[str, float]]:
    """The commands in force for a host or an exit."""
    found = [one for one in fleet.api("/control") if target in (one.get("host"), one.get("exit"))]
    return [(one["action"], one.get("delay_s", 0.0)) for one in found]


async def test_a_host_is_found_slowed_paused_blocked_cleared_and_freed(fleet: ShownFleet, ann: Viewer) -> None:
    """From the list to the host, by its forms; each leaves its command in the log and a note on the page."""
    name = fleet.site.removeprefix("http://")
    await ann.goto(f"/ui/hosts?q={name}")
    await ann.page.get_by_role("link", name=fleet.site).click()
    for button, wanted in (("Slow", ("slow", 7.0)), ("Pause", ("pause", 0.0)), ("Block", ("block", 0.0))):
        if button == "Slow":
            await ann.page.get_by_label("seconds between requests").fill("7")
        await ann.page.get_by_role("button", name=button, exact=True).click()
        await ann.page.locator(".note").first.wait_for()
        assert commands(fleet, fleet.site) == [wanted]
    await ann.page.get_by_role("button", name="Clear back-off").click()
    await ann.page.locator(".note", has_text="back-off").wait_for()
    assert commands(fleet, fleet.site) == [("block", 0.0)]
    await ann.page.get_by_role("button", name="End", exact=True).click()
    await ann.page.locator(".note", has_text="ended").wait_for()
    until(lambda: commands(fleet, fleet.site) == [], "no command")
    assert ann.faults == []


async def test_an_exit_is_ordered_to_rest(fleet: ShownFleet, ann: Viewer) -> None:
    """By its name, for a time; on all workers that have one of the name."""
    await ann.goto("/ui/exits")
    await ann.page.get_by_label("Exit", exact=True).fill("de-1")
    await ann.page.get_by_label("seconds").fill("90")
    await ann.page.get_by_role("button", name="Rest").click()
    await ann.page.locator(".note", has_text="rests").wait_for()
    assert commands(fleet, "de-1") == [("rest", 90.0)]
    assert ann.faults == []
