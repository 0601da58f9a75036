"""What pages in a browser ask for, without a browser: whose turn it is, what robots.txt says, what is remembered."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from crawlog.agents.browser.dom import Failed
from crawlog.agents.browser.render import Renderer
from crawlog.agents.browser.resources import ENTRY_BYTES, Budget, JobPage, Resources, _Asked, _Scripts
from crawlog.agents.browser.visit import BrowserDied, Visit
from crawlog.agents.client.body import FREE_BYTES
from crawlog.agents.client.per_address import Addresses
from crawlog.agents.client.protocol import LeaseLost
from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.frontier.host_turns import FOREIGN_HOSTS, SHORT_BYTES, Hosts
from crawlog.schemas.urls import JobSpec, RenderRules, RequestRules, ScopeSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.frontier.host import Host
from crawlog.streams.frontier.schedule import HOSTS_AWAKE
from crawlog.streams.http.answer import Answer
from crawlog.streams.job_spec import own_policy
from crawlog.streams.jobs.commands import Orders
from crawlog.streams.rendering import Reach, Wish
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.robots.robots import RobotsRules, SharedRules
from crawlog.streams.settings.browser import find_browser
from crawlog.streams.settings.sections import Politeness
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import NO_FILE, load
from crawlog.streams.url.place import Places
from tests.support.browsing import DELAY_S, Owner, budget, no_rules, script
from tests.support.sites import Site, sites

if TYPE_CHECKING:
    from crawlog.agents.client.client import Client


class Web:
    """Answers every URL, and keeps when it was asked.

    Attributes:
        redirects: Where URLs point.
        known_at: URLs that were asked for with what is the job's own.
        body: Of every answer.
        leave: Who may read it, as Access-Control-Allow-Origin says.
        is_secret: Whether Cache-Control forbids to keep it.
        most: Requests that were under way together.
    """

    def __init__(self, per_ip: int = 0) -> None:
        self.addresses = Addresses(Politeness(per_ip=per_ip, delay_s=0.0), self.addresses_of)
        self.most = self.under_way = 0
        self.asked: list[tuple[float, str]] = []
        self.redirects: dict[str, str] = {}
        self.known_at: list[str] = []
        self.body = b"0123456789"
        self.leave = ""
        self.is_secret = False

    async def get(self, request: HttpRequest) -> Answer:
        """An answer of ten bytes."""
        url, asker = request.url, request.asker
        self.asked.append((time.monotonic(), url))
        if not asker.is_anonymous:
            self.known_at.append(url)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.005)
        self.under_way -= 1
        answer = Answer(200)
        answer.kept, answer.body, answer.content_type = True, self.body, "text/javascript"
        answer.allow_origin, answer.forbids_store = self.leave, self.is_secret
        if url in self.redirects:
            answer.http, answer.location = 302, self.redirects[url]
        return answer

    async def addresses_of(self, _url: str) -> tuple[str, ...]:
        """One for all."""
        return ("192.0.2.1",)

    async def closed_to_public(self, _url: str) -> str:
        """Nothing is."""
        return ""

    @property
    def urls(self) -> list[str]:
        """What was asked for."""
        return [url for _, url in self.asked]


def resources(web: Web, owner: Owner, robots: bytes | None = None, delay_s: float = DELAY_S) -> Resources:
    """Resources of a web; robots.txt is not obeyed where there is none."""
    base = Settings()
    settings = base.model_copy(
        update={
            "politeness": base.politeness.model_copy(update={"delay_s": delay_s}),
            "robots": base.robots.model_copy(update={"obey": robots is not None}),
        }
    )

    async def ask_rules(host: Host, _policy: RequestPolicy) -> None:
        await web.get(HttpRequest(f"{host.key}/robots.txt"))
        host.rules, host.rules_until = RobotsRules.parse(robots or b""), time.monotonic() + 60.0
        owner.frontier.finished(host)

    owner.frontier.usual = own_policy(settings)
    client: Client = web  # type: ignore[assignment]  # as much of it as is used
    return Resources(settings, client, Hosts(owner.frontier, Places(1).of, lambda *_: 0.0), ask_rules)


@pytest.mark.parametrize("names", [("a.com",), ()])
async def test_requests_to_one_host_rest_between(names: tuple[str, ...]) -> None:
    """Whoever owns it, for all pages together; another host is not waited for."""
    web = Web()
    one = resources(web, Owner(*names))
    wishes = [script(f"http://a.com/{n}") for n in range(3)] + [script("http://b.com/")]
    await asyncio.gather(*(one.get(wish, {}, budget()) for wish in wishes))
    times = [at for at, url in web.asked if "a.com" in url]
    assert min(later - earlier for earlier, later in pairwise(times)) >= DELAY_S * 0.99
    assert web.urls.index("http://b.com/") <= 1


async def test_a_page_and_what_it_asks_for_share_the_rest_of_their_host() -> None:
    """The first script waits for the delay since the document; the dispatcher waits for the script."""
    web, owner = Web(), Owner("a.com")
    one = resources(web, owner)
    host = owner.lend(Places(1).of("http://a.com/"))
    assert host is not None
    host.in_flight = 1  # the document's place, which its page holds until it is rendered
    began = time.monotonic()
    with one.visiting("http://a.com/"):
        await one.get(script("http://a.com/app.js"), {}, budget())
    assert web.asked[0][0] - began >= DELAY_S * 0.99
    assert host.next_at >= web.asked[0][0] + DELAY_S
    assert host.in_flight == 1


async def test_pages_that_need_each_others_hosts_do_not_wait_for_ever() -> None:
    """A page in the browser holds its host's place, but no request is under way."""
    web, owner = Web(), Owner("a.com", "b.com")
    one = resources(web, owner, delay_s=0.0)

    async def visit(url: str, needs: str) -> None:
        host = owner.lend(Places(1).of(url))
        assert host is not None
        host.in_flight += 1
        with one.visiting(url):
            await asyncio.sleep(0.01)
            await one.get(script(needs), {}, budget())

    async with asyncio.timeout(60.0):
        await asyncio.gather(visit("http://a.com/", "http://b.com/x"), visit("http://b.com/", "http://a.com/x"))


async def test_a_request_waits_for_those_of_its_hosts_queue() -> None:
    """`politeness.per_host` counts both."""
    web, owner = Web(), Owner("a.com")
    one = resources(web, owner)
    host = owner.lend(Places(1).of("http://a.com/"))
    assert host is not None
    host.in_flight = 1
    asking = asyncio.create_task(one.get(script("http://a.com/x"), {}, budget()))
    await asyncio.sleep(0.05)
    assert web.asked == []
    owner.frontier.finished(host)
    assert (await asking).http == 200


async def test_a_driven_page_that_leaves_a_private_address_reaches_no_other_one() -> None:
    """Where it comes to counts from then on; a host outside the job's scope is not asked at all."""
    web = Web()
    one = resources(web, Owner(), delay_s=0.0)
    spec = JobSpec(scope=ScopeSpec(names=("a.com",)))
    within = Budget(JobPage("j", reach=Reach(spec, Places(1).of("http://a.com/"))), 100, 1 << 20, is_inside=True)
    away = await one.document("GET", "http://b.com/", b"", {}, within)
    assert (away.error, web.asked, within.is_inside) == ("scope", [], False)
    assert (await one.document("POST", "http://a.com/form", b"x=1", {}, within)).http == 200
    assert web.urls == ["http://a.com/form"]


async def test_a_page_waits_for_no_host_that_rests_long_after_failures() -> None:
    """Its font or script would hold the page up to its end; a host that rests by politeness alone is waited for."""
    web = Web()
    one = resources(web, Owner(), delay_s=0.0)
    host = one._hosts.of("http://dead.com/")
    host.failures = 3
    host.rest(time.monotonic() + 600.0)
    answer = await one.get(script("http://dead.com/x.js"), {}, budget())
    assert (answer.error, web.asked) == ("host_rests", [])


async def test_a_page_asks_no_host_outside_its_reach_at_any_hop() -> None:
    """Neither the host's robots.txt nor what lies behind a redirect; a host in scope is asked."""
    web = Web()
    web.redirects = {"http://a.com/goes": "http://evil.com/x"}
    one = resources(web, Owner(), robots=b"", delay_s=0.0)
    spec = JobSpec(scope=ScopeSpec(names=("a.com",)), render=RenderRules("always", scope="none"))
    within = Budget(JobPage("j", reach=Reach(spec, Places(1).of("http://a.com/"))), 100, 1 << 20, is_inside=True)
    errors = [
        (await one.get(script(url), {}, within)).error
        for url in ("http://cdn.a.com/x", "http://evil.com/x", "http://a.com/goes")
    ]
    assert errors == ["", "scope", "scope"]
    assert not [url for url in web.urls if "evil" in url]


@pytest.mark.parametrize(("per_ip", "together"), [(1, 1), (2, 2), (0, 4)])
async def test_what_pages_load_counts_at_its_address(per_ip: int, together: int) -> None:
    """`politeness.per_ip` holds for all hosts of an address; whoever must wait gets its turn."""
    web = Web(per_ip)
    one = resources(web, Owner("h0.com"), delay_s=0.0)
    answers = await asyncio.gather(*(one.get(script(f"http://h{n}.com/x"), {}, budget()) for n in range(4)))
    assert ([answer.http for answer in answers], len(web.asked), web.most) == ([200] * 4, 4, together)


async def test_a_host_asked_by_others_while_its_address_was_busy_rests_first() -> None:
    """Its rest is looked at again when the address is free; meanwhile the address serves others."""
    web, owner = Web(per_ip=1), Owner("a.com")
    one = resources(web, owner)
    host = owner.lend(Places(1).of("http://a.com/"))
    assert host is not None
    free = asyncio.Event()
    elsewhere = asyncio.create_task(web.addresses.in_turn("http://b.com/", free.wait, RequestRules()))
    asking = asyncio.create_task(one.get(script("http://a.com/x"), {}, budget()))
    await asyncio.sleep(0.01)
    host.in_flight += 1  # the dispatcher's, to another address of the host
    owner.frontier.finished(host)
    rests_until = host.next_at
    free.set()
    await elsewhere
    await web.addresses.in_turn("http://c.com/", partial(asyncio.sleep, 0), RequestRules())
    assert web.asked == []
    await asking
    assert web.asked[0][0] >= rests_until


async def test_a_script_is_asked_for_once_a_job() -> None:
    """Also where two pages want it at once; data is asked for each time, and an answer is no other job's."""
    web = Web()
    one = resources(web, Owner(), delay_s=0.0)
    both = [one.get(script("http://a.com/app.js"), {}, budget()) for _ in range(2)]
    assert [answer.body for answer in await asyncio.gather(*both)] == [b"0123456789"] * 2
    assert len(web.asked) == 1
    await one.get(script("http://a.com/app.js"), {}, budget(job="other"))
    for _ in range(2):
        await one.get(Wish("GET", "http://a.com/data", "fetch"), {}, budget())
    assert web.urls[1:] == ["http://a.com/app.js", "http://a.com/data", "http://a.com/data"]


async def test_a_script_is_asked_for_again_in_the_next_epoch_of_its_job() -> None:
    """It is another crawl of the same site."""
    web = Web()
    one = resources(web, Owner(), delay_s=0.0)
    for epoch in (0, 1, 1):
        await one.get(script("http://a.com/app.js"), {}, Budget(JobPage("j", epoch), 100, 1 << 20, is_inside=True))
    assert len(web.asked) == 2


async def test_an_answer_that_must_not_be_stored_is_asked_for_each_time() -> None:
    """RFC 9111 5.2.2.5."""
    web = Web()
    web.is_secret = True
    one = resources(web, Owner(), delay_s=0.0)
    for _ in range(2):
        await one.get(script("http://a.com/app.js"), {}, budget())
    assert len(web.asked) == 2


async def test_login_and_cookies_go_with_what_a_document_asks_of_its_own_origin_only() -> None:
    """At each hop. A script that was answered to somebody known is not what a stranger's page gets."""
    web = Web()
    web.redirects = {"http://a.com/goes": "https://a.com/x", "http://evil.com/goes": "http://a.com/secret"}
    one = resources(web, Owner(), delay_s=0.0)
    own, evil = "http://a.com:80", "http://evil.com:80"
    for url, origin in (
        ("http://a.com/app.js", own),
        ("http://a.com/goes", own),
        ("http://cdn.a.com/lib.js", own),
        ("http://a.com/app.js", evil),
        ("http://a.com:8080/", evil),
        ("http://evil.com/goes", evil),
        ("http://a.com/nobody", ""),
    ):
        await one.get(Wish("GET", url, "script", origin), {}, budget())
    assert web.known_at == ["http://a.com/app.js", "http://a.com/goes", "http://evil.com/goes"]
    assert web.urls.count("http://a.com/app.js") == 2


async def test_neither_a_sandboxed_frame_nor_a_detour_by_another_origin_has_the_login() -> None:
    """Whose answer a script may read by the leave of the site alone, as if it were a stranger's (Fetch 4.10)."""
    web = Web()
    web.redirects = {"http://a.com/goes": "http://evil.com/back", "http://evil.com/back": "http://a.com/secret"}
    web.leave = "*"
    one = resources(web, Owner(), delay_s=0.0)
    own = "http://a.com:80"
    for url, cors in (("http://a.com/data", ""), ("http://a.com/boxed", "null"), ("http://a.com/goes", "")):
        answer = await one.get(Wish("GET", url, "fetch", own, cors), {}, budget())
        assert answer.http == 200
    assert web.known_at == ["http://a.com/data", "http://a.com/goes"]
    assert web.urls[-1] == "http://a.com/secret"


async def test_scripts_that_are_empty_take_memory_too() -> None:
    """A page that names one after the other is no way to fill it."""
    scripts, answer = _Scripts(10 * ENTRY_BYTES), Answer(200)
    answer.kept = True
    urls = [f"http://a.com/{n}" for n in range(50)]
    for url in urls:
        scripts.keep(_Asked("j", url, anonymous=True), answer)
    kept = [url for url in urls if scripts.get(_Asked("j", url, anonymous=True)) is not None]
    assert kept == urls[-9:]


async def test_a_host_of_others_is_asked_also_where_memory_has_no_room_for_hosts() -> None:
    """It has no place among those that sleep, nor needs one."""
    web, owner = Web(), Owner()
    owner.frontier.schedule.awake = HOSTS_AWAKE
    answer = await resources(web, owner).get(script("http://a.com/x"), {}, budget())
    assert (answer.http, web.urls) == (200, ["http://a.com/x"])


async def test_robots_txt_is_read_first_and_holds_at_each_hop() -> None:
    """Of the host that is asked, once."""
    web = Web()
    web.redirects["http://a.com/goes"] = "http://b.com/private/x"
    one = resources(web, Owner(), b"User-agent: *\nDisallow: /private/\n", delay_s=0.0)
    answers = [await one.get(script(f"http://a.com/{path}"), {}, budget()) for path in ("x", "private/x", "goes")]
    assert [(answer.http, answer.error) for answer in answers] == [(200, ""), (None, "robots"), (None, "robots")]
    assert web.urls == [
        "http://a.com:80/robots.txt",
        "http://a.com/x",
        "http://a.com/goes",
        "http://b.com:80/robots.txt",
    ]


def test_a_foreign_host_keeps_what_is_short() -> None:
    """Its old robots.txt counts on where a newer one cannot be had; long ones would fill the memory."""
    partition = resources(Web(), Owner())._hosts.of("http://a.com/").partition
    partition.cache(b"robots", b"short")
    assert partition.cached(b"robots") == b"short"
    partition.cache(b"robots", b"x" * (SHORT_BYTES + 1))
    assert partition.cached(b"robots") is None


async def test_rules_kept_for_another_jobs_token_allow_nothing() -> None:
    """Where robots.txt was asked for anew and did not answer."""
    web, owner = Web(), Owner("a.com")
    one = resources(web, owner, robots=b"")
    host = owner.lend(Places(1).of("http://a.com/"))
    assert host is not None
    host.rules = SharedRules().rules(b"User-agent: *\nDisallow: /private/\n", "another")
    host.rules_until = time.monotonic() + 60.0

    async def ask_rules(host: Host, _policy: RequestPolicy) -> None:
        owner.frontier.finished(host)  # as after a 503

    one._ask_rules = ask_rules
    answers = [await one.get(script(f"http://a.com/{path}"), {}, budget()) for path in ("x", "private/x")]
    assert [answer.error for answer in answers] == ["robots_unreachable"] * 2
    assert web.asked == []


@pytest.mark.parametrize(
    ("spent", "error"),
    [(budget(requests=0), "budget"), (budget(size_bytes=0), "budget"), (budget(), "")],
)
async def test_a_page_has_a_budget(spent: Budget, error: str) -> None:
    """Of requests and of bytes."""
    web = Web()
    answer = await resources(web, Owner()).get(script("http://a.com/"), {}, spent)
    assert (answer.error, len(web.asked)) == (error, 0 if error else 1)


async def test_a_redirect_without_end_ends() -> None:
    """And each hop is paid for."""
    web = Web()
    web.redirects["http://a.com/"] = "http://a.com/"
    answer = await resources(web, Owner(), delay_s=0.0).get(Wish("GET", "http://a.com/", "fetch"), {}, budget())
    assert (answer.error, len(web.asked)) == ("redirects", 11)


@pytest.mark.parametrize("orders", [Orders(paused=True, stopped=True), Orders(paused=True)])
async def test_what_the_operator_stopped_is_not_asked(orders: Orders) -> None:
    """A page cannot wait for the end of a pause."""
    web, owner = Web(), Owner("a.com")
    host = owner.lend(Places(1).of("http://a.com/"))
    assert host is not None
    host.orders = orders
    answer = await resources(web, owner).get(script("http://a.com/"), {}, budget())
    assert (answer.error, web.asked) == ("control", [])


async def test_hosts_of_others_are_forgotten_when_they_have_rested() -> None:
    """Those that still rest are not: their next request would come too soon."""
    web = Web()
    one = resources(web, Owner(), delay_s=0.0)
    for n in range(FOREIGN_HOSTS + 50):
        one._hosts.of(f"http://host{n}.com/")
    assert len(one._hosts._foreign) == FOREIGN_HOSTS
    for host in one._hosts._foreign.values():
        host.rest(time.monotonic() + 60.0)
    one._hosts.of("http://another.com/").rest(time.monotonic() + 60.0)
    assert len(one._hosts._foreign) == FOREIGN_HOSTS + 1


def lacking(monkeypatch: pytest.MonkeyPatch, **found: object) -> None:
    """Take away the browser, or what drives it."""
    for name, value in found.items():
        monkeypatch.setattr(f"crawlog.streams.settings.browser.{name}", lambda *_, value=value: value)


def _without_driver(patch: pytest.MonkeyPatch) -> None:
    lacking(patch, find_spec=None)


def _without_browser(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("crawlog.streams.settings.browser.shutil.which", lambda _name: None)
    lacking(patch, find_spec=True)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [(_without_driver, "pip install 'crawlog\\[browser\\]'"), (_without_browser, "apt install chromium")],
)
async def test_without_a_browser_the_page_stays_and_the_next_command_is_said(
    monkeypatch: pytest.MonkeyPatch, lacks: Callable[[pytest.MonkeyPatch], None], said: str
) -> None:
    """`crawlog run` says it before it starts anything; a worker says it once and goes on."""
    lacks(monkeypatch)
    with pytest.raises(Misconfigured, match=said):
        find_browser(Settings())
    renderer = Renderer(Settings(), resources(Web(), Owner()))
    answer = Answer(200)
    answer.body, answer.kept = b"<p>plain", True
    await renderer.render("http://a.com/", answer, "always", JobPage("j"))
    assert (answer.body, answer.rendered, answer.render_error) == (b"<p>plain", "", "no_browser")


async def test_roots_browser_is_refused_unless_it_may_run_without_its_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of strangers would run as root with nothing around them. Nobody else is asked to say so."""
    lacking(monkeypatch, find_spec=True)
    monkeypatch.setattr("crawlog.streams.settings.browser.shutil.which", lambda _name: "/usr/bin/chromium")
    started: list[object] = []
    monkeypatch.setattr("crawlog.agents.browser.chromium.Chromium.start", lambda *_: started.append(None))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(Misconfigured, match=r"(?s)root.*-s render\.sandbox=false"):
        find_browser(Settings())
    answer = Answer(200)
    answer.body, answer.kept = b"<p>plain", True
    await Renderer(Settings(), resources(Web(), Owner())).render("http://a.com/", answer, "always", JobPage("j"))
    assert (answer.body, answer.render_error, started) == (b"<p>plain", "no_browser", [])
    assert find_browser(load({"render.sandbox": False}, environ={})) == "/usr/bin/chromium"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert find_browser(Settings()) == "/usr/bin/chromium"


async def test_a_browser_that_does_not_start_is_not_tried_for_each_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each page would wait for it; all are kept as they were sent."""
    starts = 0

    async def start(*_: object) -> None:
        nonlocal starts
        starts += 1
        raise OSError("no such library")

    monkeypatch.setattr("crawlog.agents.browser.chromium.Chromium.start", start)
    monkeypatch.setattr("crawlog.agents.browser.render.find_browser", lambda _: "/usr/bin/chromium")
    renderer = Renderer(Settings(), resources(Web(), Owner()))
    for _ in range(3):
        answer = Answer(200)
        await renderer.render("http://a.com/", answer, "always", JobPage("j"))
        assert (answer.rendered, answer.render_error) == ("", "browser_broken")
    assert starts == 1


class Slow:
    """A browser so slow that its page does not even ask for its document: as much of Playwright's as a page uses."""

    is_alive, cut_at, url, main_frame, parent_frame = True, 0.0, "about:blank", None, None

    async def new_page(self) -> "Slow":
        """A blank one."""
        return self

    async def new_cdp_session(self, _page: object) -> "Slow":
        """A session."""
        return self

    async def route(self, *_: object) -> None:
        """Nothing will be asked for."""

    def on(self, *_: object) -> None:
        """Nothing will happen."""

    async def goto(self, *_: object, **__: object) -> None:
        """It never ends."""
        await asyncio.sleep(600.0)

    async def send(self, method: str, _arguments: object = None) -> dict[str, Any]:
        """The blank page."""
        said: dict[str, dict[str, Any]] = {
            "Page.getFrameTree": {"frameTree": {"frame": {"id": "1", "url": "http://a.test/"}}},
            "Page.createIsolatedWorld": {"executionContextId": 1},
            "Runtime.evaluate": {"result": {"value": "<!DOCTYPE html><html><head></head><body></body></html>"}},
        }
        return said.get(method, {})


def visit(browser: Slow, of: Resources, timeout_s: float = 0.05) -> Visit:
    """A visit of a page."""
    rules = own_policy(load({"render.timeout_s": timeout_s}, NO_FILE, {})).rules
    return Visit(rules, browser, of, "http://a.com/", Answer(200), budget())  # type: ignore[arg-type]  # no browser


async def test_the_browsers_blank_page_is_not_taken_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a machine is so busy that the browser has not asked for the document in time: the body stays."""
    monkeypatch.setattr("crawlog.agents.browser.visit.START_S", 0.05)
    slow = Slow()
    with pytest.raises(Failed, match="render_timeout"):
        await visit(slow, resources(Web(), Owner()))._shown(slow)  # type: ignore[arg-type]  # no browser


class Uncommitted(Slow):
    """A browser that asks for its document, and takes long to put it in the place of the blank page."""

    method, resource_type, frame = "GET", "document", None

    async def route(self, *how: object) -> None:
        """Ask by this handler."""
        self.ask: Any = how[1]

    async def goto(self, *_: object, **__: object) -> None:
        """It never ends."""
        self.ask(self, self)
        await asyncio.sleep(600.0)

    def is_navigation_request(self) -> bool:
        """It is one for the document."""
        return True

    async def fulfill(self, **_: object) -> None:
        """The document is here."""


async def test_a_document_that_is_not_shown_in_time_leaves_the_body_as_it_is() -> None:
    """Though the browser has it: what it shows is still its own blank page."""
    pytest.importorskip("playwright")
    browser = Uncommitted()
    one = visit(browser, resources(Web(), Owner()))
    with pytest.raises(Failed, match="render_timeout"):
        await one._shown(browser)  # type: ignore[arg-type]  # no browser
    assert one._is_shown


@pytest.mark.parametrize(
    ("error", "is_crashed", "is_cut", "failed"),
    [
        ("Page.goto: net::ERR_FAILED at http://a.com/closed", False, False, "render_failed"),
        ("Page.goto: net::ERR_FAILED at http://a.com/", False, True, "render_failed"),
        ("Page.goto: net::ERR_FAILED at http://a.com/", True, True, "render_memory"),
        ("Target page, context or browser has been closed", False, True, "render_memory"),
        ("Target page, context or browser has been closed", False, False, ""),
        ("Page.goto: net::ERR_FAILED at http://a.com/", True, False, ""),
    ],
)
def test_a_page_that_fails_says_why(error: str, is_crashed: bool, is_cut: bool, failed: str) -> None:
    """By its own end: neither by a word in its URL, nor by another page that was killed for its memory."""
    browser = Slow()
    one = visit(browser, resources(Web(), Owner()))
    one._is_crashed = is_crashed
    browser.cut_at = time.monotonic() + 1.0 if is_cut else 0.0
    became = one._what_failed(RuntimeError(error))
    assert (type(became), str(became)) == (Failed if failed else BrowserDied, failed)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"result": {"type": "object", "subtype": "error"}, "exceptionDetails": {"text": "Uncaught"}}, "render_failed"),
        ({"result": {"type": "object", "subtype": "null", "value": None}}, "render_too_large"),
    ],
)
async def test_a_page_whose_dom_cannot_be_read_is_not_called_too_large(found: dict[str, Any], reason: str) -> None:
    """As one that has removed its root."""

    class Rootless(Slow):
        async def send(self, method: str, _arguments: object = None) -> dict[str, Any]:
            return found if method == "Runtime.evaluate" else await super().send(method)

    browser = Rootless()
    with pytest.raises(Failed, match=reason):
        await visit(browser, resources(Web(), Owner()))._dom(browser)  # type: ignore[arg-type]  # no browser


class Asking:
    """A request of a page, and its route; as much of them as is used."""

    method, url, resource_type, frame = "GET", "http://a.com/x", "script", Slow()
    headers: Mapping[str, str] = {}
    is_aborted = has_gone = False

    def is_navigation_request(self) -> bool:
        """It is for a script."""
        return False

    async def abort(self) -> None:
        """No answer."""
        from playwright.async_api import Error

        if self.has_gone:
            raise Error("Target page, context or browser has been closed")
        self.is_aborted = True


def visited(get: Callable[..., object]) -> Visit:
    """A visit of a page whose requests are answered so."""
    of: Any = resources(Web(), Owner())
    of.get = get
    one = visit(Slow(), of)
    one._page = Slow()  # type: ignore[assignment]  # no browser
    return one


async def test_what_breaks_while_a_page_is_served_is_an_answer_to_it() -> None:
    """Else it would wait for as long as it may."""
    pytest.importorskip("playwright")
    one, asking = visited(lambda *_: 1 / 0), Asking()
    await one._asked(asking, asking)  # type: ignore[arg-type]  # no browser
    assert asking.is_aborted


async def test_a_request_whose_page_has_gone_waits_for_no_answer() -> None:
    """Playwright would wait for it for ever."""
    pytest.importorskip("playwright")
    one, asking = visited(lambda *_: 1 / 0), Asking()
    asking.has_gone = True
    answer = one._asked(asking, asking)  # type: ignore[arg-type]  # no browser
    await asyncio.wait([answer])
    assert answer.cancelled()


async def test_a_request_without_a_lease_ends_its_page() -> None:
    """Not by an error to Playwright, which would raise it for the next page."""
    pytest.importorskip("playwright")

    async def get(*_: object) -> Answer:
        raise LeaseLost

    one, asking = visited(get), Asking()
    answer = one._asked(asking, asking)  # type: ignore[arg-type]  # no browser
    await asyncio.wait([answer])
    assert answer.cancelled()
    assert isinstance(one._lost, LeaseLost)


async def test_what_pages_load_waits_for_no_room_that_pages_hold() -> None:
    """They would wait for each other: pages that wait for the browser, and the script of one that is in it."""
    site = Site(body=b"x" * (2 * FREE_BYTES))
    async with sites(site) as client:
        pages = await client.bodies.take(1 << 40)
        owner = Owner()
        settings = load({"network.allow_private": True}, NO_FILE, {})
        one = Resources(settings, client, Hosts(owner.frontier, Places(1).of, lambda *_: 0.0), no_rules(owner))
        answer = await one.get(script(f"{site.origin}/app.js"), {}, budget())
        assert (answer.http, len(answer.body), client.bodies.free_bytes) == (200, 2 * FREE_BYTES, 0)
        pages.give()
