"""Rendering: pages whose text exists only after their scripts ran, two at a time, through the worker's own renderer.

    python -m bench.render            200 pages; writes its section of RESULTS.md
    python -m bench.render --short    20 of them

Each page is a shell, a script that all share, and data of its own, on a site on loopback, without delays. CPU is that
of each kind of process; memory is the PSS of all of Chromium's together, looked at once a second. 1 when fewer pages
than asked for gave their content, or two pages at a time took more than 700 MB.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
from aiohttp import web

from bench.results import options_of, run_as, section, table, versions
from crawlog.agents.browser.chromium import Chromium
from crawlog.agents.browser.render import Renderer
from crawlog.agents.browser.resources import JobPage, Resources
from crawlog.agents.client.client import Client
from crawlog.agents.frontier.host_turns import Hosts
from crawlog.streams.errors import Misconfigured
from crawlog.streams.frontier.dispatcher import Frontier
from crawlog.streams.frontier.host import Host
from crawlog.streams.http.answer import Answer
from crawlog.streams.job_spec import own_policy
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.settings.browser import browser_version, find_browser
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from crawlog.streams.url.place import Places

PAGES = 200
MOST_MB = 700

SHELL = b"<!doctype html><title>Shop</title><div id=root></div><script src=/app.js></script>"
APP = """
fetch('/data' + location.pathname).then(answer => answer.json()).then(data => {
  const rows = [...Array(500).keys()].map(n => `<p><a href="/thing/${data.name}/${n}">thing ${n}</a></p>`);
  document.getElementById('root').innerHTML = rows.join('');
});
"""


async def serve(request: web.Request) -> web.Response:
    """The script, or a page's data."""
    if request.path == "/app.js":
        return web.Response(text=APP, content_type="text/javascript")
    return web.json_response({"name": request.path.rpartition("/")[2]})


def cpu_s(browser: Chromium) -> dict[str, float]:
    """CPU by kind of process; a zygote's is that of the pages' processes that have ended."""
    used = {"worker": time.process_time()}
    for process in (*browser.drivers, *browser.processes()):
        with contextlib.suppress(psutil.Error):
            kinds = [word.removeprefix("--type=") for word in process.cmdline() if word.startswith("--type=")]
            times = process.cpu_times()
            kind = {"zygote": "pages", "renderer": "pages"}.get(kinds[0], "the rest") if kinds else process.name()
            kind = {"chromium": "browser", "node-MainThread": "driver", "node": "driver"}.get(kind, kind)
            used[kind] = used.get(kind, 0.0) + times.user + times.system + times.children_user + times.children_system
    return used


def pss_mb(browser: Chromium) -> int:
    """All of Chromium."""
    total = 0
    for process in browser.processes():
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total >> 10


async def no_rules(host: Host, _policy: RequestPolicy) -> None:
    """robots.txt is not obeyed here."""
    raise AssertionError(host.key)


class Result:
    """Cost of the pages."""

    def __init__(self) -> None:
        self.good = self.most_mb = 0
        self.took_s = 0.0
        self.cpu: dict[str, float] = {}


async def measure(settings: Settings, pages: int) -> Result:
    """Renders the pages, as many at a time as the setting says."""
    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client = Client(settings, "bench", lambda: True)
    frontier = Frontier(own_policy(settings), time.monotonic, time.time)
    resources = Resources(settings, client, Hosts(frontier, Places(1).of, lambda *_: 0.0), no_rules)
    renderer = Renderer(settings, resources)
    result = Result()

    async def show(number: int) -> None:
        answer = Answer(200)
        answer.body, answer.kept, answer.content_type = SHELL, True, "text/html"
        await renderer.render(f"{base}/page{number}", answer, "always", JobPage("j"))
        result.good += b'"/thing/page%d/499"' % number in answer.body and not answer.render_error

    try:
        await show(0)
        browser = renderer.browser
        assert browser is not None
        before, began = cpu_s(browser), time.monotonic()
        showing = asyncio.gather(*(show(number) for number in range(1, pages)))
        while not showing.done():
            if browser.pages > 1:
                result.most_mb = max(result.most_mb, await asyncio.to_thread(pss_mb, browser))
            await asyncio.wait([showing], timeout=1.0)
        await showing
        result.took_s = time.monotonic() - began
        result.cpu = {kind: used - before.get(kind, 0.0) for kind, used in cpu_s(browser).items()}
    finally:
        await renderer.close()
        await client.close()
        await runner.cleanup()
    return result


def main() -> int:
    """Measures, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="20 pages; nothing is written")
    args = options_of(parser)
    pages = PAGES // 10 if args.short else PAGES
    settings = load(
        {
            "network.allow_private": True,
            "politeness.delay_s": 0,
            "robots.obey": False,
            "render.recycle_pages": 10_000,
            "render.sandbox": os.geteuid() != 0,  # Chromium has none when root starts it, and the pages are our own
        }
    )
    try:
        browser = find_browser(settings)
    except Misconfigured as error:
        sys.exit(str(error))
    result = asyncio.run(measure(settings, pages))
    each = [f"{used / (pages - 1):.2f}" for used in result.cpu.values()]
    head = (
        "pages",
        "with content",
        "at a time",
        "a second",
        "peak PSS, MB",
        *(f"{kind}, CPU s" for kind in result.cpu),
    )
    rate = f"{(pages - 1) / result.took_s:.2f}"
    row = (str(pages), str(result.good), str(settings.render.pages), rate, str(result.most_mb), *each)
    body = table(head, [row])
    print(body)
    if args.write:
        found = browser_version(browser)
        packages = ", ".join(f"{name} {which}" for name, which in versions(["crawlog", "playwright"]).items())
        section(
            "render",
            "JavaScript pages",
            body,
            {
                "run": run_as("render"),
                "shape": "a shell, one script for all, 500 links made from data of its own; CPU is a page's",
                "load": f"{os.getloadavg()[0]:.0f} in the last minute, this included",
                "versions": f"{packages}, {found}",
            },
        )
    return int(result.good < pages or result.most_mb > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
