"""`crawler.engine.download` beside the spider: what leaves for the worker, and what becomes of its answer."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.exceptions import IgnoreRequest, UnsupportedURLSchemeError
from scrapy.http import HtmlResponse, Response
from scrapy.utils.defer import maybe_deferred_to_future

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.downloads import WORKER
from crawlog.streams.spiders.scrapy import ScrapyRunner
from tests.support.adapting import SITE, runner_of

HERE = __name__


class Shop(Spider):
    """A spider with a domain."""

    name = "shop"
    allowed_domains = ("shop.test",)


class Asked:
    """The worker: its answers, and what it was asked for."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, RequestRecord, int]] = []
        self.answers: list[tuple[dict[str, Any], bytes]] = []

    async def download(self, url: str, request: RequestRecord, max_bytes: int) -> tuple[PageMeta, bytes]:
        """The next answer."""
        self.sent.append((url, request, max_bytes))
        about, body = self.answers.pop(0)
        return PageMeta(url, "job", request=request, **about), body


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """The worker of this process."""
    asked = Asked()
    monkeypatch.setattr(WORKER, "download", asked.download)
    return asked  # type: ignore[return-value]  # a fixture


def of_async(runner: ScrapyRunner, request: Request) -> Awaitable[Response]:
    """As in Scrapy since 2.14."""
    answer: Awaitable[Response] = runner.crawler.engine.download_async(request)
    return answer


def of_deferred(runner: ScrapyRunner, request: Request) -> Awaitable[Response]:
    """As its documentation wrote it before."""
    return maybe_deferred_to_future(runner.crawler.engine.download(request))


def awaited(runner: ScrapyRunner, request: Request) -> Awaitable[Response]:
    """As many write it."""
    answer: Awaitable[Response] = runner.crawler.engine.download(request)
    return answer


@pytest.mark.parametrize("ask", [of_async, of_deferred, awaited])
async def test_a_response_comes_back_in_each_way_that_projects_ask(
    ask: Callable[[ScrapyRunner, Request], Awaitable[Response]], worker: Asked
) -> None:
    """Of the class that its type has, with its request."""
    worker.answers = [({"http": 200, "headers": (("Content-Type", "text/html"),)}, b"<h1>One</h1>")]
    runner = runner_of(Shop)
    await runner.open()
    request = Request(f"{SITE}/a#top", method="POST", body=b"x", headers={"X-A": "1"}, meta={"download_timeout": 7})
    response = await ask(runner, request)
    assert isinstance(response, HtmlResponse)
    assert (response.css("h1::text").get(), response.request) == ("One", request)
    (url, record, most), *others = worker.sent
    assert (url, record.method, record.body, record.timeout_s, most) == (f"{SITE}/a", "POST", b"x", 7.0, 0)
    assert ("X-A", "1") in record.headers
    assert others == []


async def test_a_redirect_is_followed_as_the_request_wants(worker: Asked) -> None:
    """By Scrapy's own middleware, request by request: the worker follows none."""
    moved = {"http": 302, "location": "/b", "headers": (("Location", "/b"),)}
    worker.answers = [(moved, b""), ({"http": 200}, b"end"), (moved, b"")]
    runner = runner_of(Shop)
    await runner.open()
    assert (await of_async(runner, Request(f"{SITE}/a"))).url == f"{SITE}/b"
    stays = await of_async(runner, Request(f"{SITE}/a", meta={"handle_httpstatus_all": True}))
    assert (stays.status, [url for url, _, _ in worker.sent]) == (302, [f"{SITE}/a", f"{SITE}/b", f"{SITE}/a"])


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("too_large", "DownloadCancelledError", r"pipelines\.max_file_mb"),
        ("private_address: 10.0.0.1", "IgnoreRequest", r"network\.allow_private"),
        ("robots: Disallow: /a", "IgnoreRequest", r"Forbidden by robots\.txt"),
        ("connection_refused", "DownloadConnectionRefusedError", "the host refused the connection"),
        ("control: a command blocks the host", "DownloadFailedError", "a command blocks the host"),
    ],
)
async def test_a_failure_is_the_exception_that_scrapy_raises(error: str, kind: str, said: str, worker: Asked) -> None:
    """FilesPipeline tells a filtered file from a failed one by it."""
    worker.answers = [({"error": error, "kept": False}, b"")]
    runner = runner_of(Shop)
    await runner.open()
    with pytest.raises(Exception, match=said) as raised:
        await of_async(runner, Request(f"{SITE}/a"))
    assert type(raised.value).__name__ == kind


@pytest.mark.parametrize(
    ("url", "kind"),
    [("http://elsewhere.test/a", IgnoreRequest), ("ftp://shop.test/a", UnsupportedURLSchemeError)],
)
async def test_what_scrapy_would_not_send_does_not_reach_the_worker(
    url: str, kind: type[Exception], worker: Asked
) -> None:
    """Another domain than the spider's, and a scheme that is not fetched."""
    runner = runner_of(Shop)
    await runner.open()
    with pytest.raises(kind):
        await of_async(runner, Request(url))
    assert worker.sent == []


class Stamping:
    """A downloader middleware of a project."""

    def process_request(self, request: Request) -> Response | None:
        """Signs a request, or answers it."""
        request.headers["X-Signed"] = "yes"
        return Response(request.url, body=b"mine") if request.url.endswith("/mine") else None

    def process_response(self, request: Request, response: Response) -> Response:  # noqa: ARG002  # Scrapy's own signature
        """Marks a response."""
        return response.replace(flags=["stamped"])


async def test_downloader_middlewares_see_requests_and_responses(worker: Asked) -> None:
    """Those of the project, as for any other request; DOWNLOAD_MAXSIZE goes along."""
    worker.answers = [({"http": 200}, b"body")]
    runner = runner_of(Shop, {"DOWNLOADER_MIDDLEWARES": {f"{HERE}.Stamping": 500}, "DOWNLOAD_MAXSIZE": 5000})
    await runner.open()
    response = await of_async(runner, Request(f"{SITE}/a"))
    mine = await of_async(runner, Request(f"{SITE}/mine"))
    assert (response.flags, response.body, mine.body) == (["stamped"], b"body", b"mine")
    ((_, record, most),) = worker.sent
    assert ("X-Signed", "yes") in record.headers
    assert most == 5000
    assert runner.crawler.stats.get_value("response_received_count") == 2
