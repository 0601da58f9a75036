"""Why a client gets no connection: addresses of the cluster that do not answer here (advertised.listeners), and what a
listener wants of its clients, asked in Kafka's own protocol: a broker closes without a word on those it does
not understand, so that a client's error says "transport failure" and no more.

    SaslHandshake ─► names of mechanisms: it wants a login; an error: it wants none; no answer: the same within TLS
"""

import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

LOOK_S = 0.5  # Time for one connection with its answer

_HANDSHAKE, _CLIENT, _MECHANISM = 17, b"crawlog-listener", b"NONE"
_ILLEGAL_STATE = 34  # Error of a listener without SASL

_MOST_BYTES = 1 << 16


class KafkaListener(NamedTuple):
    """A listener of a broker.

    Attributes:
        protocol: As `kafka.security_protocol` names it.
        mechanisms: Of SASL.
    """

    protocol: str
    mechanisms: tuple[str, ...] = ()


def listener_at(bootstrap: str) -> KafkaListener | None:
    """The listener at the first address that answers as Kafka does, or that speaks TLS; None without one."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        at = host.strip("[]"), int(port) if port.isdecimal() else 0
        with suppress(*_OTHERS), socket.create_connection(at, LOOK_S) as plain:
            return _asked(plain, "PLAINTEXT")
        with suppress(*_OTHERS), socket.create_connection(at, LOOK_S) as plain, _within_tls(plain, at[0]) as secret:
            with suppress(*_OTHERS):
                return _asked(secret, "SSL")
            return KafkaListener("SSL")  # it closes on those without a certificate
    return None


_OTHERS = (OSError, ValueError, struct.error, OverflowError)  # Errors of an answer that is not Kafka's


def _asked(connection: socket.socket, transport: str) -> KafkaListener:
    """Raises: one of _OTHERS."""
    body = struct.pack(f">h{len(_MECHANISM)}s", len(_MECHANISM), _MECHANISM)
    head = struct.pack(f">hhih{len(_CLIENT)}s", _HANDSHAKE, 1, 1, len(_CLIENT), _CLIENT)
    connection.sendall(struct.pack(">i", len(head + body)) + head + body)
    with connection.makefile("rb") as answer:
        size, number, error, count = struct.unpack(">iihi", answer.read(14))
        if number != 1 or not 10 <= size <= _MOST_BYTES:
            raise ValueError("it is no answer of Kafka's")
        rest = answer.read(size - 10)
    return (
        KafkaListener(transport) if error == _ILLEGAL_STATE else KafkaListener(f"SASL_{transport}", _names(rest, count))
    )


def _within_tls(plain: socket.socket, host: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is told or believed here
    return context.wrap_socket(plain, server_hostname=host)


def _names(rest: bytes, count: int) -> tuple[str, ...]:
    names: list[str] = []
    for _ in range(min(count, 20)):
        (length,) = struct.unpack_from(">h", rest)
        names.append(rest[2 : 2 + length].decode())
        rest = rest[2 + length :]
    return tuple(names)


TRY_S = 2.5  # For all addresses together


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
