"""Hosts that may never answer: what they hold, how long they are waited for, and that others go on beside them."""

import asyncio
import resource
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

from crawlog.agents.client.client import Client
from crawlog.agents.fetch.fetch_agent import AT_ONCE, FILES_BESIDE, LATE_EACH, Fetcher, late_connections
from crawlog.streams.fold.rows import HostRow
from crawlog.streams.frontier import unmet_hosts
from crawlog.streams.frontier.unmet_hosts import (
    FLOOR_S,
    LATE_S,
    MET,
    NEW,
    SHORT,
    SILENT,
    SILENT_LATE_S,
    Patience,
    Shares,
    network_of,
    standing_of,
)
from crawlog.streams.http.answer import Answer
from crawlog.streams.settings.sources import load
from tests.support.dispatching import World as Dispatching
from tests.support.fetching import Web, running

MUTE = [f"http://mute{n}.com/x" for n in range(60)]
GOOD = [f"http://good.com/{n}" for n in range(30)]
NEVER_S = 600.0


def mute_from(urls: list[str]) -> Web:
    """A web in which some URLs are never answered."""
    return Web({"any": 0.0} | dict.fromkeys(urls, NEVER_S))


async def test_hosts_that_never_answer_leave_half_of_the_places_to_one_that_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its pages are fetched while they wait."""
    async with running(tmp_path, monkeypatch, mute_from(MUTE), fetch__concurrency=8) as world:
        world.find(GOOD[0])
        await world.all_done(GOOD[0])
        world.find(*MUTE)
        await world.until(lambda: len(world.web.under_way) == 4)
        world.find(*GOOD[1:])
        await world.until(lambda: set(GOOD) <= world.became().keys())
        assert len(world.web.under_way) == 4, "a half of the places"


async def test_a_robots_txt_that_does_not_come_holds_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a new host is met while more of them are awaited than there are places."""
    web = mute_from([url.replace("/x", ":80/robots.txt") for url in MUTE])
    async with running(tmp_path, monkeypatch, web, fetch__concurrency=8, robots__obey=True) as world:
        world.find(*MUTE)
        await world.until(lambda: len(world.web.under_way) == len(MUTE))
        world.find(*GOOD)
        await world.until(lambda: set(GOOD) <= world.became().keys())
        assert not world.fetcher.places


async def test_a_name_is_resolved_outside_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose name is known at once is met while more names are awaited than there are places."""
    web = Web(mute_names={f"mute{n}.com" for n in range(60)})
    async with running(tmp_path, monkeypatch, web, fetch__concurrency=8, politeness__per_ip=1) as world:
        world.find(*MUTE)
        await world.until(lambda: len(web.naming) > 8)
        world.find(*GOOD)
        await world.until(lambda: set(GOOD) <= world.became().keys())
        assert not world.fetcher.places


async def test_few_requests_to_strangers_begin_in_one_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else hosts that answer wait for hundreds of them at each step of a request. All of them begin soon."""
    begun: list[int] = []
    dispatch = Fetcher._dispatch

    def counted(fetcher: Fetcher, *means: Any) -> bool:
        before = len(fetcher._running)
        is_done = dispatch(fetcher, *means)
        begun.append(len(fetcher._running) - before)
        return is_done

    monkeypatch.setattr(Fetcher, "_dispatch", counted)
    web = mute_from([url.replace("/x", ":80/robots.txt") for url in MUTE])
    async with running(tmp_path, monkeypatch, web, fetch__concurrency=256, robots__obey=True) as world:
        world.find(*MUTE)
        await world.until(lambda: len(world.web.under_way) == len(MUTE))
        assert max(begun) == AT_ONCE


@pytest.mark.parametrize(
    "settings",
    [
        {"robots__obey": True},
        {"robots__obey": True, "robots__attempts": 2},
        {"robots__obey": True, "robots__attempts": 1},
        {"robots__obey": True, "robots__retry_window_s": 1e-6},
        {"fetch__attempts": 2},
        {"fetch__attempts": 1},
    ],
)
async def test_a_host_whose_first_answer_takes_long_is_not_lost_where_places_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Its first attempt is cut short, the last one is not, however few there are."""
    monkeypatch.setattr(unmet_hosts.Shares, "part", lambda *_: 0.0)
    url = "http://slow.com/x"
    web = Web(patience_s={url: 12.1, "http://slow.com:80/robots.txt": 12.1})
    async with running(tmp_path, monkeypatch, web, **settings) as world:
        world.find(url)
        await world.all_done(url)
        assert world.became()[url] == ("fetched", "", "")


# ------------------------------------------------------------------ who holds how many places


@pytest.mark.parametrize(
    ("most", "met", "new", "silent", "left"),
    [
        (256, 0, 0, 0, (256, 128, 64)),
        (256, 0, 128, 0, (128, 0, 0)),
        (256, 0, 64, 64, (128, 0, 0)),
        (256, 0, 0, 64, (192, 64, 0)),
        (256, 200, 0, 0, (56, 56, 56)),
        (256, 256, 0, 0, (0, 0, 0)),
        (2, 1, 0, 0, (1, 1, 1)),
        (2, 0, 1, 0, (1, 0, 0)),
        (1, 0, 0, 0, (1, 1, 1)),
        (0, 0, 0, 0, (0, 0, 0)),
    ],
)
def test_hosts_that_answer_have_half_of_the_places_and_new_ones_a_quarter(
    most: int, met: int, new: int, silent: int, left: tuple[int, int, int]
) -> None:
    """A place that is left can be had, however few there are: else a crawl with one place would never begin."""
    shares = Shares(0)
    for standing, count in enumerate((met, new, silent)):
        for number in range(count):
            shares.take((standing, number), standing)
    assert shares.left(most) == left


def test_what_is_late_holds_no_place_as_far_as_there_is_room() -> None:
    """Of silent hosts half as many may be late, so that there is room for new ones."""
    shares = Shares(4)
    for number in range(3):
        shares.take(("silent", number), SILENT, 10.0)
    for number in range(3):
        shares.take(("new", number), NEW, 10.0)
    shares.take("page", NEW)
    shares.age(10.0 + LATE_S / 2)
    assert shares.left(16) == (9, 1, 1)
    shares.age(10.0 + LATE_S)
    assert shares.left(16) == (12, 4, 1), "silent ones are young for longer"
    assert shares.ages_at == 10.0 + SILENT_LATE_S
    shares.age(shares.ages_at)
    assert shares.left(16) == (13, 5, 2), "two silent ones and the page are left"
    for one in list(shares):
        shares.free(one)
        shares.free(one)
    assert shares.left(16) == (16, 8, 4)


def test_what_takes_more_memory_takes_more_room_to_be_late_in() -> None:
    """What finds less than it needs keeps its place; what comes behind it may find enough."""
    shares = Shares(4)
    for number in range(3):
        shares.take(("large", number), NEW, 10.0, 2 if number else 3)
    shares.take("small", NEW, 10.0)
    shares.age(11.0)
    assert shares.left(16)[NEW] == 8 - 2, "two large ones"
    shares.free(("large", 0))
    shares.age(11.0)
    assert shares.left(16)[NEW] == 8 - 1


@pytest.mark.parametrize(
    ("late", "young", "part"), [(0, 0, 1.0), (0, 5, 1.0), (0, 6, 1 / SHORT), (4, 0, 1.0), (5, 0, 0.0), (16, 8, 0.0)]
)
def test_the_fewer_places_and_the_less_room_are_left_the_shorter_a_first_attempt_is(
    late: int, young: int, part: float
) -> None:
    """Few places are left where many hosts are new; the room fills where they do not answer."""
    shares = Shares(16)
    for number in range(late):
        shares.take(("late", number), NEW, 0.0)
        shares.age(1.0)
    for number in range(young):
        shares.take(("young", number), NEW, 2.0)
    assert shares.part(16) == part


def test_where_nobody_may_be_late_a_first_attempt_has_the_usual_time() -> None:
    """The room is full then, and says nothing."""
    assert Shares(0).part(16) == 1.0


def test_what_waits_for_room_to_be_late_has_it_when_another_ends() -> None:
    """It holds its place until then."""
    shares = Shares(1)
    shares.take("first", NEW, 0.0)
    shares.take("second", NEW, 0.0)
    shares.age(1.0)
    assert shares.left(8)[NEW] == 3
    assert shares.ages_at == inf, "or whoever sleeps until then would not sleep"
    shares.free("first")
    shares.age(1.0)
    assert shares.left(8)[NEW] == 4


@pytest.mark.parametrize(
    ("row", "standing"), [(None, NEW), (HostRow(1.0, 0.0, 0), MET), (HostRow(1.0, 2.0, 1), SILENT)]
)
def test_what_a_host_is_survives_a_restart(row: HostRow | None, standing: int) -> None:
    """By the row that the log is folded into."""
    assert standing_of(row) == standing


# ------------------------------------------------------------------ how long they are waited for


@dataclass
class Host:
    """A host."""

    key: str = "http://a.com:80"
    domain: str = "a.com"
    standing: int = NEW


def patience(*, part: float = 1.0, at: dict[str, str] | None = None) -> Patience:
    """With 30 s for everybody; hosts are at addresses of their own."""
    places = at or {}
    return Patience(lambda key: (places.get(key, f"ip of {key}"),), lambda: part)


SILENCE = Answer(None, "first_byte_timeout")


@pytest.mark.parametrize(
    ("standing", "part", "failures", "attempt", "within_s"),
    [
        (NEW, 1.0, 0, 0, None),
        (MET, 0.0, 9, 0, None),
        (NEW, 1 / SHORT, 0, 0, 5.0),
        (NEW, 1 / SHORT, 0, 1, 20.0),
        (NEW, 1 / SHORT, 0, 2, None),
        (NEW, 0.0, 0, 0, FLOOR_S),
        (NEW, 1.0, 1, 0, 15.0),
        (NEW, 1.0, 2, 0, 7.5),
        (NEW, 1 / SHORT, 1, 0, FLOOR_S),
        (NEW, 1 / SHORT, 10_000, 0, FLOOR_S),
        (SILENT, 0.0, 10_000, 1, 12.0),
        (SILENT, 0.0, 10_000, 2, None),
    ],
)
def test_the_time_for_a_first_answer(
    standing: int, part: float, failures: int, attempt: int, within_s: float | None
) -> None:
    """It is shorter where places are short or neighbours failed, and longer with each attempt: no slow host is lost."""
    judge = patience(part=part)
    for _ in range(failures):
        judge.heard(Host(), SILENCE, is_page=True)
    assert judge.within_s(Host(standing=standing), 30.0, attempt, is_last=False) == within_s
    assert judge.within_s(Host(standing=standing), 30.0, attempt, is_last=True) is None


@pytest.mark.parametrize(
    ("neighbour", "within_s"),
    [
        (Host("http://b.a.com:80", "a.com"), FLOOR_S),
        (Host("http://same.com:80", "same.com"), FLOOR_S),
        (Host("http://near.com:80", "near.com"), 15.0),
        (Host("http://far.com:80", "far.com"), None),
    ],
)
def test_failures_tell_of_a_domain_an_address_and_less_of_a_network(neighbour: Host, within_s: float | None) -> None:
    """The network has other hosts of other people."""
    at = {
        "http://a.com:80": "192.0.2.1",
        "http://b.a.com:80": "198.51.100.1",
        "http://same.com:80": "192.0.2.1",
        "http://near.com:80": "192.0.2.9",
        "http://far.com:80": "203.0.113.1",
    }
    judge = patience(at=at)
    for _ in range(4):
        judge.heard(Host(), SILENCE, is_page=True)
    assert judge.within_s(neighbour, 30.0, 0, is_last=False) == within_s


@pytest.mark.parametrize(
    ("before", "answer", "is_page", "standing"),
    [
        (NEW, Answer(200), True, MET),
        (NEW, Answer(404), False, NEW),
        (NEW, Answer(None, "dns"), True, SILENT),
        (MET, Answer(None, "connect_timeout"), True, SILENT),
        (MET, Answer(200, "chunk_timeout"), True, SILENT),
        (MET, Answer(503), True, MET),
        (MET, Answer(404), False, MET),
        (SILENT, Answer(404), False, NEW),
        (SILENT, Answer(500), True, MET),
    ],
)
def test_what_an_answer_makes_of_a_host(before: int, answer: Answer, is_page: bool, standing: int) -> None:
    """A robots.txt alone says little: a server that never sends a page may send it at once."""
    host = Host(standing=before)
    patience().heard(host, answer, is_page=is_page)
    assert host.standing == standing


def test_a_proxy_and_the_guard_say_nothing_of_a_host() -> None:
    """The host was not asked."""
    by_proxy, private = Answer(None, "proxy"), Answer(None, "private_address: loopback")
    by_proxy.by_proxy = private.private = True
    host, judge = Host(), patience()
    for answer in (by_proxy, private):
        judge.heard(host, answer, is_page=True)
    assert host.standing == NEW
    assert judge.within_s(host, 30.0, 0, is_last=False) is None


def test_an_answer_ends_the_suspicion_of_its_neighbours() -> None:
    """What failed there failed by itself."""
    judge = patience()
    judge.heard(Host(), SILENCE, is_page=True)
    judge.heard(Host(), Answer(200), is_page=True)
    assert judge.within_s(Host(), 30.0, 0, is_last=False) is None


@pytest.mark.parametrize(
    ("address", "network"),
    [("192.0.2.77", "192.0.2"), ("2001:db8:1:2::3", "2001:db8:1"), ("2001:db8:1::", "2001:db8:1")],
)
def test_the_network_of_an_address(address: str, network: str) -> None:
    """What one operator most probably has."""
    assert network_of(address) == network


# ------------------------------------------------------------------ the dispatcher


def test_only_hosts_that_are_admitted_are_handed_out() -> None:
    """The others stand in line, and have their turn once they are."""
    world = Dispatching()
    world.job()
    world.find("http://a.com/1", "http://b.com/1")
    assert world.frontier.next((True, False, True)) is None
    assert world.next() is not None
    assert world.next() is not None


def test_a_host_is_asked_once_its_name_was_resolved_whatever_came_of_it() -> None:
    """A name without addresses would be resolved again and again, and its URLs never fail."""
    world = Dispatching()
    world.frontier.is_named = lambda _host: False
    world.job()
    world.find("http://a.com/1")
    naming = world.frontier.next()
    assert naming is not None
    assert world.frontier.next() is None, "while it is resolved"
    world.frontier.named(naming.host)
    assert world.next() is not None


# ------------------------------------------------------------------ the edges


class NameServer(asyncio.DatagramProtocol):
    """One that knows no name."""

    def __init__(self) -> None:
        self.asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It answers there."""
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """The question comes back, marked as an answer: there is no such name."""
        self.asked += data
        self.transport.sendto(data[:2] + b"\x81\x83" + data[4:], addr)


async def test_the_name_servers_of_the_settings_are_asked() -> None:
    """Where they know no address, the host is known by its name alone."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    client = Client(load({"network.dns_servers": [f"127.0.0.1:{port}"]}), "tester", lambda: True)
    try:
        assert await client.addresses_of("http://nowhere.example/") == ("nowhere.example",)
        assert b"nowhere" in server.asked
        assert client.known("http://nowhere.example") == ()
        assert client.known("http://192.0.2.1:80") == ("192.0.2.1",)
    finally:
        await client.close()
        transport.close()


@pytest.mark.parametrize("files", [512, 1500, 4096, 8192])
def test_who_is_late_leaves_files_for_all_else(files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the process is raised first, as far as it may be."""
    limits = {"soft": 512, "hard": files}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], limits["hard"]))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(soft=new[0]))
    late = late_connections(256)
    assert limits["soft"] == min(files, (2 + LATE_EACH) * 256 + FILES_BESIDE)
    assert late == max(min(limits["soft"] - FILES_BESIDE - 512, LATE_EACH * 256), 0)
