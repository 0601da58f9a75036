"""How aiokafka's client leaves a broker that hangs: it takes connections, and answers nothing."""

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiokafka.client import ConnectionGroup
from aiokafka.conn import CloseReason
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.group import JoinGroupRequest, SyncGroupRequest

# Longest wait for an answer. A broker that hangs is out of the cluster after 9 s; the group then has a new coordinator,
# and nothing is fetched until the heartbeats have found it. No broker waits longer than 0.5 s.
ANSWER_S = 4.0

AVOIDED_S = 10.0  # A broker that took no connection is not asked for the coordinator for this long


def prompt(client: Any, join_s: float) -> None:
    """Has a client of aiokafka wait for a broker that hangs no longer than it must.

    Its lock lets one connection be made at a time, so each attempt at that broker held up those at all others; and any
    broker may be asked for the group's coordinator, that one too.

    Args:
        join_s: For the answer to a join.
    """
    get_connection, locks, failed = client._get_conn, defaultdict[Any, asyncio.Lock](asyncio.Lock), dict[Any, float]()
    client._get_conn_lock_value = contextlib.nullcontext()

    async def connection_to(
        node_id: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> Any:
        async with locks[node_id, group]:
            connection = await get_connection(node_id, group=group, no_hint=no_hint)
        if connection is None:
            failed[node_id] = time.monotonic()
        elif "send" not in vars(connection):
            connection.send = sending(connection, join_s)
        return connection

    def any_node() -> Any:
        nodes = [broker.nodeId for broker in client.cluster.brokers()]
        since = time.monotonic() - AVOIDED_S
        nodes = [node for node in nodes if failed.get(node, since) <= since] or nodes or [None]
        return random.choice(nodes)  # noqa: S311  # it guards nothing

    client._get_conn, client.get_random_node = connection_to, any_node


def sending(connection: Any, join_s: float) -> Callable[..., Awaitable[Any]]:
    """A connection's `send` that waits for the answer to a join for `join_s`, and for others as long as before."""
    send, usual_s = connection.send, connection._request_timeout

    def sent(request: Any, expect_response: bool = True) -> Awaitable[Any]:
        is_join = isinstance(request, JoinGroupRequest | SyncGroupRequest)
        connection._request_timeout = join_s if is_join else usual_s  # read as the request is written
        try:
            return cast("Awaitable[Any]", send(request, expect_response))
        except RuntimeError as error:  # uvloop's where the broker has just closed it; aiokafka expects OSError
            connection.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(str(error)) from error

    return sent
