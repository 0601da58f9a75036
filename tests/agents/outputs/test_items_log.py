"""Reading crawl.items for the outputs of a fleet."""

import pytest
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from crawlog.agents.outputs import items_log
from crawlog.agents.outputs.items_log import ItemsReader
from crawlog.streams.settings import Settings
from crawlog.streams.settings.machine import Kafka


class Said:
    """A record, or an error in its place."""

    def __init__(self, code: int | None) -> None:
        self._error = None if code is None else KafkaError(code)

    def error(self) -> KafkaError | None:
        """Its error."""
        return self._error

    def partition(self) -> int:
        """The first one."""
        return 0

    offset = partition

    def key(self) -> bytes:
        """Empty."""
        return b""

    value = key


class Scripted:
    """A consumer that says these things, one a poll."""

    def __init__(self, codes: list[int | None]) -> None:
        self._said = iter([Said(code) for code in codes])

    def assign(self, _: object) -> None:
        """From any offsets."""

    def poll(self, _: float) -> Said:
        """The next one."""
        return next(self._said)

    def consume(self, *_: object) -> list[Said]:
        """No more at once."""
        return []


def test_an_error_that_passes_is_told_once_until_records_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs that stand still would have no reason in any log; a broker that is away says the same each second."""
    away, late = KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT
    said = [away, away, late, KafkaError._PARTITION_EOF, None, late]
    monkeypatch.setattr(items_log, "Consumer", lambda _: Scripted(said))  # no broker gives these errors to order
    reader = ItemsReader(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), "crawl.items")
    reader.seek({0: 0})
    with capture_logs() as logs:
        counts = [len(reader.take(0.0)) for _ in said]
    assert counts == [0, 0, 0, 0, 1, 0]
    told = [(entry["event"], entry["error"]) for entry in logs]
    assert told == [("items_not_read", KafkaError(code).str()) for code in (away, late, late)]
