"""Sessions of sites, and requests that are never sent twice, under kill -9. The judge is what the site was asked."""

import http.server
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import psutil
import pytest

from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from crawlog.streams.state.verify import verify
from tests.support.cluster import log_of
from tests.support.crawls import workers
from tests.support.processes import Process, crawlog, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

NO_ROBOTS = "-srobots.obey=false"
"""A host rests after its robots.txt too."""

SPIDER = '''
from crawlog import Request, Spider


class Shop(Spider):
    """Logs in by hand, then buys once."""

    def parse(self, response):
        form = {"token": response.css("input::attr(value)").get(), "user": "ann"}
        yield Request(response.urljoin("/login"), self.parse_home, method="POST", form=form, dont_filter=True)

    def parse_home(self, response):
        yield {"page": "home", "says": response.css("p::text").get()}
        order = {"method": "POST", "form": {"n": "1"}, "once": True, "errback": self.lost}
        yield Request(response.urljoin("/buy"), self.bought, **order)

    def bought(self, response):
        yield {"page": "bought", "says": response.css("p::text").get()}

    def lost(self, failure):
        yield {"page": "lost", "says": ""}
'''


class Shop:
    """A site with a session: its pages say what they know of the visitor.

    Attributes:
        heard: Method and path of each request, but those for robots.txt.
        cookies: Of each of them.
    """

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.cookies: list[str] = []
        shop = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Answers GET and POST."""

            def do_GET(self) -> None:
                """A page, or an answer to a form."""
                shop.answer(self, parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()))

            do_POST = do_GET  # noqa: N815  # the base class's name

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
                """Says nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, request: Any, form: dict[str, list[str]]) -> None:
        """To a visitor, by the cookies."""
        if request.path == "/robots.txt":
            request.send_error(404)
            return
        cookies = request.headers.get("Cookie", "")
        self.heard.append(f"{request.command} {request.path}")
        self.cookies.append(cookies)
        status, set_cookie, body = self._said(self.heard[-1], cookies, form)
        request.send_response(status)
        request.send_header("Content-Type", "text/html")
        if status == 302:
            request.send_header("Location", "/home")
        if set_cookie:
            request.send_header("Set-Cookie", f"{set_cookie}; Path=/")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body.encode())

    def _said(self, asked: str, cookies: str, form: dict[str, list[str]]) -> tuple[int, str, str]:
        """Status, cookie and body. Each look at the form makes a token of its own."""
        token = f"t{len(self.heard)}"
        match asked:
            case "GET /login":
                return 200, f"token={token}", f'<form><input name="token" value="{token}"></form>'
            case "POST /login":
                is_right = f"token={form['token'][0]}" in cookies and form["user"] == ["ann"]
                return (302, "sid=s3cr3t", "") if is_right else (403, "", "<p>wrong token")
            case "GET /start":
                return 200, "sid=s3cr3t", "<a href=/next>next</a>"
        return 200, "", f"<p>{'known' if 'sid=s3cr3t' in cookies else 'unknown'}"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def shop() -> Iterator[Shop]:
    """The site."""
    site = Shop()
    yield site
    site.close()


class Crawl:
    """`crawlog run` of the shop, whose workers die at crash points.

    Args:
        cluster: Where the log is; None for an engine of its own.
    """

    def __init__(self, folder: Path, cluster: Settings | None, url: str, *options: str, deaths: str = "") -> None:
        self.folder = folder
        self.spent = folder / "spent"
        self.spent.mkdir()
        keep = {"network.allow_private": "true", "fetch.cookies": "true", "politeness.delay_s": "1"}
        keep |= {name: str(value) for name, value in log_of(cluster).items()} if cluster is not None else {}
        pairs = [f"-s{name}={value}" for name, value in keep.items()]
        self.where = ["--data", folder / "data", *pairs]
        self._command = ["run", url, "-o", folder / "rows.jsonl", *self.where, *options]
        self._environment = os.environ | ({VARIABLE: f"{self.spent} {deaths}"} if deaths else {})

    def start(self) -> Process:
        """Run it."""
        return crawlog(*self._command, env=self._environment)

    def rows(self) -> list[dict[str, Any]]:
        """What it found."""
        return [json.loads(line) for line in (self.folder / "rows.jsonl").read_text().splitlines()]

    def ends(self) -> list[dict[str, Any]]:
        """Run it to its end; the rows."""
        run = self.start()
        out, errors = run.communicate(timeout=240)
        assert run.returncode == 0, out + errors
        return self.rows()


def has_another(data: Path, name: str, pid: int) -> bool:
    """Whether a worker of a name runs that is not this process."""
    return workers(data).get(name, pid) != pid


def kill(run: Process) -> None:
    """End a run and all that it has started with SIGKILL."""
    for one in [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]:
        one.kill()
    run.wait()


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param("fetch.page.acknowledged:1", id="page", marks=pytest.mark.long),
        pytest.param("fetch.done.acknowledged:1", id="done", marks=pytest.mark.long),
        pytest.param(
            "fetch.page.acknowledged:1 restore.dones.sending:1 restore.dones.acknowledged:1",
            id="restores",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_session_outlives_the_worker_that_got_it(tmp_path: Path, cluster: Settings, shop: Shop, deaths: str) -> None:
    """Also if the page is all that the log has of it."""
    crawl = Crawl(tmp_path, cluster, f"{shop.origin}/start", deaths=deaths)
    crawl.ends()
    assert (shop.heard, shop.cookies) == (["GET /start", "GET /next"], ["", "sid=s3cr3t"])
    assert len(list(crawl.spent.iterdir())) == len(deaths.split())
    state = load({**log_of(cluster), "run.data": str(tmp_path / "data")})
    assert all(verdict.equal for verdict in verify(state, tmp_path / "data" / "state"))
    out, _ = crawlog("why", f"{shop.origin}/start", *crawl.where, "--json").communicate()
    assert ("sid" in out, "HttpOnly" in out, "s3cr3t" in out) == (True, False, False)


@pytest.mark.long
def test_a_session_goes_to_the_next_owner(tmp_path: Path, shop: Shop) -> None:
    """Both workers are told to stop while the host rests, one after the other; the partition goes to and fro."""
    crawl = Crawl(tmp_path, None, f"{shop.origin}/start", "--workers", "fetch=2", "-spoliteness.delay_s=20", NO_ROBOTS)
    run = crawl.start()
    until(lambda: shop.heard, "the first page")
    time.sleep(2)
    for name in ("fetch-0", "fetch-1"):
        pid = workers(tmp_path / "data")[name]
        os.kill(pid, signal.SIGTERM)
        until(partial(has_another, tmp_path / "data", name, pid), "another worker")
    out, errors = run.communicate(timeout=240)
    assert run.returncode == 0, out + errors
    assert (shop.heard, shop.cookies) == (["GET /start", "GET /next"], ["", "sid=s3cr3t"])


@pytest.mark.long
def test_a_session_outlives_the_death_of_all_and_a_deleted_state(tmp_path: Path, cluster: Settings, shop: Shop) -> None:
    """The log has it."""
    crawl = Crawl(tmp_path, cluster, f"{shop.origin}/start", "-spoliteness.delay_s=8", NO_ROBOTS)
    run = crawl.start()
    until(lambda: shop.heard, "the first page")
    time.sleep(2)  # the done is in the log, the host rests
    kill(run)
    assert shop.heard == ["GET /start"]
    shutil.rmtree(tmp_path / "data" / "state")
    crawl.ends()
    assert (shop.heard, shop.cookies) == (["GET /start", "GET /next"], ["", "sid=s3cr3t"])


LOGIN = ["GET /login", "POST /login", "GET /home", "POST /buy"]


@pytest.mark.parametrize(
    ("deaths", "heard", "last"),
    [
        pytest.param("fetch.page.acknowledged:1", LOGIN, "bought", id="form", marks=pytest.mark.long),
        pytest.param("fetch.page.acknowledged:2", LOGIN, "bought", id="posted"),
        pytest.param("fetch.page.acknowledged:3", LOGIN, "bought", id="home", marks=pytest.mark.long),
        pytest.param("fetch.page.acknowledged:4", LOGIN, "bought", id="bought", marks=pytest.mark.long),
        pytest.param("fetch.began.sending:1", LOGIN, "bought", id="beginning", marks=pytest.mark.long),
        pytest.param("fetch.began.acknowledged:1", LOGIN[:3], "lost", id="begun", marks=pytest.mark.long),
        pytest.param("fetch.page.sending:4", LOGIN, "lost", id="answered", marks=pytest.mark.long),
    ],
)
def test_a_login_and_an_order_are_sent_once(
    tmp_path: Path, cluster: Settings, shop: Shop, deaths: str, heard: list[str], last: str
) -> None:
    """No second token, no second order. An order that may have been sent, and has no page, ends in its errback."""
    (tmp_path / "shop.py").write_text(SPIDER)
    crawl = Crawl(tmp_path, cluster, f"{shop.origin}/login", "--spider", str(tmp_path / "shop.py"), deaths=deaths)
    rows = crawl.ends()
    assert shop.heard == heard
    assert sorted((row["page"], row["says"]) for row in rows) == sorted(
        [("home", "known"), (last, "known" if last == "bought" else "")]
    )
    assert len(list(crawl.spent.iterdir())) == 1
