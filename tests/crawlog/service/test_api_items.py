"""Rows over HTTP, as streams."""

import asyncio
from typing import Any

import msgspec
import pytest

from crawlog.commands.items import ItemRow, ItemsPage
from crawlog.schemas.control import JobCopy
from crawlog.schemas.urls import JobSpec
from crawlog.service import api_items
from crawlog.service.routing import FLEET
from tests.support.serving import OWN_TOKEN, Client, served, service_settings

ROWS = ItemsPage("j", [ItemRow("http://a.test/", (0, 1), (0, 0), msgspec.Raw(b'{"n":1}'))], "1", is_end=True)


async def asked(client: Client, *requests: str) -> str:
    """All that one connection gets for requests, until the last answer ends it."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    own = f"Host: 127.0.0.1:{client.port}\r\nAuthorization: Bearer {OWN_TOKEN}\r\nAccept: {api_items.NDJSON}\r\n"
    for number, line in enumerate(requests, 1):
        close = "Connection: close\r\n" if number == len(requests) else ""
        writer.write(f"{line} HTTP/1.1\r\n{own}{close}\r\n".encode())
    async with asyncio.timeout(20):
        text = (await reader.read()).decode()
    writer.close()
    return text


@pytest.mark.parametrize("place", ["items", "items/live"])
async def test_head_of_rows_has_no_body_and_the_connection_goes_on(monkeypatch: Any, place: str) -> None:
    """Of the live stream, too: it took a place and never ended."""
    monkeypatch.setattr(api_items, "items_of", lambda *_: ROWS)
    path = f"/api/v1/jobs/j/{place}"
    async with served(service_settings()) as client:
        app = client.server.app  # type: ignore[attr-defined]  # a test server has one
        app[FLEET].look(lambda state: state.hear(b"job/j", JobCopy("j", JobSpec())))
        text = await asked(client, f"HEAD {path}", "GET /api/v1/jobs/j/items")
    head, body = text.split("\r\n\r\n", 1)
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert body.startswith("HTTP/1.1 200 OK\r\n")
    assert '{"n":1}' in body
