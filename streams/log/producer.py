"""The only producer: a confluent-kafka producer that never gives a record up.

It is idempotent and has no message timeout. So each record is delivered, in order, or the process ends. Callers handle
no failed delivery; they wait for acknowledgements only.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Librdkafka

from crawlog.streams import exit_codes
from crawlog.streams.cluster import (
    BROKER_AWAY,
    DENIED_CODES,
    SILENT_S,
    BrokerLogin,
    access_denied,
    kafka_config,
    weak_callback,
)
from crawlog.streams.errors import AccessDenied, EngineError, GiveUp

if TYPE_CHECKING:
    from crawlog.schemas.dead import DeadLetter
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

# Bytes of the largest record kept for the batch header and the lengths of fields: the broker's limit counts them.
ENVELOPE_BYTES = 1024

HEADER_BYTES = 10  # Most bytes of the two lengths of a header

# Limit of the queue, bytes; `send` waits when it is full. About 4,000 pages of 30 kB: a second of a slow broker.
QUEUE_BYTES = 128 << 20

QUEUE_RECORDS = 100_000  # Limit of the queue, records: each costs some 200 bytes beside its value

# Pause between two polls while records are in flight, seconds; 200 polls a second cost about 1 % of a core.
POLL_S = 0.005

FULL_POLL_S = 0.05  # Longest wait of one poll while the queue is full, seconds

# Interval of the warnings about an unreachable cluster, seconds; librdkafka reports it every second.
TELL_EVERY_S = 30.0

DENIED_S = 20.0  # If access is denied for so long, seconds, and no record is acknowledged meanwhile, the worker ends

CONNECT_S = 1.0  # How long `connect` waits, seconds; the local engine answers in 0.03

EX_IOERR = 74  # Exit code after a fatal producer error (sysexits.h)

Acknowledged = Callable[[int, int], None]  # Callback with (partition, offset) once a record is in the log

# Any client may write a header without a value, and a dead letter has its record's headers.
Headers = Sequence[tuple[str, bytes | None]]


class Producer:
    """Sends records and calls back when the log has them.

    It and its threads end with the last reference to it, but not while records are in flight.

    Use it from one thread (or one event loop). Callbacks run inside `poll`, `flush` and a `send` that waits for the
    queue; they must not raise.

    Args:
        client_id: Name in the broker's logs, such as `fetch-0`.
        linger_ms: How long a record waits for others of its partition, to share a batch.
        on_fatal: Called with the reason when no record can be delivered any more; by default the process ends.
        login: Called for user and password when the cluster is unreachable or refuses those of the settings.
        on_denied: Called when the cluster denies access, for a record or for DENIED_S; by default the process ends.
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
                "message.timeout.ms": 0,  # no timeout
                "compression.type": settings.kafka.compression,
                "linger.ms": linger_ms,
                "message.max.bytes": largest,
                "batch.size": min(largest, 1_000_000),
                "queue.buffering.max.kbytes": max(2 * largest, QUEUE_BYTES) // 1024,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 1_000,
                "error_cb": weak_callback(self._error),
            }
            | (extra or {})
        )
        self._produce = self._librdkafka.produce
        self._poll = self._librdkafka.poll

    def connect(self) -> None:
        """Wait for the cluster's first answer, though not long. Blocks.

        A record that is sent before it waits for a timer of librdkafka's: the producer's id comes 0.5 or 1 s later.
        """
        with contextlib.suppress(KafkaException):
            self._librdkafka.list_topics(timeout=CONNECT_S)

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
        """Queue a record for sending. While the queue is full, waits and polls.

        Args:
            partition: Always given: librdkafka would choose among the topic's present partitions, but the log uses only
                those that it began with.

        Raises: GiveUp("too_large"): over the largest record; nothing was sent.
        """
        size_bytes = (0 if value is None else len(value)) + (0 if key is None else len(key))
        for name, content in headers or ():
            size_bytes += len(name.encode()) + len(content or b"") + HEADER_BYTES
        if size_bytes > self._limit:
            raise GiveUp("too_large")
        called = partial(self._delivered, on_delivery)
        while True:
            try:
                self._produce(topic, value, key, partition, called, None, 0, headers)  # type: ignore[arg-type]  # list is invariant
                break
            except BufferError:
                self._poll(FULL_POLL_S)
                self._has_served()
            except KafkaException as error:
                self._refused(error.args[0])
        if self._outstanding == 0 and self._wake is not None:
            self._wake.set()
        self._outstanding += 1

    def poll(self) -> int:
        """Serve acknowledgements and errors; returns the number of events."""
        self._look_at_access()
        served = int(self._poll(0))
        self._has_served()
        return served

    @property
    def outstanding(self) -> int:
        """Records in flight: sent and not acknowledged yet."""
        return self._outstanding

    def flush(self, timeout_s: float) -> bool:
        """Send lingering records and wait for all acknowledgements; False when some are missing after the timeout."""
        end = time.monotonic() + timeout_s
        while self._outstanding:
            left_s = end - time.monotonic()
            if left_s <= 0:
                return False
            self._librdkafka.flush(min(left_s, 1.0))
            self._has_served()
        return True

    def _has_served(self) -> None:
        """Take the broker's present password. Never call it from a callback: librdkafka then aborts the process."""
        if self._is_away and self._login is not None:
            self._is_away = False
            self._librdkafka.set_sasl_credentials(*self._login())

    async def run(self, stop: asyncio.Event, rest_s: float = POLL_S) -> None:
        """Serve acknowledgements until `stop` is set; records then in flight need `flush`. Costs nothing when idle.

        Args:
            rest_s: Pause between two polls while records are in flight; it may delay an acknowledgement by as much.
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
            async with asyncio.timeout(1.0):  # serve the errors of an idle producer once a second
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
        raise KafkaException(error)  # reached only if `on_fatal` returns

    def _look_at_access(self) -> None:
        """Call `on_denied` when access has been denied for DENIED_S: librdkafka would retry for ever.

        Only while records are in flight: an idle client does not report a later success.
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


class CommandProducer(Producer):
    """A producer of commands, of which the service runs many: a failure ends no process.

    It is raised by `poll`, `flush` and a `send` that waits: EngineError for a record that was refused, AccessDenied
    if the cluster denies access.

    Args:
        say: Takes a line for the user each SILENT_S in which records wait and none is acknowledged.
    """

    def __init__(
        self,
        settings: "Settings",
        client_id: str,
        *,
        login: BrokerLogin | None = None,
        say: Callable[[str], None] = lambda _: None,
        extra: dict[str, object] | None = None,
    ) -> None:
        self._say = say
        self._said = 0, 0.0
        self._failures = failures = list[EngineError]()
        super().__init__(
            settings,
            client_id,
            login=login,
            on_denied=failures.append,
            on_fatal=lambda reason: failures.append(EngineError(reason)),
            extra=extra,
        )
        self.connect()

    def flush(self, timeout_s: float) -> bool:
        """As `Producer.flush`; also raises the failure."""
        is_done = super().flush(timeout_s)
        self._has_served()
        return is_done

    def _has_served(self) -> None:
        super()._has_served()
        self._look_at_access()
        if self._failures:
            raise self._failures[0]
        self._tell_waiting(time.monotonic())

    def _tell_waiting(self, now: float) -> None:
        waiting, since = self._said
        if self.outstanding == 0 or self.outstanding != waiting:
            self._said = self.outstanding, now
        elif now - since >= SILENT_S:
            self._said = waiting, now
            self._say(f"waiting for Kafka: {waiting:,} records are not acknowledged yet; see `crawlog doctor`")

    def _refused(self, error: KafkaError) -> None:
        try:
            super()._refused(error)
        except KafkaException:
            raise EngineError(f"a record was refused before it was sent: {error}") from None


class Send(Protocol):
    """`Producer.send`."""

    def __call__(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int,
        headers: Headers | None = None,
        on_delivery: Acknowledged | None = None,
    ) -> None:
        """Send a record."""


def send_letter(
    send: Send,
    topic: str,
    letter: "DeadLetter",
    own: Iterable[tuple[str, bytes | None]] = (),
    on_delivery: Acknowledged | None = None,
) -> None:
    """Send a dead letter. A record that is too large with the letter's headers loses its value, then all but its place.

    Args:
        topic: The full name of crawl.dead.
        own: The record's own headers.
    """
    fields: Headers = [*letter.headers()]
    every = [*fields, *own]
    for value, key, headers in ((letter.value, letter.key, every), (None, letter.key, every), (None, None, fields)):
        try:
            send(topic, value, key=key, partition=0, headers=headers, on_delivery=on_delivery)
        except GiveUp:
            continue
        return


def die(reason: str) -> None:
    """End the process at once: the input of unacknowledged records will be read again."""
    log.critical("producer_failed", error=reason)
    os._exit(EX_IOERR)
