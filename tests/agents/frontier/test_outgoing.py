"""What follows from a record that is folded, however large it is: founds of other partitions, and its dead letter."""

from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.agents.frontier.outgoing import MAX_ERROR, Forwarding, Outbox
from crawlog.schemas import dead
from crawlog.schemas.urls import FoundUrl, founds
from crawlog.streams.errors import GiveUp
from crawlog.streams.fold import Effects
from crawlog.streams.log import Topics

NAMES = Topics("crawl.")


class Limited:
    """A producer of records of 1,000 bytes at most, with their headers."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes | None, dict[str, bytes]]] = []
        self.acknowledged: list[Any] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int,  # noqa: ARG002  # the producer's
        headers: list[tuple[str, bytes]] | None = None,
        on_delivery: Any = None,
    ) -> None:
        """As the producer."""
        if len(value or b"") + len(key or b"") > 1_000:
            raise GiveUp("too_large")
        self.sent.append((topic, value, dict(headers or [])))
        self.acknowledged.append(on_delivery)


@pytest.fixture
def producer() -> Limited:
    """Of a worker."""
    return Limited()


def test_a_record_that_is_too_large_for_its_letter_leaves_its_place(producer: Limited) -> None:
    """Another client wrote it to the last byte that a broker takes; it ended each worker that read it."""
    forwarding = Forwarding(producer, NAMES)  # type: ignore[arg-type]  # as much of a producer as is needed
    forwarding.send(3, 7, b"k", b"x" * 1_000, Effects(dead=["no JSON"]))
    [(topic, value, headers)] = producer.sent
    assert (topic, value) == (NAMES.dead, None)
    letter = dead.from_headers(headers, None, None)
    assert (letter.topic, letter.partition, letter.offset, letter.error) == (NAMES.urls, 3, 7, "no JSON")
    assert forwarding.undelivered[3] == 1
    producer.acknowledged[0](0, 0)
    assert forwarding.undelivered[3] == 0


def test_founds_that_are_too_large_to_be_forwarded_are_a_letter(producer: Limited) -> None:
    """So nobody waits for them, and nothing is lost: the record lies in crawl.urls."""
    outbox = Outbox(producer, NAMES)  # type: ignore[arg-type]  # as above
    message: Any = SimpleNamespace(key=lambda: None, value=lambda: b"v")
    large = founds("j", 0, [FoundUrl("http://a.com/" + "x" * 1_000)])
    outbox.send(SimpleNamespace(number=3, offset=8), message, Effects(forward={5: large}))  # type: ignore[arg-type]  # as above
    [(topic, value, headers)] = producer.sent
    assert (topic, value, headers["offset"]) == (NAMES.dead, None, b"7")
    assert b"too large" in headers["error"]


def test_a_record_with_many_errors_is_one_letter(producer: Limited) -> None:
    """A letter for each URL of it would hold the whole record each time."""
    forwarding = Forwarding(producer, NAMES)  # type: ignore[arg-type]  # as above
    forwarding.send(3, 7, b"k", b"v", Effects(dead=[f"http://a.com/{'x' * 2_000}", *["another"] * 1_519]))
    [(_, value, headers)] = producer.sent
    assert value == b"v"
    assert headers["error"].endswith(b" (and 1519 more)")
    assert len(headers["error"]) <= MAX_ERROR
