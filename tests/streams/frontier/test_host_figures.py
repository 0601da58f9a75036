"""The figures of hosts that people see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.control import Command
from crawlog.schemas.hosts import BUCKETS, MAX_HOSTS, HostBucket, HostFigures, HostRobots, bucket_of
from crawlog.streams.frontier import host_figures
from crawlog.streams.frontier.host import Task
from crawlog.streams.http.answer import Answer
from crawlog.streams.jobs.commands import Commands
from crawlog.streams.url import hashed
from tests.support.dispatching import WALL, World, pages

A = "http://a.com:80"


def figures_of(world: World, before: HostBucket | None = None, host: str = A) -> HostBucket:
    """The next record of a host's bucket, after a checkpoint."""
    world.checkpoint()
    owned = world.frontier.owned[0]
    return world.frontier.ledger.figures(owned, bucket_of(hashed(host)), before.hosts if before else [], 60.0)


def one_of(world: World, before: HostBucket | None = None) -> HostFigures:
    """The figures of the one host there is."""
    (one,) = figures_of(world, before).hosts
    return one


def world_with(number: int) -> World:
    """A host with so many URLs."""
    world = World()
    world.job()
    world.find(*pages("a.com", number))
    return world


def answered(world: World, task: Task, status: int | None, error: str = "", rests: str = "") -> None:
    """The request had this answer."""
    world.frontier.ledger.answered(task.host, Answer(status, error), world.wall, rests)


def test_what_a_host_has_queued_and_where_it_stands() -> None:
    """A host that nobody has asked has a queue and its delay."""
    world = world_with(5)
    assert one_of(world) == HostFigures(A, 5, delay_s=1.0)
    task = world.next_page()
    one = one_of(world)
    assert (one.in_flight, one.queued) == (1, 5)
    world.fetched(task)
    answered(world, task, 200)
    world.fold_dones()
    one = one_of(world)
    assert (one.queued, one.in_flight, one.asked, one.rate, one.results, one.last) == (4, 0, 1, 1.0, {"200": 1}, "200")
    assert (one.next_at, one.asked_at, one.rests) == (WALL + 1, WALL, "")


def test_counts_go_on_from_the_record_before() -> None:
    """Memory holds only what came since; bad results in a row count over records."""
    world = world_with(9)
    task = world.next_page()
    answered(world, task, 403)
    before = figures_of(world)
    answered(world, task, None, "timeout")
    after = figures_of(world, before)
    assert (after.hosts[0].bad_row, after.hosts[0].results) == (2, {"403": 1, "timeout": 1})
    answered(world, task, 404)
    answered(world, task, 500)
    (one,) = figures_of(world, after).hosts
    assert (one.bad_row, one.last, one.asked) == (1, "500", 4)


def test_a_robots_txt_that_is_well_is_no_result() -> None:
    """A host that refuses all its pages would else look like one that served something."""
    world = world_with(3)
    task = world.next_page()
    answered(world, task, 403)
    world.frontier.ledger.answered(task.host, Answer(404), world.wall, is_page=False)
    one = one_of(world)
    assert (one.asked, one.results, one.bad_row, one.last) == (2, {"403": 1}, 1, "403")


@pytest.mark.parametrize("rests", ["retry_after", "backoff"])
def test_why_a_host_rests_is_shown_until_it_has_rested(rests: str) -> None:
    """The next request, as far as it is known, stands beside it."""
    world = world_with(3)
    task = world.next_page()
    answered(world, task, 503, rests=rests)
    world.ended(task, 100.0)
    before = figures_of(world)
    one = before.hosts[0]
    assert (one.rests, one.next_at) == (rests, WALL + 100)
    world.pass_time(101.0)
    assert (one_of(world, before).rests, one_of(world, before).next_at) == ("", 0.0)


def test_commands_and_robots_txt_name_themselves_as_the_source_of_a_delay() -> None:
    """`setting`, `robots` or `command`."""
    world = world_with(3)
    task = world.next_page()
    world.frontier.ledger.robots(task.host, HostRobots(WALL, 200, rules=["Disallow: /x"], delay_s=7.0))
    task.host.delay_s = 7.0
    one = one_of(world)
    assert (one.delay_s, one.delay_of) == (7.0, "robots")
    assert one.robots == HostRobots(WALL, 200, rules=["Disallow: /x"], delay_s=7.0)
    world.frontier.obey(Commands([Command("slow", host="a.com", delay_s=30.0)]))
    one = one_of(world)
    assert (one.delay_s, one.delay_of) == (30.0, "command")
    world.frontier.obey(Commands([Command("block", host="a.com")]))
    assert one_of(world).rests == "block"
    world.frontier.obey(Commands([Command("pause", host="a.com")]))
    assert one_of(world).rests == "pause"


def test_a_host_out_of_memory_keeps_its_figures() -> None:
    """Only few of very many hosts are in memory."""
    world = world_with(3)
    task = world.next_page()
    answered(world, task, 503, rests="backoff")
    world.ended(task, 100.0)
    before = figures_of(world)
    world.frontier.owned[0].forget(task.host, world.clock + 100.0)
    assert figures_of(world, before).hosts[0] == before.hosts[0]


def test_a_host_without_urls_stays_for_a_day() -> None:
    """After a crawl people look which hosts failed."""
    world = world_with(1)
    task = world.next_page()
    answered(world, task, 200)
    world.fetched(task)
    world.fold_dones()
    assert not one_of(world).queued
    task.host.delay_s = 9.0  # of another job since then
    before = figures_of(world, HostBucket([HostFigures(A, asked_at=WALL, delay_s=3.0, delay_of="robots")]))
    assert [(one.queued, one.delay_s, one.delay_of) for one in before.hosts] == [(0, 3.0, "robots")]
    world.pass_time(host_figures.KEPT_S + 1)
    assert figures_of(world, before).hosts == []


def test_very_many_hosts_of_a_bucket_are_cut_to_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has a limit; it counts those that it leaves out."""
    monkeypatch.setattr(host_figures, "MAX_HOSTS", 2)
    world = World()
    before = [HostFigures(f"http://{n}.com:80", asked_at=WALL, bad_row=n) for n in range(5)]
    found = world.frontier.ledger.figures(world.frontier.owned[0], 0, before, 1.0)
    assert [one.bad_row for one in found.hosts] == [4, 3]
    assert found.left_out == 3
    assert MAX_HOSTS > 2


def test_the_ledger_is_bounded_and_forgets_a_partition_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory must not grow with the number of hosts."""
    monkeypatch.setattr(host_figures, "MOST_NEWS", 1)
    world = World()
    world.job()
    world.find("http://a.com/", "http://b.com/")
    for _ in range(2):
        answered(world, world.next_page(), 200)
    ledger = world.frontier.ledger
    assert sum(len(hosts) for hosts in ledger.news[0].values()) == 1
    world.frontier.disown(0)
    assert ledger.news == {}
    assert ledger._count == 0


@given(st.lists(st.sampled_from([200, 301, 404, 403, 429, 503, None]), max_size=30), st.integers(1, 7))
def test_records_add_up_to_the_requests(statuses: list[int | None], every: int) -> None:
    """However the requests are spread over records."""
    world = world_with(1)
    task = world.next_page()
    before = None
    for number, status in enumerate(statuses):
        answered(world, task, status, "" if status else "timeout")
        if number % every == 0:
            before = figures_of(world, before)
    (one,) = figures_of(world, before).hosts
    assert one.asked == len(statuses) == sum(one.results.values())
    row = 0
    for status in statuses:
        row = 0 if status in (200, 301, 404) else row + 1
    assert one.bad_row == row


def test_buckets_divide_all_hosts() -> None:
    """Each host is in exactly one record."""
    world = World()
    world.job()
    names = [f"h{n}.com" for n in range(50)]
    world.find(*(f"http://{name}/" for name in names))
    world.checkpoint()
    owned = world.frontier.owned[0]
    found = [
        one.host for bucket in range(BUCKETS) for one in world.frontier.ledger.figures(owned, bucket, [], 1.0).hosts
    ]
    assert sorted(found) == sorted(f"http://{name}:80" for name in names)
