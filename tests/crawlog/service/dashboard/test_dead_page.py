"""The pages of dead letters: what an address shows, and that nothing of a record is more than text."""

import pytest
from aiohttp import encode_basic_auth

from crawlog.commands import dead
from crawlog.commands.dead import Opened
from crawlog.schemas import pages
from crawlog.service.dashboard.dead_page import dead_page
from crawlog.streams.dead_letters import Letter
from tests.support.serving import Client, served, service_settings, told_fleet

BAD = "<script>window.hit=1</script>\"'><img src=x onerror=alert(1)>"

LETTERS = [
    *(
        Letter(
            number,
            10.0,
            "parse",
            f"job-{number % 2}",
            ("crawl.pages", 0, 1),
            f"no price in {number}",
            f"http://a/{number}",
        )
        for number in range(60)
    ),
    Letter(60, 11.0, "sink", BAD, (BAD, 0, 1), BAD, BAD),
    Letter(61, 12.0, "parse", "", ("crawl.pages", 0, 1), "no price in 61", handled="redriven"),
]

USERS = {"ann": {"password": "a", "role": "operate"}, "rita": {"password": "r", "role": "read"}}


def test_an_address_chooses_letters_and_counts_each_kind_whole() -> None:
    """The buttons of a kind act on all of its open letters, so a search does not make the number smaller."""
    found = dead_page(LETTERS, {})
    assert [(one.count, one.newest.stage) for one in found.kinds] == [(60, "parse"), (1, "sink")]
    assert (found.letters.total, found.letters.rows[0].offset, found.upto) == (61, 60, 61)
    searched = dead_page(LETTERS, {"q": "HTTP://A/59"})
    assert ([one.offset for one in searched.letters.rows], [one.count for one in searched.kinds]) == ([59], [60])
    of_kind = dead_page(LETTERS, {"kind": found.kinds[1].kind, "sort": "at"})
    assert ([one.offset for one in of_kind.letters.rows], len(of_kind.kinds)) == ([60], 1)
    assert dead_page(LETTERS, {"job": "job-1"}).kinds[0].count == 30
    assert [one.offset for one in dead_page(LETTERS, {"state": "closed"}).letters.rows] == [61]
    assert dead_page(LETTERS, {"state": "all", "stage": "parse"}).letters.total == 61
    assert dead_page([], {}).letters.total == 0


async def _text(client: Client, path: str, user: str = "ann") -> str:
    got = await client.get(path, headers={"Authorization": encode_basic_auth(user, user[0])})
    assert got.status == 200, path
    return await got.text()


async def test_a_letter_shows_as_text_and_its_page_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors, headers, traceback and record may hold anything; readers have no buttons."""
    opened = Opened(LETTERS[60], None, BAD.encode(), {pages.HEADER: BAD, BAD: BAD}, BAD)
    monkeypatch.setattr(dead, "opened", lambda *_, **__: opened)
    async with served(service_settings(users=USERS), fleet=told_fleet(letters=LETTERS)) as client:
        for path in ("/ui/dead", "/ui/dead?q=img", "/ui/dead/60"):
            for user in USERS:
                text = await _text(client, path, user)
                assert "<script>w" not in text
                assert "<img" not in text
                assert "&lt;script&gt;w" in text
                assert ("/ui/do/dead/redrive" in text) == (user == "ann")
        framed = await client.get("/ui/dead/60/page", headers={"Authorization": encode_basic_auth("rita", "r")})
        assert (framed.status, await framed.text()) == (200, BAD.replace(" src=", " data-src="))
        assert framed.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
