"""What follows from a record that is folded, however large it is: founds of other partitions, and its dead letter."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.agents.frontier.outgoing import MAX_ERROR, Forwarding, Outbox
from crawlog.schemas import dead
from crawlog.schemas.urls import FoundUrl, JobSpec, ScopeSpec, UrlsRecord, decode, encode
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import GiveUp
from crawlog.streams.fold import Effects
from crawlog.streams.log import Topics
from crawlog.streams.settings import Settings
from crawlog.streams.state import Partition, StateMemory
from crawlog.streams.url.place import Places
from tests.support.dying import dying
from tests.support.fetching import alone

NAMES = Topics("crawl.")

TWO = Places(2)
THERE = next(url for n in range(99) if TWO.of(url := f"http://site{n}.com/").partition == 1)
JOB = encode(UrlsRecord(job="j", spec=JobSpec(scope=ScopeSpec(kind="any"))))
MISPLACED = encode(UrlsRecord("j", 0, urls=[FoundUrl(THERE)]))


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
    large = UrlsRecord("j", 0, urls=[FoundUrl("http://a.com/" + "x" * 1_000)])
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


class Forwarder:
    """A stage with partition 0 of two, and the job in its checkpoint; what it forwards goes to a producer.

    Each new one begins where the last checkpoint was.
    """

    def __init__(self, folder: Path, producer: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage, _ = alone(Settings(), monkeypatch)
        self.stage._forwarding = Forwarding(producer, NAMES)  # type: ignore[arg-type]  # as above
        self.outbox = Outbox(producer, NAMES)  # type: ignore[arg-type]  # as above
        self.partition = Partition(folder, 0, TWO, LogIdentity("cluster", "topic"), StateMemory(8), 64)
        if not self.partition.offset:
            self.partition.take(JOB, 0, 0.0)
            self.partition.checkpoint()

    def take(self) -> None:
        """Fold a found of the other partition, and make a checkpoint."""
        self.stage.live[0] = self.partition
        self.stage.take(0, 1, None, MISPLACED, 0.0)
        self.stage.checkpoint(self.partition)

    def restore(self) -> None:
        """Fold it as a restore does."""
        message: Any = SimpleNamespace(key=lambda: None, value=lambda: MISPLACED)
        self.outbox.send(self.partition, message, self.partition.take(MISPLACED, 1, 0.0))


@pytest.mark.parametrize(
    ("point", "before"), [("forward.sending", 0), ("forward.acknowledged", 1), ("restore.forward.sending", 0)]
)
def test_a_found_is_forwarded_again_if_its_worker_dies_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producer: Limited, point: str, before: int
) -> None:
    """The checkpoint waits for the log, so the next worker folds the record once more; a found twice is known."""
    worker = Forwarder(tmp_path, producer, monkeypatch)
    do = Forwarder.restore if point.startswith("restore.") else Forwarder.take
    with dying(monkeypatch, point, 1):
        do(worker)
        producer.acknowledged[0](1, 0)
    assert len(producer.sent) == before
    worker.partition.close()
    again = Forwarder(tmp_path, producer, monkeypatch)
    assert again.partition.offset == 1
    do(again)
    assert [found.url for found in decode(producer.sent[-1][1] or b"").urls or ()] == [THERE]
    again.partition.close()
