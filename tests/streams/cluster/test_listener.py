"""What a listener wants: answers that are none of Kafka's. Those of real brokers are in tests/e2e/test_secured.py."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from crawlog.streams.cluster import listener
from crawlog.streams.cluster.listener import KafkaListener, listener_at

Serve = Callable[[bytes], str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A port that gives each connection the same answer, and closes it."""
    monkeypatch.setattr(listener, "LOOK_S", 30.0)
    server = socket.create_server(("127.0.0.1", 0))

    def go(answer: bytes) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

    def begin(answer: bytes) -> str:
        threading.Thread(target=go, args=(answer,), daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield begin
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def answer_of(error: int, *names: bytes, number: int = 1, count: int | None = None) -> bytes:
    """An answer to SaslHandshake."""
    body = struct.pack(">ihi", number, error, len(names) if count is None else count)
    body += b"".join(struct.pack(">h", len(name)) + name for name in names)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (answer_of(33, b"PLAIN", b"SCRAM-SHA-256"), KafkaListener("SASL_PLAINTEXT", ("PLAIN", "SCRAM-SHA-256"))),
        (answer_of(34), KafkaListener("PLAINTEXT")),
        (answer_of(33, b"PLAIN", number=7), None),
        (answer_of(33, b"PLAIN", count=1 << 30), None),
        (answer_of(33, b"\xff"), None),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
        (b"\x7f\xff\xff\xff" + bytes(10), None),
        (b"", None),
    ],
)
def test_only_kafkas_answers_count(serve: Serve, answer: bytes, found: KafkaListener | None) -> None:
    """Another program may listen at the address."""
    assert listener_at(serve(answer)) == found


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999999", "127.0.0.1:1", "\0:9"])
def test_an_address_that_nobody_answers_at_is_no_listener(address: str) -> None:
    """Nothing is raised: it is asked about an error."""
    assert listener_at(address) is None
