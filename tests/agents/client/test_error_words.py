"""Every kind of failure that an errback tells apart has its word in the page."""

import asyncio
import errno
import re
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.resolver import AsyncResolver

from crawlog.agents.client import failures
from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from tests.support.proxies import server_tls
from tests.support.raw_http import HTML, Pages, client_by, response, served, settings, talk

POST = RequestRecord("POST", body=b"a=1")
HEAD = f"HTTP/1.1 200 OK\r\n{HTML}".encode()


def spoken(*parts: bytes | None) -> Any:
    """A server that says these parts; None resets the connection."""

    async def speak(out: asyncio.StreamWriter) -> None:
        for part in parts:
            if part is None:
                line: socket.socket = out.get_extra_info("socket")
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise ConnectionError
            out.write(part)
            await out.drain()
        if parts and parts[-1] == b"":
            await asyncio.sleep(60)
        raise ConnectionError

    return speak


@pytest.mark.parametrize(
    ("parts", "words", "http"),
    [
        ((), {"disconnected"}, None),
        ((None,), {"connection_reset", "disconnected"}, None),
        ((HEAD + b"Content-Length: 9\r\n\r\nx",), {"bad_body"}, 200),
        ((HEAD + b"Content-Length: 99\r\n\r\nx", b""), {"chunk_timeout"}, 200),
        ((b"",), {"first_byte_timeout"}, None),
        ((b"no http\r\n\r\n",), {"bad_http"}, None),
        ((HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",), {"bad_encoding"}, 200),
        ((response(b"x" * 20_000),), {"too_large"}, 200),
        ((HEAD + b"X: " + b"x" * 20_000 + b"\r\n\r\n",), {"header_too_large"}, None),
        ((HEAD + b"X: 1\r\n" * 300 + b"\r\n",), {"too_many_headers"}, None),
        ((response(b"no", status="404 Not Found"),), {""}, 404),
        ((response(b"no", status="503 Later"),), {""}, 503),
    ],
)
async def test_a_server_that_breaks_off_or_is_silent_has_its_word(
    parts: tuple[bytes | None, ...], words: set[str], http: int | None
) -> None:
    """Where there was an answer, its status is there too; a status alone is no error."""
    async with talk(spoken(*parts), first_byte_timeout_s=0.3, chunk_timeout_s=0.3) as (client, _, url):
        answer = await client.get(HttpRequest(url, record=POST))
    assert answer.error in words
    assert answer.http == http


async def test_a_host_that_is_not_there_has_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name, nobody at the port, no answer at all."""

    async def resolve(_self: object, name: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        raise OSError("no such name")

    monkeypatch.setattr(AsyncResolver, "resolve", resolve)
    async with talk(spoken(b"")) as (client, _, url):
        urls = ["http://gone.test/", "http://127.0.0.1:2/", url]
        answers = [await client.get(HttpRequest(one, record=POST, within_s=0.3)) for one in urls]
    assert [answer.error for answer in answers] == ["dns", "connection_refused", "timeout"]


async def test_bad_tls_has_its_word(tmp_path: Path) -> None:
    """A certificate that nobody signed, and no TLS at all."""
    from crawlog.agents.client.client import Client

    base = settings()
    network = base.network.model_copy(update={"verify_tls": True})
    client = Client(base.model_copy(update={"network": network}), "tester", lambda: True)
    try:
        words = []
        for context in (server_tls(tmp_path), None):
            async with served(Pages(), context) as port:
                answer = await client.get(HttpRequest(f"https://127.0.0.1:{port}/one", record=POST, within_s=5.0))
                words.append(answer.reason)
    finally:
        await client.close()
    assert words[0] == "tls_certificate: self-signed certificate"
    assert words[1].partition(":")[0] in ("tls", "timeout", "disconnected", "connection_reset")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (
            HEAD + b"Content-Length: 9\r\nContent-Length: 7\r\n\r\n",
            "bad_http: Duplicate Content-Length: b'Content-Length: 7'",
        ),
        (b"HTTP/1.1 2x OK\r\n\r\n", "bad_http: Bad status line: Invalid status code: b'HTTP/1.1 2x OK'"),
        (HEAD + b"X: " + b"x" * 20_000 + b"\r\n\r\n", "header_too_large: Got more than 16384 bytes when reading"),
        (HEAD + b"Content-Length: 9\r\n\r\nx", "bad_body: Not enough data to satisfy content length header"),
    ],
)
async def test_an_answer_that_is_no_http_is_told_with_its_bad_line(head: bytes, reason: str) -> None:
    """Short, and on one line."""
    async with talk(spoken(head)) as (client, _, url):
        answer = await client.get(HttpRequest(url, record=POST))
    assert answer.reason.startswith(reason)
    assert answer.reason.partition(": ")[0] == answer.error
    assert answer.reason.isprintable()
    assert len(answer.reason) < 200


def tls_error(reason: str, verify: str = "") -> ssl.SSLError:
    """An error as the ssl module raises it."""
    error = ssl.SSLCertVerificationError(1, "x") if verify else ssl.SSLError(1, "x")
    error.reason = reason
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_message = verify
    return error


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (tls_error("UNSAFE_LEGACY_RENEGOTIATION_DISABLED"), "unsafe legacy renegotiation disabled"),
        (tls_error("CERTIFICATE_VERIFY_FAILED", "certificate has expired"), "certificate has expired"),
        (OSError(errno.ENETUNREACH, "x"), "Network is unreachable"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), ""),
        (TimeoutError(), ""),
        (HttpProcessingError(message="Bad line:\n\n  b'Set-Cookie : sid=SECRET'\n  ^"), "Bad line: b'Set-Cookie : …"),
        (HttpProcessingError(message="Bad line: b'a\x1bb'"), "Bad line: b'a\\u001bb'"),
    ],
)
def test_the_detail_of_an_error_is_of_its_cause(error: BaseException, detail: str) -> None:
    """Whatever aiohttp wraps around it. A cookie's value may be a session, and is left out."""
    around = aiohttp.ClientError("Cannot connect")
    around.__cause__ = error
    assert (failures.detail_of(error), failures.detail_of(around)) == (detail, detail)


async def test_what_is_never_sent_has_its_word() -> None:
    """With the reason behind it."""
    async with client_by() as client:
        errors = [
            (await client.get(HttpRequest(url, record=record))).error.partition(": ")[0]
            for url, record in (
                ("http://169.254.169.254/", POST),
                ("http://127.0.0.1:25/", POST),
                ("http://127.0.0.1:2/", RequestRecord("A B")),
                ("http://127.0.0.1:2/", RequestRecord(proxy="http://169.254.169.254")),
                ("http://127.0.0.1:2/", RequestRecord(proxy="http://127.0.0.1:2")),
            )
        ]
    assert errors == ["private_address", "bad_port", "bad_method", "bad_proxy", "proxy"]


def test_the_schema_names_every_word() -> None:
    """Who maps them to exceptions reads them there."""
    named = set(re.findall(r"`([a-z_]+)(?:: …)?`", PageMeta.__doc__ or ""))
    said = {word for _, word in (*failures._REASONS, *failures._HEADER_FAULTS)}
    said |= {"connection_refused", "first_byte_timeout", "chunk_timeout", "proxy", "proxy_login", "bad_proxy"}
    said |= {"private_address", "bad_port", "bad_method", "too_large", "bad_encoding", "robots", "robots_unreachable"}
    assert said - named == set()
    assert failures.reason_of(ssl.SSLError()) == "tls"
