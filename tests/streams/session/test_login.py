"""Logins by a form: read and posted once, in turns of the host, again when the session is over, and never told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from pydantic import ValidationError

from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.fetch.logins import shown
from crawlog.streams.html.login_form import MAX_INPUTS, filled_in
from crawlog.streams.http.answer import Answer
from crawlog.streams.session.login import (
    Form,
    Posted,
    Session,
    Shown,
    Step,
    Unsent,
    Visited,
    leads_to,
    no_login,
    read_form,
)
from crawlog.streams.settings.sections import Fetch
from crawlog.streams.settings.sources import Sources, origins
from tests.support.fetching import Web, World, running
from tests.support.sites import Site, posting, sites

TEXT = "http://a.com/login#user=ann&password=p%26ss"
FIELDS = (("user", "ann"), ("password", "p&ss"))
FORM = Form("http://a.com:80", "http://a.com/login", FIELDS)


def test_a_form_is_a_url_and_its_fields() -> None:
    """The fragment, which is never sent as one, holds the fields."""
    assert read_form(TEXT) == FORM
    assert FORM.body == "user=ann&password=p%26ss"
    assert read_form("https://a.com:8443/in?next=%2F#a=") == Form(
        "https://a.com:8443", "https://a.com:8443/in?next=%2F", (("a", ""),)
    )
    form = read_form("https://Bücher.test/in#a=b")
    assert (form.origin, form.url) == ("https://xn--bcher-kva.test:443", "https://xn--bcher-kva.test/in")


@pytest.mark.parametrize(
    "wrong",
    ["http://a.com/", "ftp://a.com/#u=hush", "a.com#u=hush", "http://u:p@a.com/#u=hush", "http://:hush@a.com/#u=", "#"],
)
def test_what_is_none_is_refused_without_repeating_it(wrong: str) -> None:
    """A password has no place in an error, nor among the settings shown."""
    with pytest.raises(ValueError, match="a form login is") as refused:
        read_form(wrong)
    assert "hush" not in str(refused.value)
    with pytest.raises(ValidationError):
        Fetch.model_validate({"forms": (wrong,)})
    shown = {one.key: one.value for one in origins(Sources(pairs=[f"fetch.forms={TEXT}"], environ={}))}
    assert "ann" not in str(shown["fetch.forms"])


@pytest.mark.parametrize(
    ("location", "leads"),
    [
        ("/login", True),
        ("login?next=%2Fx", True),
        ("http://a.com:80/login", True),
        ("/other", False),
        ("//b.com/login", False),
        ("http://[", False),
    ],
)
def test_a_redirect_to_the_form_is_known_by_origin_and_path(location: str, leads: bool) -> None:
    """Its query often says where one came from."""
    assert leads_to(FORM, "http://a.com/x", location) == leads


LOGIN = '<form method=post action="{}"><input type=hidden name=csrf value=7><input name=user><input type=password>'
SEARCH = "<form><input name=q></form><form method=post action=/find><input type=hidden name=s value=1></form>"


@pytest.mark.parametrize(
    ("page", "goes_to", "hidden"),
    [
        (LOGIN.format("/login"), "/login", {"csrf": "7"}),
        (LOGIN.format(""), "/login", {"csrf": "7"}),
        (SEARCH + LOGIN.format("session#top"), "/session", {"csrf": "7"}),
        ("<base href=/x/>" + LOGIN.format("session"), "/x/session", {"csrf": "7"}),
        ("<form method=POST action=login><input TYPE=Hidden name=t value='&amp;ü'>", "/login", {"t": "&ü"}),
        (LOGIN.format("/login") + "<input type=hidden name=user value=bob>", "/login", {"csrf": "7"}),
        (LOGIN.format("/login") + "<input type=hidden name=no disabled><input type=hidden>", "/login", {"csrf": "7"}),
        ("<input type=hidden form=f name=t value=1><form method=post id=f action=/login>", "/login", {"t": "1"}),
        ("<form method=post action=/new><input type=password></form>" + LOGIN.format("/in"), "/in", {"csrf": "7"}),
        (SEARCH + "<table>" + LOGIN.format("/in").replace("<input", "<tr><td><input"), "/in", {"csrf": "7"}),
        (
            "<table>" + LOGIN.format("/in").replace("<input", "<tr><td><input") + "</table>" + SEARCH,
            "/in",
            {"csrf": "7"},
        ),
    ],
)
def test_hidden_fields_come_from_the_form_that_asks_for_a_password_or_goes_to_the_url(
    page: str, goes_to: str, hidden: dict[str, str]
) -> None:
    """What is configured is stronger, and follows them."""
    found = filled_in(FORM, page.encode(), "text/html; charset=utf-8")
    assert found == Form(FORM.origin, "http://a.com" + goes_to, (*hidden.items(), *FIELDS))


@pytest.mark.parametrize(
    ("content_type", "attribute", "body"),
    [
        ("text/html; charset=windows-1251", "", "tok=%CA%EB%FE%F7&user=%FF&password=%26%23233%3B+"),
        ("text/html; charset=windows-1251", "accept-charset=UTF-8", "tok=%D0%9A%D0%BB%D1%8E%D1%87&user=%D1%8F&"),
        ("text/html; charset=windows-1251", "accept-charset='none, koi8-r'", "tok=%EB%CC%C0%DE&user=%D1&"),
        ("text/html; charset=windows-1251", "accept-charset=none", "tok=%D0%9A%D0%BB%D1%8E%D1%87&user=%D1%8F&"),
        ("text/html; charset=utf-16le", "", "tok=%D0%9A%D0%BB%D1%8E%D1%87&user=%D1%8F&"),
    ],
)
def test_a_form_is_posted_in_the_encoding_of_its_page(content_type: str, attribute: str, body: str) -> None:
    """As browsers do: its own `accept-charset` first, what the encoding lacks as a reference, and UTF-16 as UTF-8."""
    page = f"<form method=post action=/login {attribute}><input type=hidden name=tok value=Ключ>"
    form = FORM._replace(fields=(("user", "я"), ("password", "é ")))
    found = filled_in(form, page.encode(content_type.partition("=")[2]), content_type)
    assert found is not None
    assert found.body.startswith(body)


@pytest.mark.parametrize(
    "page",
    [
        "",
        SEARCH,
        LOGIN.format("https://a.com/login"),
        LOGIN.format("//b.com/login"),
        LOGIN.format("http://a.com:8080/login"),
        LOGIN.format("javascript:go()"),
        LOGIN.format("/login").replace("post", "get"),
        LOGIN.format("/login").replace("method=post", ""),
    ],
)
def test_a_password_goes_to_no_other_origin_and_into_no_url(page: str) -> None:
    """Such a form is none; other schemes and ports are other origins."""
    assert filled_in(FORM, page.encode(), "text/html") is None


def test_a_page_of_endless_fields_gives_some() -> None:
    """What is posted is bounded by the fields and by the bytes of the page."""
    page = LOGIN.format("/login") + "<input type=hidden name=x value=y>" * 30_000 + "<form method=post id=x>" * 10_000
    found = filled_in(FORM, page.encode(), "text/html")
    assert found is not None
    assert len(found.fields) < MAX_INPUTS + len(FIELDS)


def visited(url: str, asked_at: float, http: int = 401) -> Visited:
    """An answer to a page: 401 shows that there is no session."""
    return Visited(url, Answer(http), asked_at, ("redirect", "401"))


def steps(session: Session, now: float, times: int = 1) -> list[str]:
    """What so many tasks that begin their turn are to do."""
    return [session.next(None, now).do for _ in range(times)]


def test_a_session_is_begun_again_once_in_a_while_only() -> None:
    """Answers to requests from before a login say nothing of it."""
    session = Session(FORM, 600.0, 3)
    assert steps(session, 0.0, 2) == ["read", "wait"]
    session.next(Shown(None, "no_form"), 0.5)
    assert steps(session, 0.5, 2) == ["post", "wait"]
    session.next(Posted(""), 1.0)
    assert steps(session, 2.0) == ["page"]
    assert session.next(visited("x", asked_at=0.5), 2.0).do == "wait"
    assert session.next(visited("x", asked_at=2.0), 3.0).do == "page"
    assert steps(session, 3.0) == ["page"]
    assert session.next(visited("x", asked_at=700.0), 701.0).do == "wait"
    assert steps(session, 701.0) == ["read"]


def test_a_login_that_fails_stands_for_a_while() -> None:
    """What may pass is tried again, so often as a URL, from its page on."""
    session = Session(FORM, 600.0, 2)
    assert steps(session, 1.0) == ["read"]
    session.next(Shown(FORM), 1.0)
    assert steps(session, 1.0) == ["post"]
    session.next(Posted("timeout", may_pass=True), 1.0)
    assert steps(session, 1.0) == ["read"]
    session.next(Posted("connect", may_pass=True), 1.0)
    assert session.next(None, 1.0) == Step("fail", reason="login_failed: connect")
    assert session.next(visited("x", 0.0), 2.0).do == "page"
    assert steps(session, 601.0) == ["read"]
    session.next(Shown(None, "no_form"), 601.0)
    assert steps(session, 601.0) == ["post"]
    session.next(Posted("http_403"), 602.0)
    assert session.next(None, 603.0) == Step("fail", reason="login_failed: http_403, its page: no_form")
    assert steps(session, 1203.0) == ["read"]
    session.next(Posted("http_401"), 1204.0)
    assert session.next(None, 1204.0).reason == "login_failed: http_401"


def test_a_login_whose_request_was_not_sent_begins_anew() -> None:
    """Nobody knows what became of it."""
    session = Session(FORM, 600.0, 2)
    for _ in range(3):
        assert session.next(None, 1.0) == Step("read", FORM)
        assert session.next(Unsent(), 1.0).do == "wait"


@pytest.mark.parametrize(
    ("http", "location", "does"), [(200, "", "page"), (302, "/x", "page"), (302, "/login", "wait")]
)
def test_a_redirect_to_the_form_ends_a_session(http: int, location: str, does: str) -> None:
    """Any other answer counts."""
    session = Session(FORM, 0.0, 2)
    steps(session, 1.0)
    session.next(Shown(FORM), 1.0)
    steps(session, 1.0)
    session.next(Posted(""), 1.0)
    page = visited("http://a.com/x", 2.0, http)
    page.answer.location = location
    assert session.next(page, 3.0).do == does


async def test_the_form_goes_to_its_origin_and_its_cookies_come_back_there_for_the_job() -> None:
    """No other job, host or port sees them, though `fetch.cookies` is off."""
    site, other = Site("Set-Cookie: id=7; Path=/\r\n"), Site("Set-Cookie: id=8; Path=/\r\n")
    async with sites(site, other, forms=lambda each: (f"{each[0].origin}/login#user=ann&password=p%26ss",)) as client:
        form = read_form(f"{site.origin}/login#user=ann&password=p%26ss")
        assert (await client.get(posting(form, "j"))).http == 200
        for job in ("j", "other", ""):
            await client.get(HttpRequest(site.origin + "/x", job=job))
        for _ in range(2):
            await client.get(HttpRequest(other.origin + "/x", job="j"))
    first = site.requests[0]
    assert first.startswith("POST /login HTTP/1.1\r\n")
    assert "Content-Type: application/x-www-form-urlencoded\r\n" in first
    assert site.got("Cookie") == ["id=7"]
    assert (site.got("Origin"), site.got("Referer")) == ([site.origin], [f"{site.origin}/"])
    assert other.got("Cookie") == []
    assert "ann" not in str(other.requests)


@pytest.mark.parametrize(
    ("http", "error", "missing"),
    [(200, "", "no_form"), (200, "too_large", "too_large"), (404, "", "http_404"), (302, "", "http_302")],
)
def test_why_nothing_was_found_on_a_forms_page_is_told_in_a_word(http: int, error: str, missing: str) -> None:
    """A page that could not be read whole is not said to have no form."""
    answer = Answer(http)
    answer.error = error
    assert shown(FORM, answer) == Shown(None, missing)


@pytest.mark.parametrize(
    ("had_cookies", "location", "http", "reason"),
    [
        (True, "/home", 419, ""),
        (True, "/home", 503, "http_503"),
        (True, "/home", 429, "http_429"),
        (True, "/login?next=/", 419, "http_419"),
        (False, "/home", 419, "http_419"),
    ],
)
def test_a_form_refused_after_its_page_led_away_from_a_request_with_cookies_is_no_failure(
    had_cookies: bool, location: str, http: int, reason: str
) -> None:
    """There is a session, so the page with the hidden fields was not shown."""
    page, answer = Answer(302), Answer(http)
    page.had_cookies, page.location = had_cookies, location
    heard = shown(FORM, page)
    assert isinstance(heard, Shown)
    assert no_login(FORM, FORM.url, answer, may_be_in=heard.may_be_in) == reason


def test_a_cookie_that_came_with_a_refusal_is_no_session() -> None:
    """Servers set cookies for every visitor: the second attempt with a wrong password would count as a login."""
    session = Session(FORM, 600.0, 1)
    for now, had_cookies in ((0.0, False), (601.0, True)):
        session.next(None, now)
        session.next(Shown(None, "http_302", had_cookies), now)
        assert not session.may_be_in
        session.next(None, now)
        session.next(Posted("http_401"), now)
        assert session.next(None, now).do == "fail"


def test_a_forms_page_that_is_too_complex_is_not_looked_at() -> None:
    """What is configured is posted as it is."""
    answer = Answer(200)
    answer.body = b"<form method=post><input type=hidden name=token value=1><input type=password>"
    assert shown(FORM, answer, "too_complex: its HTML takes the parser long") == Shown(None, "too_complex")


class Members(Web):
    """A web that wants a login: what is asked for without one is answered with a redirect to the form."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)
        self.is_in = False
        self.asked_with: list[str] = []

    def _posted(self, form: Form, job: str) -> Answer:
        """The next status; 302 is a login."""
        self.asked_with.append(f"POST {form.url} {job}")
        self.before(form.url)
        answer = Answer(self.statuses.pop(0) if self.statuses else 302)
        answer.location = "/home"
        self.is_in = answer.http == 302
        return answer

    async def get(self, request: HttpRequest) -> Answer:
        """The page, or a redirect."""
        url = request.url
        if request.form is not None:
            return self._posted(request.form, request.job)
        self.asked_with.append(f"GET {url}")
        answer = await super().get(request)
        if not self.is_in and not url.endswith(("/login", "/robots.txt")):
            answer.http, answer.location, answer.kept = 302, "/login?next=x", False
        return answer


@asynccontextmanager
async def members(
    folder: Path, monkeypatch: pytest.MonkeyPatch, web: Members, **more: Any
) -> AsyncIterator[tuple[World, Callable[[], list[str]]]]:
    """A world with a login at a.com, and what it said of it."""
    async with running(folder, monkeypatch, web, fetch__forms=(TEXT,), **more) as world:
        yield world, lambda: [f"{done.url} {done.status} {done.reason}" for done in world.log.dones]


async def test_a_jobs_first_page_of_a_host_is_preceded_by_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; other hosts know nothing of it, and no record holds a field."""
    web = Members()
    async with members(tmp_path, monkeypatch, web) as (world, _):
        world.find("http://a.com/x", "http://a.com/y")
        await world.all_done("http://a.com/x", "http://a.com/y")
        assert {done.status for done in world.log.dones} == {"fetched"}
        assert "ann" not in str(world.log.records)
    login = ["GET http://a.com/login", "POST http://a.com/login j"]
    assert web.asked_with == [*login, "GET http://a.com/x", "GET http://a.com/y"]


async def test_a_look_at_the_forms_page_that_breaks_gives_its_memory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has the answer; the login is tried anew."""
    web, broken = Members(), list[str]()
    async with members(tmp_path, monkeypatch, web) as (world, _):
        logins, free = world.tasks._logins, world.web.bodies.free_bytes
        refusal = logins._refusal

        async def breaks_once(*given: Any) -> str:
            if not broken:
                broken.append("once")
                raise ZeroDivisionError
            return await refusal(*given)

        monkeypatch.setattr(logins, "_refusal", breaks_once)
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert (broken, world.web.bodies.free_bytes) == (["once"], free)


async def test_who_is_logged_out_logs_in_again_and_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that said so is no result."""
    web = Members()
    async with members(tmp_path, monkeypatch, web, fetch__login_again_s=0.0) as (world, told):
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        web.is_in = False
        world.find("http://a.com/y")
        await world.all_done("http://a.com/y")
        assert told() == ["http://a.com/x fetched ", "http://a.com/y fetched "]
    assert [line.partition(" ")[0] for line in web.asked_with] == ["GET", "POST", "GET", "GET", "GET", "POST", "GET"]


async def test_a_page_that_is_closed_to_this_user_has_one_login_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its host rests longer than two logins lie apart, it was logged in for without end."""
    web = Members()
    web.status = {"http://a.com/x": 403, "http://a.com/y": 403}
    async with members(tmp_path, monkeypatch, web, fetch__login_again_s=0.0) as (world, told):
        world.find("http://a.com/x", "http://a.com/y")
        await world.all_done("http://a.com/x", "http://a.com/y")
        assert sorted(told()) == ["http://a.com/x fetched ", "http://a.com/y fetched "]
    assert web.asked_with.count("POST http://a.com/login j") == 3


async def test_an_answer_that_the_session_breaks_on_fails_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be asked for again, and break again."""

    def broken(*_: object) -> Step:
        raise ZeroDivisionError

    monkeypatch.setattr(Session, "_visited", broken)
    async with members(tmp_path, monkeypatch, Members()) as (world, told):
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert told() == ["http://a.com/x failed answer_broken: ZeroDivisionError"]
        assert world.web.bodies.free_bytes == 1000


async def test_a_login_that_fails_fails_its_hosts_urls_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of them is asked for, and the form is not posted again."""
    web = Members(403)
    async with members(tmp_path, monkeypatch, web) as (world, told):
        world.find("http://a.com/x", "http://a.com/y", "http://b.com/z")
        await world.all_done("http://a.com/x", "http://a.com/y", "http://b.com/z")
        failed = {line for line in told() if "a.com" in line}
    assert failed == {f"http://a.com/{name} failed login_failed: http_403, its page: no_form" for name in "xy"}
    assert [line for line in web.asked_with if "a.com/login" not in line] == ["GET http://b.com/z"]
    assert len(web.asked_with) == 3


async def test_a_login_waits_while_its_address_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`politeness.per_ip` counts both of its requests; nothing is asked twice for that."""
    web = Members()
    web.known_as = {"a.com": "192.0.2.1", "b.com": "192.0.2.1"}
    web.latency_s["any"] = 0.03
    together: list[set[str]] = []
    web.before = lambda url: together.append(web.under_way | {url})
    async with members(tmp_path, monkeypatch, web, politeness__per_ip=1) as (world, _):
        world.find("http://a.com/x", *(f"http://b.com/{n}" for n in range(6)))
        await world.until(lambda: "http://a.com/x" in world.became() and not world.fetcher.places)
    assert max(map(len, together)) == 1
    assert [one for one in web.asked_with if "a.com" in one] == [
        "GET http://a.com/login",
        "POST http://a.com/login j",
        "GET http://a.com/x",
    ]


async def test_a_form_whose_page_robots_txt_closes_is_posted_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator ordered the login, not the page; why its hidden fields are missing is told."""
    web = Members(403)
    web.robots = b"User-agent: *\nDisallow: /login\n"
    async with members(tmp_path, monkeypatch, web, robots__obey=True) as (world, told):
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert told() == ["http://a.com/x failed login_failed: http_403, its page: robots"]
    assert web.asked_with == ["GET http://a.com:80/robots.txt", "POST http://a.com/login j"]


async def test_a_page_that_never_answers_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many tries as a URL gets, and nothing was posted."""
    web = Members()
    web.status = {"http://a.com/login": 503}
    async with members(tmp_path, monkeypatch, web, fetch__attempts=2, politeness__max_delay_s=0.01) as (world, told):
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert told() == ["http://a.com/x failed login_failed: http_503"]
    assert web.asked_with == ["GET http://a.com/login"] * 2


class Guarded(Site):
    """Takes a login only with the cookie and the token of the last visit to its form, which are new at each."""

    def __init__(self) -> None:
        super().__init__()
        self.visits = 0
        self.posted: list[tuple[str, str]] = []

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                request = (await from_client.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(request)
                length = int((self._header(request, "content-length") or ["0"])[0])
                to_client.write(self._answer(request, (await from_client.readexactly(length)).decode()))
        except (asyncio.IncompleteReadError, OSError):
            to_client.close()

    @staticmethod
    def _header(request: str, name: str) -> list[str]:
        return [line.partition(": ")[2] for line in request.split("\r\n") if line.lower().startswith(name + ":")]

    def _answer(self, request: str, body: str) -> bytes:
        path, cookies = request.split(" ")[1], self._header(request, "cookie")
        if path == "/login":
            self.visits += 1
            page = f"<form method=post action=/session><input type=hidden name=csrf value=t{self.visits}&amp;>"
            page += "<input name=user><input type=password name=password></form>"
            return self._told("200 OK", f"Set-Cookie: visit={self.visits}; Path=/", page)
        if request.startswith("POST /session "):
            self.posted = parse_qsl(body)
            is_right = self.posted == [("csrf", f"t{self.visits}&"), *FIELDS] and cookies == [f"visit={self.visits}"]
            return self._told(
                "302 Found", f"Location: /{'home' if is_right else 'login'}\r\nSet-Cookie: id={is_right}", ""
            )
        return self._told("200 OK" if "id=True" in "; ".join(cookies) else "401 Unauthorized", "X-Of: me", "<p>here")

    @staticmethod
    def _told(status: str, header: str, body: str) -> bytes:
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{header}\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + body).encode()


async def test_a_token_that_changes_with_each_visit_opens_the_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read with its cookie, posted to the form's own action, in a turn each; nothing of it is in the log."""
    site = Guarded()

    def forms(each: tuple[Guarded]) -> tuple[str, ...]:
        return (f"{each[0].origin}/login#user=ann&password=p%26ss",)

    async with sites(site, forms=forms) as client:
        real: Web = client  # type: ignore[assignment]  # a real one in its place
        async with running(
            tmp_path, monkeypatch, real, fetch__forms=forms((site,)), network__allow_private=True
        ) as world:
            urls = [f"{site.origin}/{name}" for name in "xy"]
            world.find(*urls)
            await world.all_done(*urls)
            assert {(done.status, done.http) for done in world.log.dones} == {("fetched", 200)}
            assert "ann" not in str(world.log.records)
    assert [request.partition(" HTTP")[0] for request in site.requests] == [
        "GET /login", "POST /session", "GET /x", "GET /y",
    ]  # fmt: skip
