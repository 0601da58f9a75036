"""Exits: which one a request takes, and which of them rest."""

from collections import Counter
from gzip import compress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from crawlog.schemas.urls import RequestRules
from crawlog.streams.exits.exits import FAILED_S, FAILURES, MOST_BAN_S, MOST_REST_S, REFUSALS, REST_S, Exits, ExitWish
from crawlog.streams.exits.refusals import Refusal, refusal_of
from crawlog.streams.exits.ways import Exit, read_exit, read_group, read_policy
from crawlog.streams.http.answer import Answer
from crawlog.streams.job_spec import request_rules
from crawlog.streams.settings.settings import Settings

HOSTS = [f"http://host-{number}:80" for number in range(200)]


USUAL = request_rules(Settings())


def rules(policy: str = "sticky", group: str = "", **more: Any) -> RequestRules:
    """Those of a job with a policy and a group."""
    return replace(USUAL, exit_policy=policy, exit_group=group, **more)


def exits(count: int) -> tuple[Exits, list[Exit]]:
    """So many proxies."""
    pool = [read_exit(f"e{number}=http://proxy-{number}:80") for number in range(count)]
    return Exits(pool, {"odd": ("e1", "e3"), "all": ("e*",)}), pool


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("http://ann:p%40ss@one:3128", "one:3128"),
        ("berlin=socks5h://ann:p=x@two:1080", "berlin"),
        ("http://u:a=b@three:1", "three:1"),
    ],
)
def test_an_exit_is_named_without_its_login(text: str, name: str) -> None:
    """Its name stands in records."""
    way = read_exit(text)
    assert (way.name, way.kind) == (name, "proxy")
    assert way.proxy is not None
    assert way.proxy.user in {"ann", "u"}


@pytest.mark.parametrize(
    "text", ["a b=http://one:1", "=http://one:1", "x=ftp://ann:hush@one", "one", "x=", "🦊=http://o:1"]
)
def test_a_wrong_exit_is_refused_without_repeating_it(text: str) -> None:
    """It may hold a password."""
    with pytest.raises(ValueError, match=r"a proxy is|the name of an exit") as refused:
        read_exit(text)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "Sticky", "every:0", "every:", "time:60", "time:0s", "every:5 ", "request:2"])
def test_an_unknown_policy_is_refused(text: str) -> None:
    """With the known ones."""
    with pytest.raises(ValueError, match="sticky, request, every:N"):
        read_policy(text)


def test_a_group_has_members() -> None:
    """By names and patterns."""
    assert read_group(" a, b:1 ,eu-*") == ("a", "b:1", "eu-*")
    with pytest.raises(ValueError, match="a group is names of exits"):
        read_group(" , ")
    known, pool = exits(5)
    assert known.of_group("odd") == (pool[1], pool[3])
    assert known.of_group("all") == known.of_group("") == tuple(pool)
    assert known.of_group("none") == ()
    assert {known.pick(host, rules(group="odd"), 0.0) for host in HOSTS} == {pool[1], pool[3]}
    assert known.pick("h", rules(group="none"), 5.0) == 5.0 + REST_S


def test_a_host_keeps_its_exit_and_comes_back_to_it() -> None:
    """Rendezvous hashing: only the hosts of the one that failed move, and only while it rests."""
    known, pool = exits(5)
    before = {host: known.pick(host, rules(), 0.0) for host in HOSTS}
    for number in range(FAILURES):
        assert known.failed(f"http://other-{number}:80", pool[0], 0.0, 0.0) == (number == FAILURES - 1)
    during = {host: known.pick(host, rules(), 1.0) for host in HOSTS}
    assert {host for host in HOSTS if before[host] != during[host]} == {h for h in HOSTS if before[h] == pool[0]}
    assert pool[0] not in during.values()
    assert {host: known.pick(host, rules(), REST_S + 1.0) for host in HOSTS} == before


def test_an_exit_that_fails_rests_for_the_host_at_once() -> None:
    """Another host may not have the same trouble with it."""
    known, pool = exits(1)
    known.failed(HOSTS[0], pool[0], 0.0, 1.0)
    assert known.pick(HOSTS[0], rules(), 1.0) == 1.0 + FAILED_S
    assert known.pick(HOSTS[1], rules(), 1.0) == pool[0]
    assert (known.wakes_in_s(HOSTS[0], rules(), 2.0), known.wakes_in_s(HOSTS[1], rules(), 2.0)) == (1.0, 0.0)


def test_where_all_rest_the_time_of_the_first_to_wake_is_the_answer() -> None:
    """No request goes without an exit."""
    known, pool = exits(2)
    for at, way in enumerate(pool):
        for host in HOSTS[:FAILURES]:
            known.failed(host, way, float(at), float(at))
    assert known.pick(HOSTS[9], rules(), 2.0) == REST_S


def test_requests_in_flight_that_fail_together_are_one_rest() -> None:
    """Those that were sent before its end are its own; the next failure after it doubles the rest."""
    known, pool = exits(1)
    rests = [known.failed("h", pool[0], 0.0, 1.0) for _ in range(40)]
    assert (rests.index(True), rests.count(True)) == (FAILURES - 1, 1)
    woken = 1.0 + REST_S
    assert known.wakes_in_s("other", rules(), 1.0) == REST_S
    assert not known.failed("h", pool[0], 2.0, 3.0)
    assert [known.failed("h", pool[0], woken, woken) for _ in range(3)] == [True, False, False]
    assert known.wakes_in_s("other", rules(), woken) == 2 * REST_S


def test_an_exit_that_works_rests_no_longer() -> None:
    """Its hosts come back, and its next rest is a first one."""
    known, pool = exits(2)
    before = [known.pick(host, rules(), 0.0) for host in HOSTS]
    for host in ("a", "b", "c"):
        known.failed(host, pool[0], 0.0, 0.0)
    known.worked(pool[0])
    assert [known.pick(host, rules(), 1.0) for host in HOSTS] == before
    assert [known.failed(host, pool[0], 9.0, 9.0) for host in ("a", "b", "c")] == [False, False, True]
    assert known.wakes_in_s("d", rules(), 9.0) == 0.0
    assert known.pick("d", rules(), 9.0) == pool[1]


def test_one_silent_host_makes_no_exit_rest_for_others() -> None:
    """Perhaps it is the host that is silent. Several hosts in a row are the exit's fault."""
    known, pool = exits(2)
    known.worked(pool[1])
    assert not any(known.failed("mute", pool[0], at, at, is_sure=False) for at in (0.0, 100.0, 1000.0, 9000.0))
    assert [known.failed(host, pool[0], 1e5, 1e5, is_sure=False) for host in ("two", "three")] == [False, True]


def test_where_no_exit_works_silent_hosts_make_none_rest_for_others() -> None:
    """At the end of a crawl only silent hosts may be left."""
    known, pool = exits(2)
    known.worked(pool[0])
    assert not any(known.failed(host, pool[0], at, at, is_sure=False) for at, host in enumerate(HOSTS))
    assert known.pick("other", rules(), 1e5) in pool


@pytest.mark.parametrize(
    ("policy", "runs"), [("request", [1] * 12), ("every:3", [3] * 4), ("every:5", [5, 5, 2]), ("sticky", [12])]
)
def test_a_host_changes_its_exit_as_its_policy_says(policy: str, runs: list[int]) -> None:
    """Each exit has its turn before one has a second one."""
    known, _ = exits(4)
    taken = [known.pick("h", rules(policy), float(at)) for at in range(12)]
    lengths = [1]
    for one, next_one in pairwise(taken):
        if one == next_one:
            lengths[-1] += 1
        else:
            lengths.append(1)
    assert lengths == runs
    assert len(set(taken)) == min(len(runs), 4)


def test_a_time_is_the_life_of_an_exit() -> None:
    """However many requests it has."""
    known, _ = exits(3)
    taken = [known.pick("h", rules("time:60s"), float(at)) for at in (0, 1, 59, 60, 119, 120, 179, 180)]
    assert [taken.index(one) for one in taken] == [0, 0, 0, 3, 3, 5, 5, 0]


def test_what_has_a_session_keeps_its_exit() -> None:
    """Whatever the policy says; the hosts of one domain share it."""
    known, _ = exits(5)
    taken = {known.pick(host, rules("request"), 0.0, ExitWish("job a.test jar")) for host in HOSTS}
    assert len(taken) == 1
    assert len({known.pick("h", rules("request"), 0.0, ExitWish(f"job {n}.test ")) for n in range(50)}) == 5


@given(st.lists(st.integers(0, 4), max_size=60), st.sampled_from(["request", "every:2", "time:3s", "sticky"]))
def test_no_request_goes_by_an_exit_that_rests(failing: list[int], policy: str) -> None:
    """And one that none serves waits until the first of them wakes."""
    known, pool = exits(5)
    for at, number in enumerate(failing):
        known.failed("h", pool[number], float(at), float(at))
        picked = known.pick("h", rules(policy), float(at))
        if isinstance(picked, float):
            assert at < picked <= at + MOST_REST_S
            assert isinstance(known.pick("h", rules(policy), picked), Exit)
        else:
            assert picked != pool[number]


def test_requests_are_spread_evenly_while_an_exit_rests() -> None:
    """The others share what it does not take."""
    known, pool = exits(4)
    known.failed("h", pool[1], 0.0, 0.0)
    taken = Counter(known.pick("h", rules("request"), 1.0) for _ in range(300))
    assert set(taken.values()) == {100}
    assert pool[1] not in taken


def test_changed_exits_keep_what_is_known_of_those_that_stay() -> None:
    """By name, also where a password has changed."""
    known, pool = exits(2)
    for host in HOSTS[:FAILURES]:
        known.failed(host, pool[0], 0.0, 0.0)
    fresh = read_exit("e0=http://new:word@proxy-0:80")
    known.change([fresh, read_exit("third=http://p:1"), read_exit("third=http://q:1")])
    assert known.of_group("all") == (fresh,)
    assert [way.name for way in known] == ["e0", "third"]
    assert {known.pick(host, rules(), 1.0) for host in HOSTS[9:]} == {known.of_group("")[1]}
    known.change([])
    assert not known


SURE, UNSURE = Refusal("http_429", is_sure=True, rest_s=60.0), Refusal("text", is_sure=False, rest_s=60.0)


def test_an_exit_that_is_turned_away_rests_for_that_host() -> None:
    """Twice as long each time; a page that is served ends the row. Other hosts have it as before."""
    known, pool = exits(1)
    for at, rest_s in ((0.0, 60.0), (60.0, 120.0), (180.0, 240.0)):
        known.refused("h", pool[0], SURE, at, at)
        assert known.pick("h", rules(), at) == at + rest_s
        assert known.pick("other", rules(), at) == pool[0]
    assert known.figures(181.0)["e0"].rests_at == 1
    known.served("h", pool[0], 181.0)
    assert known.pick("h", rules(), 182.0) == 420.0, "one that was sent before the ban says nothing of it"
    known.served("h", pool[0], 500.0)
    known.refused("h", pool[0], SURE, 500.0, 500.0)
    assert known.pick("h", rules(), 500.0) == 560.0
    for _ in range(20):
        at = known.wakes_in_s("h", rules(), 0.0)
        known.refused("h", pool[0], SURE, at, at)
    assert known.wakes_in_s("h", rules(), at) == MOST_BAN_S


def test_what_may_be_the_pages_own_makes_an_exit_rest_after_several_in_a_row() -> None:
    """A page between them ends the row."""
    known, pool = exits(1)
    for _ in range(REFUSALS - 1):
        known.refused("h", pool[0], UNSURE, 0.0, 0.0)
    known.served("h", pool[0], 0.0)
    for _ in range(REFUSALS - 1):
        known.refused("h", pool[0], UNSURE, 1.0, 1.0)
    assert known.pick("h", rules(), 1.0) == pool[0]
    known.refused("h", pool[0], UNSURE, 1.0, 1.0)
    assert known.pick("h", rules(), 1.0) == 61.0
    assert known.figures(1.0)["e0"].bans == 2 * REFUSALS - 1


def test_a_url_is_sent_again_by_exits_that_have_not_refused_it() -> None:
    """A number of times; then by any, and the answer counts."""
    known, pool = exits(3)
    often = rules(exit_refusals=3)
    tried = []
    for _ in range(3):
        picked = known.pick("h", often, 0.0, ExitWish(but=known.refused_by("u"), may_repeat=True))
        assert isinstance(picked, Exit)
        tried.append(picked)
        is_again = known.again("u", picked, often)
        assert is_again == (len(tried) < 3)
    assert set(tried) == set(pool)
    assert isinstance(known.pick("h", often, 0.0, ExitWish(but=known.refused_by("u"), may_repeat=True)), Exit)
    assert isinstance(known.pick("h", often, 0.0, ExitWish(but=known.refused_by("u"))), float)
    known.settled("u")
    assert known.refused_by("u") == ()
    assert not Exits(pool[:1]).again("u", pool[0], often), "there is no other exit"


PER_EXIT = rules("request", per_exit=True)


def test_where_delays_count_by_exit_each_has_its_own() -> None:
    """Then the time of the first free one is the answer; one with a request in flight is not free."""
    known, pool = exits(3)
    wish = ExitWish(delay_s=10.0)
    taken = [known.pick("h", PER_EXIT, float(at), wish) for at in range(3)]
    assert set(taken) == set(pool)
    assert known.pick("h", PER_EXIT, 3.0, wish) == 10.0
    assert known.pick("h", PER_EXIT, 10.0, wish) == taken[0]
    assert isinstance(taken[1], Exit)
    known.asked("h", taken[1], 11.0)
    assert known.pick("h", PER_EXIT, 11.0, wish) == 12.0
    assert known.pick("h", PER_EXIT, 13.0, ExitWish(delay_s=10.0, busy=[one.name for one in pool])) == float("inf")
    assert known.pick("other", PER_EXIT, 3.0, wish) in pool


@given(
    st.lists(st.tuples(st.sampled_from("pf"), st.floats(0.0, 3.0)), max_size=80),
    st.sampled_from(["request", "every:3", "time:5s", "sticky"]),
)
def test_no_exit_is_taken_twice_within_a_delay(steps: list[tuple[str, float]], policy: str) -> None:
    """Whatever fails meanwhile; and a host that is to wait is served in the end."""
    known, pool = exits(4)
    now, asked, per_exit, wish = 0.0, dict.fromkeys(pool, -1e9), rules(policy, per_exit=True), ExitWish(delay_s=4.0)
    for step, passes in steps:
        now += passes
        picked = known.pick("h", per_exit, now, wish)
        while isinstance(picked, float):
            assert picked > now
            now = picked
            picked = known.pick("h", per_exit, now, wish)
        assert now >= asked[picked] + 4.0
        asked[picked] = now
        if step == "f":
            known.failed("h", picked, now, now)


@pytest.mark.parametrize(
    ("http", "location", "body", "reason", "is_sure"),
    [
        (403, "", b"", "http_403", False),
        (429, "", b"", "http_429", True),
        (503, "", b"", "http_503", True),
        (404, "", b"<title>Not found</title>", "", False),
        (200, "", b"<title>Are you a robot?</title>", "text", False),
        (200, "", compress(b"<html><title lang=en>CAPTCHA"), "text", False),
        (200, "", compress(b"<html>")[:9], "", False),
        (200, "", b"<title>Shop</title><p>captcha", "", False),
        (200, "", b"<title>captcha</title>" + b"x" * 300_000, "", False),
        (302, "https://shop.test/captcha?back=1", b"", "redirect", False),
        (302, "https://shop.test/sorry/index", b"", "redirect", False),
        (302, "https://shop.test/captchas", b"", "", False),
        (302, "https://shop.test/next", b"<title>captcha", "", False),
        (None, "", b"", "", False),
    ],
)
def test_an_answer_turns_an_exit_away_by_status_redirect_or_text(
    http: int | None, location: str, body: bytes, reason: str, is_sure: bool
) -> None:
    """And rests it as long as the setting and the answer say."""
    answer = Answer(http)
    answer.body, answer.kept, answer.location = body, bool(body), location
    answer.coding = "gzip" if body.startswith(b"\x1f") else ""
    refusal = refusal_of(answer, USUAL, 90.0)
    assert (refusal is not None) == bool(reason)
    assert refusal is None or refusal == (reason, is_sure, 90.0)


def test_signs_that_no_setting_could_have_are_none() -> None:
    """Any client may have written the record of a job."""
    answer = Answer(200)
    answer.body, answer.kept = b"<title>(</title>", True
    assert refusal_of(answer, replace(USUAL, ban_texts=("(",)), 0.0) is None
