"""Rows over HTTP, as streams."""

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, Message

from crawlog.commands.items import ItemRow, ItemsPage
from crawlog.schemas import items
from crawlog.schemas.control import JobCopy
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.urls import JobSpec
from crawlog.service import api_items, items_tail
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


@pytest.mark.parametrize("cursor", ["12.40-3", "12.40+3"])
async def test_a_cursor_in_a_url_is_taken(monkeypatch: Any, cursor: str) -> None:
    """Of an older service, too, whose `+` comes as a blank."""
    monkeypatch.setattr(api_items, "items_of", lambda *_: ROWS)
    async with served(service_settings()) as client:
        app = client.server.app  # type: ignore[attr-defined]  # a test server has one
        app[FLEET].look(lambda state: state.hear(b"job/j", JobCopy("j", JobSpec())))
        text = await asked(client, f"GET /api/v1/jobs/j/items?cursor={cursor}")
    assert text.startswith("HTTP/1.1 200 OK\r\n")


async def test_a_client_too_many_is_told_that_others_follow(monkeypatch: Any) -> None:
    """They may follow for days: it was told to try again in a second."""
    monkeypatch.setattr(api_items, "FOLLOWERS", 0)
    async with served(service_settings()) as client:
        app = client.server.app  # type: ignore[attr-defined]  # a test server has one
        app[FLEET].look(lambda state: state.hear(b"job/j", JobCopy("j", JobSpec())))
        own = {"Authorization": f"Bearer {OWN_TOKEN}"}
        answer = await client.get("/api/v1/jobs/j/items/live", headers=own)
        assert (answer.status, (await answer.json())["error"]) == (503, "0 clients follow rows already")


class Losing(Consumer):
    """A consumer of crawl.items: the first one loses its position, the next one gets a row."""

    made = itertools.count()

    def __init__(self, *_: object) -> None:
        row = items.encode(ItemsRecord("j", "http://a.test/2", (0, 2), [msgspec.Raw(b'{"n":2}')]))
        lost = Message(topic="crawl.items", partition=0, error=KafkaError(KafkaError._AUTO_OFFSET_RESET))
        is_first = next(self.made) == 0
        self._next = [lost if is_first else Message(topic="crawl.items", partition=0, offset=1, value=row)]

    def assign(self, *_: object) -> None:
        """Nothing is read."""

    def consume(self, *_: object) -> list[Message]:
        """Each once."""
        if not self._next:
            time.sleep(0.01)
        told, self._next = self._next, []
        return told

    def close(self) -> None:
        """Nothing is open."""


async def test_a_live_stream_goes_on_after_its_reader_lost_its_position(monkeypatch: Any) -> None:
    """It was silent for ever, for all clients. Each row comes with the id that goes on behind it."""
    now = SimpleNamespace(copy=SimpleNamespace(job="j"), spec=SimpleNamespace(wants=lambda *_: True))
    monkeypatch.setattr(Losing, "made", itertools.count())
    for where, name, fake in (
        (api_items, "items_of", lambda *_: ROWS),
        (api_items, "exported_job", lambda *_: now),
        (api_items, "ALIVE_S", 0.02),
        (items_tail, "Consumer", Losing),
        (items_tail, "consumer_config", lambda _: {}),
        (items_tail, "partition_count", lambda _: 1),
        (items_tail, "log_bounds", lambda *_: {0: (1, 1)}),
    ):
        monkeypatch.setattr(where, name, fake)
    async with served(service_settings()) as client:
        app = client.server.app  # type: ignore[attr-defined]  # a test server has one
        app[FLEET].look(lambda state: state.hear(b"job/j", JobCopy("j", JobSpec())))
        own = {"Authorization": f"Bearer {OWN_TOKEN}"}
        async with asyncio.timeout(20), client.get("/api/v1/jobs/j/items/live", headers=own) as answer:
            events: list[tuple[bytes, bytes]] = []
            while len(events) < 2:
                line = await answer.content.readline()
                if line.startswith(b"data: "):
                    events.append((line[-8:-2], await answer.content.readline()))
    assert events == [(b'"n":1}', b"id: 1\n"), (b'"n":2}', b"id: 2\n")]
