"""A web of misbehaving servers: one process, each behaviour on loopback addresses of its own (127.7.N.1 and up).

    python -m bench.hostile_site --port 8700        serves until Ctrl-C, and prints one URL of each behaviour

A behaviour is a script of bytes, rests and deeds, with the outcome that it must have with a crawler: what becomes of
the URL, the HTTP status, and why. The address tells which behaviour is asked for, so any path will do.
"""

import argparse
import asyncio
import contextlib
import gzip
import signal
import socket
import ssl
import struct
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

import brotli
from backports import zstd

from tests.support.certificates import authority, signed

HOSTS = 8
"""Addresses of each behaviour."""

MB = 1 << 20
LARGE = 7 * MB
"""A body just within the default limit of 8 MiB."""

LONG = "7 MB of prose"
BOMB = 200 * MB
HTML = b"Content-Type: text/html\r\n"
OK = b"HTTP/1.1 200 OK\r\n" + HTML
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
METADATA = "http://169.254.169.254/latest/meta-data/"


class Deed(Enum):
    """Steps of a script other than sending and resting."""

    RESET = auto()
    """A TCP reset."""
    HALF = auto()
    """Says that it will send no more, and goes on listening."""
    SILENCE = auto()
    """Nothing more, until the client gives up."""


class Asked(NamedTuple):
    """A request: path with its query, and scheme, host and port in front of it."""

    path: str
    origin: str
    number: int
    """How many requests its host had before."""


Step = bytes | float | Deed
Script = Callable[[Asked], Iterable[Step]]


@dataclass(frozen=True)
class Behaviour:
    """One way to misbehave.

    Attributes:
        outcome: `status http reason` of the last done; several, where the network decides, with `|` between.
        dead: How the dead letter of its page begins; empty where there is none.
        size: How many URLs it may have: `many`, or few of what is `large` or `slow`.
        robots: Its robots.txt; None for 404.
        tls: Its certificate; empty for plain HTTP.
        early: It does not wait for a request, so its robots.txt is no better.
    """

    name: str
    outcome: str
    script: Script
    size: Literal["many", "large", "slow"] = "many"
    robots: Script | None = None
    tls: str = ""
    early: bool = False
    dead: str = ""


class Whole(bytes):
    """An answer after which its connection may be used again."""

    __slots__ = ()


def response(body: bytes, headers: bytes = HTML, status: bytes = b"200 OK") -> Whole:
    """A whole one."""
    return Whole(b"HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n%s" % (status, headers, len(body), body))


PAGE = response(b"<title>t</title><p>well")


def says(*steps: Step) -> Script:
    """The same to everybody."""
    return lambda _: steps


def forever(first: bytes, *steps: Step) -> Script:
    """A beginning, then the same again and again."""

    def script(_: Asked) -> Iterator[Step]:
        yield first
        while True:
            yield from steps

    return script


def drip(content: bytes) -> Script:
    """One byte a second."""
    return lambda _: (step for byte in content for step in (bytes((byte,)), 1.0))


def body(build: Callable[[], bytes], headers: bytes = HTML) -> Script:
    """A body that takes a while to build: done before anything is served, or all that is asked meanwhile would wait."""
    built = _once(build)
    return lambda _: (response(built(), headers),)


_builds: list[Callable[[], bytes]] = []


def _once(build: Callable[[], bytes]) -> Callable[[], bytes]:
    built = lru_cache(1)(build)
    _builds.append(built)
    return built


def coded(build: Callable[[], bytes], coding: bytes) -> Script:
    """A body in a content coding."""
    return body(build, HTML + b"Content-Encoding: " + coding + b"\r\n")


def to(location: bytes, more: bytes = b"") -> Script:
    """A redirect; `%o` stands for the own origin, `%s` for the path."""

    def script(asked: Asked) -> Iterator[Step]:
        where = location.replace(b"%o", asked.origin.encode()).replace(b"%s", asked.path.encode())
        yield response(b"", b"Location: " + where + b"\r\n" + more, b"302 Found")

    return script


def _other(asked: Asked) -> Iterator[Step]:
    there = asked.path[:-2] if asked.path.endswith("=b") else asked.path + "?=b"
    yield from to(there.removesuffix("?").encode())(asked)


def _next(asked: Asked) -> Iterator[Step]:
    path, _, hop = asked.path.partition("?hop=")
    yield from to(f"{path}?hop={int(hop or 0) + 1}".encode())(asked)


def _second_good(first: bytes, then: bytes) -> Script:
    return lambda asked: (then if asked.number else first,)


def _br_bomb() -> bytes:
    packer = brotli.Compressor(quality=1)
    return b"".join([*(packer.process(bytes(MB)) for _ in range(BOMB // MB)), packer.finish()])


def _zstd_bomb() -> bytes:
    packer = zstd.ZstdCompressor(1)
    return b"".join(packer.compress(bytes(MB)) for _ in range(BOMB // MB)) + packer.flush()


@lru_cache(1)
def _gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(MB)) for _ in range(BOMB // MB)) + packer.flush()


def _many(piece: bytes, size: int = LARGE) -> bytes:
    return piece * (size // len(piece))


def at_pace(build: Callable[[], bytes], bytes_per_s: int) -> Script:
    """A whole page, a piece after the other."""
    built = _once(lambda: response(build()))
    piece = 256 * 1024

    def script(_: Asked) -> Iterator[Step]:
        page = built()
        for at in range(0, len(page), piece):
            yield page[at : at + piece]
            yield piece / bytes_per_s

    return script


def _prose() -> bytes:
    paragraph = (
        b'<p>Seven megabytes of <b>prose</b>, and here and there a <a href="http://x.invalid/%d">link</a>. '
        + b"word " * 100
    )
    return b"<title>long</title>" + b"".join(paragraph % (n % 100) for n in range(LARGE // len(paragraph)))


def _made_anew(opened: int, block: bytes) -> bytes:
    """Formatting elements that are left open, and as many blocks, each of which has them all."""
    return b"<div>" + b"".join(b"<i a=%d>" % n for n in range(opened)) + b"</div>" + block * opened


def _links() -> bytes:
    return b"".join(b'<a href="http://x.invalid/%d">' % n for n in range(200_000))


SLOW = (
    Behaviour("never answers", "failed first_byte_timeout", says(Deed.SILENCE), "slow"),
    Behaviour("a header byte a second", "failed timeout", drip(PAGE), "slow"),
    Behaviour("a body byte a second", "fetched 200 timeout", lambda _: [CHUNKED, *_dripped()], "slow"),
    Behaviour("a small chunk forever", "fetched 200 timeout", forever(CHUNKED, b"1\r\nx\r\n", 0.1), "slow"),
    Behaviour(
        "half a body, then silence",
        "fetched 200 chunk_timeout",
        says(OK + b"Content-Length: 9\r\n\r\nabc", Deed.SILENCE),
        "slow",
    ),
    Behaviour(
        "endless 100 Continue", "failed bad_http", forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.01), "slow"
    ),
    Behaviour(
        "half a status line, then silence", "failed first_byte_timeout", says(b"HTTP/1.1 2", Deed.SILENCE), "slow"
    ),
    Behaviour(
        "TLS handshake never answered",
        "failed robots_unreachable: connect_timeout",
        says(Deed.SILENCE),
        "slow",
        tls="none",
        early=True,
    ),
)


def _dripped() -> Iterator[Step]:
    for _ in range(1000):
        yield b"1\r\nx\r\n"
        yield 1.0


HEADERS = (
    Behaviour("an endless header", "failed header_too_large", forever(OK + b"X: ", b"x" * 4096)),
    Behaviour("endless headers", "failed header_too_large", forever(OK, b"X: y\r\n" * 100)),
    Behaviour("a header of 100 kB", "failed header_too_large", says(OK + b"X: " + b"x" * 100_000 + b"\r\n\r\n")),
    Behaviour("10,000 headers", "failed too_many_headers", says(OK + b"X: y\r\n" * 10_000 + b"\r\n")),
    Behaviour("no HTTP", "failed bad_http", says(b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n")),
    Behaviour("HTTP/0.9", "failed bad_http", says(b"<html><p>no head", Deed.HALF)),
    Behaviour("a NUL in a header", "failed bad_http", says(OK + b"X: a\0b\r\nContent-Length: 1\r\n\r\nx")),
    Behaviour(
        "a control byte in a header",
        "fetched 200|failed bad_http",
        says(OK + b"X: a\x01b\r\nContent-Length: 1\r\n\r\nx"),
    ),
    Behaviour("a folded header", "fetched 200|failed bad_http", says(OK + b"X: a\r\n b\r\nContent-Length: 1\r\n\r\nx")),
    Behaviour("a header without a colon", "fetched 200", says(OK + b"nothing\r\nContent-Length: 1\r\n\r\nx")),
    Behaviour(
        "a space before the colon", "fetched 200|failed bad_http", says(OK + b"X : y\r\nContent-Length: 1\r\n\r\nx")
    ),
    Behaviour("bare line feeds", "fetched 200|failed bad_http", says(b"HTTP/1.1 200 OK\nContent-Length: 1\n\nx")),
    Behaviour("status 999", "fetched 999", says(response(b"x", HTML, b"999 Denied"))),
    Behaviour("status 99999", "failed bad_http", says(response(b"x", HTML, b"99999 Much"))),
    Behaviour("status 0", "failed bad_http|fetched 0", says(response(b"x", HTML, b"000 None"))),
    Behaviour("204 with a body", "fetched 204|failed bad_http", says(response(b"x" * 9, HTML, b"204 None"))),
    Behaviour("304 unasked", "fetched 304", says(response(b"", b"", b"304 Same"))),
    Behaviour(
        "101 unasked",
        "fetched 101|failed bad_http",
        says(b"HTTP/1.1 101 Up\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx"),
    ),
    Behaviour(
        "100, then an answer", "fetched 200", says(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + PAGE)
    ),
    Behaviour("two content types", "fetched 200", says(response(b"<p>x", HTML + b"Content-Type: image/png\r\n"))),
    Behaviour(
        "a flood of cookies", "fetched 200", says(response(b"<p>x", HTML + b"Set-Cookie: a=b; Domain=com\r\n" * 200))
    ),
    Behaviour(
        "the header names a module",
        "fetched 200",
        says(response(b"<p>x", HTML + b"Referrer-Policy: os.abort\r\nX-Class: __import__('os').abort()\r\n")),
    ),
    Behaviour(
        "a filename as a path",
        "fetched 200",
        says(response(b"<p>x", HTML + b"Content-Disposition: attachment; filename=../../../../tmp/hostile\r\n")),
    ),
    Behaviour("hangs up", "failed disconnected|failed connection_reset", says()),
    Behaviour("resets", "failed connection_reset|failed disconnected", says(Deed.RESET)),
    Behaviour(
        "half a head, half closed", "failed disconnected|failed bad_http", says(b"HTTP/1.1 200 OK\r\nX:", Deed.HALF)
    ),
)

LENGTHS = (
    Behaviour("an endless body", "fetched 200 too_large", forever(OK + b"\r\n", b"x" * 65_536), "large"),
    Behaviour(
        "an endless chunked body",
        "fetched 200 too_large",
        forever(CHUNKED, b"4000\r\n" + b"x" * 0x4000 + b"\r\n"),
        "large",
    ),
    Behaviour(
        "a body of 10 GB",
        "fetched 200 too_large",
        forever(OK + b"Content-Length: 10000000000\r\n\r\n", b"x" * 65_536),
        "large",
    ),
    Behaviour("a length of 2^64", "failed bad_http", says(OK + b"Content-Length: 18446744073709551617\r\n\r\nx")),
    Behaviour("a negative length", "fetched 200", says(OK + b"Content-Length: -1\r\n\r\nx")),
    Behaviour("two lengths", "failed bad_http", says(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy")),
    Behaviour(
        "a length and chunks",
        "failed bad_http|fetched 200",
        says(OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
    ),
    Behaviour(
        "more than its length",
        "fetched 200|failed bad_http",
        says(OK + b"Content-Length: 3\r\n\r\nabcdefgh", 0.01, Deed.HALF),
    ),
    Behaviour("less than its length", "fetched 200 bad_body", says(OK + b"Content-Length: 9\r\n\r\nabc")),
    Behaviour(
        "reset within the body",
        "fetched 200 bad_body|fetched 200 connection_reset",
        says(OK + b"Content-Length: 9\r\n\r\nabc", 0.05, Deed.RESET),
    ),
    Behaviour(
        "a chunk size of letters", "fetched 200 bad_body|failed bad_http", says(CHUNKED + b"zz\r\nx\r\n0\r\n\r\n")
    ),
    Behaviour("a negative chunk", "fetched 200 bad_body|failed bad_http", says(CHUNKED + b"-1\r\nx\r\n0\r\n\r\n")),
    Behaviour(
        "a chunk of 2^64",
        "fetched 200 bad_body|failed bad_http",
        says(CHUNKED + b"10000000000000001\r\nx\r\n0\r\n\r\n"),
    ),
    Behaviour("no last chunk", "fetched 200 bad_body", says(CHUNKED + b"1\r\nx\r\n")),
    Behaviour(
        "an endless chunk extension",
        "fetched 200 bad_body|fetched 200 chunk_timeout|fetched 200 timeout",
        forever(CHUNKED + b"1;", b"x" * 65_536),
        "slow",
    ),
    Behaviour(
        "endless trailers",
        "failed too_many_headers|fetched 200 too_many_headers|fetched 200 bad_body",
        forever(CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n" * 100),
    ),
    Behaviour("chunks of one byte", "fetched 200", says(CHUNKED + b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n"), "large"),
    Behaviour("another answer behind it", "fetched 200", says(PAGE + response(b"<title>smuggled</title>"))),
)

CODINGS = (
    Behaviour("a gzip bomb", "fetched 200 too_large", coded(_gzip_bomb, b"gzip"), "large"),
    Behaviour(
        "a deflate bomb", "fetched 200 too_large", coded(lambda: zlib.compress(bytes(BOMB)), b"deflate"), "large"
    ),
    Behaviour("a br bomb", "fetched 200 too_large", coded(_br_bomb, b"br"), "large"),
    Behaviour("a zstd bomb", "fetched 200 too_large", coded(_zstd_bomb, b"zstd"), "large"),
    Behaviour(
        "a gzip bomb in gzip",
        "fetched 200 too_large",
        coded(lambda: gzip.compress(_gzip_bomb()), b"gzip, gzip"),
        "large",
    ),
    Behaviour(
        "a megabyte of empty gzip members",
        "fetched 200 bad_encoding",
        coded(lambda: _many(gzip.compress(b""), MB), b"gzip"),
        "large",
    ),
    Behaviour(
        "a megabyte of empty zstd frames",
        "fetched 200 bad_encoding",
        coded(lambda: _many(zstd.compress(b""), MB), b"zstd"),
        "large",
    ),
    Behaviour("many gzip members", "fetched 200", coded(lambda: gzip.compress(b"<p>x") * 500, b"gzip")),
    Behaviour("half a gzip", "fetched 200", coded(lambda: gzip.compress(b"x" * 999)[:-12], b"gzip")),
    Behaviour("no gzip though it says so", "fetched 200 bad_encoding", coded(lambda: b"<p>plain", b"gzip")),
    Behaviour("no br though it says so", "fetched 200 bad_encoding", coded(lambda: b"<p>plain", b"br")),
    Behaviour("gzip that it does not tell", "fetched 200", body(lambda: gzip.compress(b"<p>x"))),
    Behaviour("a coding that nobody knows", "fetched 200", coded(lambda: b"<p>x", b"rot13")),
    Behaviour(
        "nine codings", "fetched 200 bad_encoding", coded(lambda: gzip.compress(b"x"), b", ".join([b"gzip"] * 9))
    ),
    Behaviour("a coding of 9 kB", "fetched 200|fetched 200 bad_encoding", coded(lambda: b"<p>x", b"x," * 4500)),
)

REDIRECTS = (
    Behaviour("a redirect to itself", "redirected 302 redirect_circle", to(b"%s")),
    Behaviour("a cookie wall", "redirected 302 redirect_circle", to(b"%s", b"Set-Cookie: seen=1\r\n")),
    Behaviour("A to B to A", "redirected 302", _other),
    Behaviour("a chain without end", "redirected 302", _next),
    Behaviour("a growing query", "redirected 302", to(b"%s?" + b"x" * 500)),
    Behaviour("a redirect to file:", "redirected 302", to(b"file:///etc/passwd")),
    Behaviour("a redirect to data:", "redirected 302", to(b"data:text/html,<a href=/x>x</a>")),
    Behaviour("a redirect to ftp:", "redirected 302", to(b"ftp://127.0.0.1/x")),
    Behaviour("a redirect to javascript:", "redirected 302", to(b"javascript:alert(1)")),
    Behaviour("a redirect to s3:", "redirected 302", to(b"s3://bucket/key")),
    Behaviour("a redirect to the cloud's metadata", "redirected 302", to(METADATA.encode())),
    Behaviour("its address as a number", "redirected 302", to(b"http://2852039166/latest/meta-data/")),
    Behaviour(
        "its address in full-width digits", "redirected 302", to("http://１６９.254.169.254/latest/meta-data/".encode())
    ),
    Behaviour("a redirect to nonsense", "redirected 302", to(b"http://[::1")),
    Behaviour("a redirect with a user", "redirected 302", to(b"http://user:secret@[::1")),
    Behaviour("a redirect to nowhere", "fetched 302", says(response(b"", b"", b"302 Found"))),
    Behaviour("a redirect to the empty string", "fetched 302", to(b"")),
    Behaviour("a Location in latin-1", "redirected 302", to(b"/\xe9t\xe9")),
    Behaviour("a Location in UTF-8", "redirected 302", to("/été".encode())),
    Behaviour("a Location with spaces", "redirected 302", to(b"/a b\tc")),
    Behaviour("a Location of 10 kB", "redirected 302", to(b"/" + b"x" * 10_000)),
    Behaviour("a Location of 1 MB", "failed header_too_large", to(b"/" + b"x" * MB)),
    Behaviour("a name of soft hyphens", "redirected 302", to("http://\u00ad\u00ad/".encode())),
    Behaviour("a name of 300 letters", "redirected 302", to(b"http://" + b"a" * 300 + b".invalid/")),
    Behaviour(
        "a redirect with an endless body",
        "redirected 302|redirected 302 too_large|redirected 302 timeout",
        forever(b"HTTP/1.1 302 Found\r\nLocation: /x\r\n" + HTML + b"\r\n", b"x" * 65_536),
        "large",
    ),
)

CONTENTS = (
    Behaviour(
        "a charset that lies",
        "fetched 200",
        body(lambda: "<title>é</title>".encode("latin-1"), b"Content-Type: text/html; charset=utf-8\r\n"),
    ),
    Behaviour(
        "a charset that nobody knows",
        "fetched 200",
        body(lambda: b"<p>x", b"Content-Type: text/html; charset=" + b"x" * 5000 + b"\r\n"),
    ),
    Behaviour("utf-7", "fetched 200", body(lambda: b"+ADw-script+AD4-", b"Content-Type: text/html; charset=utf-7\r\n")),
    Behaviour("utf-16 without a mark", "fetched 200", body(lambda: "<p>x<a href=/no>".encode("utf-16-le"))),
    Behaviour(
        "no UTF-8 at all",
        "fetched 200",
        body(lambda: bytes(range(128, 256)) * 500, b"Content-Type: text/html; charset=utf-8\r\n"),
    ),
    Behaviour("a line of 7 MB", "fetched 200", body(lambda: _many(b"x")), "large"),
    Behaviour("7 MB of <", "fetched 200", body(lambda: _many(b"<")), "large"),
    Behaviour("a comment without end", "fetched 200", body(lambda: b"<p>x" + _many(b"<!--")), "large"),
    Behaviour("200,000 links", "fetched 200", body(_links), "large"),
    Behaviour(
        "half a million attributes",
        "fetched 200",
        body(lambda: b"<p " + b"".join(b"a%d=b " % n for n in range(500_000)) + b">"),
        "large",
    ),
    Behaviour("a million elements deep", "fetched 200", body(lambda: b"<div>" * 1_000_000), "large"),
    Behaviour(
        "a hundred thousand formatting elements",
        "fetched 200",
        body(lambda: b"<b><i><u>" * 33_000 + b"<p>" * 1000),
        "large",
    ),
    Behaviour("tables in tables", "fetched 200", body(lambda: b"<table>" * 100_000 + b"x"), "large"),
    Behaviour("NULs", "fetched 200", body(lambda: b"<p>\0x<a href='/\0'>\0" * 1000)),
    Behaviour(
        "a URL of 7 MB", "fetched 200", body(lambda: b'<a href="http://x.invalid/' + _many(b"x") + b'">'), "large"
    ),
    Behaviour(
        "an entity bomb",
        "fetched 200",
        body(
            lambda: (
                b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
                + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(20))
                + b"]><x>&u;</x>"
            ),
            b"Content-Type: application/xhtml+xml\r\n",
        ),
    ),
    Behaviour(
        "an external entity",
        "fetched 200",
        body(
            lambda: b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><html><title>&a;</title></html>',
            b"Content-Type: application/xhtml+xml\r\n",
        ),
    ),
    Behaviour(
        "references without end",
        "fetched 200",
        body(lambda: b"<p>" + b"&amp" * 100_000 + b"&#99999999999;" * 10_000),
        "large",
    ),
    Behaviour("a picture as HTML", "fetched 200", body(lambda: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 99)),
    Behaviour("HTML as a picture", "fetched 200", body(lambda: b"<p>x", b"Content-Type: image/png\r\n")),
    Behaviour("a type of 9 kB", "fetched 200", body(lambda: b"<p>x", b"Content-Type: text/" + b"x" * 9000 + b"\r\n")),
    Behaviour("a base at file:", "fetched 200", body(lambda: b"<base href='file:///etc/'><a href=passwd>x")),
    Behaviour(
        "links to the cloud's metadata",
        "fetched 200",
        body(lambda: b"<a href=http://169.254.169.254/><a href=http://0251.0376.0251.0376/>"),
    ),
    Behaviour(
        "a title that is a script",
        "fetched 200",
        body(lambda: b"<title>&lt;script>alert(1)&lt;/script>\x1b[2J</title>"),
    ),
    Behaviour(LONG, "fetched 200", at_pace(_prose, 3 * MB), "large"),
    Behaviour("a title of 7 MB", "fetched 200", body(lambda: b"<title>" + _many(b"x")), "large"),
)

_GONE = response(b"", b"", b"404 Missing")
_BUSY = b"429 Slower"
TREES = tuple(
    Behaviour(name, "fetched 200", body(build), dead="too_complex")
    for name, build in (
        ("blocks whose end tags are others'", lambda: b"<div>x</p>" * 20_000),
        ("end tags in comments", lambda: b"<div><!--</div>-->x" * 20_000),
        ("end tags in attributes", lambda: b"<div title='</div>'>x" * 20_000),
        ("blocks in tables", lambda: b"<div><table></div></table>" * 20_000),
        ("formatting elements made anew", lambda: _made_anew(1800, b"<p>x")),
        ("formatting elements in a template", lambda: b"<template>" + _made_anew(1800, b"<p>x") + b"</template>"),
    )
)
"""Pages of a few hundred kilobytes at most that take the HTML parser seconds."""

POLITENESS = (
    Behaviour("Retry-After of centuries", "fetched 429", says(response(b"", b"Retry-After: 9999999999\r\n", _BUSY))),
    Behaviour(
        "Retry-After beyond numbers", "fetched 429", says(response(b"", b"Retry-After: " + b"9" * 400 + b"\r\n", _BUSY))
    ),
    Behaviour(
        "Retry-After in the year 9999",
        "fetched 429",
        says(response(b"", b"Retry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n", _BUSY)),
    ),
    Behaviour("Retry-After of nonsense", "fetched 503", says(response(b"", b"Retry-After: -1e999\r\n", b"503 Down"))),
    Behaviour("an error, then a page", "fetched 200|fetched 503", _second_good(response(b"", b"", b"503 Down"), PAGE)),
    Behaviour(
        "robots.txt 500, then 200",
        "fetched 200",
        says(PAGE),
        robots=_second_good(response(b"", b"", b"500 Broken"), response(b"User-agent: *\nAllow: /", b"")),
    ),
    Behaviour(
        "robots.txt 500",
        "failed robots_unreachable: http_500",
        says(PAGE),
        robots=says(response(b"", b"", b"500 Broken")),
    ),
    Behaviour(
        "robots.txt cut off",
        "failed robots_unreachable: bad_body",
        says(PAGE),
        robots=says(OK + b"Content-Length: 9\r\n\r\nabc"),
    ),
    Behaviour(
        "robots.txt without end",
        "fetched 200",
        says(PAGE),
        robots=forever(OK + b"\r\n", b"Disallow: /no\n" * 500),
        size="large",
    ),
    Behaviour(
        "robots.txt a byte a second",
        "failed robots_unreachable: timeout",
        says(PAGE),
        "slow",
        robots=lambda _: [CHUNKED, *_dripped()],
    ),
    Behaviour(
        "robots.txt of 30,000 rules",
        "fetched 200",
        says(PAGE),
        robots=body(lambda: b"User-agent: *\n" + b"Disallow: /*a*b*c$\n" * 30_000),
    ),
    Behaviour(
        "robots.txt of stars",
        "fetched 200",
        says(PAGE),
        robots=body(lambda: b"User-agent: *\nDisallow: /" + b"*a" * 5000 + b"$\n"),
    ),
    Behaviour("robots.txt to itself", "fetched 200", says(PAGE), robots=to(b"/robots.txt")),
    Behaviour("robots.txt of random bytes", "fetched 200", says(PAGE), robots=body(lambda: bytes(range(256)) * 400)),
    Behaviour("robots.txt as a bomb", "fetched 200", says(PAGE), robots=coded(_gzip_bomb, b"gzip"), size="large"),
    Behaviour(
        "Crawl-delay of 1e9", "fetched 200", says(PAGE), robots=body(lambda: b"User-agent: *\nCrawl-delay: 1e9\n")
    ),
    Behaviour(
        "robots.txt that forbids all",
        "refused robots",
        says(PAGE),
        robots=body(lambda: b"User-agent: *\nDisallow: /\n"),
    ),
)

TLS = (
    Behaviour("a good certificate", "fetched 200", says(PAGE), tls="good"),
    Behaviour("an expired certificate", "failed robots_unreachable: tls_certificate", says(PAGE), tls="expired"),
    Behaviour("a certificate of another host", "failed robots_unreachable: tls_certificate", says(PAGE), tls="wrong"),
    Behaviour("a certificate of its own", "failed robots_unreachable: tls_certificate", says(PAGE), tls="own"),
    Behaviour("TLS 1.0", "failed robots_unreachable: tls|failed robots_unreachable: connect", says(PAGE), tls="old"),
    Behaviour("plain HTTP at the port of TLS", "failed robots_unreachable: tls", says(PAGE), tls="none", early=True),
    Behaviour(
        "half a TLS record",
        "|".join(
            f"failed robots_unreachable: {why}"
            for why in ("tls", "disconnected", "connection_reset", "connection_refused", "connect", "connect_timeout")
        ),
        says(b"\x16\x03\x03\x40\x00\x02\x00\x00", Deed.HALF),
        tls="none",
        early=True,
    ),
)

BEHAVIOURS = (*SLOW, *HEADERS, *LENGTHS, *CODINGS, *REDIRECTS, *CONTENTS, *TREES, *POLITENESS, *TLS)
PLAIN = ("", "none")
CERTIFICATES = ("good", "expired", "wrong", "own", "old")


def address(behaviour: int, host: int) -> str:
    """Of one host of a behaviour."""
    return f"127.7.{behaviour + 1}.{host + 1}"


def url(port: int, behaviour: int, number: int, hosts: int = HOSTS) -> str:
    """A URL of a behaviour."""
    tls = BEHAVIOURS[behaviour].tls
    at = port if tls in PLAIN else port + 1 + CERTIFICATES.index(tls)
    return f"http{'s' * bool(tls)}://{address(behaviour, number % hosts)}:{at}/page/{number}"


# --- certificates -----------------------------------------------------------------------------------------------------


def certificates(folder: Path) -> None:
    """An authority (`ca.pem`) and a certificate and key of each kind."""
    addresses = [address(b, h) for b, one in enumerate(BEHAVIOURS) if one.tls not in PLAIN for h in range(HOSTS)]
    named = ",".join(f"IP:{one}" for one in addresses)
    authority(folder)
    for name in CERTIFICATES:
        alternative = "DNS:another.invalid" if name == "wrong" else named
        signed(folder, name, alternative, by_itself=name == "own", days=0 if name == "expired" else 2)


def _context(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    if name == "old":
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1
    return context


# --- the server -------------------------------------------------------------------------------------------------------


class Server:
    """All behaviours, and the requests that each host had."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection more."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("sockname")[:2]
        behaviour = BEHAVIOURS[min(max(int(host.split(".")[2]) - 1, 0), len(BEHAVIOURS) - 1)]
        origin = f"http{'s' * bool(behaviour.tls)}://{host}:{port}"
        try:
            while True:
                path = "/" if behaviour.early else await _path(reader)
                asked = Asked(path, origin, self._count(host, path))
                steps = (behaviour.robots or says(_GONE)) if path == "/robots.txt" else behaviour.script
                if not await _play(steps(asked), reader, writer) or behaviour.early:
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    def _count(self, host: str, path: str) -> int:
        kind = host, path
        self._requests[kind] = self._requests.get(kind, -1) + 1
        return self._requests[kind]


async def _path(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    return head.split(b" ", 2)[1].decode("latin-1")


async def _play(steps: Iterable[Step], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection may be asked again."""
    is_whole = False
    for step in steps:
        is_whole = isinstance(step, Whole)
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif isinstance(step, float):
            await asyncio.sleep(step)
        else:
            await _do(step, reader, writer)
            return False
        if writer.is_closing():
            return False
    return is_whole


async def _do(deed: Deed, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if deed is Deed.RESET:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return
    if deed is Deed.HALF and writer.can_write_eof():
        writer.write_eof()
    while await reader.read(65_536):
        pass


async def _serve_all(port: int, folder: Path) -> None:
    for build in _builds:
        build()
    server = Server()
    listen = partial(asyncio.start_server, server.serve, "0.0.0.0", backlog=1000)
    await listen(port)
    for number, name in enumerate(CERTIFICATES):
        await listen(port + 1 + number, ssl=_context(folder, name))
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> int:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8700, help="and the ones after it, for TLS")
    parser.add_argument("--certificates", type=Path, help="folder with certificates; made anew without it")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory() as new, contextlib.suppress(KeyboardInterrupt):
        folder = args.certificates or Path(new)
        if args.certificates is None:
            certificates(folder)
            for number, behaviour in enumerate(BEHAVIOURS):
                print(f"{url(args.port, number, 0):<40} {behaviour.outcome:<40} {behaviour.name}")
        asyncio.run(_serve_all(args.port, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
