"""Screenshots of every page of the dashboard of a running service: at 380 and 1440 px, light and dark.

python -m bench.screenshots URL FOLDER USER: asks for the password, and follows links to a page of each kind.
"""

import asyncio
import getpass
import os
import re
import shutil
import sys
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright

ENTRY = "/ui/"

MOST = 60  # Pages


async def _taken(page: Page, url: str, file: str, folder: Path) -> None:
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        for width in (380, 1440):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.screenshot(path=folder / f"{file}-{width}-{theme}.png")
    sys.stdout.write(f"{url}\n")


def _kind(path: str) -> str:
    """What pages that differ in a name alone have in common."""
    plain = path.partition("?")[0].strip("/").split("/")
    return "-".join(plain[:2] + ["one"] * (len(plain) > 2) + plain[3:]) or "ui"


async def _walk(browser: Browser, url: str, folder: Path, login: tuple[str, str]) -> None:
    name, password = login
    context = await browser.new_context(http_credentials={"username": name, "password": password})
    page = await context.new_page()
    waiting, seen = [ENTRY], set[str]()
    while waiting and len(seen) < MOST:
        path = waiting.pop(0)
        if (kind := _kind(path)) in seen:
            continue
        seen.add(kind)
        answer = await page.goto(url + path)
        if answer is None or answer.status != 200 or "html" not in answer.headers.get("content-type", ""):
            continue
        links = await page.locator("a[href]").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        waiting += [link for link in links if re.match(r"/ui/[^#]*$", link) and "/export" not in link]
        await _taken(page, path, kind, folder)


async def _main(url: str, folder: Path, login: tuple[str, str]) -> None:
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=os.geteuid() != 0
        )
        await _walk(browser, url.rstrip("/"), folder, login)
        await browser.close()


def main() -> None:
    """The command."""
    target = Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(_main(sys.argv[1], target, (sys.argv[3], getpass.getpass())))


if __name__ == "__main__":
    main()
