"""Requests that spiders and pipelines make by themselves: by the job's rules, in the host's turn, within limits."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawlog.agents.downloads import Downloads
from crawlog.agents.outputs.row_maker import LOADER
from crawlog.agents.sandbox import CALL, BackgroundChild, ChildRules, Died, SpiderFrame
from crawlog.schemas.control import Command, JobCopy
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec, RequestRules
from crawlog.streams.downloads import DownloadAsk
from crawlog.streams.settings import load
from crawlog.streams.spiders import SpiderRef, read_made
from tests.support.gallery import Gallery

JOB = "job"


@pytest.fixture
def site() -> Iterator[Gallery]:
    """The site."""
    gallery = Gallery()
    yield gallery
    gallery.close()


@contextlib.asynccontextmanager
async def downloads_of(rules: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Downloads]:
    """Downloads of one job with such rules, on a machine where loopback is allowed."""
    given = {"network.allow_private": True, "fetch.retry_delay_s": 0.01, "robots.attempts": 1}
    downloads = Downloads(
        load(given | {name.replace("__", "."): value for name, value in settings.items()}, environ={})
    )
    usual: dict[str, Any] = {
        "delay_s": 0.0,
        "allow_private": True,
        "robots": False,
        "attempts": 2,
        "retry_statuses": (503,),
    }
    spec = JobSpec(requests=RequestRules(**usual | (rules or {})))
    downloads.heard(JobCopy(JOB, spec, 1))
    running = asyncio.create_task(downloads.run())
    await asyncio.sleep(0)  # else it is cancelled before it has begun
    yield downloads
    running.cancel()
    await asyncio.wait([running])


async def got(downloads: Downloads, url: str, **ask: Any) -> tuple[PageMeta, bytes]:
    """One answer."""
    async with downloads.got(JOB, DownloadAsk(1, url, **ask)) as answer:
        return answer


async def test_a_file_is_answered_with_its_headers_and_body(site: Gallery) -> None:
    """Whatever its type, with the headers of the job and of the request."""
    async with downloads_of({"user_agent": "shopbot", "headers": ("X-Job: 1",)}) as downloads:
        request = RequestRecord(headers=(("X-Own", "2"),))
        meta, body = await got(downloads, f"{site.origin}/paper/3.pdf", request=request)
    assert (meta.http, meta.kept, meta.error, len(body)) == (200, True, "", 68)
    assert dict(meta.headers)["Content-Type"] == "application/pdf"
    sent = site.headers["/paper/3.pdf"]
    assert (sent["User-Agent"], sent["X-Job"], sent["X-Own"]) == ("shopbot", "1", "2")


async def test_requests_to_one_host_rest_the_delay_of_the_job(site: Gallery) -> None:
    """The first one too: a worker that was killed may have asked just before."""
    began_s = time.monotonic()
    async with downloads_of({"delay_s": 0.2}) as downloads:
        await asyncio.gather(*(got(downloads, f"{site.origin}/paper/{number}.pdf") for number in range(3)))
    times = [began_s, *(at for _, at in site.asked)]
    assert len(times) == 4
    assert all(later - sooner >= 0.19 for sooner, later in pairwise(times))


async def test_a_command_slows_pauses_and_blocks_a_host(site: Gallery) -> None:
    """As for the pages of the host; a paused job waits too."""
    host = site.origin.partition("://")[2]
    async with downloads_of() as downloads:
        downloads.heard(Command("pause", host=host))
        waiting = asyncio.create_task(got(downloads, f"{site.origin}/paper/1.pdf"))
        await asyncio.sleep(0.1)
        assert not site.asked
        downloads.heard(Command("resume", host=host))
        assert (await waiting)[0].http == 200
        downloads.heard(JobCopy(JOB, JobSpec(state="paused"), 1))
        waiting = asyncio.create_task(got(downloads, f"{site.origin}/paper/2.pdf"))
        await asyncio.sleep(0.1)
        assert len(site.asked) == 1
        downloads.heard(Command("block", host=host))
        assert (await waiting)[0].error == "control: a command blocks the host"
        downloads.heard(Command("resume", host=host))
        downloads.heard(JobCopy(JOB, JobSpec(state="cancelled"), 1))
        assert (await got(downloads, f"{site.origin}/paper/3.pdf"))[0].error == "control: the job is cancelled"
    assert len(site.asked) == 1


async def test_robots_txt_counts_where_the_job_obeys_it(site: Gallery) -> None:
    """It is asked for once."""
    async with downloads_of({"robots": True}) as downloads:
        private = (await got(downloads, f"{site.origin}/private/1.jpg"))[0]
        assert (await got(downloads, f"{site.origin}/img/1.jpg"))[0].http == 200
    assert (private.error, private.http) == ("robots: Disallow: /private/", None)
    assert site.counts() == {"/img/1.jpg": 1}


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://127.0.0.1:1/a", "bad_port"),
        ("no url", "bad_url"),
        ("ftp://a.test/", "bad_url"),
        ("http://10.0.0.1/a", "private_address"),
    ],
)
async def test_the_guard_refuses_what_it_refuses_for_pages(url: str, error: str) -> None:
    """A private address where the job or the worker allows none."""
    async with downloads_of({"allow_private": False}) as downloads:
        meta, body = await got(downloads, url)
    assert (meta.error.partition(":")[0], meta.http, body) == (error, None, b"")


async def test_a_status_that_may_change_is_asked_again_within_the_attempts(site: Gallery) -> None:
    """A missing file is final at once."""
    answers = {"/img/1.jpg": [503, 200], "/img/2.jpg": [503, 503], "/img/3.jpg": [404]}
    plain = site.answer
    site.answer = lambda path: (answers[path].pop(0), *plain(path)[1:])  # type: ignore[method-assign]  # of this test
    async with downloads_of() as downloads:
        found = [(await got(downloads, f"{site.origin}/img/{number}.jpg"))[0].http for number in (1, 2, 3)]
    assert found == [200, 503, 404]
    assert site.counts() == {"/img/1.jpg": 2, "/img/2.jpg": 2, "/img/3.jpg": 1}


async def test_a_body_beyond_the_limit_is_not_kept(site: Gallery) -> None:
    """That of the worker, pipelines.max_file_mb, or a lower one of the project; it may be larger than a page."""
    plain = site.answer
    sizes = {"/img/1.jpg": 3 << 20, "/img/2.jpg": 1 << 19}
    site.answer = lambda path: (*plain(path)[:2], b"x" * sizes[path])  # type: ignore[method-assign]  # of this test
    async with downloads_of({"max_body_bytes": 1024, "attempts": 1}, pipelines__max_file_mb=1) as downloads:
        large, _ = await got(downloads, f"{site.origin}/img/1.jpg")
        kept, body = await got(downloads, f"{site.origin}/img/2.jpg")
        lower, _ = await got(downloads, f"{site.origin}/img/2.jpg", max_bytes=1000)
    assert (large.error, lower.error) == ("too_large", "too_large")
    assert (kept.kept, len(body)) == (True, 1 << 19)


async def test_a_body_without_end_ends_by_the_time_of_the_job(site: Gallery) -> None:
    """So does a silent server."""
    site.latency_s = 30
    async with downloads_of({"timeout_s": 0.3, "attempts": 1}) as downloads:
        meta, _ = await got(downloads, f"{site.origin}/img/1.jpg")
    assert meta.error == "timeout"


# Through the process of the pipelines.


def pictures(site: Gallery, folder: Path, **settings: str) -> SpiderRef:
    """The spider with ImagesPipeline."""
    return SpiderRef(f"{site.project(folder)}:pictures", scrapy=tuple(settings.items()), job=JOB)


def raw(site: Gallery, number: int) -> bytes:
    """An item as scraped: a plain dict with picture N and two that do not come."""
    urls = [f"{site.origin}/{kind}/{number}.jpg" for kind in ("img", "missing", "private")]
    return msgspec.json.encode({"$item": {"name": f"page {number}", "image_urls": urls, "images": []}})


async def called(child: BackgroundChild, name: str, argument: bytes = b"") -> SpiderFrame:
    """The answer of a call."""
    asked: asyncio.Future[SpiderFrame | Died] = asyncio.get_running_loop().create_future()
    child.submit(SpiderFrame(CALL, name.encode(), argument), asked.set_result)
    answer = await asked
    assert isinstance(answer, SpiderFrame), answer
    return answer


@pytest.mark.slow
async def test_the_pipelines_of_a_project_download_by_their_worker(
    site: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures and thumbnails of several items at a time; what is there is not asked for again by a fresh process."""
    monkeypatch.chdir(tmp_path)
    lines = b"\n".join(b"~" + raw(site, number) for number in range(4))
    for status in ("downloaded", "uptodate"):
        async with downloads_of({"robots": True}) as downloads:
            ref = pictures(site, tmp_path / status, IMAGES_STORE=str(tmp_path / "pictures"))
            child = BackgroundChild(ref, ChildRules(), LOADER, asyncio.get_running_loop(), downloads)
            for name, argument in (("open", b""), ("rows", lines)):
                answer = await called(child, name, argument)
            made = read_made(answer.body, 4)
            assert not child.waiting
            child.close()
            await asyncio.to_thread(child.wait_ended)
        rows = [msgspec.json.decode(item.row) for item in made.items]
        assert [[(one["url"], one["status"]) for one in row["images"]] for row in rows] == [
            [(f"{site.origin}/img/{number}.jpg", status)] for number in range(4)
        ]
    assert len(list((tmp_path / "pictures" / "thumbs" / "small").iterdir())) == 4
    assert site.counts() == {f"/img/{n}.jpg": 1 for n in range(4)} | {f"/missing/{n}.jpg": 2 for n in range(4)}
