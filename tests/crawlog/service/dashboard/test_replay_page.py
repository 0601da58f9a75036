"""The page Replay: an address is a plan, a form carries it out, and the page leads back to where the groups were."""

import html
import re

import pytest
from aiohttp import encode_basic_auth

from crawlog.service import api_control
from crawlog.service.api_control import MoveView, PlanView, ReplayAnswer, ReplayBody
from crawlog.service.dashboard import replay_page
from crawlog.service.dashboard.replay_page import before_of
from crawlog.service.endpoint import ApiCall
from crawlog.streams.errors import Misconfigured
from tests.support.serving import Client, served, service_settings

BAD = "<script>window.hit=1</script>\"'><img src=x onerror=alert(1)>"

USERS = {"ann": {"password": "a", "role": "operate"}, "rita": {"password": "r", "role": "read"}}

MOVES = [MoveView(0, 70, 0, 70, 3, (1_000, 2_000)), MoveView(1, None, 0, 0, 0)]

PLAN = PlanView("crawl.parse", "parse", BAD, "crawl.pages", MOVES, 70, 0, 3)


def test_the_way_back_has_the_places_before_and_none_from_a_rewind() -> None:
    """As lines of `--from-file`; a rewind begins a new epoch, which no offset takes back."""
    assert before_of(ReplayAnswer([PLAN], [], False, [])) == "crawl.parse,crawl.pages,0,70\n"
    assert before_of(ReplayAnswer([PlanView("g", "fetch", "", "t", MOVES, 70, 0, 0)], [], False, [])) == ""


async def _text(client: Client, path: str, user: str = "ann") -> str:
    got = await client.get(path, headers={"Authorization": encode_basic_auth(user, user[0])})
    assert got.status == 200, path
    return await got.text()


async def test_a_plan_is_shown_executed_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a browser sends is what the plan was made of; a live group has no button, a reader no form."""
    asked: list[ReplayBody] = []
    live: list[str] = []

    def replay_of(call: ApiCall) -> ReplayAnswer:
        asked.append(call.body)
        if call.body.to == "to-latest":
            raise Misconfigured(f"{BAD}\ndo something else")
        return ReplayAnswer([PLAN], live, call.body.execute, [BAD])

    monkeypatch.setattr(replay_page, "replay_of", replay_of)
    endpoints = tuple(one._replace(does=replay_of) if one.path == "/replay" else one for one in api_control.ENDPOINTS)
    monkeypatch.setattr("crawlog.service.dashboard.forms.ENDPOINTS", endpoints)
    async with served(service_settings(users=USERS)) as client:
        plan = "/ui/replay?group=parse&to=by-duration&value=PT15M&job=shop&topics=&output=&execute=true"
        text = await _text(client, plan)
        assert asked == [ReplayBody("parse", "by-duration", "PT15M", job="shop")]
        assert "<script>w" not in text
        assert "<img" not in text
        assert "70 pages are parsed again" in text
        form = text.partition("/ui/do/replay")[2]
        fields = [(name, html.unescape(value)) for name, value in re.findall(r'name="(\w+)" value="(.*?)"', form)]
        headers = {"Authorization": encode_basic_auth("ann", "a")}
        got = await client.post("/ui/do/replay", data=fields, headers=headers, allow_redirects=False)
        assert got.status == 303
        assert asked[1:] == [ReplayBody("parse", "by-duration", "PT15M", job="shop", execute=True)]
        text = await _text(client, got.headers["Location"])
        assert "moved: 70 records are read again" in text
        (undo,) = re.findall(r'class="button" href="(.*?)"', text)
        await _text(client, html.unescape(undo))
        assert asked[-1] == ReplayBody("parse", "from-file", "crawl.parse,crawl.pages,0,70")
        assert "do something else" in await _text(client, "/ui/replay?group=parse&to=to-latest")
        live.append(BAD)
        assert "/ui/do/replay" not in await _text(client, plan)
        count = len(asked)
        assert "<form" not in await _text(client, plan, "rita")
        assert len(asked) == count
