"""A host's queue: its order, and how much of it is in memory."""

import pytest

from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord, unpacked
from crawlog.streams.fold import rows as r
from crawlog.streams.frontier import schedule
from crawlog.streams.frontier.host import ROW_BYTES, WINDOW, Task
from tests.support.dispatching import Rests, World, pages


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_a_long_queue_keeps_its_order(order: str, written: bool) -> None:
    """Far more URLs than a window holds, in the state's file or not yet."""
    world = World()
    world.job(order=order)
    urls = pages("a.com", 200)
    world.find(*urls)
    if written:
        world.checkpoint()
    assert world.drain() == (urls if order == "fifo" else urls[::-1])


def test_a_higher_priority_goes_first() -> None:
    """Even one that comes when the window is full."""
    world = World()
    world.job()
    world.find(*pages("a.com", 100))
    world.find("http://a.com/high", priority=5)
    world.find("http://a.com/low", priority=-5)
    order = world.drain()
    assert (order[0], order[-1]) == ("http://a.com/high", "http://a.com/low")


def test_a_url_that_goes_back_is_the_next() -> None:
    """It was never tried."""
    world = World()
    world.job()
    world.find(*pages("a.com", 3))
    task = world.next()
    assert task is not None
    world.aborted(task)
    assert world.drain() == pages("a.com", 3)


def test_memory_holds_a_window_of_each_queue() -> None:
    """Thousands of URLs of one host, 30 in memory: of long ones fewer, be they found or read."""
    world = World(Rests(0.0))
    world.job()
    for first in range(0, 2000, 500):
        world.find(*pages("a.com", 500, first))
        world.find(*(f"http://b.com/{'long' * 300}/{n}" for n in range(first, first + 100)))
    world.checkpoint()
    for _ in range(100):
        task = world.next()
        assert isinstance(task, Task)
        world.fetched(task)
        short, long = (world.frontier.owned[0].hosts[f"http://{host}.com:80"] for host in "ab")
        [one], [other] = short.queues.values(), long.queues.values()
        assert len(one.window) <= WINDOW
        assert sum(map(len, other.window)) <= WINDOW * ROW_BYTES


def test_many_hosts_make_windows_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is shared."""
    monkeypatch.setattr(schedule, "WINDOW_BUDGET", 100)
    world = World()
    world.job()
    world.find(*(f"http://h{n}.com/" for n in range(10)))
    world.frontier.size_windows()
    assert world.frontier.schedule.window == 10


def test_a_url_found_nearer_is_fetched_from_there_though_it_was_read_before() -> None:
    """Its row lies in the window, and the change is in a checkpoint already."""
    world = World(Rests(0.0))
    world.job(max_depth=9)
    world.find(*pages("a.com", 3), depth=5)
    world.checkpoint()
    world.find(pages("a.com", 3)[1], depth=2)
    world.checkpoint()
    depths = []
    while isinstance(task := world.next(), Task):
        depths.append(task.row.depth)
        world.fetched(task)
    assert depths == [5, 2, 5]


def test_a_url_that_another_worker_has_done_is_not_fetched_again() -> None:
    """Its done is folded, and in a checkpoint, while its row lies in the window."""
    world = World()
    world.job()
    urls = pages("a.com", 3)
    sequence = (world.offset << r.SEQUENCE_INDEX_BITS) + 1
    world.find(*urls)
    world.take(u.encode(u.UrlsRecord(job="j", results=[u.Result(urls[1], sequence, "fetched", at=world.wall)])))
    world.checkpoint()
    assert world.drain() == [urls[0], urls[2]]


@pytest.mark.parametrize("written", [True, False])
def test_a_long_request_is_read_when_its_turn_comes(written: bool) -> None:
    """A window holds its key alone."""
    world = World(robots=False)
    world.job()
    request = RequestRecord("POST", body=b"x" * 5000)
    world.take(u.encode(u.UrlsRecord("j", 0, urls=[u.FoundUrl("http://a.com/post", id=7, request=request)])))
    if written:
        world.checkpoint()
    [host] = world.frontier.owned[0].hosts.values()
    assert sum(queue.held for queue in host.queues.values()) < 200
    task = world.frontier.next()
    assert isinstance(task, Task)
    assert (task.row.id, unpacked(task.row.request)) == (7, request)
