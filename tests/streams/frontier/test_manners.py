"""What a worker may not ask for, though its job wants it: it stays queued and says what it needs; others go on."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas import urls as u
from crawlog.schemas.control import Command
from crawlog.streams.frontier.host import Task
from crawlog.streams.frontier.policies import LACKS_S
from crawlog.streams.http.answer import Answer
from crawlog.streams.jobs.commands import Commands
from crawlog.streams.requests.request_rules import (
    NEEDS_GROUP,
    NEEDS_LAX_TLS,
    NEEDS_PRIVATE,
    NEEDS_PROXIES,
    WorkerLimits,
)
from tests.support.dispatching import World, pages
from tests.support.fetching import Web, running
from tests.support.fetching import World as Fetching

INSIDE, OUTSIDE = "http://a.com", "http://b.com"
PRIVATE = "private_address: private address 10.0.0.1"


def lacking(world: World, job: str, host: str) -> Task:
    """The next task, of which the worker may not ask; it is given back."""
    task = world.next_page()
    assert (task.job.name, task.host.key) == (job, host)
    task.partition.lack(task.host, task.job.number, NEEDS_PRIVATE)
    world.unsent(task)
    world.out.discard(task.row.url)
    world.frontier.back(task)
    return task


def two_jobs() -> World:
    """Two jobs with URLs of one host, one of them also of another host."""
    world = World()
    for job in ("one", "two"):
        world.job(job)
        world.find(*(f"{INSIDE}/{job}/{n}" for n in range(3)), job=job)
    world.find(f"{OUTSIDE}/one", job="one")
    return world


def test_one_job_stays_queued_on_one_host_and_all_else_goes_on() -> None:
    """Its other hosts, and the other job on that host."""
    world = two_jobs()
    task = lacking(world, "one", f"{INSIDE}:80")
    assert sorted(world.drain_until(LACKS_S)) == sorted([f"{OUTSIDE}/one", *(f"{INSIDE}/two/{n}" for n in range(3))])
    assert world.frontier.owned[0].needs(task.job.number) == {NEEDS_PRIVATE: 3}
    assert world.fold.jobs["one"].counts.queued == 3


def test_it_is_tried_again_after_a_while() -> None:
    """A name may have another address by then; each time one look."""
    world = two_jobs()
    began = world.clock
    lacking(world, "one", f"{INSIDE}:80")
    world.drain_until(LACKS_S)
    at = world.frontier.next_at()
    assert at == began + LACKS_S
    world.pass_time(at - world.clock)
    lacking(world, "one", f"{INSIDE}:80")
    assert world.next() is None
    world.pass_time(LACKS_S)
    assert sorted(world.drain()) == [f"{INSIDE}/one/{n}" for n in range(3)]


def test_a_changed_record_is_tried_at_once() -> None:
    """It may want no private network any more."""
    world = two_jobs()
    task = lacking(world, "one", f"{INSIDE}:80")
    world.drain_until(LACKS_S)
    world.job("one", rev=2)
    assert world.frontier.owned[0].needs(task.job.number) == {}
    assert len(world.drain()) == 3


def test_a_retry_that_is_due_stays_queued_too() -> None:
    """And comes once its turn is there again."""
    world = World()
    world.job()
    world.find(*pages("a.com", 2))
    first = world.next_page()
    world.retry(first, 5.0)
    world.fold_dones()
    world.pass_time(1.0)
    lacking(world, "j", f"{INSIDE}:80")
    assert world.drain_until(LACKS_S) == []
    assert sorted(world.drain()) == sorted(pages("a.com", 2))


def test_a_command_between_does_not_lose_it() -> None:
    """Commands have all hosts looked at once more."""
    world = two_jobs()
    task = lacking(world, "one", f"{INSIDE}:80")
    for commands in (Commands([Command(action="pause", job="two")]), Commands()):
        world.frontier.obey(commands)
    assert len(world.drain_until(LACKS_S)) == 4
    assert world.frontier.owned[0].needs(task.job.number) == {NEEDS_PRIVATE: 3}
    assert len(world.drain()) == 3


@pytest.mark.parametrize("awake", [0, 1])
def test_a_host_that_gives_its_place_is_told_of_and_comes_back(awake: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be more hosts than are held in memory."""
    monkeypatch.setattr("crawlog.streams.frontier.schedule.HOSTS_AWAKE", awake + 1)
    world = two_jobs()
    task = lacking(world, "one", f"{INSIDE}:80")
    world.find(*(f"http://n{n}.com/" for n in range(5)), job="two")
    world.frontier.size_windows()
    assert len(world.drain_until(LACKS_S)) == 9
    assert world.frontier.owned[0].needs(task.job.number) == {NEEDS_PRIVATE: 3}
    assert len(world.drain()) == 3


def test_rows_of_a_job_that_begins_again_need_nothing() -> None:
    """They are gone."""
    world = two_jobs()
    task = lacking(world, "one", f"{INSIDE}:80")
    world.take(u.encode(u.UrlsRecord(job="one", epoch=1, rewind=u.Rewind())))
    assert world.frontier.owned[0].needs(task.job.number) == {}


def test_a_job_that_wants_proxies_is_not_asked_for_without_one() -> None:
    """Not even for the addresses of its hosts; another job on them goes on."""
    world = two_jobs()
    world.frontier.schedule.limits = WorkerLimits(has_proxies=False)
    named: list[str] = []

    def is_named(host: str) -> bool:
        named.append(host)
        return True

    world.frontier.is_named = is_named
    world.job("one", rev=2, requests=u.RequestRules(proxied=True, robots=False))
    assert sorted(world.drain_until(1e6)) == [f"{INSIDE}/two/{n}" for n in range(3)]
    assert set(named) == {f"{INSIDE}:80"}
    owned, job = world.frontier.owned[0], world.fold.jobs["one"]
    assert owned.needs(job.number) == {NEEDS_PROXIES: 4}
    world.job("one", rev=3, requests=u.RequestRules(proxied=False, robots=False))
    assert owned.needs(job.number) == {}
    assert len(world.drain()) == 4


def test_a_job_of_a_group_of_exits_is_not_asked_for_by_a_worker_without_it() -> None:
    """Its URLs stay queued, and the worker reports the setting."""
    world = two_jobs()
    world.frontier.schedule.limits = WorkerLimits(exit_groups=frozenset(("", "eu")))
    world.job("one", rev=2, requests=u.RequestRules(exit_group="us", robots=False))
    assert sorted(world.drain_until(1e6)) == [f"{INSIDE}/two/{n}" for n in range(3)]
    owned, job = world.frontier.owned[0], world.fold.jobs["one"]
    assert owned.needs(job.number) == {NEEDS_GROUP: 4}
    world.job("one", rev=3, requests=u.RequestRules(exit_group="eu", robots=False))
    assert len(world.drain()) == 4


def refused(url: str, *, is_closed: bool = True, error: str = PRIVATE) -> Answer:
    """The guard's answer, or a certificate's."""
    answer = Answer(None, error)
    answer.private = error == PRIVATE
    answer.is_closed = is_closed and answer.private
    return answer


class Closed(Web):
    """Private hosts, by URL; a.com with all its pages."""

    error = PRIVATE

    async def get(self, request: HttpRequest) -> Answer:
        """As the real client, by the rules of the job."""
        answer, url = await super().get(request), request.url
        assert request.policy is not None
        rules = request.policy.rules
        is_open = rules.allow_private if self.error == PRIVATE else not rules.verify_tls
        if "//a.com" not in url or is_open:
            return answer
        answer.held.give()
        return refused(url, error=self.error)


class Uncertified(Closed):
    """The same by their certificates."""

    error = "tls_certificate"


def job(world: Fetching, name: str, **rules: Any) -> None:
    """A job whose record has such rules."""
    usual = world.stage.frontier.usual.rules
    world.job(name, requests=structs.replace(usual, **rules))


@pytest.mark.parametrize("obey", [False, True])
@pytest.mark.parametrize(
    ("web", "wanted", "setting"),
    [
        (Closed, {"allow_private": True}, NEEDS_PRIVATE),
        (Uncertified, {"verify_tls": False}, NEEDS_LAX_TLS),
    ],
)
async def test_what_the_job_may_and_the_worker_may_not_stays_queued(
    obey: bool, web: type[Closed], wanted: dict[str, Any], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a job that may not either, it ends; with robots.txt on that host or without."""
    async with running(tmp_path, monkeypatch, web(), robots__obey=obey, fetch__attempts=1, robots__attempts=1) as world:
        job(world, "wants", **wanted)
        job(world, "not")
        for name in ("wants", "not"):
            world.find(*(f"http://a.com/{name}{n}" for n in range(3)), f"http://b.com/{name}", job=name)
        await world.all_done("http://b.com/wants", "http://b.com/not", *(f"http://a.com/not{n}" for n in range(3)))

        def needs() -> dict[str, int]:
            (report,) = world.stage.reports()
            return report.jobs["wants"].needs

        await world.until(lambda: needs() == {setting: 3})
        became = world.became()
        assert not any(url.startswith("http://a.com/wants") for url in became)
        assert {became[f"http://a.com/not{n}"][0] for n in range(3)} == {"failed"}
        assert all(web.error in became[f"http://a.com/not{n}"][1] for n in range(3))
        (report,) = world.stage.reports()
        assert report.jobs["wants"].queued == 3
        assert report.jobs["not"].needs == {}


@pytest.mark.parametrize("web", [Closed, Uncertified])
async def test_a_job_that_may_not_ask_a_host_keeps_no_other_from_it(
    web: type[Closed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it met the host first, and could not read its robots.txt."""
    lax = {"network__allow_private": True, "network__verify_tls": False}
    async with running(tmp_path, monkeypatch, web(), robots__obey=True, robots__attempts=1, **lax) as world:
        job(world, "not", allow_private=False, verify_tls=True)
        world.find("http://a.com/not", job="not")
        await world.all_done("http://a.com/not")
        job(world, "may")
        world.find("http://a.com/may", job="may")
        await world.all_done("http://a.com/may")
        assert world.became()["http://a.com/not"][:2] == ("failed", f"robots_unreachable: {web.error}")
        assert world.became()["http://a.com/may"][0] == "fetched"
