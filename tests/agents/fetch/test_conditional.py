"""Pages asked for again by what their server said of them: what is sent, what is written, what becomes of the rows."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.fetch.logins import Logins
from crawlog.agents.parse.stored_bodies import NEAR, Bodies, rounds
from crawlog.schemas import pages as pg
from crawlog.schemas import urls as u
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.engine.engine import Engine
from crawlog.streams.http import validators
from crawlog.streams.http.answer import Answer
from crawlog.streams.http.validators import UNWRITTEN, Validators, of_headers
from crawlog.streams.requests.request_rules import RequestPolicy
from crawlog.streams.settings.settings import Settings
from crawlog.streams.spiders import request_id
from tests.support.fetching import URLS, Web, World, changed, running
from tests.support.processes import Process, crawlog, ended, until
from tests.support.sites import Answer as Reply
from tests.support.sites import Site, Threaded, sites

URL = "http://a.com/x"


@pytest.mark.parametrize(
    ("etag", "modified", "kept"),
    [
        (None, None, None),
        ('"a"', None, ('"a"', "")),
        ('W/"a"', "Sat, 21 Nov 2026 10:00:00 GMT", ('W/"a"', "Sat, 21 Nov 2026 10:00:00 GMT")),
        ("unquoted", "yesterday", ("unquoted", "yesterday")),
        ('"' + "x" * 200 + '"', None, None),
        ('"a"\r\nEvil: 1', None, None),
        ('"\udce9"', "", None),
        ("*", None, None),
        (' * , "a"', "yesterday", ("", "yesterday")),
        ('W/"*"', None, ('W/"*"', "")),
        ('""a""', None, ('""a""', "")),
    ],
)
def test_validators_are_kept_as_they_came_if_they_can_be_sent_again(
    etag: str | None, modified: str | None, kept: tuple[str, str] | None
) -> None:
    """Too long, no header, or a star, to which a server says 304 whatever it has: the page has none."""
    found = of_headers(etag, modified)
    assert (found and (found.etag, found.modified)) == kept


def test_the_largest_row_has_two_hundred_and_ten_bytes() -> None:
    """Key and value; a usual one has half as many."""
    kept = "x" * validators.MAX_ETAG, "y" * validators.MAX_DATE
    longest = Validators(*kept, 1 << 40, u.MAX_EPOCH, True, RequestPolicy(u.RequestRules()).selecting("me"))
    assert len(validators.pack(longest)) + len(validators.key("job", URL)) <= 210
    assert validators.read(validators.pack(longest)) == longest


def test_only_what_is_there_is_sent() -> None:
    """RFC 9110 13.1: an empty condition would be one."""
    assert Validators('"a"', "", 0, 0).headers == {"If-None-Match": '"a"'}
    assert Validators("", "then", 0, 0).headers == {"If-Modified-Since": "then"}


@pytest.mark.parametrize(
    ("after", "epoch", "low", "verdict", "is_whole", "may"),
    [
        (-1, 2, 0, "", False, True),
        (-1, 1, 0, "", False, False),
        (-1, 2, 9, "", False, True),
        (-1, 2, 10, "", False, False),
        (-1, 2, 0, "auto", False, False),
        (-1, 2, 0, "auto", True, True),
        (-1, 2, 0, "rule", True, False),
        (0, 2, 0, "", False, True),
        (1, 2, 0, "", False, False),
    ],
)
def test_a_page_is_asked_for_by_them_once_an_epoch_while_the_old_one_is_there_and_would_do(
    after: int, epoch: int, low: int, verdict: str, is_whole: bool, may: bool
) -> None:
    """A body that no browser made is not what a job wants that renders; a deleted job's page is none of the job's."""
    known = Validators('"a"', "", 9, 1, is_whole)
    assert validators.may_ask(known, after, epoch, low, verdict) is may


async def test_a_304_is_an_answer_and_a_page_brings_its_validators() -> None:
    """Those of error pages, and of bodies that are not kept, point to nothing."""
    site, gone = Site('ETag: "7"\r\nLast-Modified: then\r\n'), Site('ETag: "7"\r\n', status="404 Not Found")
    async with sites(site, gone) as client:
        page, missing = (
            await client.get(HttpRequest(site.origin + "/")),
            await client.get(HttpRequest(gone.origin + "/")),
        )
        site.answer = b"HTTP/1.1 304 Not Modified\r\n\r\n"
        same = await client.get(
            HttpRequest(site.origin + "/", headers=page.validators.headers if page.validators else None)
        )
    assert page.validators == Validators('"7"', "then", UNWRITTEN, 0)
    assert (missing.http, missing.validators) == (404, None)
    assert (same.http, same.error, same.body) == (304, "", b"")
    assert (site.got("If-None-Match"), site.got("If-Modified-Since")) == (['"7"'], ["then"])


async def test_without_the_setting_nothing_is_kept() -> None:
    """`fetch.conditional` off."""
    site = Site('ETag: "7"\r\n')
    async with sites(site, conditional=False) as client:
        assert (await client.get(HttpRequest(site.origin + "/"))).validators is None


async def test_a_later_epoch_asks_by_the_validators_and_its_page_points_to_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always to the page with the body. Within an epoch nothing is asked so twice: that page turned out to be gone."""
    web = Web(etags={URL: '"1"', "http://a.com/y": '"1"'})
    async with running(tmp_path, monkeypatch, web) as world:
        for epoch in range(3):
            begin(world, epoch)
            world.find(URL, "http://a.com/y", epoch=epoch)
            await world.until(partial(has_pages, world, 2 * (epoch + 1)))
            web.etags["http://a.com/y"] = f'"{epoch + 2}"'
        again = u.FoundUrl(URL, again="not_modified")
        world.log.send("crawl.urls", u.encode(u.UrlsRecord(job="j", epoch=2, urls=[again])))
        await world.until(lambda: len(world.log.dones) == 7)
    told = [(meta.url[-1], meta.epoch, meta.http, meta.same_as, bool(body)) for meta, body in world.log.pages]
    assert sorted(told[:6]) == [
        ("x", 0, 200, None, True),
        ("x", 1, 304, (0, told.index(("x", 0, 200, None, True))), False),
        ("x", 2, 304, (0, told.index(("x", 0, 200, None, True))), False),
        ("y", 0, 200, None, True),
        ("y", 1, 200, None, True),
        ("y", 2, 200, None, True),
    ]
    assert told[6] == ("x", 2, 200, None, True)
    assert Counter(done.status for done in world.log.dones) == {"fetched": 5, "not_modified": 2}
    assert ("http://a.com/y", '"2"') in web.conditions


async def test_a_spiders_get_with_a_callback_is_asked_for_by_the_validators_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page has the request. Once the old page turned out to be gone, it is sent without a condition."""
    web, request = Web(etags={URL: '"1"'}), RequestRecord(callback="item", kwargs={"a": 1})
    found = u.FoundUrl(URL, id=request_id(URL, request), request=request)
    gone = u.FoundUrl(URL, id=found.id, request=request, again="not_modified")
    async with running(tmp_path, monkeypatch, web) as world:
        for count, (epoch, one) in enumerate([(0, found), (1, found), (1, gone)], 1):
            begin(world, epoch if one is found else 0)
            world.log.send(URLS, u.encode(u.UrlsRecord(job="j", epoch=epoch, urls=[one])))
            await world.until(partial(has_pages, world, count))
    pages = [meta for meta, _ in world.log.pages]
    assert [(meta.http, meta.same_as) for meta in pages] == [(200, None), (304, (0, 0)), (200, None)]
    assert [(meta.id, meta.request) for meta in pages] == [(found.id, request)] * 3


async def test_a_server_that_mistakes_a_condition_is_asked_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """412, which no GET with such headers has, is no page; the next attempt sends none of them."""

    class Strict(Web):
        """As some servers are."""

        async def get(self, request: HttpRequest) -> Answer:
            """412 to any condition."""
            answer, _url = await super().get(request), request.url
            if request.headers:
                answer.http, answer.kept, answer.body, answer.validators = 412, False, b"", None
            return answer

    web = Strict(etags={URL: '"1"'})
    async with running(tmp_path, monkeypatch, web) as world:
        for epoch in range(2):
            begin(world, epoch)
            world.find(URL, epoch=epoch)
            await world.until(partial(has_pages, world, epoch + 1))
        await world.until(lambda: len(world.log.dones) == 3)
    assert [(meta.epoch, meta.http, bool(body)) for meta, body in world.log.pages] == [(0, 200, True), (1, 200, True)]
    assert web.conditions == [(URL, '"1"')]
    assert [(done.http, done.next_at > 0) for done in world.log.dones] == [(200, False), (412, True), (200, False)]


async def test_a_page_that_may_need_a_browser_now_is_fetched_whole_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body was kept without a look at it; once it has been found to need none, a 304 is enough."""
    web = Web(etags={URL: '"1"'})
    async with running(tmp_path, monkeypatch, web) as world:
        for epoch, mode in enumerate(("off", "auto", "auto", "off")):
            begin(world, epoch, render=u.RenderRules(mode))  # type: ignore[arg-type]  # one of its words
            world.find(URL, epoch=epoch)
            await world.until(partial(has_pages, world, epoch + 1))
    assert [meta.http for meta, _ in world.log.pages] == [200, 200, 304, 304]


def test_a_row_of_before_says_that_nobody_looked() -> None:
    """Written by a worker that did not know of rendering, nor noted how it asked."""
    assert validators.read(validators.pack(['"1"', "", 7, 0])) == Validators('"1"', "", 7, 0, is_whole=False)


@pytest.mark.parametrize(
    "changes",
    [{"headers": ("Accept-Language: de",)}, {"user_agent": "other"}, {"cookies": True}, {}],
    ids=["language", "user agent", "cookies", "none"],
)
async def test_a_job_that_asks_in_another_way_fetches_its_pages_whole(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have another representation for it, of the same date (RFC 9111 4.1). A 304 then points to that."""
    web = Web(etags={URL: '"1"'})
    async with running(tmp_path, monkeypatch, web) as world:
        for epoch in range(3):
            begin(world, epoch, requests=u.RequestRules(**changes))
            world.find(URL, epoch=epoch)
            await world.until(partial(has_pages, world, epoch + 1))
    (first, _), (second, _), (third, _) = world.log.pages
    assert (first.http, second.http, third.http) == (200, 200 if changes else 304, 304)
    assert third.same_as == (0, 1 if changes else 0)


async def test_a_page_of_a_version_that_noted_no_way_of_asking_is_fetched_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it was the same."""
    web = Web(etags={URL: '"1"'})
    async with running(tmp_path, monkeypatch, web) as world:
        world.find(URL)
        await world.all_done(URL)
        world.stage.live[0].db.remember(validators.key("j", URL), validators.pack(['"1"', "", 0, 0, True]))
        begin(world, 1)
        world.find(URL, epoch=1)
        await world.until(partial(has_pages, world, 2))
    assert web.conditions == []


def test_a_way_of_asking_has_the_user_and_not_the_password() -> None:
    """A digest of a password, beside all else that it is made of, would be one to try passwords on."""
    fetch = {"fetch.logins": ["https://me:word@a.com"], "fetch.forms": ["https://b.com/in#user=me&pass=word"]}
    logins = Logins(changed(Settings(), fetch), *[None] * 4)  # type: ignore[arg-type]  # nothing is asked
    users = [logins.user(url) for url in ("https://a.com/x", "https://b.com/x", "http://a.com/x")]
    assert users == ["me", "https://b.com/in", ""]
    assert len({RequestPolicy(u.RequestRules()).selecting(user) for user in users}) == 3


async def test_a_new_job_of_a_deleted_ones_name_fetches_its_pages_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own next epoch asks by the validators of these."""
    web = Web(etags={URL: '"1"'})
    async with running(tmp_path, monkeypatch, web) as world:
        world.find(URL)
        await world.all_done(URL)
        world.job(rev=2, state="deleted")
        for epoch, pages in ((1, 2), (2, 3)):
            begin(world, epoch)
            world.find(URL, epoch=epoch)
            await world.until(partial(has_pages, world, pages))
    assert [(meta.epoch, meta.http) for meta, _ in world.log.pages] == [(0, 200), (1, 200), (2, 304)]
    assert world.log.pages[2][0].same_as == (0, 1)


def begin(world: World, epoch: int, **changes: Any) -> None:
    """What `run --fresh` writes for each epoch but the first."""
    if epoch:
        spec = u.JobSpec(rev=epoch + 1, scope=u.ScopeSpec(kind="any"), **changes)
        for record in (
            u.UrlsRecord(job="j", epoch=epoch, rewind=u.Rewind()),
            u.UrlsRecord(job="j", epoch=epoch, spec=spec),
        ):
            world.log.send("crawl.urls", u.encode(record))


def has_pages(world: World, count: int) -> bool:
    """Whether so many pages are in the log, with their dones."""
    return len(world.log.pages) == count == len(world.log.dones)


async def test_a_page_that_is_trimmed_is_fetched_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the worker knows where crawl.pages begins."""
    web = Web(etags={URL: '"1"'})
    async with running(tmp_path, monkeypatch, web) as world:
        world.find(URL)
        await world.all_done(URL)
        world.fetcher._pages.lows[0] = 1
        begin(world, 1)
        world.find(URL, epoch=1)
        await world.until(partial(has_pages, world, 2))
    assert web.conditions == []


def test_runs_are_read_side_by_side_and_far_ones_are_jumped_to() -> None:
    """One run a partition and round; each offset once."""
    places = [(0, 5), (1, 9), (0, 6), (0, 6 + NEAR), (0, 100), (0, 5)]
    assert list(rounds(places)) == [{0: [5, 6, 6 + NEAR], 1: [9]}, {0: [100]}]
    assert list(rounds([])) == []


@pytest.mark.broker
def test_bodies_are_read_from_where_they_lie_and_what_is_gone_is_told(engine: Engine, cluster: Settings) -> None:
    """Before the log's beginning, behind its end, and all between, in one batch."""
    topic = f"{cluster.kafka.prefix}pages"
    admin = AdminClient(kafka_config(cluster))
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    producer = Producer(kafka_config(cluster))
    for at in range(40):
        header = pg.encode(PageMeta(f"http://a.com/{at}", "j"))
        producer.produce(topic, str(at).encode(), partition=at % 2, headers=[(pg.HEADER, header)])
    producer.flush()
    admin.delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0, 2)].result()
    bodies = Bodies(cluster, topic)
    wanted = {(9, at): PageMeta(f"http://a.com/{at}", "j", same_as=(at % 2, at // 2)) for at in range(44)}
    wanted[9, 99] = PageMeta("http://a.com/other", "j", same_as=(0, 5))
    try:
        found = bodies.read(wanted)
    finally:
        bodies.close()
    assert found.keys() == wanted.keys()
    assert {at for (_, at), (old, _) in found.items() if old is None} == {0, 2, 40, 41, 42, 43, 99}
    assert all(body == (str(at).encode() if old else b"") for (_, at), (old, body) in found.items())


PAGES = 40
CHANGED = 7


class Book:
    """A site of PAGES pages with ETags, each linking to the next two; one of them changes."""

    def __init__(self) -> None:
        self.changed = 0
        self.asked: Counter[str] = Counter()
        self._server = Threaded(self._answer, self._etag)
        self.url = f"{self._server.origin}/1"
        self.close = self._server.close

    def _edition(self, path: str) -> int:
        return self.changed if path == f"/{CHANGED}" else 0

    def _etag(self, path: str) -> str:
        return f'"{path}.{self._edition(path)}"' if path != "/robots.txt" else ""

    def _answer(self, path: str) -> Reply:
        number = int(path.strip("/")) if path.strip("/").isdigit() else 0
        if not 1 <= number <= PAGES:
            return 404, "text/html", b""
        self.asked[path] += 1
        links = "".join(f'<a href="/{target}">' for target in (number + 1, number + 2) if target <= PAGES)
        return 200, "text/html", f"<title>{number}.{self._edition(path)}</title>{links}".encode()


@pytest.fixture
def book() -> Iterator[Book]:
    """A site of this test alone."""
    made = Book()
    yield made
    made.close()


def _run(book: Book, data: Path, log: Settings, *more: str) -> Process:
    command = ["run", book.url, "--data", data, "-o", data.parent / "rows.jsonl", "--json"]
    where = ["--bootstrap", log.kafka.bootstrap, "-s", f"kafka.prefix={log.kafka.prefix}"]
    settings = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.05", *more]
    return crawlog(*command, *where, *settings)


def _ended(process: Process) -> dict[str, Any]:
    code, summary, err = ended(process)
    assert code == 0, err
    return summary


def _rows(data: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in (data.parent / "rows.jsonl").read_text().splitlines()]
    assert len({row["url"] for row in rows}) == len(rows)
    return {row["url"].rpartition("/")[2]: row for row in rows}


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_a_crawl_again_asks_for_what_changed_and_has_all_rows_whatever_is_killed(
    book: Book, tmp_path: Path, cluster: Settings
) -> None:
    """The rows are those of the first crawl but for their status; what changed is new."""
    data = tmp_path / "data"
    _ended(_run(book, data, cluster))
    first = _rows(data)
    assert len(first) == PAGES

    book.changed = 1
    book.asked.clear()
    killed = _run(book, data, cluster, "--fresh")
    until(lambda: book.asked.total() > PAGES // 3, "a third of the pages")
    killed.kill()
    killed.communicate()
    summary = _ended(_run(book, data, cluster))
    again = _rows(data)
    assert (summary["epoch"], summary["fetched"], summary["failed"]) == (1, PAGES, 0)
    assert {number for number, row in again.items() if row["status"] != 304} == {str(CHANGED)}
    assert again[str(CHANGED)]["title"] == f"{CHANGED}.1"
    for number in first.keys() - {str(CHANGED)}:
        assert again[number] | {"status": 200, "fetched_at": 0} == first[number] | {"fetched_at": 0}
