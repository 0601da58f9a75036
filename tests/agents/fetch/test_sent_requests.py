"""Rows with a request: it is sent as it says, and its page repeats it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.http.answer import Answer
from tests.support.fetching import URLS, RealWeb, World, running
from tests.support.listening import Listener
from tests.support.raw_http import served

POST = RequestRecord(
    "POST",
    headers=(("X-A", "1"),),
    body=b"a=\xff",
    callback="parse_two",
    kwargs={"price": 1},
    meta={"depth": [1, {"b": "c"}]},
)
URL = "http://a.com/x"


def find(world: World, *founds: u.FoundUrl) -> None:
    """Founds, with or without requests."""
    world.log.send(URLS, u.encode(u.UrlsRecord("j", 0, urls=list(founds))))


def seen(world: World, monkeypatch: pytest.MonkeyPatch, **facts: Any) -> list[HttpRequest]:
    """The requests that the client gets from now on; its answers have these facts."""
    asked: list[HttpRequest] = []
    get = world.web.get

    async def watched(request: HttpRequest) -> Answer:
        asked.append(request)
        answer = await get(request)
        for name, value in facts.items():
            setattr(answer, name, value)
        return answer

    monkeypatch.setattr(world.web, "get", watched)
    return asked


async def test_a_request_is_sent_whole_and_repeated_by_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a plain GET of the same URL, which has a page of its own."""
    headers = (("Set-Cookie", "a=1"), ("X-B", "2"))
    async with running(tmp_path, monkeypatch) as world:
        asked = seen(world, monkeypatch, headers=headers)
        find(world, u.FoundUrl(URL, id=7, request=POST), u.FoundUrl(URL))
        await world.until(lambda: len(world.log.dones) == 2 and world.is_folded)
        pages = [meta for meta, _ in world.log.pages]
    assert [(one.url, one.record, one.all_headers) for one in asked] == [(URL, POST, True), (URL, None, False)]
    assert [one.any_type for one in asked] == [True, False], "a POST is made for its answer"
    posted, plain = pages
    assert (posted.id, posted.request, posted.attempt, posted.headers) == (7, POST, 1, headers)
    assert (plain.id, plain.request) == (0, None)
    assert [done.id for done in world.log.dones] == [7, 0]


async def test_a_sitemap_is_asked_for_in_gzip_and_stays_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse reads more of it than a page may have; no browser sees it."""
    async with running(tmp_path, monkeypatch) as world:
        world.job(rev=2, render=u.RenderRules(mode="auto"))
        asked = seen(world, monkeypatch)
        find(world, u.FoundUrl(URL, source="sitemap"), u.FoundUrl(f"{URL}y"))
        await world.until(lambda: len(world.log.dones) == 2 and world.is_folded)
    sitemap, page = sorted(asked, key=lambda one: one.url)
    assert (sitemap.headers, sitemap.as_came) == ({"Accept-Encoding": "gzip"}, True)
    assert (page.headers, page.as_came) == (None, False)


async def test_a_job_with_a_spider_keeps_all_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of plain GETs: its `response.headers` has them."""
    async with running(tmp_path, monkeypatch) as world:
        world.job(rev=2, spider="shop.py:Shop")
        asked = seen(world, monkeypatch, headers=(("X-B", "2"),))
        world.find(URL)
        await world.all_done(URL)
        assert asked[0].all_headers
        assert [meta.headers for meta, _ in world.log.pages] == [(("X-B", "2"),)]


async def test_a_request_has_its_own_attempts_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the worker's limits; its page says which attempt it answers."""
    limits: dict[str, Any] = {"limits__attempts": 4, "fetch__retry_delay_s": 0.01, "fetch__timeout_s": 9.0}
    async with running(tmp_path, monkeypatch, **limits) as world:
        asked = seen(world, monkeypatch, http=503)
        many, one = RequestRecord(attempts=9, timeout_s=40.0), RequestRecord(attempts=1)
        find(world, u.FoundUrl("http://a.com/many", request=many), u.FoundUrl("http://b.com/one", request=one))
        await world.until(lambda: len(world.log.pages) == 2)
        attempts = {meta.url: meta.attempt for meta, _ in world.log.pages}
    assert attempts == {"http://a.com/many": 4, "http://b.com/one": 1}
    assert {request.policy.rules.timeout_s for request in asked if request.policy} == {40.0, 9.0}


@pytest.mark.parametrize(("repeats", "times"), [(True, 3), (False, 1)])
async def test_a_job_may_say_that_posts_are_not_repeated(
    repeats: bool, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain GET is."""
    async with running(tmp_path, monkeypatch, fetch__retry_delay_s=0.01, fetch__repeat_posts=repeats) as world:
        asked = seen(world, monkeypatch, http=503)
        find(world, u.FoundUrl(URL, id=7, request=POST), u.FoundUrl("http://b.com/"))
        await world.until(lambda: len(world.log.pages) == 2)
    assert [sum(one.url == url for one in asked) for url in (URL, "http://b.com/")] == [times, 3]


async def test_a_refused_request_with_an_errback_has_a_page_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that parse calls it. The status stays refused; without an errback there is a done alone."""
    async with running(tmp_path, monkeypatch, robots__obey=True) as world:
        world.web.robots = b"User-agent: *\nDisallow: /x"
        with_errback = msgspec.structs.replace(POST, errback="failed")
        find(world, u.FoundUrl(URL, id=7, request=with_errback), u.FoundUrl(URL, id=8, request=POST), u.FoundUrl(URL))
        await world.until(lambda: len(world.log.dones) == 3 and world.is_folded)
        pages, dones = world.log.pages, {done.id: done for done in world.log.dones}
        assert world.web.times(URL) == 0
    assert {(done.status, done.reason, done.rule) for done in dones.values()} == {("refused", "robots", "Disallow: /x")}
    (meta, body), *others = pages
    assert others == []
    assert (meta.id, meta.request, meta.http, meta.error, body) == (7, with_errback, None, "robots", b"")
    assert [done.page for done in (dones[7], dones[8], dones[0])] == [(0, 0), None, None]


@pytest.mark.parametrize("error", ["dns", "private_address: private address 10.0.0.1", "bad_proxy: metadata address"])
async def test_a_request_without_an_answer_has_a_page_that_says_why(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last attempt has it, and the guard's refusals are tried once."""
    async with running(tmp_path, monkeypatch, fetch__retry_delay_s=0.01) as world:
        asked = seen(world, monkeypatch, http=None, error=error, kept=False, private=error != "dns")
        find(world, u.FoundUrl(URL, id=7, request=POST))
        await world.until(lambda: world.log.pages)
        (meta, body), *_ = world.log.pages
    attempts = 3 if error == "dns" else 1
    assert (meta.id, meta.request, meta.http, meta.error, meta.attempt, body) == (7, POST, None, error, attempts, b"")
    assert len(asked) == attempts


async def test_a_proxy_at_a_metadata_address_ends_its_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real client: nothing is sent, nothing stays queued, and other requests to the host go on."""
    site = Listener()
    async with served(site) as port, running(tmp_path, monkeypatch, RealWeb(), network__allow_private=True) as world:
        url = f"http://127.0.0.1:{port}/x"
        inside = RequestRecord(proxy="http://ann:s3cret@169.254.169.254:80", errback="failed")
        find(world, u.FoundUrl(url, id=7, request=inside), u.FoundUrl(url, id=8, request=POST))
        await world.until(lambda: {done.id for done in world.log.dones} == {7, 8})
        pages = {meta.id: meta for meta, _ in world.log.pages}
        dones = {done.id: done for done in world.log.dones}
    assert (pages[7].error, pages[7].request) == ("bad_proxy: metadata address 169.254.169.254", inside)
    assert (dones[7].status, dones[7].next_at) == ("failed", 0.0)
    assert (pages[8].http, pages[8].request) == (200, POST)
    assert [request.partition(" HTTP")[0] for request in site.requests] == ["POST /x"]
    assert site.bodies == [POST.body]


@pytest.mark.parametrize(
    ("record", "verdict"), [(RequestRecord(render=True), "request"), (RequestRecord(render=False), "")]
)
async def test_a_request_says_whether_a_browser_renders_it(
    record: RequestRecord, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its job's rules say."""
    async with running(tmp_path, monkeypatch) as world:
        world.job(rev=2, render=u.RenderRules(include=("y$",)))
        verdicts: dict[str, str] = {}
        monkeypatch.setattr(
            world.tasks.browsing, "why", lambda task, _answer, verdict: _noted(verdicts, task.row.url, verdict)
        )
        find(world, u.FoundUrl("http://a.com/x", request=record), u.FoundUrl("http://a.com/y", request=record))
        find(world, u.FoundUrl("http://b.com/y"))
        await world.all_done("http://a.com/x", "http://a.com/y", "http://b.com/y")
    by_request = dict.fromkeys(("http://a.com/x", "http://a.com/y"), verdict) if verdict else {}
    assert verdicts == by_request | {"http://b.com/y": "rule"}


async def _noted(verdicts: dict[str, str], url: str, verdict: str) -> str:
    """Note a verdict, and render nothing."""
    verdicts[url] = verdict
    return ""
