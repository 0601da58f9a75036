"""Answers that keep to no standard, over a connection: pages where browsers have them, and never two from one."""

import asyncio
import json
from pathlib import Path

import pytest

from crawlog.agents.client.transport import HttpRequest
from crawlog.streams.http import Answer
from tests.support.raw_http import HTML, Speak, response, talk

CHUNKED = f"HTTP/1.1 200 OK\r\n{HTML}Transfer-Encoding: chunked\r\n\r\n".encode()
PAGE = b"<p>page"


def spoken(data: bytes, piece_bytes: int) -> Speak:
    """A server that sends this, in pieces, and waits."""

    async def speak(out: asyncio.StreamWriter) -> None:
        for at in range(0, len(data), piece_bytes):
            out.write(data[at : at + piece_bytes])
            await out.drain()

    return speak


async def asked(data: bytes, piece_bytes: int = 1 << 20) -> tuple[Answer, Answer, int]:
    """Two answers of such a server, and its connections."""
    async with talk(spoken(data, piece_bytes)) as (client, web, url):
        first, second = [await client.get(HttpRequest(url)) for _ in range(2)]
        return first, second, web.connections


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "data",
    [
        response(PAGE, f"{HTML}a line of words\r\n"),
        response(PAGE, f"{HTML}X-Time : 1\r\n"),
        response(PAGE, f"{HTML}\u2018access-control-allow-origin\u2019: *\r\n"),
        response(PAGE, f"{HTML}Pragma: no-cache\r\r\n"),
        response(PAGE, f"{HTML}Content-Length: 7\r\n"),
        response(PAGE).replace(b"HTTP/1.1 200 OK", b"HTTP/1 200"),
        b"HTTP/1.1 103 Hints\r\nwords\r\n\r\n" + response(PAGE),
        CHUNKED + b"3\n<p>\n4\r\npage\r\n0\n\n",
    ],
)
async def test_an_odd_answer_is_read_and_its_connection_is_not_used_again(data: bytes, piece_bytes: int) -> None:
    """Two readings of its length could else make one answer two."""
    first, second, connections = await asked(data, piece_bytes)
    assert [(one.http, one.error, one.body) for one in (first, second)] == [(200, "", PAGE)] * 2
    assert first.content_type == "text/html"
    assert connections == 2


async def test_a_plain_answer_keeps_its_connection() -> None:
    """However its head is cut."""
    for piece_bytes in (1, 30, 1 << 20):
        _, second, connections = await asked(response(PAGE), piece_bytes)
        assert (second.body, connections) == (PAGE, 1)


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 3\r\n",
        "words\r\nContent-Length : 3\r\n",
        "X: a\rContent-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "words\r\nTransfer-Encoding : chunked\r\n",
    ],
)
async def test_an_answer_with_two_ends_is_refused(lines: str) -> None:
    """Also where a line has to be mended."""
    first, *_ = await asked(response(PAGE, HTML + lines))
    assert (first.http, first.error) == (None, "bad_http")


async def test_what_follows_a_mended_answer_answers_nothing() -> None:
    """As after a plain one."""
    first, second, connections = await asked(response(PAGE, f"{HTML}words\r\n") + response(b"stolen"))
    assert [one.body for one in (first, second)] == [PAGE, PAGE]
    assert connections == 2


async def test_a_head_without_end_is_too_large() -> None:
    """At Chromium's limit."""
    first, *_ = await asked(b"HTTP/1.1 200 OK\r\n" + b"words\r\n" * 40_000)
    assert first.error == "header_too_large"


@pytest.mark.parametrize("path", ["/page", "/robots.txt"])
async def test_lines_of_other_projects_bug_reports_lose_no_page(testdata: Path, path: str) -> None:
    """Nor a robots.txt, and with it the host."""
    for case in json.loads((testdata / "odd-answers" / "headers.json").read_text()):
        async with talk(spoken(response(PAGE, f"{HTML}{case['line']}\r\n"), 1 << 20)) as (client, _, url):
            answer = await client.get(HttpRequest(url.replace("/page", path), any_type=path == "/robots.txt"))
        assert (answer.http, answer.error, answer.body) == (200, "", PAGE), case["name"]
