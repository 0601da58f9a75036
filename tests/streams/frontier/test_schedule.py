"""Two jobs on one host: the rest between requests, requests at a time, and how a changed record is obeyed."""

from typing import Any

import pytest

from crawlog.schemas import urls as u
from crawlog.schemas.control import Command
from crawlog.streams.frontier.host import RobotsTask, Task
from crawlog.streams.jobs.commands import Commands
from crawlog.streams.requests.request_rules import WorkerLimits
from crawlog.streams.robots.robots import RobotsRules
from tests.support.dispatching import World

HOST = "a.com"
SLOW, FAST = 5.0, 1.0


def rules(delay_s: float, per_host: int = 1, **others: Any) -> u.RequestRules:
    """Of a job."""
    return u.RequestRules(delay_s, per_host, **({"robots": False} | others))


def free(slow: int = 5, fast: int = 5, *, per_host: tuple[int, int] = (1, 1)) -> World:
    """A world whose model has no delay of its own, and two jobs with so many URLs of one host."""
    world = World()
    world.rests.delay_s, world.rests.per_host = 0.0, 9
    world.job("slow", requests=rules(SLOW, per_host[0]))
    world.job("fast", requests=rules(FAST, per_host[1]))
    find(world, "slow", slow)
    find(world, "fast", fast)
    return world


def find(world: World, job: str, count: int) -> None:
    """URLs of a job on the host."""
    if count:
        world.find(*(f"http://{HOST}/{job}/{n}" for n in range(count)), job=job)


def asked(world: World) -> Task:
    """The next request, as soon as there is one; it ends at once."""
    task = world.next()
    while task is None:
        at = world.frontier.next_at()
        assert at is not None, "nothing is left to ask"
        world.pass_time(max(at - world.clock, 0.0))
        task = world.next()
    assert isinstance(task, Task)
    world.fetched(task)
    world.fold_dones()
    return task


def told(world: World, robots: bytes) -> None:
    """The next request is for robots.txt, which says this."""
    task = world.next()
    assert isinstance(task, RobotsTask)
    world.fetched(task)
    task.host.rules, task.host.rules_until = RobotsRules.parse(robots), world.clock + 1e6


def times(world: World, count: int) -> list[tuple[str, float]]:
    """The next requests: whose, and how long after the first of them."""
    made = [(asked(world).job.name, world.clock) for _ in range(count)]
    return [(name, round(at - made[0][1], 3)) for name, at in made]


@pytest.mark.parametrize(
    ("slow", "fast", "expected"),
    [
        (0, 3, [("fast", 0), ("fast", 1), ("fast", 2)]),
        (3, 0, [("slow", 0), ("slow", 5), ("slow", 10)]),
        (2, 2, [("slow", 0), ("fast", 5), ("slow", 10), ("fast", 15)]),
        (1, 3, [("slow", 0), ("fast", 5), ("fast", 6), ("fast", 7)]),
    ],
)
def test_a_host_rests_the_greatest_delay_of_its_jobs(slow: int, fast: int, expected: list[tuple[str, float]]) -> None:
    """Of those that have something on it; and of the one that asked last, until its own delay has passed."""
    assert times(free(slow, fast), len(expected)) == expected


def test_a_slower_job_counts_from_when_it_has_something() -> None:
    """1 a fast job asks → 2 a slow one finds something there → 3 the next request comes after the slow one's delay."""
    world = free(0, 5)
    asked(world)
    began = world.clock
    world.pass_time(0.5)
    find(world, "slow", 1)
    asked(world)
    assert world.clock == began + SLOW


@pytest.mark.parametrize("per_host", [(1, 4), (4, 1)])
def test_the_fewest_requests_at_a_time_hold(per_host: tuple[int, int]) -> None:
    """While both jobs have something on the host, or the stricter one a request under way."""
    world = free(1, 8, per_host=per_host)
    first = world.next()
    assert isinstance(first, Task)
    world.pass_time(60)
    assert world.next() is None
    world.fetched(first)
    world.fold_dones()
    world.pass_time(60)
    second = world.next()
    assert second is not None
    world.pass_time(60)
    assert (world.next() is not None) == (per_host == (1, 4))


@pytest.mark.parametrize(("delay_s", "left_s"), [(1.0, 0.0), (4.0, 2.0), (60.0, 58.0)])
def test_a_changed_record_changes_the_rest_under_way(delay_s: float, left_s: float) -> None:
    """Up and down, counted from the request that the host rests after."""
    world = free(5, 0)
    asked(world)
    world.pass_time(2)
    world.job("slow", rev=2, requests=rules(delay_s))
    began = world.clock
    asked(world)
    assert world.clock - began == left_s


def test_a_worker_keeps_its_own_delay_for_jobs_that_want_less() -> None:
    """Beside a slower job too: the greatest of all holds."""
    world = World()
    world.rests.delay_s = 0.0
    world.frontier.schedule.limits = WorkerLimits(delay_s=3.0, per_host=1)
    world.job("fast", requests=rules(FAST, 4))
    find(world, "fast", 3)
    assert times(world, 3) == [("fast", 0), ("fast", 3), ("fast", 6)]
    world.job("slow", requests=rules(SLOW, 4))
    find(world, "slow", 2)
    find(world, "fast", 6)
    assert [at for _, at in times(world, 3)] == [0, 5, 10]


def test_a_worker_keeps_to_its_own_number_of_requests_at_a_time() -> None:
    """Whatever its jobs would allow."""
    world = World()
    world.rests.delay_s, world.rests.per_host = 0.0, 9
    world.frontier.schedule.limits = WorkerLimits(per_host=2)
    world.job("j", requests=rules(0.0, 4))
    find(world, "j", 9)
    assert [world.next() is not None for _ in range(3)] == [True, True, False]


def test_what_a_worker_may_not_ask_for_slows_nobody() -> None:
    """It stays queued, perhaps for ever; the job that was asked for last still counts until its delay has passed."""
    world = free(2, 4)
    task = world.next()
    assert isinstance(task, Task)
    assert task.job.name == "slow"
    task.partition.lack(task.host, task.job.number, "a setting")
    world.aborted(task)
    assert times(world, 3) == [("fast", 0), ("fast", 1), ("fast", 2)]


@pytest.mark.parametrize("state", ["stopped", "cancelled"])
def test_a_job_that_does_not_go_on_slows_nobody(state: Any) -> None:
    """Its queue stays for ever."""
    world = free(5, 5)
    world.job("slow", rev=2, requests=rules(SLOW), state=state)
    assert times(world, 3) == [("fast", 0), ("fast", 1), ("fast", 2)]


def test_a_paused_job_slows_nobody_and_an_end_of_that_does() -> None:
    """As its commands are heard."""
    world = free(5, 5)
    world.frontier.obey(Commands([Command(action="pause", job="slow")]))
    assert times(world, 2) == [("fast", 0), ("fast", 1)]
    world.frontier.obey(Commands())
    began = world.clock
    asked(world)
    assert world.clock - began == SLOW


def test_after_a_restore_the_greatest_delay_passes() -> None:
    """A request in flight at the crash left no trace, whosever it was."""
    world = free(2, 2)
    world.crash()
    began = world.clock
    asked(world)
    assert world.clock - began == SLOW


def test_a_crawl_delay_is_cut_to_what_each_job_grants() -> None:
    """The longer one counts."""
    world = World()
    world.job("slow", requests=rules(1.0, max_delay_s=30.0, robots=True))
    world.job("fast", requests=rules(1.0, max_delay_s=10.0, robots=True))
    find(world, "slow", 3)
    find(world, "fast", 3)
    told(world, b"User-agent: *\nCrawl-delay: 600")
    asked(world)
    began = world.clock
    asked(world)
    assert world.clock - began == 30.0


@pytest.mark.parametrize("token", ["slowbot", "otherbot"])
def test_a_crawl_delay_is_for_the_token_that_it_names(token: str) -> None:
    """A job with another one does not rest for it."""
    world = World()
    world.job("j", requests=rules(1.0, robots=True), token=token)
    find(world, "j", 3)
    told(world, b"User-agent: slowbot\nCrawl-delay: 20")
    asked(world)
    began = world.clock
    asked(world)
    assert world.clock - began == (20.0 if token == "slowbot" else 1.0)


def test_only_a_job_that_obeys_robots_txt_waits_for_it() -> None:
    """The other one asks a host of which nothing is known."""
    world = free(0, 0)
    world.job("deaf", requests=rules(0.0))
    find(world, "deaf", 1)
    assert asked(world).job.name == "deaf"
    world.job("polite", requests=rules(0.0, robots=True))
    find(world, "polite", 1)
    assert isinstance(world.next(), RobotsTask)


def test_a_record_without_rules_is_asked_by_the_workers() -> None:
    """Those of older versions, and what bare records begin."""
    world = World()
    world.job("old")
    find(world, "old", 3)
    assert times(world, 3) == [("old", 0), ("old", 1), ("old", 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_s": -1},
        {"per_host": 0},
        {"max_delay_s": -0.5},
        {"delay_s": "1e999"},
        {"per_host": "x"},
        {"headers": '["Host: b.com"]'},
        {"headers": '["a"]'},
        {"user_agent": '"a\\nb"'},
    ],
)
def test_rules_that_no_host_can_be_asked_by_are_no_record(wrong: dict[str, Any]) -> None:
    """Any client may write one: it becomes a dead letter, and the fold goes on."""
    world = World()
    fields = ", ".join(f'"{name}": {value}' for name, value in wrong.items())
    record = f'{{"v": 1, "job": "j", "spec": {{"requests": {{{fields}}}}}}}'.encode()
    assert world.fold.take(record, 0, 0.0).dead
    assert "j" not in world.fold.jobs
