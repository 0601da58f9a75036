"""Forms of the dashboard: their token, their fields, and where they lead."""

import re
from typing import Annotated, Any

import msgspec
import pytest
from aiohttp import encode_basic_auth
from multidict import MultiDict, MultiDictProxy

from crawlog.service import api_v1
from crawlog.service.dashboard import forms
from crawlog.streams.errors import InvalidState
from tests.support.serving import Client, served, service_settings

USERS = {"ann": {"password": "a", "role": "deploy"}, "rita": {"password": "r", "role": "read"}}
ANN, RITA = ("ann", "a"), ("rita", "r")


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=0)] = 0
    urls: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    name: str | None = None
    execute: bool = False


class _Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    submit: _Body = _Body()
    at: str = ""


def _form(*fields: tuple[str, str]) -> forms.Form:
    given: MultiDict[Any] = MultiDict(fields)
    return MultiDictProxy(given)


def test_fields_become_a_body() -> None:
    """Numbers and truth are read, lists are repeated or have lines, a mapping has lines, what is empty is left out."""
    lists = ("urls", "a\r\nb\n"), ("urls", "c"), ("settings", "x.y = 1\nz=a=b")
    given = _form(("token", "t"), ("count", "3"), *lists, ("name", " n "), ("execute", "true"))
    wanted = _Body(3, ("a", "b", "c"), {"x.y": "1", "z": "a=b"}, "n", execute=True)
    assert forms.body_of(given, _Body) == wanted
    assert forms.body_of(_form(("name", ""), ("count", "")), _Body) == _Body()
    inner = ("submit.urls", "a\nb"), ("submit.settings", "x.y=1"), ("submit.count", ""), ("at", "6")
    assert forms.body_of(_form(*inner), _Outer) == _Outer(_Body(0, ("a", "b"), {"x.y": "1"}), "6")
    for wrong in (("submit.count", "-1"), ("submit.odd", "1"), ("odd.x", "1"), ("at.x", "1")):
        with pytest.raises(msgspec.ValidationError):
            forms.body_of(_form(wrong), _Outer)


async def _page(client: Client, path: str, user: tuple[str, str] = ANN) -> str:
    got = await client.get(path, headers=_auth(user))
    assert got.status == 200
    return await got.text()


async def _send(
    client: Client, path: str, fields: Any, user: tuple[str, str] = ANN, headers: dict[str, str] | None = None
) -> Any:
    return await client.post(path, data=fields, headers=(headers or {}) | _auth(user), allow_redirects=False)


def _auth(user: tuple[str, str]) -> dict[str, str]:
    return {"Authorization": encode_basic_auth(*user)}


async def test_only_a_form_of_our_own_pages_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its token, with another user's, or from another site, nothing happens; a reader has no such form."""
    calls: list[dict[str, str]] = []
    _answer(monkeypatch, "/jobs/{job}/pause", lambda call: calls.append(call.path))
    async with served(service_settings(users=USERS)) as client:
        text = await _page(client, "/ui/jobs")
        (token,) = set(re.findall(r'name="token" value="(\w+)"', text))
        assert 'name="token"' not in await _page(client, "/ui/jobs", RITA)
        path, fields = "/ui/do/jobs/shop/pause", {"token": token, "back": "/ui/jobs?q=a", "said": "shop is paused"}
        assert (await _send(client, path, {"back": "/ui/jobs"})).status == 403
        assert (await _send(client, path, fields | {"token": "0" * 64})).status == 403
        assert (await _send(client, path, fields, RITA)).status == 403
        assert (await _send(client, path, fields, headers={"Origin": "http://evil.example"})).status == 403
        assert (await _send(client, path, fields, headers={"Sec-Fetch-Site": "cross-site"})).status == 403
        assert calls == []
        got = await _send(client, path, fields)
        assert (got.status, got.headers["Location"], calls) == (303, "/ui/jobs?q=a", [{"job": "shop"}])
        assert "shop is paused" in await _page(client, "/ui/jobs")
        assert "shop is paused" not in await _page(client, "/ui/jobs")


async def test_an_error_comes_back_as_a_note_with_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one form changes several things: each error is named; `back` leads nowhere else."""

    def fails(call: Any) -> None:
        if call.path["job"] != "good":
            raise InvalidState("it <b>has</b> ended\nrun `crawlog jobs list`")

    _answer(monkeypatch, "/jobs/{job}/pause", fails)
    async with served(service_settings(users=USERS)) as client:
        (token,) = set(re.findall(r'name="token" value="(\w+)"', await _page(client, "/ui/jobs")))
        for back in ("//evil.example/", "https://evil.example/", "/ui/\\evil", ""):
            got = await _send(client, "/ui/do/jobs/bad/pause", {"token": token, "back": back})
            assert got.headers["Location"] == "/ui/", back
        text = await _page(client, "/ui/")
        assert "it &lt;b&gt;has&lt;/b&gt; ended" in text
        assert "run `crawlog jobs list`" in text
        await _send(client, "/ui/do/jobs/_/pause", [("token", token), ("each", "good"), ("each", "bad")])
        text = await _page(client, "/ui/")
        assert "1 of 2" in text
        assert "bad: it" in text


async def test_every_page_comes_to_a_reader_and_its_refresh_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Htmx gets the block `live` alone; the service's root leads to the overview."""
    async with served(service_settings(users=USERS)) as client:
        got = await client.get("/", headers=_auth(RITA), allow_redirects=False)
        assert (got.status, got.headers["Location"]) == (302, "/ui/")
        whole = await _page(client, "/ui/jobs", RITA)
        part = await (await client.get("/ui/jobs", headers=_auth(RITA) | {"HX-Request": "true"})).text()
        assert whole.startswith("<!DOCTYPE html>")
        assert "There is nothing here yet." in part
        assert "<html" not in part
        got = await client.get("/ui/static/app.css", headers=_auth(RITA))
        assert (got.status, got.content_type) == (200, "text/css")
        assert (await client.get("/ui/static/forms.py", headers=_auth(RITA))).status == 404


def _answer(monkeypatch: pytest.MonkeyPatch, path: str, does: Any) -> None:
    """Has an endpoint of the API do something else."""
    changed = tuple(
        one._replace(does=does) if (one.method, one.path) == ("POST", path) else one for one in api_v1.ENDPOINTS
    )
    monkeypatch.setattr(forms, "ENDPOINTS", changed)
