"""One request and its limits, against servers that answer byte by byte what they are told to."""

import asyncio
import gzip
import json
import sys
import tracemalloc
import zlib
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import pytest

from crawlog.agents.client.body import DRAINED_BYTES, FREE_BYTES, BodyBudget
from crawlog.agents.client.protocol import LeaseLost
from crawlog.agents.client.transport import HttpRequest
from crawlog.streams.http.answer import Answer
from crawlog.streams.session.login import read_form
from tests.support.raw_http import HTML, LIMIT, Speak, client_by, response, talk, until
from tests.support.sites import posting

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def says(*parts: bytes, rest_s: float = 0.0) -> Speak:
    """Write the parts, with a rest before each but the first; stop at the client's first sign of disinterest."""

    async def speak(out: asyncio.StreamWriter) -> None:
        for number, part in enumerate(parts):
            if number:
                await asyncio.sleep(rest_s)
            out.write(part)
            await out.drain()

    return speak


def chunked(*chunks: bytes, headers: str = HTML) -> list[bytes]:
    """A response of unknown length, in parts; it never says that it has ended."""
    head = f"HTTP/1.1 200 OK\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
    return [head, *(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)]


async def got(speak: Speak, **fetch: Any) -> Answer:
    """The answer to one request."""
    async with talk(speak, **fetch) as (client, _, url):
        return await client.get(HttpRequest(url))


def squeezed(body: bytes, coding: str) -> bytes:
    """A body in a content coding."""
    return gzip.compress(body) if coding == "gzip" else zlib.compress(body)


@pytest.mark.parametrize(("size", "kept"), [(0, True), (LIMIT, True), (LIMIT + 1, False)])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_up_to_the_limit_is_kept_whole(size: int, kept: bool, is_chunked: bool) -> None:
    """One byte more and none of it is: the result says so."""
    body = b"x" * size
    parts = [*chunked(*([body] if body else [])), b"0\r\n\r\n"] if is_chunked else [response(body)]
    answer = await got(says(*parts))
    assert (answer.http, answer.kept, answer.body) == (200, kept, body if kept else b"")
    assert answer.error == ("" if kept else "too_large")


async def test_a_connection_cut_off_is_not_asked_again_at_once() -> None:
    """The client's own second try on a fresh connection would come before the host has rested."""
    answered: list[bool] = []

    async def speak(out: asyncio.StreamWriter) -> None:
        answered.append(True)
        if len(answered) > 1:
            out.transport.abort()
        else:
            out.write(response(b"<p>"))

    async with talk(speak) as (client, web, url):
        answers = [await client.get(HttpRequest(url)) for _ in range(2)]
    assert [answer.http for answer in answers] == [200, None]
    assert answers[1].error in ("disconnected", "connection_reset")
    assert (len(web.requests), web.connections) == (2, 1)


async def test_an_endless_body_is_cut_off_at_the_limit() -> None:
    """GHSA-h7wm-ph43-c39p: at the limit, not at the timeout; and the connection is not used again."""
    endless = chunked(*[b"x" * 4000] * 100)
    async with talk(says(*endless, rest_s=0.1), timeout_s=3600.0) as (client, web, url):
        assert (await client.get(HttpRequest(url))).error == "too_large"
        await client.get(HttpRequest(url))
        assert web.connections == 2


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_decompression_bomb_stays_small(coding: str) -> None:
    """100 MB in 100 kB: what is unpacked counts, and is given up long before it is all there.

    GHSA-7j7m-v7m3-jqm7, GHSA-6mq8-rvhq-8wgg.
    """
    bomb = squeezed(bytes(100 << 20), coding)
    tracemalloc.start()
    try:
        answer = await got(says(response(bomb, f"{HTML}Content-Encoding: {coding}\r\n")))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.error, answer.kept, answer.body) == ("too_large", False, b"")
    assert peak_bytes < 8 << 20


async def test_a_packed_body_is_unpacked() -> None:
    """Its own length may be known and small; what counts is what it holds."""
    packed = response(squeezed(b"x" * LIMIT, "gzip"), f"{HTML}Content-Encoding: gzip\r\n")
    assert (await got(says(packed))).body == b"x" * LIMIT


async def test_small_pieces_share_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn may take 10 ms where many others are fetched: one for each of 400 members was the end of the time."""
    turns, sleep = 0, asyncio.sleep

    async def counted(delay_s: float) -> None:
        nonlocal turns
        turns += delay_s == 0
        await sleep(delay_s)

    monkeypatch.setattr(asyncio, "sleep", counted)
    packed = b"".join(gzip.compress(b"x") for _ in range(400))
    assert (await got(says(response(packed, f"{HTML}Content-Encoding: gzip\r\n")))).body == b"x" * 400
    assert turns < 100


async def test_what_is_no_gzip_is_a_bad_encoding() -> None:
    """A result with a reason, and no half of a body."""
    answer = await got(says(response(b"no gzip at all", f"{HTML}Content-Encoding: gzip\r\n")))
    assert (answer.http, answer.error, answer.body, answer.kept) == (200, "bad_encoding", b"", False)


async def test_a_url_is_sent_as_it_was_queued() -> None:
    """To the byte."""
    async with talk(says(response(b"x"))) as (client, web, url):
        for path in ("/page?", "/a//b;c?x=%7b[1]&&", "/%e9'"):
            assert (await client.get(HttpRequest(url.removesuffix("/page") + path))).http == 200
            assert web.requests[-1].startswith(b"GET %s HTTP/1.1\r\n" % path.encode())


async def test_silence_has_a_limit_of_its_own() -> None:
    """Before the first byte, and within a body."""
    assert (await got(says(b"", b"", rest_s=0.5), first_byte_timeout_s=0.1)).error == "first_byte_timeout"
    parts = chunked(b"x", b"y", b"z")
    assert (await got(says(*parts, rest_s=0.3), chunk_timeout_s=0.1)).error == "chunk_timeout"


@pytest.mark.parametrize(
    ("headers", "body", "kept", "sniffed"),
    [
        ("", b"<p>x", True, "text/html"),
        ("", b"%PDF-1.7" + b"x" * 2000, False, "application/pdf"),
        (HTML, b"<p>x", True, ""),
        (HTML, b"\x89PNG\r\n\x1a\n" + b"x" * 2000, False, "image/png"),
    ],
)
async def test_a_body_that_is_no_page_is_not_kept(headers: str, body: bytes, kept: bool, sniffed: str) -> None:
    """Of known length or not: its first bytes say what its header does not."""
    for parts in ([response(body, headers)], [*chunked(body[:600], body[600:] or b"x", headers=headers), b"0\r\n\r\n"]):
        answer = await got(says(*parts))
        assert (answer.kept, answer.sniffed, bool(answer.body), answer.error) == (kept, sniffed, kept, "")


async def test_other_projects_responses_each_have_a_word_or_a_body(testdata: Path) -> None:
    """Llhttp's cases, most of them broken: nothing raises, nothing is waited for beyond the limit."""
    cases = json.loads((testdata / "http-llhttp" / "response_cases.json").read_text())
    answers = [await got(says(case["input_latin1"].encode("latin-1")), timeout_s=0.1) for case in cases]
    words = {"", "bad_http", "timeout", "disconnected", "bad_body", "bad_encoding"}
    assert len(answers) > 40
    assert {answer.error for answer in answers} <= words


@pytest.mark.parametrize(
    ("name", "coding", "size"),
    [
        *((f"bomb-{coding}.bin", coding, None) for coding in ("br", "deflate", "gzip", "zstd")),
        ("html-gzip-deflate.bin", "gzip, deflate", 74_837),
        ("html-gzip-deflate-gzip.bin", "gzip, deflate, gzip", 74_837),
        ("html-gzip.bin", "x-gzip", 74_837),
        ("html-rawdeflate.bin", "deflate", 74_840),
        ("unexpected-eof.gz", "gzip", 8576),
    ],
)
async def test_scrapys_compressed_bodies(testdata: Path, name: str, coding: str, size: int | None) -> None:
    """Bombs are too large; several codings are undone one after the other."""
    body = (testdata / "http-compression-scrapy" / name).read_bytes()
    answer = await got(says(response(body, HTML + f"Content-Encoding: {coding}\r\n")), max_body_bytes=200_000)
    if size is None:
        assert (answer.error, answer.kept) == ("too_large", False)
    else:
        assert (answer.error, answer.kept, len(answer.body)) == ("", True, size)


async def test_a_packed_body_of_which_nothing_comes_ends_at_the_limit() -> None:
    """What is sent counts too: this one would go on until the time is over."""
    padding = b"\x53\x2a\x4d\x18" + (1 << 20).to_bytes(4, "little")  # a frame of zstd that is to be skipped

    async def without_end(out: asyncio.StreamWriter) -> None:
        out.write(chunked(headers=f"{HTML}Content-Encoding: zstd\r\n")[0] + b"400000\r\n" + padding)
        while True:
            out.write(bytes(1000))
            await out.drain()

    assert (await got(without_end)).error == "too_large"


@pytest.mark.parametrize(("coding", "error"), [("gzip, gzip", "too_large"), ("gzip, compress", "bad_encoding")])
async def test_a_bomb_under_several_codings_is_noticed(coding: str, error: str) -> None:
    """At the limit of the body; what nobody can undo has its word."""
    body = gzip.compress(gzip.compress(b"x" * 1_000_000))
    answer = await got(says(response(body, HTML + f"Content-Encoding: {coding}\r\n")))
    assert (answer.error, answer.kept) == (error, False)


async def test_headers_that_matter_later_are_kept_up_to_a_size() -> None:
    """Link and X-Robots-Tag, one value each, and Refresh."""
    headers = (
        HTML + "Link: </a>; rel=next\r\nLink: <" + "x" * 3000 + ">\r\nX-Robots-Tag: none\r\nRefresh: 0; url=/b\r\n"
    )
    answer = await got(says(response(b"x", headers)))
    assert (answer.link, answer.x_robots, answer.refresh) == (("</a>; rel=next",), ("none",), "0; url=/b")


@pytest.mark.parametrize(
    "parts",
    [[], [b"HTTP/1.1 200 OK\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"], chunked(*[b"x"] * 400)],
    ids=["no answer", "half a head", "no body", "a byte now and then"],
)
async def test_the_whole_request_has_a_limit(parts: list[bytes]) -> None:
    """However the time is spent: also a byte now and then does not stretch it."""
    answer = await got(says(*parts, rest_s=0.05), timeout_s=0.3)
    assert answer.error == "timeout"
    assert not answer.kept
    assert answer.took_s > 0.25


async def test_bytes_that_are_no_utf8_can_be_recorded() -> None:
    """A Location is percent-encoded byte by byte, as browsers send it on; a type only has to be characters."""
    parts = b"HTTP/1.1 302 Found\r\nLocation: /\xe9\xc3\xa9\r\nContent-Type: text/\xe9\r\nContent-Length: 0\r\n\r\n"
    answer = await got(says(parts))
    assert (answer.location, answer.content_type) == ("/%E9é", "text/?")


@pytest.mark.parametrize("excess", [b"</html>", b"\r\n", b"\0"])
@pytest.mark.parametrize("apart", [False, True])
async def test_a_body_longer_than_it_says_is_what_it_says(excess: bytes, apart: bool) -> None:
    """Servers count characters instead of bytes; however the network cuts what they send, it is one page."""
    head, _, body = (response(b"hello") + excess).partition(b"\r\n\r\n")
    parts = [head + b"\r\n\r\n", body]
    answer = await got(says(*(parts if apart else [b"".join(parts)]), rest_s=0.05))
    assert (answer.http, answer.error, answer.body) == (200, "", b"hello")


async def test_a_broken_body_is_not_waited_for() -> None:
    """Its head came before it, so the parser has given the answer away when it fails."""
    answer = await got(says(CHUNKED, b"z\r\nhello\r\n", rest_s=0.05), timeout_s=60.0)  # else a timeout
    assert (answer.http, answer.error) == (200, "bad_body")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_told_and_not_followed(status: int) -> None:
    """Each hop is a URL of its own, for the frontier."""
    async with talk(says(response(b"", "Location: /elsewhere\r\n", f"{status} Moved"))) as (client, web, url):
        answer = await client.get(HttpRequest(url))
    assert (answer.http, answer.location, len(web.requests)) == (status, "/elsewhere", 1)


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("http://u:p@b.test/x#y", "http://b.test/x"),
        ("//u@b.test./", "http://b.test/"),
        ("mailto:u@b.test", "mailto:u@b.test"),
        ("ftp://u:p@b.test/x@y", "ftp://b.test/x@y"),
        ("//u:p@q@[b", "//[b"),
        ("http://u:p@b c.test/?a@b", "http://b c.test/?a@b"),
    ],
)
async def test_a_login_in_a_redirect_is_not_told(location: str, told: str) -> None:
    """What comes of an answer is written down, and asked for."""
    assert (await got(says(response(b"", f"Location: {location}\r\n", "302 Found")))).location == told


async def test_only_a_redirect_has_a_location() -> None:
    """A 201 may name one too."""
    assert (await got(says(response(b"", f"{HTML}Location: /x\r\n", "201 Created")))).location == ""


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", None], "bad_body"),
        ([b"", None], "disconnected"),
        ([b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n"], "bad_http"),
        ([b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n"], "bad_http"),
        ([CHUNKED + b"z\r\nhello\r\n0\r\n\r\n"], "bad_body"),
        ([CHUNKED + b"5\r\nhelloXX0\r\n\r\n"], "bad_body"),
        ([CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n"], "bad_body"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n"], "header_too_large"),
        ([b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n"], "too_many_headers"),
    ],
    ids=[
        "cut off",
        "hung up",
        "no HTTP",
        "no status",
        "a bad size",
        "a bad end",
        "a bad trailer",
        "an endless header",
        "endless headers",
    ],
)
async def test_a_failure_is_one_word(parts: list[bytes | None], error: str) -> None:
    """Nothing that a server says raises."""

    async def speak(out: asyncio.StreamWriter) -> None:
        for part in parts:
            if part is None:
                raise ConnectionError
            out.write(part)
            await out.drain()

    answer = await got(speak)
    assert (answer.error, answer.body, answer.kept) == (error, b"", False)


async def test_nobody_there_is_a_failure_to_connect() -> None:
    """A port that nobody listens at."""
    async with talk(says(b"")) as (client, _, _):
        assert (await client.get(HttpRequest("http://127.0.0.1:2/"))).error == "connection_refused"


@pytest.mark.parametrize(("size", "connections"), [(DRAINED_BYTES, 1), (100 * DRAINED_BYTES, 2)])
async def test_a_body_that_nobody_wants_is_not_kept(size: int, connections: int) -> None:
    """Of a small one the rest is read, for the connection's sake; a larger one is cut off."""
    async with talk(says(response(b"x" * size, "Content-Type: video/mp4\r\n"))) as (client, web, url):
        answers = [await client.get(HttpRequest(url)) for _ in range(2)]
    assert [(answer.http, answer.kept, answer.body, answer.error) for answer in answers] == [(200, False, b"", "")] * 2
    assert web.connections == connections


async def test_robots_txt_of_any_type_is_kept_up_to_its_own_limit() -> None:
    """RFC 9309 2.5: what lies beyond is left out, and the rest counts."""
    async with talk(says(response(b"x" * 5000, "Content-Type: video/mp4\r\n"))) as (client, _, url):
        answer = await client.get(HttpRequest(url, any_type=True, max_bytes=100))
    assert (answer.body, answer.kept, answer.error) == (b"x" * 100, True, "")


async def test_a_lost_lease_sends_nothing() -> None:
    """It is asked last, once the connection stands."""
    async with talk(says(response(b"")), may_ask=lambda: False) as (client, web, url):
        with pytest.raises(LeaseLost):
            await client.get(HttpRequest(url))
        with pytest.raises(LeaseLost):
            await client.get(posting(read_form(f"{url}#user=ann"), "j"))
    assert web.requests == []


async def test_a_connection_that_is_kept_looks_again() -> None:
    """Each request has its own look; a connection on which one must not be sent is not used any more."""
    looks = iter((True, False, True))
    async with talk(says(response(b"x")), may_ask=lambda: next(looks)) as (client, web, url):
        await client.get(HttpRequest(url))
        with pytest.raises(LeaseLost):
            await client.get(HttpRequest(url))
        assert (await client.get(HttpRequest(url))).http == 200
    assert (len(web.requests), web.connections) == (2, 2)


@pytest.mark.parametrize("kind", ["silent", "cut", "refused"])
async def test_a_failure_without_the_lease_is_no_answer(kind: str) -> None:
    """A process that was stopped sees all its timers run out as it goes on: its last attempt would be a result.

    1 asked → 2 stopped → 3 the new owner asks, and is answered → 4 continued: the time is up, and that comes first
    """
    parts = {"silent": (), "cut": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",), "refused": ()}[kind]
    looks = iter((kind != "refused",))
    async with talk(says(*parts, b"", rest_s=0.3), lambda: next(looks, False), first_byte_timeout_s=0.1) as (
        client,
        _,
        url,
    ):
        with pytest.raises(LeaseLost):
            await client.get(HttpRequest("http://127.0.0.1:2/" if kind == "refused" else url))


@pytest.mark.parametrize("has_body", [False, True])
async def test_the_look_at_the_lease_is_the_last_thing_before_the_write(has_body: bool) -> None:
    """All that aiohttp does for a request is done by then: who is stopped after the look may be stopped for long."""
    calls: list[str] = []

    def noted(frame: FrameType, event: str, _: Any) -> None:
        calls.append(f"{event} {frame.f_code.co_name}")

    def look() -> bool:
        sys.setprofile(noted)
        return True

    async with talk(says(response(b"x")), may_ask=look) as (client, _, url):
        asked = client.get(posting(read_form(f"{url}#user=ann"), "j")) if has_body else client.get(HttpRequest(url))
        try:
            assert (await asked).http == 200
        finally:
            sys.setprofile(None)
    assert calls[:3] == ["return look", "call write", "c_call write"]


async def test_the_request_says_who_asks() -> None:
    """And in which codings it may be answered."""
    async with talk(says(response(b"", HTML))) as (client, web, url):
        await client.get(HttpRequest(url))
    assert b"User-Agent: tester\r\n" in web.requests[0]
    assert b"Accept-Encoding: gzip, deflate, br, zstd\r\n" in web.requests[0]
    assert b"Cookie" not in web.requests[0]


@pytest.mark.parametrize(("value", "allows"), [("true", True), ("True", False), ("true, true", False), ("\xff", False)])
async def test_only_one_word_allows_credentials(value: str, allows: bool) -> None:
    """Browsers heed no other, and what a server writes there is not handed on to ours."""
    answer = await got(says(response(b"x", f"{HTML}Access-Control-Allow-Credentials: {value}\r\n")))
    assert (answer.http, answer.allows_credentials) == (200, allows)


async def test_a_large_body_waits_for_room_without_its_deadline() -> None:
    """Longer than the request and its silence may last: meanwhile the server is held, and that is not its fault."""
    size = 4 << 20
    parts = response(b"x" * size)
    async with talk(says(parts), max_body_bytes=size, timeout_s=2.0, chunk_timeout_s=1.0) as (client, _, url):
        others = await client.bodies.take(1 << 40)
        asked = asyncio.create_task(client.get(HttpRequest(url)))
        await until(lambda: client.bodies.waiting == 1)
        await asyncio.sleep(2.5)
        assert not asked.done()
        others.give()
        answer = await asked
    assert (answer.error, len(answer.body), answer.held.size_bytes) == ("", size, size)
    assert answer.took_s > 2.5


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_large_bodies_together_are_no_larger_than_the_room(is_chunked: bool) -> None:
    """Where a length is unknown the limit counts until the body is there; small bodies pass them by."""
    size, small = 2 * FREE_BYTES, b"s" * 1000
    parts = [*chunked(b"x" * size), b"0\r\n\r\n"] if is_chunked else [response(b"x" * size)]
    async with talk(says(*parts), max_body_bytes=size) as (client, web, url):
        client.bodies = BodyBudget(2 * size)
        asked = [asyncio.create_task(client.get(HttpRequest(url))) for _ in range(5)]
        await until(lambda: client.bodies.waiting == 3 and sum(one.done() for one in asked) == 2)
        web.speak = says(response(small))
        assert (await client.get(HttpRequest(url))).body == small
        for _ in range(5):
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert sum(len(one.result().body) for one in done) <= 2 * size
            first = done.pop()
            asked.remove(first)
            first.result().held.give()
            assert first.result().kept
        assert client.bodies.free_bytes == 2 * size


async def test_who_is_given_up_when_the_body_is_here_holds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last byte and the answer: nobody is left to give it back."""
    size, at_end = 4 * FREE_BYTES, asyncio.Event()

    async def close(_response: aiohttp.ClientResponse) -> None:
        at_end.set()
        await asyncio.sleep(60.0)

    monkeypatch.setattr(aiohttp.ClientResponse, "wait_for_close", close)
    async with talk(says(response(b"x" * size)), max_body_bytes=size) as (client, _, url):
        whole = client.bodies.free_bytes
        asked = asyncio.create_task(client.get(HttpRequest(url)))
        await at_end.wait()
        assert client.bodies.free_bytes == whole - size
        asked.cancel()
        await asyncio.wait([asked])
        assert client.bodies.free_bytes == whole


async def test_what_is_not_kept_holds_no_room() -> None:
    """A body that breaks off, one too large, one given up by its caller: each had its room, and gave it back."""
    size = 4 * FREE_BYTES
    broken = response(b"x" * size)[:-FREE_BYTES]

    async def breaks_off(out: asyncio.StreamWriter) -> None:
        out.write(broken)
        await out.drain()
        raise ConnectionError

    async with talk(breaks_off, max_body_bytes=size) as (client, web, url):
        whole = client.bodies.free_bytes
        assert (await client.get(HttpRequest(url))).error == "bad_body"
        web.speak = says(*chunked(*[b"x" * FREE_BYTES] * 6))
        assert (await client.get(HttpRequest(url))).error == "too_large"
        web.speak = says(*chunked(b"x" * 2 * FREE_BYTES))
        asked = asyncio.create_task(client.get(HttpRequest(url)))
        await until(lambda: client.bodies.free_bytes < whole)
        asked.cancel()
        await asyncio.wait([asked])
        assert client.bodies.free_bytes == whole


@pytest.mark.parametrize(
    ("address", "refusal"), [("93.184.215.14", ""), ("10.0.0.7", "private_address: private address 10.0.0.7")]
)
async def test_a_public_page_may_load_a_url_by_the_addresses_of_its_whole_name(
    monkeypatch: pytest.MonkeyPatch, address: str, refusal: str
) -> None:
    """No other name is looked up."""
    names: list[str] = []

    async def resolve(host: str, _port: int = 0, _family: int = 0) -> list[dict[str, Any]]:
        names.append(host)
        return [{"hostname": host, "host": address, "port": 0, "family": 2, "proto": 0, "flags": 0}]

    async with client_by() as client:
        monkeypatch.setattr(client._resolver._resolver, "resolve", resolve)
        assert await client.closed_to_public("https://public.example/x") == refusal
    assert names == ["public.example"]
