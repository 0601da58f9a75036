"""Actions of the page of a job, each once, in a real Chromium on a real fleet."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.dashboard import RITA, ShownFleet, Viewer
from tests.support.processes import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.broker, pytest.mark.slow]

WAIT_MS = 60_000


async def test_an_operator_does_with_a_job_what_its_page_offers(fleet: ShownFleet, ann: Viewer, tmp_path: Path) -> None:
    """Resume, update, fetch again, parse again, export, delete; what is counted or destroyed asks first."""
    fleet.api(
        "/jobs", {"spider": "shop", "project": "shop", "urls": [f"{fleet.site}/"], "job": "acted", "paused": True}
    )
    page, chip = ann.page, ann.page.locator("#live .chip").first
    await ann.goto("/ui/jobs/acted")
    await page.get_by_role("button", name="Resume").click()
    await expect(chip).to_have_text("finished", timeout=WAIT_MS)
    await ann.goto("/ui/jobs/acted")
    await expect(page.get_by_text("More rows")).to_be_visible(timeout=WAIT_MS)
    await expect(page.get_by_role("region", name="Results without a page")).to_contain_text("/missing", timeout=WAIT_MS)
    await expect(page.get_by_role("region", name="Newest lines")).to_contain_text("a line", timeout=WAIT_MS)

    await page.get_by_label("Priority").select_option("7")
    await page.get_by_label("Settings, a line each").fill("politeness.delay_s=0.125")
    await page.get_by_role("button", name="Update", exact=True).click()
    await expect(page.locator(".note.good")).to_contain_text("updated", timeout=WAIT_MS)
    await expect(page.get_by_role("region", name="Settings")).to_contain_text("0.125", timeout=WAIT_MS)
    assert fleet.api("/jobs/acted")["priority"] == 7

    await page.get_by_label("those with one of these statuses").fill("403")
    await page.get_by_role("button", name="Count them").click()
    await expect(page.locator("main")).to_contain_text("1 of ", timeout=WAIT_MS)
    await page.get_by_role("button", name="Fetch them again").click()
    await expect(page.locator(".note.good")).to_contain_text("1 URL", timeout=WAIT_MS)

    await page.get_by_label("parse its stored pages again").check()
    await page.get_by_role("button", name="Update", exact=True).click()
    await expect(page.locator(".note.good")).to_contain_text("updated", timeout=WAIT_MS)
    until(lambda: (fleet.api("/jobs/acted")["parsed_again"] or {}).get("is_done"), "the pages that are parsed again")
    until(lambda: fleet.api("/jobs/acted")["state"] == "finished", "the end of the job")

    await page.get_by_role("button", name="Handle all of them again").click()
    await expect(page.locator(".note.good")).to_contain_text("went back", timeout=WAIT_MS)

    async with page.expect_download() as download:
        await page.get_by_role("link", name="Export csv").click()
    saved = await download.value
    assert saved.suggested_filename in ("acted.csv", "acted.partial.csv")
    await saved.save_as(tmp_path / "acted.csv")
    assert f"{fleet.site}/item/1" in (tmp_path / "acted.csv").read_text()

    await page.get_by_text("Delete", exact=True).click()
    await page.get_by_role("button", name="Delete the job").click()
    await expect(page).to_have_url(f"{fleet.url}/ui/jobs", timeout=WAIT_MS)
    await expect(page.locator(".note.good")).to_contain_text("deleted", timeout=WAIT_MS)
    assert ann.faults == []


async def test_a_job_is_stopped_and_cancelled(fleet: ShownFleet, ann: Viewer) -> None:
    """A cancelled job has no way on; whoever may only read has no action."""
    fleet.api("/jobs", {"urls": [f"{fleet.site}/item/4"], "job": "ended", "paused": True})
    page, chip = ann.page, ann.page.locator("#live .chip").first
    await ann.goto("/ui/jobs/ended")
    await page.get_by_role("button", name="Stop").click()
    await expect(chip).to_have_text("stopped", timeout=WAIT_MS)
    await page.get_by_text("Cancel", exact=True).click()
    await page.get_by_role("button", name="Cancel the job").click()
    await expect(chip).to_have_text("cancelled", timeout=WAIT_MS)
    assert await page.get_by_role("button", name="Resume").count() == 0
    assert ann.faults == []
    with fleet.open("/ui/jobs/ended", user=RITA) as answer:
        assert b"Delete the job" not in answer.read()
