"""The fetch service: how many requests at a time, to whom, and what becomes of them."""

import asyncio
import gzip
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from crawlog.agents.client.body import FREE_BYTES, BodyBudget
from crawlog.agents.client.per_address import Addresses, Busy
from crawlog.agents.client.protocol import LeaseLost
from crawlog.agents.client.transport import HttpRequest, Transport
from crawlog.agents.fetch.fetch_agent import missing_browser
from crawlog.schemas import pages as pg
from crawlog.schemas.urls import MAX_BATCH_BYTES, RenderRules, decode
from crawlog.streams.fetch import back_pressure, robots_answer
from crawlog.streams.fetch.robots_answer import Access
from crawlog.streams.frontier import partition as owned_partition
from crawlog.streams.http.answer import Answer, HeldBytes
from crawlog.streams.settings.sources import load
from crawlog.streams.state.partition import Partition
from crawlog.streams.url.place import Places
from crawlog.streams.worker.consumer import finish_within
from crawlog.streams.worker.suspects import Deaths, _hash
from tests.support.fetching import PAGES, Record, Web, World, running
from tests.support.processes import forked


def hosts(number: int, path: str = "x") -> list[str]:
    """One URL on each of so many hosts, each a domain of its own."""
    return [f"http://host{n}.com/{path}" for n in range(number)]


def one_address(number: int) -> Web:
    """A web, none too fast, where so many hosts have one address."""
    return Web({"any": 0.03}, {f"host{n}.com": "192.0.2.1" for n in range(number)})


async def test_a_url_becomes_a_page_and_then_a_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The done names the page's place in the log."""
    async with running(tmp_path, monkeypatch) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert [(meta.url, body) for meta, body in world.log.pages] == [("http://a.com/x", b"<title>x</title>")]
        assert [(done.status, done.page) for done in world.log.dones] == [("fetched", (0, 0))]


@pytest.mark.parametrize(("render", "coding"), [("off", "gzip"), ("auto", ""), ("always", "")])
async def test_a_coded_body_lies_in_the_log_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, render: Any, coding: str
) -> None:
    """A header names its coding; a job that looks at bodies, or has them rendered, gets plain ones."""
    async with running(tmp_path, monkeypatch) as world:
        world.web.coding = "gzip"
        world.job(rev=2, render=RenderRules(render))
        if render == "always":
            monkeypatch.setattr(world.tasks.browsing, "render", lambda *_: asyncio.sleep(0))
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        [record] = [one for one in world.log.records if one.topic == PAGES]
    headers, body = dict(record.headers), record.value or b""
    assert headers.get(pg.CODING, b"").decode() == coding
    assert (gzip.decompress(body) if coding else body) == b"<title>x</title>"
    meta = pg.decode(headers[pg.HEADER])
    assert meta.limit == (1000 if coding else 0)


async def test_a_proxy_that_fails_is_no_failure_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL waits for the proxy; the host does not rest, and its other URLs are asked for."""
    async with running(tmp_path, monkeypatch, fetch__retry_delay_s=0.01, fetch__attempts=2) as world:
        get = world.web.get

        async def without_proxy(request: HttpRequest) -> Answer:
            answer, url = await get(request), request.url
            if url.endswith("/x") and world.web.times(url) == 1:
                answer = Answer(None, "proxy")
                answer.by_proxy, answer.again_s = True, 0.3
            return answer

        monkeypatch.setattr(world.web, "get", without_proxy)
        world.find("http://a.com/x", "http://a.com/y")
        await world.until(lambda: world.became().get("http://a.com/x", ("",))[0] == "fetched")
    first, *others = world.log.dones
    assert (first.url, first.reason, first.host_wait_s) == ("http://a.com/x", "proxy", 0.0)
    assert first.delay_s >= 0.3
    assert [done.url for done in others] == ["http://a.com/y", "http://a.com/x"]


async def test_requests_in_flight_that_fail_together_make_their_host_rest_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as one alone."""
    urls = [f"http://a.com/{n}" for n in range(8)]
    web = Web(latency_s={"any": 0.2}, status=dict.fromkeys(urls, 503))
    options = {"politeness__per_host": 8, "fetch__attempts": 1, "fetch__retry_delay_s": 0.01}
    async with running(tmp_path, monkeypatch, web, **options) as world:
        world.find(*urls)
        await world.all_done(*urls)
    assert web.most == 8
    assert all(0.0 < done.host_wait_s < 0.02 for done in world.log.dones)


async def test_a_cookie_check_is_passed_at_once_and_never_ends_in_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL that redirects to itself is known, so nobody else would ask for it again. No wait but the host's rest."""
    async with running(tmp_path, monkeypatch, fetch__retry_delay_s=3600.0, fetch__attempts=3) as world:
        get = world.web.get

        async def checks(request: HttpRequest) -> Answer:
            answer, url = await get(request), request.url
            if world.web.times(url) == 1 or url.endswith("/y"):
                answer.http, answer.location, answer.is_cookie_check = 302, url, True
            return answer

        monkeypatch.setattr(world.web, "get", checks)
        world.find("http://a.com/x", "http://a.com/y")
        await world.until(lambda: [status for status, _, _ in world.became().values()] == ["fetched", "redirected"])
        told = [(done.url[-1], done.status, done.reason, done.delay_s) for done in world.log.dones]
    again = "failed", "cookie_check", 0.0
    assert [done[1:] for done in told if done[0] == "x"] == [again, ("fetched", "", 0.0)]
    assert [done[1:] for done in told if done[0] == "y"] == [again, again, ("redirected", "", 0.0)]


async def test_an_answer_that_cannot_be_recorded_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And holds no place for ever: the crawl would never end."""
    async with running(tmp_path, monkeypatch) as world:
        get = world.web.get

        async def broken(request: HttpRequest) -> Answer:
            answer, _url = await get(request), request.url
            answer.content_type = "text/\udce9"
            return answer

        monkeypatch.setattr(world.web, "get", broken)
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert [(done.status, done.reason) for done in world.log.dones] == [
            ("failed", "answer_broken: UnicodeEncodeError")
        ]
        assert not world.fetcher.places
        assert world.web.bodies.free_bytes == 1000


async def test_a_url_that_failed_for_good_is_a_line_about_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with the reason: the counts of a job do not say which URL it was."""
    with capture_logs() as told:
        async with running(tmp_path, monkeypatch, fetch__retry_delay_s=0.01, fetch__attempts=2) as world:

            async def refused(_request: HttpRequest) -> Answer:
                return Answer(None, "connect")

            monkeypatch.setattr(world.web, "get", refused)
            world.find("http://a.com/x")
            await world.until(lambda: [done.next_at for done in world.log.dones][1:] == [0.0])
    lines = [(one["url"], one["reason"], one["attempts"]) for one in told if one["event"] == "failed"]
    assert lines == [("http://a.com/x", "connect", 2)]


def breaks_once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Let a call raise, the first time, what nobody expects."""
    called, call = [], getattr(owner, name)

    def broken(*args: Any, **more: Any) -> Any:
        called.append(name)
        if len(called) == 1:
            raise ZeroDivisionError
        return call(*args, **more)

    monkeypatch.setattr(owner, name, broken)


TOLD = ("fetched", "")
BROKEN = ("failed", "answer_broken: ZeroDivisionError")


@pytest.mark.parametrize(
    ("part", "name", "became"),
    [
        ("_sitemaps", "told", TOLD),
        ("_caution", "gives_up", TOLD),
        ("_logins", "session", TOLD),
        ("browsing", "verdict", TOLD),
        ("_patience", "heard", BROKEN),
        ("_retrying", "rest_s", BROKEN),
        ("_retrying", "again", BROKEN),
        ("_outcomes", "final", BROKEN),
    ],
)
async def test_whatever_breaks_no_place_is_held_for_ever(
    part: str, name: str, became: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the host's nor the worker's: what was asked has failed, what was not is asked later."""
    async with running(tmp_path, monkeypatch, fetch__concurrency=1) as world:
        breaks_once(monkeypatch, getattr(world.tasks, part), name)
        world.find("http://a.com/x", "http://a.com/y")
        await world.all_done("http://a.com/x", "http://a.com/y")
        assert [done.reason for done in world.log.dones if done.status == "failed"] == [became[1]] * (became == BROKEN)
        assert world.web.bodies.free_bytes == 1000
        assert not world.fetcher._running


async def test_what_cannot_even_fail_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer could not be written, nor that: nothing is lost, and nobody waits for it meanwhile."""
    async with running(tmp_path, monkeypatch, fetch__concurrency=1) as world:
        breaks_once(monkeypatch, world.tasks._outcomes, "final")
        breaks_once(monkeypatch, world.tasks._outcomes, "failed")
        world.find("http://a.com/x", "http://b.com/y")
        await world.all_done("http://a.com/x", "http://b.com/y")
        assert {how[0] for how in world.became().values()} == {"fetched"}
        assert sorted(url for _, url in world.web.asked) == ["http://a.com/x", "http://a.com/x", "http://b.com/y"]


@pytest.mark.parametrize(("owner", "name"), [(robots_answer, "read"), (Access, "judged"), (robots_answer, "pack")])
async def test_robots_txt_that_breaks_holds_no_hosts_place(
    owner: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rules are asked for again."""
    async with running(tmp_path, monkeypatch, robots__obey=True) as world:
        if name == "read":
            world.find("http://a.com/first")
            await world.all_done("http://a.com/first")
            world.stage.frontier.lend(Places(1).of("http://a.com/")).rules = None  # type: ignore[union-attr]  # it is ours
        breaks_once(monkeypatch, owner, name)
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert world.became()["http://a.com/x"][0] == "fetched"


async def test_what_is_aborted_before_its_first_step_holds_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap in the log takes its partition from the dispatcher in the turn of the loop that dispatched it."""
    async with running(tmp_path, monkeypatch, fetch__concurrency=1) as world:
        start = world.fetcher._start

        def started(*work: Any) -> None:
            start(*work)
            world.fetcher.abort(0)

        monkeypatch.setattr(world.fetcher, "_start", started)
        world.find("http://a.com/x")
        await world.until(lambda: world.is_folded and world.stage.frontier.unfolded)
        await world.until(lambda: not world.fetcher._running)
        assert not world.fetcher.places
        assert world.web.asked == []


async def test_room_for_a_body_is_taken_until_the_log_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer holds it as long; one that is to be asked for again is let go at once."""
    web = Web(status={"http://a.com/again": 503}, bodies=BodyBudget(10))
    async with running(tmp_path, monkeypatch, web, fetch__attempts=2) as world:
        world.find("http://b.com/x")
        await world.all_done("http://b.com/x")
        assert web.bodies.free_bytes == 10

        def silence(_url: str) -> None:
            world.log.is_silent = True

        web.before = silence
        world.find("http://a.com/again", "http://c.com/x")
        await world.until(lambda: len(web.ended) == 3 and web.bodies.free_bytes == 9)


async def test_a_page_keeps_its_room_in_the_browser_and_what_that_made_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waits: the one has it, the other is here. All goes back once the log has the page."""
    counted: list[int] = []

    class Counting(BodyBudget):
        """Notes what counts without waiting."""

        def count(self, size_bytes: int) -> HeldBytes:
            """As a room does."""
            counted.append(size_bytes)
            return super().count(size_bytes)

    web = Web(bodies=Counting(10))
    free: list[int] = []

    class Browser:
        """Stands in for the renderer."""

        async def render(self, url: str, answer: Answer, _job: str, why: str, *_: object) -> None:
            """A large page, or none, where the worker may not ask."""
            free.append(web.bodies.free_bytes)
            if "b.com" in url:
                raise LeaseLost
            answer.body, answer.rendered = b"x" * (FREE_BYTES + 1), why

    async with running(tmp_path, monkeypatch, web) as world:
        monkeypatch.setattr(world.tasks.browsing, "_browser", Browser)
        world.job("r", render=RenderRules("always"))
        world.find("http://a.com/x", job="r")
        await world.all_done("http://a.com/x")
        assert (counted, web.bodies.free_bytes) == ([FREE_BYTES + 1], 10)
        world.find("http://b.com/x", job="r")
        await world.until(lambda: len(free) > 1 and web.bodies.free_bytes == 10)
    assert set(free) == {9}


async def test_a_page_that_was_in_vain_in_the_browser_without_the_lease_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped sees its pages' time run out; its new owner may have better luck."""
    tries: list[str] = []

    class Browser:
        """Stands in for the renderer: in vain the first time."""

        async def render(self, url: str, answer: Answer, _job: str, why: str, *_: object) -> None:
            """The page, or nothing in time."""
            tries.append(url)
            if len(tries) == 1:
                answer.render_error = "render_timeout"
            else:
                answer.body, answer.rendered = b"shown", why

    web = Web(may_ask=lambda: len(tries) != 1)
    async with running(tmp_path, monkeypatch, web) as world:
        monkeypatch.setattr(world.tasks.browsing, "_browser", Browser)
        world.job("r", render=RenderRules("always"))
        world.find("http://a.com/x", job="r")
        await world.all_done("http://a.com/x")
    assert tries == ["http://a.com/x"] * 2
    assert web.bodies.free_bytes == 1000


@pytest.mark.parametrize("per_ip", [1, 2])
async def test_hosts_of_one_address_share_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_ip: int
) -> None:
    """As many requests at a time as `politeness.per_ip` says; other addresses are not held up."""
    web = one_address(6)
    urls, other = hosts(6), "http://elsewhere.com/"
    most_at_address = 0

    def look(_url: str) -> None:
        nonlocal most_at_address
        most_at_address = max(most_at_address, len(web.under_way - {other}))

    web.before = look
    async with running(tmp_path, monkeypatch, web, politeness__per_ip=per_ip) as world:
        world.find(*urls, other)
        await world.until(lambda: web.times(other))
        assert len(web.ended) <= per_ip, "elsewhere waited for nobody"
        await world.all_done(*urls, other)
    assert most_at_address == per_ip
    assert [web.times(url) for url in urls] == [1] * 6, "a host that waits for its address asks nothing meanwhile"


async def test_robots_txt_counts_at_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds the address busy holds no place meanwhile, and asks for its rules once."""
    web = one_address(6)
    async with running(
        tmp_path, monkeypatch, web, robots__obey=True, politeness__per_ip=1, fetch__concurrency=2
    ) as world:
        world.find(*hosts(6))
        await world.all_done(*hosts(6))
    assert web.most == 1
    assert sorted(url for _, url in web.asked) == sorted(
        [*hosts(6), *(f"http://host{n}.com:80/robots.txt" for n in range(6))]
    )


async def test_a_state_that_is_folded_again_tells_why_and_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold of a long log takes minutes; a partition without such a note is reported once it is live."""
    async with running(tmp_path, monkeypatch) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        world.stage.frontier.disown(0)
        partition = world.stage.live.pop(0)
        assert world.stage.reports() == []
        partition.note = "folded again"
        [report] = world.stage.reports()
        assert (report.offset, report.note, report.jobs) == (partition.offset, "folded again", {})
        assert partition.offset > 0


async def test_without_a_limit_the_hosts_of_an_address_are_asked_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 is no limit, and costs no look at the address."""
    web = one_address(6)
    async with running(tmp_path, monkeypatch, web) as world:
        world.find(*hosts(6))
        await world.all_done(*hosts(6))
    assert web.most == 6


async def test_an_address_is_asked_no_more_often_than_its_rate_however_many_names_lead_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wildcard DNS: each name is a host with a rest of its own. robots.txt counts too, and another address is free."""
    web, delay_s, names = one_address(30), 0.25, 30
    web.latency_s["any"] = 0.01
    refused = 0
    at_once = Addresses.at_once

    async def counted(*asked_for: Any) -> Any:
        nonlocal refused
        try:
            return await at_once(*asked_for)
        except Busy:
            refused += 1
            raise

    monkeypatch.setattr(Addresses, "at_once", counted)
    async with running(tmp_path, monkeypatch, web, robots__obey=True, politeness__delay_s=delay_s) as world:
        world.find(*hosts(names), "http://elsewhere.com/")
        await world.until(lambda: web.times("http://elsewhere.com/"))
        assert len(web.asked) < 2 * names, "elsewhere waited for nobody"
        await world.all_done(*hosts(names))
    times = [at for at, url in web.asked if "elsewhere" not in url]
    assert len(times) == 2 * names
    assert min(later - earlier for earlier, later in zip(times, times[10:], strict=False)) >= delay_s
    assert refused < 6 * names, "a host that is refused comes again when its turn is due"


async def test_a_place_is_free_when_the_done_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill repeats is bounded by the places: while the log is silent no more URLs are asked for.

    The hosts have answered before: others would have half of the places.
    """
    async with running(tmp_path, monkeypatch, fetch__concurrency=4) as world:
        met = hosts(20, "met")
        world.find(*met)
        await world.all_done(*met)
        world.find(*hosts(20))
        await asyncio.sleep(0)
        world.log.is_silent = True
        await world.until(lambda: len(world.web.asked) >= 20 + 4)
        await asyncio.sleep(0.2)
        assert len(world.web.asked) == 20 + 4


async def test_unparsed_pages_hold_fetching_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for at the limit; when parse has caught up, it goes on, and the watchdog knew that it waited."""
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    async with running(tmp_path, monkeypatch, log__max_unparsed_mb=1) as world:
        world.stage.app.watchdog.beat = beat  # type: ignore[method-assign]  # counted
        back_pressure = world.fetcher._pages.pressure
        back_pressure.wrote(0, 0, 2 << 20)
        world.find(*hosts(5))
        await world.until(lambda: beats)
        await asyncio.sleep(0.2)
        assert world.web.asked == []
        back_pressure.parsed(0, 1, 1)
        await world.all_done(*hosts(5))


async def test_fetching_waits_for_the_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few dones lie in the log and are not folded: a fold that is slower than the fetching is not left behind."""
    monkeypatch.setattr(back_pressure, "UNFOLDED", 3)
    async with running(tmp_path, monkeypatch, fetch__concurrency=2) as world:
        behind: list[tuple[int, Record]] = []

        def fold(offset: int, record: Record) -> None:
            if behind or decode(record.value).results:
                behind.append((offset, record))
            else:
                world.fold(offset, record)

        world.log.fold = fold
        world.find(*hosts(12))
        await world.until(lambda: len(world.became()) >= 3 and not world.fetcher.places)
        await asyncio.sleep(0.2)
        assert len(world.web.asked) < 3 + 2
        world.log.fold = world.fold
        for done in behind:
            world.fold(*done)
        await world.all_done(*hosts(12))


async def test_half_the_limit_slows_fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests at a time, as the limit comes near."""
    async with running(tmp_path, monkeypatch, Web({"any": 0.05}), log__max_unparsed_mb=1) as world:
        world.fetcher._pages.pressure.wrote(0, 0, int(0.99 * (1 << 20)))
        world.find(*hosts(20))
        await world.until(lambda: len(world.web.ended) == 20)
    assert world.web.most <= 0.03 * 256


async def test_a_drain_lets_requests_end_and_asks_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was under way is in the log when it returns; what waited is not touched."""
    async with running(tmp_path, monkeypatch, Web({"any": 0.2}), fetch__concurrency=4) as world:
        world.find(*hosts(8))
        await world.until(lambda: len(world.web.asked) == 4)
        world.stage.rebalance_started()
        await world.fetcher.drain()
        assert len(world.log.dones) == len(world.log.pages) == len(world.web.asked) == 4


async def test_a_revocation_that_runs_out_of_time_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker owns the partition then: it is closed, and what was under way for it is aborted."""
    async with running(tmp_path, monkeypatch, Web({"any": 60.0})) as world:
        world.find(*hosts(4))
        await world.until(lambda: len(world.web.under_way) == 4)
        assert not await finish_within(0.05, world.stage.revoking({0}), "on_revoking")
        await world.until(lambda: not world.web.under_way)
        assert (world.stage.live, world.stage.restoring.opened, world.stage.frontier.owned) == ({}, {}, {})
        assert not world.stage.dispatching


@pytest.mark.parametrize(("generation", "rested"), [(2, False), (3, True), (1, True)])
async def test_hosts_of_a_partition_that_comes_back_at_once_rest_no_longer_than_before(
    generation: int, rested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the group has been through another generation, in which somebody else may have asked them."""
    async with running(tmp_path, monkeypatch, politeness__delay_s=60.0) as world:
        stage = world.stage
        stage._follows = True
        monkeypatch.setattr(
            stage.restoring, "_until_live", lambda _: asyncio.sleep(0)
        )  # there is no broker to read from
        stage._kept_rests.assigned(1, {0})
        world.find("http://a.com/", "http://b.com/")
        await world.until(lambda: not world.fetcher.places and len(world.log.dones) == 2 and world.is_folded)
        stage.rebalance_started()
        world.find("http://a.com/2", "http://c.com/")
        partition = stage.live[0]
        await world.until(lambda: partition.fold.jobs["j"].counts.queued == 2)
        monkeypatch.setattr(partition, "close", lambda: None)  # it comes back as it is
        await stage.revoking({0})
        stage.app.consumer_generation_id = generation
        await stage.owned({0})
        stage.restoring.opened[0] = partition
        await stage._go_live()
        if rested:
            await asyncio.sleep(0.05)
        else:
            await world.until(lambda: len(world.web.asked) > 2)
        asked = [url for _, url in world.web.asked]
        assert asked[2:] == ([] if rested else ["http://c.com/"])


@pytest.mark.parametrize(("generation", "is_same"), [(2, True), (3, False)])
async def test_a_partition_that_comes_back_at_once_is_of_the_same_ownership(
    generation: int, is_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another generation of the group another worker may have owned it."""
    async with running(tmp_path, monkeypatch) as world:
        stage = world.stage
        stage._follows = True
        monkeypatch.setattr(stage.restoring, "_until_live", lambda _: asyncio.sleep(0))
        stage._kept_rests.assigned(1, {0})
        stage.ownerships[0] = before = object()
        await stage.revoking({0})
        stage.app.consumer_generation_id = generation
        await stage.owned({0})
        assert (stage.ownerships[0] is before) is is_same


async def given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> Partition:
    """A partition with four hosts that comes back restored, to be taken over one host at a time."""
    stage = world.stage
    stage._follows = True
    monkeypatch.setattr(owned_partition, "LOADED_AT_ONCE", 1)
    monkeypatch.setattr(stage.restoring, "_until_live", lambda _: asyncio.sleep(0))  # there is no broker to read from
    stage.rebalance_started()
    partition = stage.live[0]
    world.find(*hosts(4))
    await world.until(lambda: world.is_folded and "j" in partition.fold.jobs)
    monkeypatch.setattr(partition, "close", lambda: None)  # it comes back as it is
    await stage.revoking({0})
    await stage.owned({0})
    stage.restoring.opened[0] = partition
    return partition


async def test_records_that_come_while_a_partition_is_loaded_are_folded_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop goes on while many hosts are loaded, and reads on; what is loaded must not change."""
    async with running(tmp_path, monkeypatch, politeness__delay_s=60.0) as world:
        partition = await given_back(world, monkeypatch)
        going = asyncio.create_task(world.stage._go_live())
        await asyncio.sleep(0)
        world.find("http://late.com/")
        await asyncio.sleep(0)
        assert (world.stage.live, partition.fold.jobs["j"].counts.queued) == ({}, 4)
        await going
        await world.until(lambda: partition.fold.jobs["j"].counts.queued == 5)
        assert world.stage.dispatching
        assert world.stage.live == {0: partition}


async def test_a_rebalance_ends_the_loading_of_a_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else may own it next: nothing of it stays."""
    async with running(tmp_path, monkeypatch, politeness__delay_s=60.0) as world:
        await given_back(world, monkeypatch)
        going = asyncio.create_task(world.stage._go_live())
        await asyncio.sleep(0)
        world.stage.rebalance_started()
        await going
        assert (world.stage.live, world.stage.frontier.owned, world.stage.dispatching) == ({}, {}, False)


async def test_a_restore_that_breaks_at_its_end_ends_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has partitions that nobody would ever dispatch for, and where nothing comes the watchdog sees no lag."""
    exits: list[int] = []
    async with running(tmp_path, monkeypatch) as world:
        stage = world.stage
        stage._follows = True
        monkeypatch.setattr("os._exit", exits.append)
        monkeypatch.setattr(stage.restoring, "_restore", lambda *_: None)
        monkeypatch.setattr(stage.restoring, "_go_live", lambda: 1 // 0)
        await stage.owned({0})
        await world.until(lambda: exits)
    assert exits == [75]


async def test_two_restores_never_run_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that outlives its revocation, in its thread, is waited for before the next one begins."""
    ends, began = asyncio.Event(), []

    async def restore(partitions: set[int]) -> None:
        began.append(partitions)
        await ends.wait()

    async with running(tmp_path, monkeypatch) as world:
        stage = world.stage
        stage._follows = True
        monkeypatch.setattr(stage.restoring, "_until_live", restore)
        await stage.owned({1})
        await world.until(lambda: began)
        assert not await finish_within(0.02, stage.revoking({1}), "on_revoking")
        owned = asyncio.create_task(stage.owned({2}))
        await asyncio.sleep(0.02)
        assert began == [{1}]
        ends.set()
        await owned
        await world.until(lambda: began == [{1}, {2}])


async def test_an_assignment_does_not_wait_for_the_thread_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be fetching a snapshot for minutes; what it has in hand is closed before the next restore."""
    ends, steps = threading.Event(), list[str]()
    slow: Any = SimpleNamespace(close=lambda: steps.append("closed"), offset=0)
    async with running(tmp_path, monkeypatch) as world:
        stage = world.stage

        def restore(partitions: set[int], *_: object) -> None:
            steps.append(f"restore {partitions}")
            if partitions == {1}:
                ends.wait(60)
                stage.restoring.opened[1] = slow

        stage._follows = True
        monkeypatch.setattr(stage.restoring, "_restore", restore)
        await stage.owned({1})
        await world.until(lambda: steps)
        for partitions in ({2}, {3}):
            stage.rebalance_started()
            await asyncio.wait_for(stage.owned(partitions), 30)
        ends.set()
        await world.until(lambda: stage.dispatching)
        assert steps == ["restore {1}", "closed", "restore {3}"]


async def test_a_restore_that_begins_while_the_end_of_another_is_awaited_stays_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its partitions are closed while its thread folds them."""
    async with running(tmp_path, monkeypatch) as world:
        restoring, may_end = world.stage.restoring, asyncio.Event()
        monkeypatch.setattr(restoring, "_until_live", lambda partitions: may_end.wait() if 1 in partitions else rest())
        restoring.begin({1}, anew=True)
        await asyncio.sleep(0)
        ending = asyncio.create_task(restoring.end())
        await asyncio.sleep(0)
        restoring.begin({2}, anew=True)
        may_end.set()
        await ending
        assert restoring.is_running


async def rest() -> None:
    """Restore for an hour."""
    await asyncio.sleep(3600)


async def test_a_drain_gives_back_what_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trace: no page, no done."""
    monkeypatch.setattr("crawlog.agents.fetch.fetch_agent.DRAIN_S", 1.0)
    web = Web({"any": 0.05, "http://host0.com/x": 60.0})
    async with running(tmp_path, monkeypatch, web, fetch__concurrency=4) as world:
        world.find(*hosts(4))
        await world.until(lambda: len(world.web.asked) == 4)
        world.stage.rebalance_started()
        began = time.monotonic()
        await world.fetcher.drain()
        assert time.monotonic() - began < 30.0  # of 60
        assert sorted(world.became()) == hosts(4)[1:]
        assert not world.fetcher.places


# Crash loops

DYING = """
import asyncio, ctypes, os, sys
from pathlib import Path
from typing import Any
import pytest
from tests.support.fetching import Web, running

def before(url):
    if url == "http://host3.com/x":
        HOW

async def main(folder):
    web = Web({"any": 0.02}, before=before)
    with pytest.MonkeyPatch.context() as patch:
        async with running(Path(folder), patch, web) as world:
            urls = [f"http://host{n}.com/x" for n in range(8)]
            world.find(*urls)
            await world.all_done(*urls)
            print(world.became()["http://host3.com/x"], len(web.ended), web.most)

asyncio.run(main("FOLDER"))
"""
"""A worker that asks for eight URLs, one of which ends it."""


def lives(folder: Path, how: str, most: int) -> list[str]:
    """What the worker says in each of its lives, until it gets through; its state is a new one each time."""
    said: list[str] = []
    for life in range(most):
        data = folder / "data"
        code = DYING.replace("HOW", how).replace("FOLDER", str(data))
        told = folder / f"said{life}"
        with told.open("w") as output:
            ended = forked(code, folder, os.environ, output).wait(180)
        said.append(told.read_text().splitlines()[-1] if not ended else "")
        if not ended:
            break
        (data / "state").rename(folder / f"state{life}")
    return said


def test_a_url_that_ends_its_worker_is_given_up_when_it_did_so_alone(tmp_path: Path) -> None:
    """Twice among others, once by itself, then it is a failure with a reason; the others are fetched."""
    *deaths, end = lives(tmp_path, "ctypes.string_at(0)", 6)
    assert len(deaths) == 3
    assert "('failed', 'crash_loop', '') 7" in end


def test_kills_from_outside_never_give_a_url_up(tmp_path: Path) -> None:
    """Even if it is held at each of them, and nothing is slower for it."""
    assert lives(tmp_path, "os.kill(os.getpid(), 9)", 4)[-1] == ""
    [end] = lives(tmp_path, "None", 1)
    assert "('fetched', '', '') 8 8" in end


async def test_what_is_suspected_is_asked_for_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And found innocent; all others then go on together."""
    urls = hosts(12)
    web = Web({"any": 0.02})
    beside: dict[str, int] = {}

    def look(url: str) -> None:
        beside[url] = len(web.under_way) - 1

    web.before = look
    suspected = {_hash(url): Deaths(2, 0) for url in urls[:4]}
    monkeypatch.setattr(
        "crawlog.streams.worker.suspects.Suspects._learn", lambda self, _stored: self._rows.update(suspected)
    )
    path = tmp_path / "suspects" / "fetch-0"
    path.parent.mkdir()
    path.touch()
    async with running(tmp_path, monkeypatch, web) as world:
        assert not world.fetcher.suspects.is_calm
        world.find(*urls)
        await world.all_done(*urls)
        assert world.fetcher.suspects.is_calm
    assert [beside[url] for url in urls[:4]] == [0] * 4
    assert max(beside.values()) > 1


async def test_robots_txt_that_ends_its_worker_closes_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the host is asked for; each of its URLs is a failure with the reason."""
    rules = "http://host0.com:80/robots.txt"
    dead = {_hash(rules): Deaths(3, 0, alone=True)}
    monkeypatch.setattr(
        "crawlog.streams.worker.suspects.Suspects._learn", lambda self, _stored: self._rows.update(dead)
    )
    path = tmp_path / "suspects" / "fetch-0"
    path.parent.mkdir()
    path.touch()
    async with running(tmp_path, monkeypatch, robots__obey=True) as world:
        world.find(*hosts(2))
        await world.all_done(*hosts(2))
        assert world.became()[hosts(1)[0]][:2] == ("failed", "robots_unreachable: crash_loop")
        assert rules not in {url for _, url in world.web.asked}


async def test_a_page_is_on_record_while_it_is_looked_at_and_kept_if_that_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it needs a browser is asked of a parser in C: what ends the worker there must be known."""
    held: list[str] = []
    async with running(tmp_path, monkeypatch) as world:

        def look(*_: object) -> str:
            held.extend(world.fetcher.suspects._held)
            raise ValueError("not HTML")

        monkeypatch.setattr("crawlog.agents.browser.browsing.emptiness", look)
        world.job(rev=2, render=RenderRules("auto"))
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert held == ["http://a.com/x"]
        assert [body for _, body in world.log.pages] == [b"<title>x</title>"]


async def test_a_page_that_fails_its_trial_is_not_looked_at_and_kept_as_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it needs a browser is asked in the loop that dispatches; parse says what becomes of it."""
    looked: list[object] = []

    async def refusal(*_: object) -> str:
        return "too_complex: its HTML takes the parser long"

    async with running(tmp_path, monkeypatch) as world:
        monkeypatch.setattr("crawlog.agents.sandbox.trial.Trial.refusal", refusal)
        monkeypatch.setattr("crawlog.agents.browser.browsing.emptiness", lambda *_: looked.append(_))
        world.job(rev=2, render=RenderRules("auto"))
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert looked == []
        assert [body for _, body in world.log.pages] == [b"<title>x</title>"]


async def test_who_may_not_ask_for_robots_txt_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page in the browser that wants a script of that host is given back, not shown without the script."""

    def lost(_url: str) -> None:
        raise LeaseLost

    async with running(tmp_path, monkeypatch, Web(before=lost), robots__obey=True) as world:
        place = Places(1).of("http://a.com/")
        host = world.stage.frontier.lend(place)
        assert host is not None
        host.in_flight += 1
        with pytest.raises(LeaseLost):
            await world.robots.give(host, world.stage.frontier.usual)
        assert (host.in_flight, host.rules) == (0, None)


class Signing:
    """A transport around another one: a middleware, as a user writes it."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.requests: list[str] = []

    async def get(self, request: HttpRequest) -> Answer:
        """The answer to the request with a header more; one of its own where the site has none."""
        self.requests.append(request.url)
        answer = await self.inner.get(request._replace(headers={**(request.headers or {}), "X-Signed": "me"}))
        if answer.http == 404:
            answer.http, answer.body = 200, b"<title>from the cache</title>"
        return answer


async def test_a_transport_around_the_client_sees_every_request_and_changes_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages, robots.txt, the page of a form and its login."""
    web = Members()
    web.status["http://a.com/gone"] = 404
    signing: list[Signing] = []

    def wrap(inner: Transport) -> Transport:
        signing.append(Signing(inner))
        return signing[0]

    forms = ("http://a.com/login#user=ann&password=x",)
    async with running(tmp_path, monkeypatch, web, wrap, robots__obey=True, fetch__forms=forms) as world:
        world.find("http://a.com/gone")
        await world.all_done("http://a.com/gone")
        assert [body for _, body in world.log.pages] == [b"<title>from the cache</title>"]
    assert signing[0].requests == [
        "http://a.com:80/robots.txt", "http://a.com/login", "http://a.com/login", "http://a.com/gone",
    ]  # fmt: skip
    assert web.signed == signing[0].requests


class Members(Web):
    """A web that takes any login."""

    def __init__(self) -> None:
        super().__init__()
        self.signed: list[str] = []

    async def get(self, request: HttpRequest) -> Answer:
        """Notes the requests that were signed."""
        self.signed += [request.url] * ("X-Signed" in (request.headers or {}))
        if request.form is None:
            return await super().get(request)
        answer = Answer(302)
        answer.location = "/home"
        return answer


async def test_dones_of_long_urls_are_sent_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that no broker takes would hold its places for ever."""
    async with running(tmp_path, monkeypatch, fetch__concurrency=100) as world:
        world.job(rev=2, max_url_length=8192)
        urls = [f"http://a{number}.com/" + "x" * 8_100 for number in range(100)]
        for url in urls:
            world.find(url)
        await world.all_done(*urls)
        sizes = [len(one.value or b"") for one in world.log.records if b'"results"' in (one.value or b"")]
    assert len(sizes) < len(urls)
    assert max(sizes) < MAX_BATCH_BYTES + 10_000


@pytest.mark.parametrize(
    ("state", "rules", "lacks"),
    [
        ("running", RenderRules(mode="auto"), True),
        ("running", RenderRules(include=("/app/",)), True),
        ("running", RenderRules(), False),
        ("finished", RenderRules(mode="always"), False),
    ],
)
def test_a_worker_without_a_browser_lacks_it_where_a_running_job_wants_it(
    state: str, rules: RenderRules, *, lacks: bool
) -> None:
    """Its pages would be kept as they were sent, and their rows would be empty."""
    settings = load({"render.browser": "/nowhere/chromium", "render.sandbox": "false"})
    spec = SimpleNamespace(state=state, render=rules)
    partition = SimpleNamespace(fold=SimpleNamespace(jobs={"shop": SimpleNamespace(spec=spec)}))
    stage: Any = SimpleNamespace(settings=settings, live={0: partition})
    assert ("/nowhere/chromium" in missing_browser(stage)) is lacks
