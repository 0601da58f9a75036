"""Logins by a form: posted once, in a turn of the host, again when the session is over, and never told."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fetching import Web, World, running
from pydantic import ValidationError
from sites import Site, sites

from crawlog.agents.http import Answer
from crawlog.streams.forms import Form, Session, leads_to, read_form
from crawlog.streams.sections import Fetch
from crawlog.streams.settings import Sources, origins

TEXT = "http://a.com/login#user=ann&password=p%26ss"
FORM = Form("http://a.com:80", "http://a.com/login", "user=ann&password=p%26ss")


def test_a_form_is_a_url_and_its_fields() -> None:
    """The fragment, which is never sent as one, holds the fields."""
    assert read_form(TEXT) == FORM
    assert read_form("https://a.com:8443/in?next=%2F#a=") == Form(
        "https://a.com:8443", "https://a.com:8443/in?next=%2F", "a="
    )


@pytest.mark.parametrize(
    "wrong", ["http://a.com/", "ftp://a.com/#u=hush", "a.com#u=hush", "http://u:p@a.com/#u=hush", "#"]
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


def test_a_session_is_begun_again_once_in_a_while_only() -> None:
    """Answers to requests from before a login say nothing of it."""
    session = Session(FORM, 600.0, 3)
    assert [session.turn(0.0), session.turn(0.0)] == ["send", "wait"]
    session.answered("", 1.0, may_pass=False)
    assert session.turn(2.0) == "ask"
    assert session.is_worth_another(asked_at=0.5, now=2.0)
    assert not session.is_worth_another(asked_at=2.0, now=3.0)
    assert session.turn(3.0) == "ask"
    assert session.is_worth_another(asked_at=700.0, now=701.0)
    assert session.turn(701.0) == "send"


def test_a_login_that_fails_stands_for_a_while() -> None:
    """What may pass is tried again, so often as a URL."""
    session = Session(FORM, 600.0, 2)
    for expected in ("send", "send", "fail"):
        assert session.turn(1.0) == expected
        if expected == "send":
            session.answered("timeout", 1.0, may_pass=True)
    assert session.reason == "login_failed: timeout"
    assert not session.is_worth_another(0.0, 2.0)
    assert session.turn(602.0) == "send"
    session.answered("http_403", 602.0, may_pass=False)
    assert session.turn(603.0) == "fail"


async def test_the_form_goes_to_its_origin_and_its_cookies_come_back_there_for_the_job() -> None:
    """No other job, host or port sees them, though `fetch.cookies` is off."""
    site, other = Site("Set-Cookie: id=7; Path=/\r\n"), Site("Set-Cookie: id=8; Path=/\r\n")
    async with sites(site, other, forms=lambda each: (f"{each[0].origin}/login#user=ann&password=p%26ss",)) as client:
        form = read_form(f"{site.origin}/login#user=ann&password=p%26ss")
        assert (await client.log_in(form, "j")).http == 200
        for job in ("j", "other", ""):
            await client.get(site.origin + "/x", job=job)
        for _ in range(2):
            await client.get(other.origin + "/x", job="j")
    first = site.requests[0]
    assert first.startswith("POST /login HTTP/1.1\r\n")
    assert "Content-Type: application/x-www-form-urlencoded\r\n" in first
    assert site.got("Cookie") == ["id=7"]
    assert other.got("Cookie") == []
    assert "ann" not in str(other.requests)


class Members(Web):
    """A web that wants a login: what is asked for without one is answered with a redirect to the form."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)
        self.is_in = False
        self.asked_with: list[str] = []

    async def log_in(self, form: Form, job: str) -> Answer:
        """The next status; 302 is a login."""
        self.asked_with.append(f"POST {form.url} {job}")
        answer = Answer(self.statuses.pop(0) if self.statuses else 302)
        answer.location = "/home"
        self.is_in = answer.http == 302
        return answer

    async def get(self, url: str, **asked_for: Any) -> Answer:
        """The page, or a redirect."""
        self.asked_with.append(f"GET {url}")
        answer = await super().get(url, **asked_for)
        if not self.is_in:
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
    assert web.asked_with == ["POST http://a.com/login j", "GET http://a.com/x", "GET http://a.com/y"]


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
    assert [line.partition(" ")[0] for line in web.asked_with] == ["POST", "GET", "GET", "POST", "GET"]


async def test_a_login_that_fails_fails_its_hosts_urls_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of them is asked for, and the form is not posted again."""
    web = Members(403)
    async with members(tmp_path, monkeypatch, web) as (world, told):
        world.find("http://a.com/x", "http://a.com/y", "http://b.com/z")
        await world.all_done("http://a.com/x", "http://a.com/y", "http://b.com/z")
        failed = {line for line in told() if "a.com" in line}
    assert failed == {f"http://a.com/{name} failed login_failed: http_403" for name in "xy"}
    assert [line for line in web.asked_with if "a.com" in line] == ["POST http://a.com/login j"]
