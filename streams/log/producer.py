"""The one way out to Kafka: a confluent-kafka producer that never gives a record up.

No message timeout and idempotence together mean that a record is delivered, in order, or the process ends: so nobody
above handles a failed delivery, and "sent, then acknowledged" is all there is to wait for.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Librdkafka

from crawlog.streams import exit_codes
from crawlog.streams.errors import AccessDenied, GiveUp

from .client import BROKER_AWAY, DENIED_CODES, BrokerLogin, access_denied, kafka_config

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

ENVELOPE_BYTES = 1024
"""Room left in the largest record for the batch's header and the fields' lengths: the broker's limit counts them."""

QUEUE_BYTES = 128 << 20
"""Records waiting in memory, bytes; beyond it `send` waits. About 4,000 pages of 30 kB: a second of a slow broker."""

QUEUE_RECORDS = 100_000
"""The same in records: small ones cost some 200 bytes each beside their value."""

POLL_S = 0.005
"""Rest between two polls while something is outstanding; 200 a second cost about 1 % of a core."""

FULL_POLL_S = 0.05
"""Longest wait of one poll while the queue is full."""

TELL_EVERY_S = 30.0
"""An unreachable cluster is told this often; librdkafka says it once a second."""

DENIED_S = 20.0
"""An access that is denied for so long, with nothing acknowledged meanwhile, ends a worker."""

EX_IOERR = 74
"""Exit code after a fatal producer error (sysexits.h)."""

Acknowledged = Callable[[int, int], None]
"""What to call with (partition, offset) once a record is in the log."""

Headers = list[tuple[str, bytes]]


class Producer:
    """Sends records and calls back when the log has them.

    Use it from one thread (or one event loop). Callbacks run inside `poll`, `flush` and a `send` that has to wait for
    room; they must not raise.

    Args:
        client_id: Name in the broker's logs, such as `fetch-0`.
        linger_ms: How long a record waits for others of its partition.
        on_fatal: Called with the reason when no record can be delivered any more; by default the process ends.
        login: Asked for user and password when the cluster is away or refuses those of the settings.
        on_denied: Called when the cluster denies access, for a record or for DENIED_S; so too.
        extra: Further librdkafka settings.
    """

    def __init__(
        self,
        settings: "Settings",
        client_id: str,
        *,
        linger_ms: int = 5,
        on_fatal: Callable[[str], None] | None = None,
        on_denied: Callable[[AccessDenied], None] | None = None,
        login: BrokerLogin | None = None,
        extra: dict[str, object] | None = None,
    ) -> None:
        largest = settings.kafka.max_record_bytes
        self._limit = largest - ENVELOPE_BYTES
        self._on_fatal = on_fatal or die
        self._login = login
        self._is_away = False
        self._on_denied = on_denied or exit_codes.end
        self._settings = settings
        self._denied: tuple[float, str] | None = None
        self._outstanding = 0
        self._wake: asyncio.Event | None = None
        self._told_at = -TELL_EVERY_S
        self._librdkafka = Librdkafka(
            kafka_config(settings)
            | {
                "client.id": client_id,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": 0,  # none: a record waits for the broker as long as it takes
                "compression.type": settings.kafka.compression,
                "linger.ms": linger_ms,
                "message.max.bytes": largest,
                "batch.size": min(largest, 1_000_000),
                "queue.buffering.max.kbytes": max(2 * largest, QUEUE_BYTES) // 1024,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 1_000,
                "error_cb": self._error,
            }
            | (extra or {})
        )
        self._produce = self._librdkafka.produce
        self._poll = self._librdkafka.poll
        self._uncalled = partial(self._delivered, None)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int,
        headers: Headers | None = None,
        on_delivery: Acknowledged | None = None,
    ) -> None:
        """Put a record on its way. Waits, polling, while the queue is full.

        Args:
            partition: The caller's to know: librdkafka would count partitions by the topic as it is now, and the log
                has as many as it was begun with.

        Raises: GiveUp("too_large"): over the largest record; nothing was sent.
        """
        size_bytes = (0 if value is None else len(value)) + (0 if key is None else len(key))
        for name, content in headers or ():
            size_bytes += len(name) + len(content)
        if size_bytes > self._limit:
            raise GiveUp("too_large")
        called = self._uncalled if on_delivery is None else partial(self._delivered, on_delivery)
        while True:
            try:
                self._produce(topic, value, key, partition, called, None, 0, headers)  # type: ignore[arg-type]  # list is invariant
                break
            except BufferError:
                self._poll(FULL_POLL_S)
                self._log_in_again()
            except KafkaException as error:
                self._refused(error.args[0])
        if self._outstanding == 0 and self._wake is not None:
            self._wake.set()
        self._outstanding += 1

    def poll(self) -> int:
        """Serve what has come back; returns how many events that were."""
        self._look_at_access()
        served = int(self._poll(0))
        self._log_in_again()
        return served

    @property
    def outstanding(self) -> int:
        """Records sent and not acknowledged yet."""
        return self._outstanding

    def flush(self, timeout_s: float) -> bool:
        """Send what lingers and wait for all acknowledgements; False when some are missing at the time's end."""
        end = time.monotonic() + timeout_s
        while self._outstanding:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            self._librdkafka.flush(min(left_s, 1.0))
            self._log_in_again()
        return True

    def _log_in_again(self) -> None:
        """Take the password that the broker wants now; a callback must not: librdkafka's client aborts then."""
        if self._is_away and self._login is not None:
            self._is_away = False
            self._librdkafka.set_sasl_credentials(*self._login())

    async def run(self, stop: asyncio.Event, rest_s: float = POLL_S) -> None:
        """Serve acknowledgements until `stop` is set, idle at no cost; what is then outstanding needs `flush`.

        Args:
            rest_s: Between two polls while something is outstanding: so much later an acknowledgement may be heard.
        """
        self._wake = wake = asyncio.Event()
        stopping = asyncio.ensure_future(stop.wait())
        stopping.add_done_callback(lambda _: wake.set())
        try:
            while not stop.is_set():
                if self._outstanding == 0:
                    wake.clear()
                    await self._idle(wake)
                self.poll()
                if self._outstanding:
                    await asyncio.sleep(rest_s)
        finally:
            stopping.cancel()
            self._wake = None

    async def _idle(self, wake: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # errors of an idle producer are heard once a second
                await wake.wait()

    def _delivered(self, on_delivery: Acknowledged | None, error: KafkaError | None, record: Message) -> None:
        self._outstanding -= 1
        if error is not None and error.code() in DENIED_CODES:
            self._on_denied(access_denied(self._settings, f"{record.topic()}: {error.str()}"))
        elif error is not None:
            self._on_fatal(f"a record for {record.topic()}[{record.partition()}] was given up: {error}")
        else:
            self._denied = None
        if error is None and on_delivery is not None:
            on_delivery(record.partition(), record.offset())  # type: ignore[arg-type]  # None only before delivery

    def _refused(self, error: KafkaError) -> None:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise GiveUp("too_large")
        self._on_fatal(f"a record was refused before it was sent: {error}")
        raise KafkaException(error)  # only where `on_fatal` returned

    def _look_at_access(self) -> None:
        """End where access has been denied for too long: librdkafka would go on for ever.

        Only a record that waits tells that it still is: an idle client says nothing of a later success.
        """
        if not self._outstanding:
            self._denied = None
        if self._denied is not None and time.monotonic() - self._denied[0] > DENIED_S:
            self._on_denied(access_denied(self._settings, self._denied[1]))

    def _error(self, error: KafkaError) -> None:
        if error.code() in DENIED_CODES and self._denied is None:
            self._denied = time.monotonic(), error.str()
        if error.fatal():
            self._on_fatal(str(error))
            return
        self._is_away |= error.code() in BROKER_AWAY
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._unreachable(error)
        else:
            log.debug("kafka_error", error=error.str())

    def _unreachable(self, error: KafkaError) -> None:
        if time.monotonic() >= self._told_at + TELL_EVERY_S:
            self._told_at = time.monotonic()
            log.warning("kafka_unreachable", error=error.str(), outstanding=self._outstanding)


def die(reason: str) -> None:
    """End the process at once: what was not acknowledged will be read, and sent, again."""
    log.critical("producer_failed", error=reason)
    os._exit(EX_IOERR)
