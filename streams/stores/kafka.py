"""An output topic, for Kafka Connect: `-o kafka://USER:PASSWORD@HOST:PORT/TOPIC`, one row a record, with its schema.

One transaction: the rows of some keys → a tombstone for each row that is gone → the position, as an offset of the group
`crawlog-output-JOB`. Readers with `isolation.level=read_committed` see each row once; a worker that lost its place is
fenced by its transactional id (KIP-98). Keys and values are JSON with Connect's schema beside it:

    key     {"schema": …, "payload": {"_key": hash of job and URL, "_n": number of the item on its page}}
    value   {"schema": …, "payload": {"_job": …, "_url": …, "_page": …, fields of the item …, "_rest": JSON of others}}

The position's metadata has the columns with their types, so that a restarted worker goes on with the same schema.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # it does not re-export them

from crawlog.streams.errors import Misconfigured

from .base import ANSWER_S, CONNECT_S, Store, lost_place
from .changes import Feed, KeyRows, RowChanges
from .columns import Kind, RowCells, new_columns

CONNECT_TYPES: dict[Kind, str] = {
    "bool": "boolean",
    "int": "int64",
    "float": "double",
    "text": "string",
    "json": "string",
}

MOST_METADATA = 3_500  # Bytes of columns and types: a broker takes 4,096 with an offset (offset.metadata.max.bytes)

FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)  # noqa: SLF001  # its name

_json = msgspec.json.encode


class KafkaTopic(Store):
    """See the module. Rows that a new crawl of the job does not find stay in the topic."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        address = urlsplit(spec.output)
        self._topic = address.path.strip("/")
        servers = address.netloc.rpartition("@")[2]
        if not (self._topic and servers) or "/" in self._topic:
            raise Misconfigured(f"{self.place}: name the topic behind the brokers: kafka://HOST:PORT,HOST:PORT/TOPIC")
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": unquote(address.username or ""),
            "sasl.password": unquote(address.password or ""),
        }
        self._config: dict[str, Any] = {
            "bootstrap.servers": servers,
            "socket.connection.setup.timeout.ms": CONNECT_S * 1000,
            "log_level": 2,  # errors are raised; librdkafka would print its own lines to standard error
            **(login if address.username else {}),
            **dict(parse_qsl(address.query)),
        }
        self._group = f"crawlog-output-{spec.job}"
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._columns: dict[str, Kind | None] = {}
        self._serial = ""

    def check(self) -> None:
        """Makes the topic where it lacks: compacted, so that each row stays once."""
        with self.reported():
            self._make_topic()

    def open(self, feed: Feed) -> int:
        """Fences the feed before, and reads the position that it has committed."""
        self.close()
        with self.reported():
            self._make_topic()
            self._consumer = Consumer(self._config | {"group.id": self._group, "enable.auto.commit": False})
            producing = {"transactional.id": self._group + "-" + self._topic, "partitioner": "murmur2_random"}
            self._producer = Producer(self._config | producing | {"linger.ms": 20, "compression.type": "lz4"})
            self._producer.init_transactions(ANSWER_S)
            (known,) = self._consumer.committed([TopicPartition(self._topic, 0)], ANSWER_S)
            serial, columns = msgspec.json.decode(known.metadata or '["", {}]', type=tuple[str, dict[str, Kind]])
        self._columns, self._serial = {**columns}, feed.serial
        return max(known.offset, 0) if serial == feed.serial else 0

    def write(self, changes: RowChanges) -> None:
        """One transaction, see the module."""
        producer, consumer = self._producer, self._consumer
        assert producer is not None
        assert consumer is not None
        found = [(one, one.rows()) for one in changes.keys]
        self._learn([row for _, rows in found for row in rows])
        position = TopicPartition(self._topic, 0, changes.end, metadata=self._metadata())
        with self.reported(), self._fenced():
            producer.begin_transaction()
            for key, value in self._records(found):
                while True:
                    try:
                        producer.produce(self._topic, value, key)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), ANSWER_S)
            producer.commit_transaction(ANSWER_S)

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """Raises: RetryLater: another producer has the transactional id."""
        try:
            yield
        except KafkaException as error:
            if error.args[0].code() in FENCED:
                raise lost_place(self) from error
            raise

    def finish(self) -> None:
        """Everything is written."""

    def close(self) -> None:
        consumer, self._producer, self._consumer = self._consumer, None, None  # a producer aborts what it has begun
        if consumer is not None:
            consumer.close()

    def _make_topic(self) -> None:
        admin = AdminClient(self._config)
        if self._topic in admin.list_topics(timeout=CONNECT_S).topics:
            return
        made = NewTopic(self._topic, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([made])[self._topic].result(ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _learn(self, rows: list[dict[str, object]]) -> None:
        """Take new columns, as long as their names fit into the position."""
        before = dict(self._columns)
        for name, kind in new_columns(rows, self._columns).items():
            self._columns[name] = kind
            if len(self._metadata()) > MOST_METADATA:
                self._columns = before
                return
            before = dict(self._columns)

    def _metadata(self) -> str:
        return _json([self._serial, self._columns]).decode()

    def _records(self, found: list[tuple[KeyRows, list[dict[str, object]]]]) -> Iterator[tuple[bytes, bytes | None]]:
        """Key and value of each record; no value for a row that is gone."""
        kinds = [(name, CONNECT_TYPES[kind or "text"]) for name, kind in self._columns.items()]
        names = ["_job", "_url", "_page", *self._columns, "_rest"]
        of_value = _schema([("_job", "string"), ("_url", "string"), ("_page", "int64"), *kinds, ("_rest", "string")])
        of_key = _schema([("_key", "string"), ("_n", "int32")])
        cells = RowCells(self._columns)
        for one, rows in found:
            key = one.hash(self.spec.job)
            for number in range(max(len(rows), one.before if self.spec.on_gone == "delete" else 0)):
                value = None
                if number < len(rows):
                    values = [self.spec.job, one.url, one.page_number, *cells.of(rows[number])]
                    value = _enveloped(of_value, _json(dict(zip(names, values, strict=True))))
                yield _enveloped(of_key, _json({"_key": key, "_n": number})), value


def _schema(fields: list[tuple[str, str]]) -> bytes:
    needed = {"_key", "_n", "_job", "_url", "_page"}
    listed = [{"field": name, "type": kind, "optional": name not in needed} for name, kind in fields]
    return _json({"type": "struct", "optional": False, "fields": listed})


def _enveloped(schema: bytes, payload: bytes) -> bytes:
    return b'{"schema":%b,"payload":%b}' % (schema, payload)
