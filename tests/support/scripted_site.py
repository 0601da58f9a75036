"""Pages with scripts for a real Chromium: a site, the browser, and a renderer around it."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from crawlog.agents.browser.chromium import Chromium
from crawlog.agents.browser.render import Renderer
from crawlog.agents.browser.resources import JobPage, Resources
from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.frontier.host_turns import Hosts
from crawlog.schemas.requests import Action, RequestRecord
from crawlog.streams.errors import Misconfigured
from crawlog.streams.frontier.dispatcher import Frontier
from crawlog.streams.frontier.host import Host
from crawlog.streams.http.answer import Answer
from crawlog.streams.job_spec import own_policy
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.settings.browser import find_browser
from crawlog.streams.settings.settings import Settings
from crawlog.streams.url.place import Places
from tests.support.fetching import PLAIN, changed

METADATA = "http://169.254.169.254/latest/meta-data/"
ROOT = {"render.sandbox": os.geteuid() != 0}
"""Chromium has no sandbox when root starts it, and these pages are our own."""
SCRIPTED = PLAIN | ROOT | {"network.allow_private": True, "render.settle_s": 0.2, "render.timeout_s": 20.0}


@pytest.fixture(scope="module", autouse=True)
def chromium() -> str:
    """The browser's path; skips where there is none."""
    try:
        return find_browser(changed(Settings(), SCRIPTED))
    except Misconfigured as error:
        pytest.skip(str(error).replace("\n", " "))


class Site:
    """A site on all addresses of loopback, whose pages hold nothing without their scripts."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, str, str]] = []
        self.pages: dict[str, str] = {}
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Any request."""
        self.asked.append((time.monotonic(), request.method, f"{request.host.partition(':')[0]}{request.path_qs}"))
        path = request.path
        if path == "/to":
            return web.Response(status=302, headers=dict(request.query))
        if path == "/away":
            return web.Response(status=302, headers={"Location": METADATA})
        if path == "/data":
            return web.json_response({"name": request.query["of"].removeprefix("/page")})
        kind = "text/javascript" if path.endswith(".js") else "text/html"
        text = self.pages.get(path) or (SHELL if path.startswith("/page") else None)
        if path == "/told":
            headers = {key: value for key, value in request.query.items() if key.startswith(("Access", "X-", "Set"))}
            text = request.headers.get("Origin", "none")
            return web.Response(text=f"told {text}", headers=headers)
        return web.Response(status=404) if text is None else web.Response(text=text, content_type=kind)

    def paths(self, of: str = "") -> list[str]:
        """What was asked for, host names left out where none is given."""
        return [what if of else what[what.index("/") :] for _, _, what in self.asked if what.startswith(of)]


SHELL = "<!doctype html><title>Shop</title><div id=root></div><script src=/app.js></script>"

APP = """
fetch('/data?of=' + location.pathname).then(answer => answer.json()).then(data => {
  const link = document.createElement('a');
  link.href = '/more/' + data.name;
  link.textContent = 'thing ' + data.name;
  setTimeout(() => document.getElementById('root').append(link), 20);
});
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    """The site, running."""
    one = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", one.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    serving = web.TCPSite(runner, "0.0.0.0", 0)
    await serving.start()
    one.port = runner.addresses[0][1]
    yield one
    await runner.cleanup()


@pytest.fixture(autouse=True)
def fresh(site: Site) -> None:
    """Each test finds the site as new."""
    site.asked.clear()
    site.pages = {"/app.js": APP, "/lib.js": "document.body.append('from lib')"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browsers() -> AsyncIterator[list[Chromium]]:
    """Those that were started."""
    started: list[Chromium] = []
    yield started
    for one in started:
        await one.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: str, browsers: list[Chromium]) -> Chromium:
    """One browser for all tests; another where a test ended it, lest those behind it fail too."""
    if not (browsers and browsers[-1].is_alive):
        browsers.append(await Chromium.start(chromium, changed(Settings(), SCRIPTED)))
    return browsers[-1]


class Stage:
    """A renderer and what became of the requests of its pages.

    Attributes:
        became: Of each URL that the worker was to ask for: the error, or the status code.
    """

    def __init__(self, settings: Settings, browser: Chromium | None) -> None:
        self.client = Client(settings, "tester", lambda: True)
        self.frontier = Frontier(own_policy(settings), time.monotonic, time.time)
        self.became: dict[str, str] = {}
        resources = Resources(settings, self.client, Hosts(self.frontier, Places(1).of, lambda *_: 0.0), self._no_rules)
        self.renderer = Renderer(settings, resources)
        self.renderer.browser = browser
        get = self.client.get

        async def noted(request: HttpRequest) -> Answer:
            answer, url = await get(request), request.url
            self.became[url] = answer.error or str(answer.http)
            return answer

        self.client.get = noted  # type: ignore[method-assign]  # looks on

    async def _no_rules(self, host: Host, _policy: RequestPolicy) -> None:
        raise AssertionError(f"robots.txt of {host.key} is not obeyed here")

    async def show(self, html: str | bytes, url: str, *actions: Action) -> Answer:
        """What becomes of a page."""
        answer = Answer(200)
        answer.body = html if isinstance(html, bytes) else html.encode()
        answer.kept, answer.content_type = True, "text/html"
        answer.is_inside = "//127." in url
        record = RequestRecord(actions=actions) if actions else None
        await self.renderer.render(url, answer, "always", JobPage("j", record=record))
        return answer


@asynccontextmanager
async def stage(browser: Chromium | None, **settings: Any) -> AsyncIterator[Stage]:
    """A stage with settings by name, with `__` for the dot."""
    changes = SCRIPTED | {name.replace("__", "."): value for name, value in settings.items()}
    one = Stage(changed(Settings(), changes), browser)
    try:
        yield one
    finally:
        if browser is None:
            await one.renderer.close()
        await one.client.close()
