"""What becomes of a host's URLs by how its robots.txt answers (RFC 9309 2.3.1)."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from crawlog.agents.client.failures import lost_proxy
from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas.control import Action, Command
from crawlog.schemas.urls import RequestRules, ScopeSpec
from crawlog.streams.http.answer import Answer
from crawlog.streams.jobs.commands import Commands
from crawlog.streams.robots import robots
from tests.support.fetching import Web, World, running

FORBIDS = b"User-agent: *\nDisallow: /"


@dataclass
class Host(Web):
    """Answers each request for rules with the next status; a redirect leads to the next hop."""

    statuses: tuple[int | None, ...] = ()
    target: str = ""
    retry_after: str | None = None

    async def get(self, request: HttpRequest) -> Answer:
        """As told."""
        answer, url = await super().get(request), request.url
        if "robots" in url:
            hop = sum("robots" in asked for _, asked in self.asked) - 1
            answer.http = self.statuses[min(hop, len(self.statuses) - 1)]
            answer.retry_after = self.retry_after if answer.http == 503 else None
            answer.body = FORBIDS if answer.http == 200 else b""
            answer.error = "" if answer.http else "timeout"
            answer.location = (self.target or f"/robots{hop}.txt") if answer.http == 301 else ""
        return answer


async def test_robots_txt_is_not_asked_for_before_the_time_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that lies beyond the window for its tries: the next one is the last, and it counts."""
    web = Host(statuses=(503, 200), retry_after="1")
    options = {"robots__obey": True, "robots__attempts": 2, "robots__retry_window_s": 0.1}
    async with running(tmp_path, monkeypatch, web, **options) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert world.became()["http://a.com/x"][:2] == ("refused", "robots")
    first, second = (at for at, _ in web.asked)
    assert second - first >= 1.0


def forget_hosts(world: World) -> None:
    """All that memory alone knows of hosts is gone, as with a worker that is killed."""
    partition = world.stage.live[0]
    for _ in world.stage.frontier.take_over(0, partition.fold, partition.db):
        pass
    world.stage.wake()


async def test_the_time_that_robots_txt_names_counts_for_the_next_worker_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's row in the state says nothing of it: no page was asked for."""
    web = Host(statuses=(503, 200), retry_after="1")
    async with running(tmp_path, monkeypatch, web, robots__obey=True, robots__attempts=2) as world:
        world.find("http://a.com/x")
        await world.until(lambda: web.ended and not world.fetcher._running)
        forget_hosts(world)
        await world.all_done("http://a.com/x")
        assert world.became()["http://a.com/x"][:2] == ("refused", "robots")
    first, second = (at for at, _ in web.asked)
    assert second - first >= 1.0


async def test_a_url_is_not_asked_for_before_the_time_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any status that is tried again (RFC 9110 10.2.3), within the limit; other URLs of the host go on."""

    class Broken(Web):
        async def get(self, request: HttpRequest) -> Answer:
            answer = await super().get(request)
            answer.retry_after = "86400" if answer.http == 502 else "30"
            return answer

    web = Broken(status={"http://a.com/x": 500, "http://a.com/y": 502})
    async with running(tmp_path, monkeypatch, web, politeness__max_delay_s=60.0) as world:
        world.find("http://a.com/x", "http://a.com/y", "http://a.com/z")
        await world.all_done("http://a.com/x", "http://a.com/y", "http://a.com/z")
        waits = {done.url[-1]: (done.delay_s, done.host_wait_s) for done in world.log.dones}
    assert waits == {"x": (30.0, 0.0), "y": (60.0, 0.0), "z": (0.0, 0.0)}


@pytest.mark.parametrize(
    ("statuses", "target", "verdict"),
    [
        ((200,), "", ("refused", "robots")),
        *(((status,), "", ("fetched", "")) for status in (204, 400, 401, 403, 404, 410)),
        *(((status,), "", ("failed", f"robots_unreachable: http_{status}")) for status in (429, 500, 503)),
        ((None,), "", ("failed", "robots_unreachable: timeout")),
        ((503, 200), "", ("refused", "robots")),
        ((301,) * 5 + (200,), "", ("refused", "robots")),
        ((301,) * 6 + (200,), "", ("fetched", "")),
        ((301, 200), "http://[", ("fetched", "")),
        ((301, 200), "https://other.example/robots-of-others", ("refused", "robots")),
    ],
)
async def test_an_answer_to_robots_txt_has_its_meaning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    statuses: tuple[int | None, ...],
    target: str,
    verdict: tuple[str, str],
) -> None:
    """2xx counts, 4xx allows all, 429, 5xx and silence forbid all and are asked again; five redirects are followed."""
    web = Host(statuses=statuses, target=target)
    options = {"robots__obey": True, "robots__attempts": 2, "robots__retry_window_s": 0.1}
    async with running(tmp_path, monkeypatch, web, **options) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert world.became()["http://a.com/x"][:2] == verdict


async def test_old_rules_count_on_where_newer_ones_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9309 2.4. They are tried again after a pause, not for each URL, also if the host has left memory."""
    web = Host(statuses=(200, 503))
    async with running(tmp_path, monkeypatch, web, robots__obey=True, robots__attempts=2) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        world.robots._access.ttl_s = 0.0
        for url in ("http://a.com/y", "http://a.com/z"):
            world.stage.frontier.size_windows()
            assert not world.stage.frontier.owned[0].hosts
            world.find(url)
            await world.all_done(url)
        assert {became[:2] for became in world.became().values()} == {("refused", "robots")}
    assert len(web.asked) == 1 + 2


@pytest.mark.parametrize("restart", [False, True])
async def test_a_host_whose_old_rules_count_on_is_not_asked_before_the_time_that_it_names(
    restart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last attempt at newer ones is an answer of the host as any other."""
    web = Host(statuses=(404, 503), retry_after="1")
    async with running(tmp_path, monkeypatch, web, robots__obey=True, robots__attempts=1) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        world.robots._access.ttl_s = 0.0
        world.stage.frontier.size_windows()
        world.find("http://a.com/y")
        await world.until(lambda: len(web.ended) == 3 and not world.fetcher._running)
        if restart:
            forget_hosts(world)
        await world.all_done("http://a.com/y")
        assert world.became()["http://a.com/y"][0] == "fetched"
    vain, page = (at for at, _ in web.asked[-2:])
    assert page - vain >= 1.0


async def test_a_host_that_is_closed_fails_its_urls_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it asks to wait: nothing more is asked of it."""
    web = Host(statuses=(503,), retry_after="60")
    async with running(tmp_path, monkeypatch, web, robots__obey=True, robots__attempts=1) as world:
        world.find("http://a.com/x", "http://a.com/y")
        await world.until(lambda: len(world.became()) == 2, 10.0)
        assert {became[:2] for became in world.became().values()} == {("failed", "robots_unreachable: http_503")}
    assert len(web.asked) == 1


@pytest.mark.parametrize(
    ("lost", "verdict", "requests"),
    [(3, ("refused", "robots"), 5), (99, ("failed", "robots_unreachable: proxy"), 4)],
)
async def test_a_proxy_that_fails_is_no_failure_of_robots_txt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, verdict: tuple[str, str], requests: int
) -> None:
    """It is waited for as often as for a page, and the host has all its own tries afterwards."""

    class Proxied(Host):
        async def get(self, request: HttpRequest) -> Answer:
            answer = await super().get(request)
            return lost_proxy() if len(self.asked) <= lost else answer

    web = Proxied(statuses=(503, 503, 503, 503, 200) if lost == 3 else (200,))
    options = {"robots__obey": True, "robots__attempts": 2, "fetch__attempts": 4}
    async with running(tmp_path, monkeypatch, web, **options) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        assert world.became()["http://a.com/x"][:2] == verdict
    assert len(web.asked) == requests


@dataclass
class Choosy(Web):
    """Answers each agent for robots.txt in its own way: with a status, or never."""

    statuses: dict[str, int | None] = field(default_factory=dict)

    async def get(self, request: HttpRequest) -> Answer:
        """As told."""
        answer = await super().get(request)
        if request.url.endswith("/robots.txt") and request.policy is not None:
            answer.http = self.statuses[request.policy.rules.user_agent]
            answer.body, answer.error = FORBIDS, "" if answer.http else "timeout"
        return answer


@pytest.mark.parametrize(
    ("one", "other", "verdicts", "requests"),
    [
        (403, 200, [("fetched", ""), ("refused", "robots")], 2),
        (200, 403, [("refused", "robots"), ("refused", "robots")], 1),
        (403, 404, [("fetched", ""), ("fetched", "")], 2),
        (None, 404, [("failed", "robots_unreachable: timeout"), ("fetched", "")], 3),
        (503, 503, [("failed", "robots_unreachable: http_503")] * 2, 4),
    ],
)
async def test_an_answer_to_one_agent_decides_for_another_one_only_if_it_is_a_robots_txt(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one: int | None,
    other: int | None,
    verdicts: list[tuple[str, str]],
    requests: int,
) -> None:
    """Jobs that take turns on a host ask no more often for it."""
    web = Choosy(statuses={"one": one, "other": other})
    async with running(tmp_path, monkeypatch, web, robots__obey=True, robots__attempts=2) as world:
        for job in ("one", "other"):
            world.job(job, requests=RequestRules(user_agent=job))
            world.find(f"http://a.com/{job}", job=job)
            await world.all_done(f"http://a.com/{job}")
        assert [world.became()[f"http://a.com/{job}"][:2] for job in ("one", "other")] == verdicts
        urls = [f"http://a.com/{job}/{n}" for n in range(3) for job in ("one", "other")]
        for url in urls:
            world.find(url, job=url.split("/")[3])
        await world.all_done(*urls)
        expected = [verdicts[1] if 200 in (one, other) else verdicts[job == "other"] for job in ("one", "other") * 3]
        assert [world.became()[url][:2] for url in urls] == expected
    assert web.times("http://a.com:80/robots.txt") == requests


async def test_a_job_without_patience_closes_no_host_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attempts end before a slow answer; those of a job with more time are counted by themselves."""

    class Slow(Web):
        async def get(self, request: HttpRequest) -> Answer:
            answer = await super().get(request)
            is_short = request.policy is not None and request.policy.rules.timeout_s < 2.0
            return Answer(None, "timeout") if is_short and request.url.endswith("/robots.txt") else answer

    async with running(tmp_path, monkeypatch, Slow(), robots__obey=True, robots__attempts=2) as world:
        world.job("hasty", requests=RequestRules(timeout_s=1.0))
        world.job("usual")
        world.find("http://a.com/x", job="hasty")
        await world.until(world.became)
        world.find("http://a.com/y", job="usual")
        await world.all_done("http://a.com/x", "http://a.com/y")
        became = world.became()
    assert became["http://a.com/x"][:2] == ("failed", "robots_unreachable: timeout")
    assert became["http://a.com/y"][:2] == ("fetched", "")


@dataclass
class Verbose(Web):
    """Each host has a file of its own, which forbids /no."""

    async def get(self, request: HttpRequest) -> Answer:
        """As told."""
        answer, url = await super().get(request), request.url
        if url.endswith("/robots.txt"):
            lines = b"".join(b"Disallow: /%d\n" % n for n in range(100))
            answer.http, answer.body = 200, b"# %s\nUser-agent: *\nDisallow: /no\n%s" % (url.encode(), lines)
        return answer


async def test_rules_that_had_to_make_room_are_read_again_and_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host's robots.txt is asked for once, and obeyed to the last URL, where there is room for two of six."""
    monkeypatch.setattr(robots, "HELD_BYTES", 50_000)
    web = Verbose()
    hosts = [f"http://n{i}.com" for i in range(6)]
    urls = [f"{host}/{path}" for path in ("a", "no", "b", "no/2", "c") for host in hosts]
    async with running(tmp_path, monkeypatch, web, robots__obey=True, politeness__delay_s=0.02) as world:
        world.find(*urls)
        await world.all_done(*urls)
        became = world.became()
        assert world.robots.rules.size_bytes < 60_000
    assert {url for url in urls if became[url][:2] == ("refused", "robots")} == {url for url in urls if "/no" in url}
    assert {url for url in urls if became[url][0] == "fetched"} == {url for url in urls if "/no" not in url}
    assert [web.times(f"{host}:80/robots.txt") for host in hosts] == [1] * len(hosts)
    assert not any("/no" in url for _, url in web.asked)


@dataclass
class Parked(Web):
    """Names whose robots.txt is at another one, and back again from there."""

    to: dict[str, str] = field(default_factory=dict)

    async def get(self, request: HttpRequest) -> Answer:
        """A redirect where one is named."""
        answer, url = await super().get(request), request.url
        target = self.to.get(url.replace(":80/", "/"))
        if target is not None:
            answer.http, answer.location = 301, target
        return answer


async def test_a_host_that_robots_txt_of_many_redirect_to_rests_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the log of the site."""
    names = [f"http://n{i}.com" for i in range(5)]
    web = Parked(to={f"{name}/robots.txt": "http://parked.org/robots-of-all" for name in names})
    async with running(tmp_path, monkeypatch, web, robots__obey=True, politeness__delay_s=0.2) as world:
        world.find(*(f"{name}/x" for name in names))
        await world.all_done(*(f"{name}/x" for name in names))
    asked = [at for at, url in web.asked if "parked.org" in url]
    assert len(asked) == 5
    assert min(later - earlier for earlier, later in pairwise(asked)) >= 0.2


async def test_hosts_whose_robots_txt_redirect_to_each_other_do_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds its own place while it waits for the other's."""
    web = Parked(to={"http://a.com/robots.txt": "http://b.com/r", "http://b.com/robots.txt": "http://a.com/r"})
    async with running(tmp_path, monkeypatch, web, robots__obey=True, politeness__delay_s=0.2) as world:
        world.find("http://a.com/x", "http://b.com/x")
        await world.all_done("http://a.com/x", "http://b.com/x")
    for name in ("a.com", "b.com"):
        asked = [at for at, url in web.asked if name in url]
        assert min(later - earlier for earlier, later in pairwise(asked)) >= 0.2


async def test_a_pause_elsewhere_holds_no_host_whose_rules_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its robots.txt is due again, and redirects to the paused host: the older rules count on."""
    web = Parked(to={"http://a.com/robots.txt": "http://b.com/r"})
    async with running(tmp_path, monkeypatch, web, robots__obey=True, robots__attempts=2) as world:
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        world.robots._access.ttl_s = 0.0
        world.stage.frontier.size_windows()
        world.stage.frontier.obey(Commands([Command("pause", host="b.com")]))
        world.find("http://a.com/y")
        await world.all_done("http://a.com/y")
        assert world.became()["http://a.com/y"][:2] == ("fetched", "")
    assert web.times("http://a.com:80/robots.txt") == 1 + 2


@pytest.mark.parametrize(
    ("action", "verdict"), [("block", ("failed", "robots_unreachable: control")), ("pause", ("fetched", ""))]
)
async def test_a_host_that_a_command_holds_is_not_asked_for_the_robots_txt_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Action, verdict: tuple[str, str]
) -> None:
    """A pause is waited for; nobody waits for the end of a block."""
    monkeypatch.setattr("crawlog.agents.fetch.robots.HELD_S", 0.02)
    web = Parked(to={"http://a.com/robots.txt": "http://b.com/r"})
    async with running(tmp_path, monkeypatch, web, robots__obey=True) as world:
        world.stage.frontier.obey(Commands([Command(action, host="b.com")]))
        world.find("http://a.com/x")
        await world.until(lambda: web.times("http://a.com:80/robots.txt") > 2)
        if action == "pause":
            assert not world.became()
            await world.until(lambda: web.times("http://a.com:80/robots.txt") > 5)
            assert not any("b.com" in url for _, url in web.asked)
            world.stage.frontier.obey(Commands([]))
        await world.all_done("http://a.com/x")
        assert world.became()["http://a.com/x"][:2] == verdict
    assert any("b.com" in url for _, url in web.asked) is (action == "pause")


async def test_a_queued_url_ends_without_a_request_when_the_scope_is_narrowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `jobs update` narrows it; the shorter delay of the same record ends the rest under way."""
    web = Web()
    async with running(tmp_path, monkeypatch, web) as world:
        slow = RequestRules(delay_s=3600.0, robots=False)
        world.job(requests=slow)
        world.find("http://a.com/1", "http://a.com/old/2", "http://a.com/3")
        await world.all_done("http://a.com/1")
        assert [url for _, url in web.asked] == ["http://a.com/1"]
        quick = RequestRules(delay_s=0.0, robots=False)
        world.job(rev=2, requests=quick, scope=ScopeSpec(kind="any", exclude=("/old/",)))
        await world.all_done("http://a.com/old/2", "http://a.com/3")
        assert [url for _, url in web.asked] == ["http://a.com/1", "http://a.com/3"]
        assert world.became()["http://a.com/old/2"] == ("refused", "scope", "exclude")
