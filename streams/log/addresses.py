"""Which of the addresses that a cluster gives its clients do not answer here, and why (advertised.listeners)."""

import socket
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

TRY_S = 2.5
"""For all addresses together."""


def named_silent(client: "AdminClient") -> str:
    """A sentence about each broker whose advertised address does not answer; empty for none, or an unknown cluster."""
    try:
        brokers = client.list_topics(timeout=TRY_S).brokers
    except KafkaException:
        return ""
    addresses = [f"{broker.host}:{broker.port}" for broker in brokers.values()]
    told = [
        f"Broker {number} calls itself {address} (advertised.listeners), which {why}."
        for number, address, why in zip(brokers, addresses, address_problems(addresses), strict=True)
        if why
    ]
    return " ".join(told)


def address_problems(addresses: list[str]) -> list[str]:
    """Why each `HOST:PORT` takes no connection, in words that follow it; asked side by side, within TRY_S."""
    if not addresses:
        return []
    pool = ThreadPoolExecutor(len(addresses))
    tried = [pool.submit(_connected, address) for address in addresses]
    wait(tried, TRY_S)
    pool.shutdown(wait=False, cancel_futures=True)
    return [one.result() if one.done() else "does not answer" for one in tried]


def _connected(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=TRY_S - 0.5).close()
    except socket.gaierror:
        return "has a name that does not resolve here"
    except ConnectionRefusedError:
        return "refuses connections"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    return ""
