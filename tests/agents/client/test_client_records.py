"""Requests that a spider made: method, headers and body are sent as their record says."""

from typing import Any

import pytest

from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.http.answer import Answer
from crawlog.streams.requests.request_rules import header_refusal, method_refusal
from tests.support.listening import Listener
from tests.support.raw_http import client_by, response, served


async def sent(record: RequestRecord, site: Listener | None = None, **more: Any) -> tuple[Answer, Listener]:
    """The answer to a request, and the server that got it."""
    site = site or Listener()
    async with served(site) as port, client_by() as client:
        answer = await client.get(HttpRequest(f"http://127.0.0.1:{port}/one", record=record, **more))
    return answer, site


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "GET"])
async def test_a_body_is_sent_as_it_is_by_any_method(method: str) -> None:
    """Nothing is said about its type that the request does not say."""
    body = b'{"a": "\xff\x00"}'
    answer, site = await sent(RequestRecord(method, body=body))
    assert (answer.http, answer.body) == (200, b"<p>x")
    assert site.requests[0].startswith(f"{method} /one HTTP/1.1\r\n")
    assert site.bodies == [body]
    assert "content-type" not in site.headers()


async def test_a_post_without_a_body_says_that_it_has_none() -> None:
    """Servers answer 411 otherwise. A type of nothing would be none that the request says."""
    _, site = await sent(RequestRecord("POST"))
    assert site.headers()["content-length"] == "0"
    assert "content-type" not in site.headers()


async def test_the_headers_of_a_request_replace_those_of_its_job_whatever_their_case() -> None:
    """Others stay; a name may come twice."""
    own = (("user-agent", "own/1"), ("ACCEPT", "a/b"), ("X-Twice", "1"), ("X-Twice", "é"))
    _, site = await sent(RequestRecord(headers=own))
    lines = site.requests[0].split("\r\n")
    assert [line for line in lines if line.lower().startswith(("user-agent", "accept:"))] == [
        "ACCEPT: a/b",
        "user-agent: own/1",
    ]
    assert [line for line in lines if line.startswith("X-Twice")] == ["X-Twice: 1", "X-Twice: é"]
    assert site.headers()["accept-encoding"] == "gzip, deflate, br, zstd"


async def test_a_request_may_be_sent_without_a_header_of_its_job() -> None:
    """Nor does the client write one of its own in its place; `Accept` and `Accept-Encoding` are always sent."""
    _, site = await sent(RequestRecord(without=("user-agent",)))
    assert sorted(site.headers()) == ["accept", "accept-encoding", "host"]


SMUGGLED = [
    ("Host", "inside.test"),
    ("Content-Length", "0"),
    ("content-length", "100"),
    ("Transfer-Encoding", "chunked"),
    ("Connection", "upgrade"),
    ("Upgrade", "h2c"),
    ("TE", "trailers"),
    ("Trailer", "x"),
    ("Expect", "100-continue"),
    ("Proxy-Authorization", "Basic eDp5"),
    ("X-A", "1\r\nHost: inside.test"),
    ("X-A", "1\nX-B: 2"),
    ("X-A", "1\x00"),
    ("X-A\r\nX-B", "1"),
    ("X-A: 1\r\nX-B", "1"),
    ("X A", "1"),
    ("", "1"),
]


@pytest.mark.parametrize(("name", "value"), SMUGGLED)
async def test_no_header_says_where_a_request_ends_or_to_whom_it_goes(name: str, value: str) -> None:
    """It is refused where the request is made, and dropped here."""
    assert header_refusal(name, value)
    assert not value or value not in header_refusal(name, value) or value in ("0", "1", "x")
    answer, site = await sent(RequestRecord("POST", headers=((name, value), ("X-Kept", "1")), body=b"12345"))
    assert answer.http == 200
    assert (site.headers()["content-length"], site.headers()["x-kept"], site.bodies) == ("5", "1", [b"12345"])
    assert "inside.test" not in site.requests[0]
    assert not {"x-a", "x-b", "upgrade", "te", "trailer", "expect"} & site.headers().keys()


@pytest.mark.parametrize("method", ["GET /two HTTP/1.1\r\nX: ", "", "GE T", "CONNECT", "connect"])
async def test_a_method_is_a_word(method: str) -> None:
    """Anything else is an answer without a request, and is not tried again."""
    assert method_refusal(method)
    answer, site = await sent(RequestRecord(method))
    assert (answer.http, answer.private, site.requests) == (None, True, [])
    assert answer.error.startswith("bad_method: ")


async def test_all_headers_are_kept_where_they_are_wanted() -> None:
    """In order and byte by byte, those that set cookies too."""
    said = response(b"x", "Content-Type: text/html\r\nSet-Cookie: a=1\r\nX-B: \xe9\r\nset-cookie: b=2\r\n")
    answer, _ = await sent(RequestRecord(), Listener(said.decode().encode("latin-1")), all_headers=True)
    assert answer.headers == (
        ("Content-Type", "text/html"),
        ("Set-Cookie", "a=1"),
        ("X-B", "é"),
        ("set-cookie", "b=2"),
        ("Content-Length", "1"),
    )
    answer, _ = await sent(RequestRecord())
    assert answer.headers == ()


async def test_the_exchange_is_kept_as_it_was_without_logins() -> None:
    """The status line byte by byte, and each header of the request but those that a record may not hold."""
    record = RequestRecord("POST", headers=(("X-A", "\u00e9"), ("Authorization", "Basic QTpi")), body=b"a")
    said = b"HTTP/1.0 404 Ne \xe9\r\nContent-Length: 0\r\n\r\n"
    answer, site = await sent(record, Listener(said), all_headers=True)
    head = site.requests[0].split("\r\n\r\n")[0].split("\r\n")[1:]
    assert answer.status_line == "HTTP/1.0 404 Ne \xe9"
    assert [f"{name}: {value}".encode("latin-1").decode() for name, value in answer.sent] == [
        line for line in head if "Basic" not in line
    ]
    assert "Authorization: Basic QTpi" in head


@pytest.mark.parametrize("status", ["301 Moved", "404 Not Found", "500 Oops"])
async def test_a_redirect_or_an_error_is_the_answer(status: str) -> None:
    """With its body; nothing is followed here."""
    said = response(b"<p>y", "Content-Type: text/html\r\nLocation: /two\r\n", status)
    answer, site = await sent(RequestRecord("POST", body=b"a=1"), Listener(said))
    assert (answer.http, answer.kept, answer.body) == (int(status[:3]), True, b"<p>y")
    assert len(site.requests) == 1


@pytest.mark.parametrize("coding", ["", "Content-Encoding: gzip\r\n"])
@pytest.mark.parametrize("size", [0, 12, 100 << 20])
@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
async def test_a_head_has_headers_and_no_body(coding: str, size: int, status: str) -> None:
    """Whatever its headers say of a body; the connection goes on."""
    said = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{coding}Content-Length: {size}\r\n\r\n".encode()
    site = Listener(said)
    async with served(site) as port, client_by() as client:
        for _ in range(2):
            request = HttpRequest(f"http://127.0.0.1:{port}/one", record=RequestRecord("HEAD"), all_headers=True)
            answer = await client.get(request)
            assert (answer.http, answer.error, answer.body) == (int(status[:3]), "", b"")
            assert ("Content-Length", str(size)) in answer.headers
    assert len(site.requests) == 2


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified", "205 Reset Content"])
async def test_an_answer_without_a_body_is_one(status: str) -> None:
    """To a POST, with a coding of nothing."""
    said = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Encoding: br\r\nContent-Length: 0\r\n\r\n".encode()
    answer, _ = await sent(RequestRecord("POST", body=b"a=1"), Listener(said))
    assert (answer.http, answer.error, answer.body) == (int(status[:3]), "", b"")
