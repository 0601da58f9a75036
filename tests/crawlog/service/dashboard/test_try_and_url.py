"""The pages Try and URL in a real Chromium: a spider's trial, a URL's life, what may be done with it, and its frame."""

import pytest
from playwright.async_api import Browser, expect

from tests.support.dashboard import BAD, OLGA, RITA, ShownFleet, Viewer, viewer
from tests.support.processes import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.broker, pytest.mark.slow]


async def test_a_spider_is_tried_on_a_page_and_its_requests_are_followed(fleet: ShownFleet, ann: Viewer) -> None:
    """Items, requests, lines, the error with its traceback, a page of the log; nobody else sees a trial."""
    page = ann.page
    await ann.goto("/ui/try")
    await page.get_by_label("URL", exact=False).first.fill(f"{fleet.site}/")
    await page.get_by_role("button", name="Try").click()
    await expect(page.locator("main")).to_contain_text("1 item, 8 requests")
    await expect(page.locator("main")).to_contain_text(f"printed {BAD}")
    await expect(page.frame_locator("iframe").locator("h1")).to_have_text("A shop")
    trial = page.url.removeprefix(fleet.url)
    assert fleet.status(trial, user=OLGA) == 404
    await page.get_by_role("link", name=f"Try {fleet.site}/crash").click()
    await page.get_by_role("button", name="Try").click()
    await expect(page.get_by_role("alert")).to_contain_text(f"ValueError: {BAD}")
    await expect(page.get_by_role("alert")).to_contain_text("line 13, in parse")
    asked = fleet.asked("/crash")
    await page.get_by_label("Take the newest page").check()
    await page.get_by_role("button", name="Try").click()
    await expect(page.get_by_role("alert")).to_contain_text("ValueError")
    assert fleet.asked("/crash") == asked, "the page came from the log"
    await page.get_by_label("URL", exact=False).first.fill("http://169.254.1.1/")
    await page.get_by_label("Take the newest page").uncheck()
    await page.locator("summary", has_text="More").click()
    await page.get_by_label("Version").fill("9")
    await page.get_by_role("button", name="Try").click()
    await expect(page.get_by_role("alert")).to_contain_text("9")
    assert await page.get_by_label("URL", exact=False).first.input_value() == "http://169.254.1.1/"


async def test_a_url_shows_its_life_and_is_fetched_again_and_its_host_blocked(fleet: ShownFleet, ann: Viewer) -> None:
    """The timeline has its page and rows; a note tells what became of an action; the block can be taken back."""
    page = ann.page
    await ann.goto(f"/ui/url?url={fleet.site}/item/1&job=shop")
    for kind in ("found", "page", "done", "items"):
        await expect(page.locator(".timeline .chip", has_text=kind).first).to_be_visible()
    await expect(page.frame_locator("iframe").locator("h1")).to_have_text("A shop")
    asked = fleet.asked("/item/1")
    await page.get_by_role("button", name="Fetch again in job shop").click()
    await expect(page.get_by_role("status")).to_contain_text("1 URL of job shop due again")
    await page.locator("summary", has_text="Block host").click()
    await page.get_by_role("button", name=f"Block {fleet.site}").click()
    await expect(page.locator("main")).to_contain_text("host blocked")
    await page.get_by_role("button", name=f"Unblock {fleet.site}").click()
    await expect(page.locator("summary", has_text="Block host")).to_be_visible()
    until(lambda: fleet.asked("/item/1") > asked, "the second request")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/url?url={site}/hostile",
        pytest.param("/ui/try?project=shop&spider=shop&url={site}/hostile", marks=pytest.mark.long),
    ],
    ids=["url", "try"],
)
async def test_a_framed_page_reaches_nothing(fleet: ShownFleet, browser: Browser, path: str) -> None:
    """No image, script, style, font, frame, form, refresh, link or connection gets out, also when it is clicked."""
    async with viewer(browser, fleet.url) as one:
        page = one.page
        await one.goto(path.format(site=fleet.site))
        if "/ui/try" in path:
            await page.get_by_role("button", name="Try").click()
        frame = page.frame_locator("iframe")
        await expect(frame.locator("h1")).to_have_text("Hostile")
        here = page.url
        await frame.get_by_role("button", name="Send").click()
        for name in ("leave", "open", "stay"):
            await frame.get_by_text(name).click()
        await expect(frame.locator("h1")).to_have_text("Hostile")
        await expect(frame.get_by_role("link")).to_have_count(0)
        assert (page.url, len(page.context.pages)) == (here, 1)
        assert await page.evaluate("window.hit") is None
    assert fleet.spy.connections == 0


async def test_a_reader_tries_no_spider(fleet: ShownFleet) -> None:
    """Neither on the page nor by the API."""
    assert fleet.status("/ui/try", user=RITA) == 403
    body = {"project": "shop", "spider": "shop", "url": fleet.site}
    assert fleet.status("/api/v1/try", body, user=RITA) == 403
