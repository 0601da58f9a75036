"""Bodies that stay as they came: only their first bytes are looked at; what the transfer itself shows is still seen."""

import asyncio
import gzip
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest
from backports import zstd

from crawlog.agents.client.body import FREE_BYTES
from crawlog.agents.client.transport import HttpRequest
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.http.answer import Answer
from crawlog.streams.http.codings import decoded
from tests.support.raw_http import HTML, LIMIT, response, talk

PAGE = b"<html>" + b"".join(b"<p>paragraph %d</p>" % n for n in range(200))
GZIP = gzip.compress(PAGE)


def coded(body: bytes, coding: str, kind: str = HTML) -> bytes:
    """A whole response in a coding."""
    return response(body, f"{kind}Content-Encoding: {coding}\r\n")


def chunked(body: bytes, coding: str, step: int = 1 << 30) -> bytes:
    """A whole response in a coding, of unknown length."""
    head = f"HTTP/1.1 200 OK\r\n{HTML}Content-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def came(said: bytes, *, any_type: bool = False, ends: bool = False, **more: Any) -> Answer:
    """The answer to one request; `ends`: the server then closes the connection."""

    async def speak(out: asyncio.StreamWriter) -> None:
        out.write(said)
        await out.drain()
        if ends:
            out.close()

    async with talk(speak, **more) as (client, _, url):
        return await client.get(HttpRequest(url, any_type=any_type, as_came=True))


PACKS: dict[str, Any] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "gzip, br": lambda body: brotli.compress(gzip.compress(body)),
}


@pytest.mark.parametrize("any_type", [False, True])
@pytest.mark.parametrize("form", [coded, chunked])
@pytest.mark.parametrize("coding", PACKS)
async def test_a_coded_body_stays_as_it_came(coding: str, form: Any, any_type: bool) -> None:
    """Its coding and its limit come with it."""
    packed = PACKS[coding](PAGE)
    answer = await came(form(packed, coding.upper()), any_type=any_type)
    assert (answer.http, answer.error, answer.kept, answer.body) == (200, "", True, packed)
    assert (answer.coding, answer.limit) == (coding, LIMIT)
    assert decoded(answer.body, answer.coding, answer.limit) == PAGE


@pytest.mark.parametrize("form", [coded, chunked])
async def test_a_body_that_is_kept_in_any_case_is_looked_at_as_well(form: Any) -> None:
    """Its type decides how a spider's selectors read it."""
    answer = await came(form(gzip.compress(b"%PDF-1.7"), "gzip"), any_type=True)
    assert (answer.kept, answer.sniffed) == (True, "application/pdf")


@pytest.mark.parametrize("coding", ["identity", "rot13", "", "identity, identity"])
async def test_a_coding_that_is_none_is_not_told(coding: str) -> None:
    """The body is plain."""
    answer = await came(coded(PAGE, coding))
    assert (answer.body, answer.coding, answer.limit) == (PAGE, "", 0)


@pytest.mark.parametrize("form", [coded, chunked])
@pytest.mark.parametrize(("body", "kept"), [(b"%PDF-1.7", False), (b"<!doctype html>", True), (b"x", True)])
async def test_the_first_bytes_decide_whether_it_is_kept(body: bytes, kept: bool, form: Any) -> None:
    """Those of the page, not of its packing."""
    answer = await came(form(gzip.compress(body * 99), "gzip"))
    assert (answer.error, answer.kept) == ("", kept)
    assert answer.sniffed == ("" if kept else "application/pdf")
    assert bool(answer.body) is bool(answer.coding) is kept


@pytest.mark.parametrize("form", [coded, chunked])
@pytest.mark.parametrize(
    ("body", "coding"), [(b"<p>plain", "gzip"), (GZIP[:1], "gzip"), (GZIP, "gzip, x"), (GZIP, ",".join(["gzip"] * 9))]
)
async def test_a_coding_that_shows_to_be_wrong_is_told_at_once(body: bytes, coding: str, form: Any) -> None:
    """Its first bytes say so."""
    answer = await came(form(body, coding))
    assert (answer.error, answer.kept, answer.body, answer.coding) == ("bad_encoding", False, b"", "")


@pytest.mark.parametrize("form", [coded, chunked])
async def test_a_bomb_is_left_to_its_reader(form: Any) -> None:
    """It is small as it comes."""
    bomb = gzip.compress(bytes(1 << 20))
    answer = await came(form(bomb, "gzip"))
    assert (answer.error, answer.kept, answer.body, answer.limit) == ("", True, bomb, LIMIT)


@pytest.mark.parametrize("form", [coded, chunked])
async def test_the_limit_is_for_the_bytes_that_come_too(form: Any) -> None:
    """A coded body larger than that is larger still when it is decoded, or nothing at all."""
    packed = gzip.compress(PAGE) + bytes(LIMIT)
    assert (await came(form(packed, "gzip"))).error == "too_large"


@pytest.mark.parametrize("cut", [1, len(GZIP) // 2])
async def test_a_transfer_that_breaks_off_is_seen(cut: int) -> None:
    """By its length, or by its chunks: it may be tried again, as any other."""
    for said in (coded(GZIP, "gzip"), chunked(GZIP, "gzip")):
        answer = await came(said[:-cut], ends=True)
        assert (answer.http, answer.error, answer.kept) == (200, "bad_body", False)
        assert (answer.body, answer.coding) == (b"", "")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified", "205 Reset Content", "200 OK"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_has_no_body_has_no_coding(status: str, method: str) -> None:
    """Whatever its headers say."""

    async def speak(out: asyncio.StreamWriter) -> None:
        out.write(coded(b"", "gzip").replace(b"200 OK", status.encode()))

    async with talk(speak) as (client, _, url):
        answer = await client.get(HttpRequest(url, as_came=True, record=RequestRecord(method)))
    assert (answer.http, answer.error, answer.body, answer.coding) == (int(status[:3]), "", b"", "")


async def test_a_large_body_waits_for_memory_of_its_own_size() -> None:
    """As it came: nothing else is held here."""
    body = zstd.compress(bytes(range(256)) * 8, 1) * 20_000
    assert len(body) > FREE_BYTES
    answer = await came(coded(body, "zstd"), max_body_bytes=8 << 20)
    assert (answer.error, answer.body == body) == ("", True)
    assert answer.held.size_bytes == len(body)


@pytest.mark.parametrize(
    ("name", "coding", "size"),
    [
        ("html-gzip-deflate-gzip.bin", "gzip, deflate, gzip", 74_837),
        ("html-rawdeflate.bin", "deflate", 74_840),
        ("unexpected-eof.gz", "gzip", 8576),
    ],
)
async def test_scrapys_compressed_bodies_are_read_back(testdata: Path, name: str, coding: str, size: int) -> None:
    """The same bytes that fetch unpacks elsewhere."""
    body = (testdata / "http-compression-scrapy" / name).read_bytes()
    answer = await came(coded(body, coding), max_body_bytes=200_000)
    assert (answer.error, answer.body) == ("", body)
    assert len(decoded(answer.body, answer.coding, answer.limit)) == size
