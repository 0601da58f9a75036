"""Scrapyd's pages in a real Chromium: markup in names, lines and items has no effect, and the buttons work."""

import os
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from playwright.async_api import BrowserContext, async_playwright

from crawlog.schemas.log_lines import LogLine
from crawlog.service import pages
from crawlog.service.routing import ROUTES
from crawlog.service.scrapyd import file_path
from crawlog.service.scrapyd_fleet import ScrapydJob, Stand
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import find_browser
from crawlog.streams.settings.settings import Settings
from tests.support.scrapyd_service import TOKEN, ToldFleet, served

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

BAD = (
    "<script>window.hit=1;alert(1)</script>",
    "\"><img src=x onerror='window.hit=1;alert(1)'>",
    "' onmouseover='window.hit=1' style='x",
    "</td></tr></table><svg/onload=alert(1)>",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)//",
    "</textarea><iframe srcdoc='<script>parent.hit=1</script>'>",
)
"""Names as an attacker would choose them."""


@pytest.fixture(scope="module")
def fleet() -> ToldFleet:
    """Jobs with bad names in each state."""
    jobs = [ScrapydJob("good", "quotes", "one", "running", 1.0, time.time() - 65)]
    stands: tuple[Stand, ...] = ("pending", "running", "finished")
    jobs += [
        ScrapydJob(f"{stand}{bad}", f"p{number}{bad}", bad, stand, 1.0, 2.0, 3.0, {bad: bad}, {bad: bad})
        for number, bad in enumerate(BAD)
        for stand in stands
    ]
    return ToldFleet(
        all_jobs={job.id: job for job in jobs},
        all_projects={bad: {bad: (bad,)} for bad in (*BAD, "quotes")},
        logged=[LogLine(1.0, bad, "error", bad, f"http://x.test/{bad}") for bad in BAD],
        items=[f"{bad}\n".encode() for bad in ("<html><script>alert(1)</script>", *BAD)],
    )


@pytest.fixture(scope="module")
def address(fleet: ToldFleet) -> Iterator[str]:
    """Of the service."""
    with served(fleet) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def context() -> AsyncIterator[BrowserContext]:
    """A browser that is logged in; skips where there is none."""
    is_root = os.geteuid() == 0
    try:
        path = find_browser(Settings())
    except Misconfigured as error:
        if not is_root:
            pytest.skip(str(error).replace("\n", " "))
        path = "/usr/bin/chromium"
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=path, chromium_sandbox=not is_root)
        yield await browser.new_context(http_credentials={"username": "", "password": TOKEN})
        await browser.close()


@pytest.mark.parametrize("shown", [BAD[:2], pytest.param(BAD, marks=pytest.mark.long)], ids=["two", "all"])
async def test_markup_shows_on_every_page_without_effect(
    fleet: ToldFleet, address: str, context: BrowserContext, shown: tuple[str, ...]
) -> None:
    """No script ran, no dialog came, the policy had nothing to stop, nothing was loaded from elsewhere.

    All names are on the pages that list them; each has pages of its own, too.
    """
    page = await context.new_page()
    effects: list[str] = []
    page.on("dialog", lambda dialog: effects.append(f"dialog {dialog.message}"))
    page.on("console", lambda message: effects.append(f"console {message.text}"))
    page.on("request", lambda one: None if one.url.startswith(address) else effects.append(f"loaded {one.url}"))
    for path in _paths(fleet, shown):
        got = await page.goto(address + path)
        assert got is not None, path
        assert got.status == 200, path
        assert await page.evaluate("window.hit") is None, path
        assert await page.locator("script, iframe, img, svg, [onmouseover], [onerror]").count() == 0, path
    await page.goto(f"{address}/jobs")
    cells = await page.locator("table#jobs td:nth-child(2)").all_text_contents()
    assert set(cells) == {"one", *BAD}
    await page.close()
    assert effects == []


def _paths(fleet: ToldFleet, names: tuple[str, ...]) -> list[str]:
    """Of all pages that list jobs, and of those of the jobs with these names, finished ones, and of the good one."""
    paths = {"/jobs", "/logs/", "/items/"}
    for job in fleet.all_jobs.values():
        if job.id in {"good", *(f"finished{name}" for name in names)}:
            for kind in ("logs", "items"):
                file = file_path(job, kind)
                of_spider = f"{file.rpartition('/')[0]}/"
                paths |= {file, of_spider, f"{of_spider[:-1].rpartition('/')[0]}/"}
    return sorted(paths)


async def test_every_page_of_the_router_is_among_them(fleet: ToldFleet) -> None:
    """A new page has to be shown with markup, too."""
    app = web.Application()
    app[ROUTES] = {}
    pages.routes(app)
    routed = {path for _, path in app[ROUTES]} - {"/pages.css"}
    routed -= {path for path in routed if f"{path}/" in routed}  # it leads to the one with the slash
    shown = set()
    for path in _paths(fleet, BAD):
        match = await app.router.resolve(make_mocked_request("GET", path))
        assert match.route.resource is not None
        shown.add(match.route.resource.canonical)
    assert shown == routed


async def test_links_lead_to_logs_and_items(address: str, context: BrowserContext) -> None:
    """Down the folders, and from a job; with names that are full of markup, too."""
    page = await context.new_page()
    await page.goto(f"{address}/logs/")
    await page.click("text=p0")
    await page.locator("td a").first.click()
    await page.locator("td a").first.click()
    assert BAD[0] in await page.locator("body").inner_text()
    await page.goto(f"{address}/jobs")
    await page.locator("tr", has_text="good").locator("text=Items").click()
    assert page.url == f"{address}/items/quotes/one/good.jl"
    await page.close()


async def test_the_button_cancels_the_job(fleet: ToldFleet, address: str, context: BrowserContext) -> None:
    """And the page of jobs comes back, on which it is finished; a name full of markup arrives as it is."""
    page = await context.new_page()
    await page.goto(f"{address}/jobs")
    for job in ("good", f"pending{BAD[1]}"):
        await page.locator(f"tr:has(td:nth-child(3):text-is({_quoted(job)}))").locator("input[type=submit]").click()
        await page.wait_for_url(f"{address}/jobs")
        assert fleet.told[-1] == ("cancel", job, "local")
        row = page.locator(f"tr:has(td:nth-child(3):text-is({_quoted(job)}))")
        assert await row.locator("input[type=submit]").count() == 0
    await page.close()


def _quoted(text: str) -> str:
    """As a string of CSS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
