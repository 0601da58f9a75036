"""aiokafka's client beside a broker that hangs, without one."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.client import ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest

from crawlog.streams.worker.hung_brokers import prompt, sending


class Silent:
    """A connection of aiokafka's whose broker hangs, or has just closed it."""

    _request_timeout = 0.01
    closed: object = None

    def __init__(self, *, is_closed: bool = False) -> None:
        self.is_closed, self.limits = is_closed, list[float]()

    def send(self, _request: object, _expect_response: bool) -> Awaitable[Any]:
        """Write a request."""
        if self.is_closed:
            raise RuntimeError("the handler is closed")
        self.limits.append(self._request_timeout)
        return asyncio.sleep(0)

    def close(self, reason: object) -> None:
        """Close it."""
        self.closed = reason


async def test_only_a_join_is_awaited_for_long() -> None:
    """Its answer comes with the slowest member; a broker that answers nothing else for so long hangs."""
    hung = Silent()
    send = sending(hung, 30.0)
    for request in (
        HeartbeatRequest("g", 1, "m"),
        SyncGroupRequest("g", 1, "m", None, []),
        HeartbeatRequest("g", 1, "m"),
    ):
        await send(request)
    assert hung.limits == [0.01, 30.0, 0.01]


def test_a_connection_that_the_broker_has_just_closed_is_no_crash() -> None:
    """Uvloop says so by a RuntimeError, which aiokafka does not expect: it ended the worker."""
    closed = Silent(is_closed=True)
    with pytest.raises(KafkaConnectionError):
        sending(closed, 30.0)(HeartbeatRequest("g", 1, "m"))
    assert closed.closed is CloseReason.CONNECTION_BROKEN


async def test_a_broker_that_hangs_holds_up_no_connection_to_another_one() -> None:
    """Nor is it asked who coordinates the group, once it took no connection."""
    hangs, brokers = asyncio.Event(), [SimpleNamespace(nodeId=1), SimpleNamespace(nodeId=2)]

    async def get_connection(node_id: int, **_: object) -> Any:
        async with client._get_conn_lock_value:
            if node_id == 1:
                await hangs.wait()
                return None
            return Silent()

    cluster = SimpleNamespace(brokers=lambda: brokers)
    client = SimpleNamespace(_get_conn=get_connection, _get_conn_lock_value=asyncio.Lock(), cluster=cluster)
    prompt(client, 30.0)
    waiting = asyncio.create_task(client._get_conn(1))
    await asyncio.sleep(0)
    async with asyncio.timeout(60.0):
        assert await client._get_conn(2, group=ConnectionGroup.COORDINATION) is not None
    assert {client.get_random_node() for _ in range(100)} == {1, 2}
    hangs.set()
    assert await waiting is None
    assert {client.get_random_node() for _ in range(100)} == {2}
