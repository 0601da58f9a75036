"""A real fleet with a small log full of markup, and a browser that counts what its pages do.

    Site ──► fleet (`up`): job `shop` of a deployed spider, dead letters, a schedule, records that a stranger wrote
    browser ──► Viewer: a page of the dashboard; `faults` has errors, violations of the policy, requests to elsewhere

Whoever can write to the log can choose any name, so names that no command takes are written by hand.
"""

import base64
import json
import os
import re
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright

from crawlog.processes.folder import service_note
from crawlog.schemas import log_lines
from crawlog.schemas.control import Command, JobCopy, encode, key
from crawlog.schemas.log_lines import LogLine, LogLines
from crawlog.schemas.urls import JobSpec
from crawlog.service import dashboard
from crawlog.service.routing import ROUTES, Role
from crawlog.streams.engine import Engine
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Producer, Topics
from crawlog.streams.settings import Settings, find_browser
from tests.support.deployed import allowed
from tests.support.logins import login
from tests.support.processes import crawlog, done, until
from tests.support.sites import Answer, Threaded

BAD = "\"><img src=x onerror='window.hit=1'><script>window.hit=1</script></textarea></pre>{{ 7*7 }}"
"""A text as an attacker would choose it."""

LINK = "javascript:window.hit=1//<b>"

ANN, OLGA, RITA = ("ann", "open sesame"), ("olga", "operate"), ("rita", "read")
"""Users of the roles deploy, operate and read."""

USERS = {
    "ann": {"password": ANN[1], "role": "deploy"},
    "olga": {"password": OLGA[1], "role": "operate"},
    "rita": {"password": RITA[1], "role": "read"},
}

SPIDER = f"""
import crawlog

BAD = {BAD!r}

class Shop(crawlog.Spider):
    name = "shop"

    def parse(self, response):
        self.logger.warning("a line %s", BAD)
        print("printed", BAD)
        if response.url.endswith("/crash"):
            raise ValueError(BAD)
        row = {{"url": response.url, "title": response.css("title::text").get(), "link": {LINK!r}}}
        yield row | {{BAD: {{"deep": [BAD]}}}}
        for link in response.css("a[href^='/']::attr(href)").getall():
            yield response.follow(link)
"""

PAGE = f"""<!DOCTYPE html>
<html lang="en"><head><title>A shop &amp; {BAD.replace("<", "&lt;")}</title></head>
<body><h1>A shop</h1><p>Some text.</p>
<a href="/item/1">one</a> <a href="/item/2">two</a> <a href="/missing">none</a> <a href="/crash">crash</a>
<a href="/refused">refused</a> <a href="/away">away</a> <a href="/hostile">hostile</a>
<a href="/%3Cscript%3Ewindow.hit=1%3C/script%3E?q=%22%3E%3Cimg">odd</a>
</body></html>"""

HOSTILE = """<!DOCTYPE html>
<html lang="en"><head><title>A page that wants out</title>
<base href="SPY/a/"><link rel="stylesheet" href="SPY/b.css"><link rel="preload" as="image" href="SPY/c.png">
<link rel="preconnect" href="SPY"><link rel="dns-prefetch" href="SPY"><link rel="prefetch" href="SPY/d">
<link rel="icon" href="SPY/e.ico"><meta http-equiv="refresh" content="0;url=SPY/f">
<style>@import url(SPY/g.css); body { background: url(SPY/h.png) }
@font-face { font-family: i; src: url(SPY/i) }</style>
</head>
<body style="font-family: i"><h1>Hostile</h1>
<img src="SPY/j.png" alt=""><script src="SPY/k.js"></script><script>top.hit = 1; fetch("SPY/l"); open("SPY/m")</script>
<iframe src="SPY/n"></iframe><object data="SPY/o"></object><embed src="SPY/p"><video src="SPY/q" autoplay></video>
<form action="SPY/r" method="post"><input autofocus onfocus="this.form.submit()"><button>Send</button></form>
<svg><image href="SPY/s.png"/><use href="SPY/t.svg#u"/></svg><a ping="SPY/v" target="_top" href="SPY/w">leave</a>
<a target="_blank" href="SPY/x">open</a> <a href="SPY/y">stay</a>
</body></html>"""
"""A page that wants to reach SPY by all that HTML has."""

ROBOTS = f"User-agent: *\nDisallow: /private{BAD}\n# {BAD}\n"


def _answer(path: str, spy: str) -> Answer:
    kind, body = "text/html; charset=utf-8", PAGE.encode()
    known: dict[str, Answer] = {
        "/robots.txt": (200, "text/plain", ROBOTS.encode()),
        "/missing": (404, kind, body),
        "/refused": (403, kind, body),
        "/away": (302, "/item/1", b""),
        "/hostile": (200, kind, HOSTILE.replace("SPY", spy).encode()),
    }
    return known.get(path, (200, kind, body))


class Spy:
    """A port that nobody should connect to.

    Attributes:
        connections: Those that came all the same.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        with suppress(OSError):  # shut down
            while True:
                self._socket.accept()[0].close()
                self.connections += 1

    def close(self) -> None:
        """Ends it."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


class ShownFleet(NamedTuple):
    """The fleet.

    Attributes:
        url: Of the service, without a slash at its end.
        crawled: The site that its job has crawled.
        spy: What no page may reach.
        where: Options that lead a command there, beside its data folder.
        environ: Of such a command.
    """

    data: Path
    url: str
    crawled: Threaded
    spy: Spy
    where: list[str]
    settings: Settings
    environ: dict[str, str]

    @property
    def site(self) -> str:
        """The origin of the site."""
        return self.crawled.origin

    def asked(self, path: str) -> int:
        """How often the site was asked for a path."""
        return sum(one == path for _, _, one in self.crawled.came)

    def open(
        self, path: str, body: object = None, *, user: tuple[str, str] = ANN, method: str | None = None
    ) -> HTTPResponse:
        """An answer of the service, still to be read."""
        content = None if body is None else json.dumps(body).encode()
        return self._open(path, content, {"Content-Type": "application/json"}, user, method)

    def status(self, path: str, body: object = None, *, user: tuple[str, str] = ANN) -> int:
        """The status of an answer."""
        return _status(lambda: self.open(path, body, user=user))

    def sent(
        self, path: str, fields: dict[str, str], *, user: tuple[str, str] = ANN, headers: dict[str, str] | None = None
    ) -> int:
        """The status of the answer to a form; that of the page to which it leads."""
        return _status(lambda: self.send(path, fields, user=user, headers=headers))

    def _open(
        self,
        path: str,
        content: bytes | None,
        headers: dict[str, str],
        user: tuple[str, str],
        method: str | None = None,
    ) -> HTTPResponse:
        login = base64.b64encode(":".join(user).encode()).decode()
        headers = headers | {"Authorization": f"Basic {login}"}
        asked = urllib.request.Request(self.url + path, content, headers, method=method)
        answer: HTTPResponse = urllib.request.urlopen(asked, timeout=60)
        return answer

    def api(self, path: str, body: object = None, *, user: tuple[str, str] = ANN) -> Any:
        """An answer of /api/v1."""
        with self.open(f"/api/v1{path}", body, user=user) as answer:
            return json.load(answer)

    def token(self, page: str, user: tuple[str, str] = ANN) -> str:
        """The token of the forms on a page."""
        with self.open(page, user=user) as shown:
            found = re.search(rb'name="token" value="(\w+)"', shown.read())
        assert found is not None, page
        return found[1].decode()

    def send(
        self, path: str, fields: dict[str, str], *, user: tuple[str, str] = ANN, headers: dict[str, str] | None = None
    ) -> HTTPResponse:
        """The page to which a form leads."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._open(path, urlencode(fields).encode(), kind | (headers or {}), user)

    def command(self, *words: object) -> None:
        """A command that must succeed."""
        done(crawlog(*words, "--data", self.data, *self.where, env=self.environ))


def _status(ask: Callable[[], HTTPResponse]) -> int:
    try:
        with ask() as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@contextmanager
def shown_fleet(engine: Engine, folder: Path) -> Iterator[ShownFleet]:
    """Starts a fleet on a broker, and has it crawl the site."""
    spy, project, data = Spy(), folder / "shop", folder / "data"
    site = Threaded(lambda path: _answer(path, spy.origin))
    project.mkdir()
    (project / "shop.py").write_text(SPIDER)
    settings = allowed(engine.point(Settings()))
    kafka = settings.kafka.model_copy(update={"prefix": "dashboard.", "partitions": 2})
    run = settings.run.model_copy(update={"data": data})
    settings = settings.model_copy(update={"kafka": kafka, "run": run})
    where = ["--bootstrap", engine.bootstrap, "-skafka.prefix=dashboard.", "-skafka.partitions=2"]
    quick = ["network.allow_private=true", "politeness.delay_s=0", "service.port=0"]
    users = {"CRAWLOG_SERVICE__USERS": json.dumps(USERS)}
    environ = {**os.environ, **login(settings), **users}  # of the commands alone: the fleet outlives its first test
    done(crawlog("up", "--data", data, *where, *(f"-s{one}" for one in quick), env=environ))
    try:
        note = service_note(data)
        assert note is not None
        fleet = ShownFleet(data, note.url.rstrip("/"), site, spy, where, settings, environ)
        _fill(fleet, project)
        yield fleet
    finally:
        crawlog("down", "--data", data).communicate()
        site.close()
        spy.close()


def _fill(fleet: ShownFleet, project: Path) -> None:
    """Has the log hold what pages show: a deployed project, jobs, letters, lines, a schedule, a stranger's records."""
    fleet.command("deploy", project, "--project", "shop", "--version", "1")
    shop = {"spider": "shop", "project": "shop", "urls": [f"{fleet.site}/"]}
    fleet.api("/jobs", shop | {"job": "shop", "args": {"note": BAD}})
    fleet.api("/jobs", {"urls": [f"{fleet.site}/item/3"], "job": "later", "paused": True})
    fleet.api("/schedules", {"name": "daily", "cron": "0 3 * * *", "submit": shop | {"args": {"note": BAD}}})
    stranger = Producer(fleet.settings, "stranger")
    topics = Topics(fleet.settings.kafka.prefix)
    name = f"job {BAD}"[:90]
    copy = JobCopy(name, JobSpec(spider=BAD, state="failed", reason=BAD, by=BAD))
    command = Command("block", host=f"http://{BAD}", at=time.time())
    lines = LogLines("shop", BAD, "parse", (LogLine(time.time(), BAD, BAD, BAD, LINK),))
    for record in (copy, command):
        stranger.send(topics.control, encode(record), key=key(record), partition=0)
    stranger.send(topics.logs, log_lines.encode(lines), key=b"shop", partition=0)
    stranger.send(topics.urls, BAD.encode(), partition=0)  # a dead letter of the frontier
    assert stranger.flush(30)
    until(lambda: fleet.api("/jobs/shop")["state"] == "finished", "the end of the job")
    until(lambda: fleet.api(f"/hosts?q={fleet.site.rpartition('/')[2]}")["total"], "the figures of its host")
    until(lambda: fleet.api("/dead")["total"] >= 2, "letters of the spider and of the stranger")
    until(lambda: any(one["name"] == name for one in fleet.api("/jobs")["jobs"]), "the stranger's job")


# ---------------------------------------------------------------- pages


def _a_place(fleet: ShownFleet) -> str:
    events = fleet.api(f"/why?url={quote(fleet.site)}/")["events"]
    return next(f"{one['partition']}:{one['offset']}" for one in events if one["kind"] == "page")


def _a_trial(fleet: ShownFleet) -> str:
    fields = {"which": "shop shop", "url": f"{fleet.site}/", "token": fleet.token("/ui/try")}
    with fleet.send("/ui/try", fields) as answer:
        return str(answer.url).rpartition("/")[2]


# Values for the names in paths, and queries that pages need. A page with a name that is missing here fails its tests.
NAMES: dict[str, Callable[[ShownFleet], str]] = {
    "host": lambda fleet: fleet.site,
    "job": lambda _: "shop",
    "offset": lambda fleet: str(fleet.api("/dead?stage=parse")["letters"][0]["offset"]),
    "place": _a_place,
    "project": lambda _: "shop",
    "schedule": lambda _: "daily",
    "trial": _a_trial,
}
QUERIES = {"/ui/url": "?url={site}%2F"}

# Routes below /ui that are not pages: files, documents of frames, and addresses that lead elsewhere.
NO_PAGES = {
    *("/ui", "/ui/static/{file}", "/ui/jobs/{job}/export"),
    *("/ui/dead/{offset}/page", "/ui/stored/{place}", "/ui/try/{trial}/page"),
}


def routes(method: str) -> dict[str, Role | None]:
    """The dashboard's routes of a method with their roles, from the app, so that no test forgets a new one."""
    app = web.Application()
    app[ROUTES] = {}
    dashboard.routes(app)
    return {path: one.role for (of, path), one in sorted(app[ROUTES].items()) if of == method}


def page_routes() -> list[str]:
    """The canonical path of each page."""
    return [path for path in routes("GET") if path.startswith("/ui") and path not in NO_PAGES]


def page_path(fleet: ShownFleet, route: str) -> str:
    """An address of a page, with names that exist in the fleet."""
    names = {name: quote(NAMES[name](fleet), safe="") for name in re.findall(r"{(\w+)}", route)}
    given = {"site": quote(fleet.site, safe="")}
    return route.format_map(names) + QUERIES.get(route, "").format_map(given)


# ---------------------------------------------------------------- browser

WATCH = """
document.addEventListener("securitypolicyviolation",
  (event) => console.error("violated " + event.violatedDirective + " " + event.blockedURI));
"""


class Viewer(NamedTuple):
    """A page in a browser of a user.

    Attributes:
        faults: Errors, dialogs, violations of the policy, requests to elsewhere; a test expects none.
    """

    page: Page
    url: str
    faults: list[str]

    async def goto(self, path: str) -> None:
        """Opens a page of the dashboard, which must be there; forgets the faults of the page before."""
        self.faults.clear()
        answer = await self.page.goto(self.url + path)
        assert answer is not None, path
        assert answer.status == 200, (path, answer.status, await self.page.locator("main").inner_text())


def _chromium() -> str:
    try:
        return find_browser(Settings())
    except Misconfigured as error:  # it refuses root, too
        found = shutil.which("chromium") if os.geteuid() == 0 else None
        return found or pytest.skip(str(error).replace("\n", " "))


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A Chromium of this machine; skips where there is none."""
    path, is_root = _chromium(), os.geteuid() == 0
    async with async_playwright() as driver:
        started = await driver.chromium.launch(executable_path=path, chromium_sandbox=not is_root)
        yield started
        await started.close()


@asynccontextmanager
async def viewer(browser: Browser, url: str, user: tuple[str, str] = ANN, **how: Any) -> AsyncIterator[Viewer]:
    """A page of a new profile; `how` are options of Playwright's `new_context`."""
    name, password = user
    context = await browser.new_context(http_credentials={"username": name, "password": password}, **how)
    if how.get("java_script_enabled", True):
        await context.add_init_script(WATCH)
    page, faults = await context.new_page(), list[str]()
    page.set_default_timeout(60_000)
    page.on("dialog", lambda one: faults.append(f"dialog {one.message}"))
    page.on("pageerror", lambda one: faults.append(f"error {one}"))
    page.on("console", lambda one: faults.append(f"console {one.text}") if one.type in ("error", "warning") else None)
    page.on("request", lambda one: None if one.url.startswith((url, "data:")) else faults.append(f"loaded {one.url}"))
    yield Viewer(page, url, faults)
    await context.close()
