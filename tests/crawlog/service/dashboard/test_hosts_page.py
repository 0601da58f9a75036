"""The pages of hosts and exits."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from yarl import URL

from crawlog.schemas import hosts as h
from crawlog.schemas.control import Command
from crawlog.schemas.hosts import HostBucket, HostFigures
from crawlog.schemas.progress import ExitFigures
from crawlog.service.answers import AnswerError
from crawlog.service.dashboard.hosts_page import exits_page, host_page, hosts_page
from crawlog.service.routing import HOSTS
from crawlog.streams.fleet import ExitView
from crawlog.streams.hosts import HostTable
from crawlog.streams.jobs import Commands
from crawlog.streams.settings import Settings
from tests.support import serving

FEW = (
    HostFigures("https://a.com:443", 500, delay_s=1.0),
    HostFigures("https://b.com:443", 2, results={"403": 1}, bad_row=1, last="403"),
    HostFigures("https://c.com:443", 30, delay_s=1.0, rate=9.0),
)


def table_of(hosts: Iterable[HostFigures]) -> HostTable:
    """A table with these hosts."""
    table = HostTable()
    table.take(b"0/0", h.encode(HostBucket(list(hosts))), 100.0)
    return table


def fleet_of(commands: Iterable[Command] = (), exits: Iterable[ExitView] = ()) -> Any:
    """A fleet with these commands in force."""
    state = SimpleNamespace(control=SimpleNamespace(commands=Commands(commands)))
    return SimpleNamespace(look=lambda ask: ask(state), status=lambda: SimpleNamespace(exits=tuple(exits)))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "bac"),
        ({"kind": "banned"}, "b"),
        ({"q": "C.C"}, "c"),
        ({"sort": "-queued"}, "acb"),
        ({"sort": "host"}, "abc"),
        ({"sort": "-rate"}, "cab"),
        ({"sort": "nothing"}, "bac"),
        ({"page": "9"}, "bac"),
    ],
)
def test_hosts_are_chosen_by_kind_search_and_order(given: dict[str, str], wanted: str) -> None:
    """An old link shows the list all the same."""
    found = hosts_page(table_of(FEW), given)
    assert [one.host[8] for one in found["hosts"].rows] == list(wanted)
    assert found["counts"] == {"all": 3, "slow": 1, "failing": 0, "banned": 1}


def test_a_page_behind_the_last_one_shows_the_last_one() -> None:
    """The list may have become shorter."""
    found = hosts_page(
        table_of(HostFigures(f"http://{n:03}.com:80") for n in range(120)), {"sort": "host", "page": "7"}
    )
    assert (found["hosts"].query.page, found["hosts"].first, len(found["hosts"].rows)) == (3, 101, 20)


def test_a_host_is_shown_with_the_commands_for_all_its_names() -> None:
    """Each is ended by the name by which it was given."""
    commands = [
        Command("slow", host="a.com", delay_s=5.0),
        Command("block", host=".com"),
        Command("block", host="b.com"),
    ]
    found = host_page(table_of(FEW), fleet_of(commands), "https://a.com:443")
    assert found["one"].queued == 500
    assert [one.host for one in found["commands"]] == [".com", "a.com"]
    with pytest.raises(AnswerError):
        host_page(table_of(FEW), fleet_of(), "https://nowhere:443")


def test_an_exit_is_shown_with_the_command_that_keeps_it_from_serving() -> None:
    """A rest that is over is none."""
    exits = [ExitView(name, "fetch-0", ExitFigures(requests=number)) for number, name in enumerate(("de", "fr", "it"))]
    commands = [Command("rest", exit="de", delay_s=60.0, at=100.0), Command("pause", exit="fr")]
    shown = exits_page(fleet_of(commands, exits), {"sort": "-requests"}, 120.0)
    actions = [(row.view.name, row.command.action if row.command else "") for row in shown.rows]
    assert actions == [("it", ""), ("fr", "pause"), ("de", "rest")]
    assert exits_page(fleet_of(commands, exits), {"q": "de"}, 170.0).rows[0].command is None


@pytest.mark.parametrize("path", ["/ui/hosts", "/ui/hosts/https%3A%2F%2Fa.com%3A443", "/ui/exits"])
@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}])
async def test_pages_and_their_refreshed_parts_are_rendered(
    path: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh renders a part alone, without what the rest of its template has prepared."""
    exits = [ExitView(name, "fetch-0", ExitFigures(rests_s=3.0)) for name in ("de", "fr")]
    commands = [Command("pause", exit="fr"), Command("slow", host="a.com", delay_s=5.0)]
    monkeypatch.setattr(serving, "told_fleet", lambda: fleet_of(commands, exits))
    async with serving.served(Settings()) as client:
        assert isinstance(client.server, TestServer)
        table = client.server.app[HOSTS].table
        stranger = HostFigures("http://<b>:80", robots=h.HostRobots(1.0, 200))
        table.take(b"0/0", h.encode(HostBucket([*FEW, stranger])), 9.0)
        known = {"Authorization": f"Bearer {serving.OWN_TOKEN}"}
        async with client.get(URL(path, encoded=True), headers=known | headers) as answer:
            text = await answer.text()
            assert answer.status == 200, text
    assert ("<html" in text) == (not headers)
    assert "<b>" not in text
