"""Records as any Kafka client may write them: mutated ones of a real crawl, with any keys, values and headers.

    seeds of a topic ─► odd values, keys, headers ─► batches, which aiokafka sends as they are

All is drawn from one seed: each run writes the same records beside those seeds.
"""

import asyncio
import json
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from crawlog.streams.settings.settings import Settings

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    1e308,
    "",
    "\0",
    "\ud800",
    "x" * 3_000,
    [],
    {},
    [[]] * 9,
    "http://[::1/",
)
"""Values that take the place of one in JSON."""

BATCH_RECORDS = 100

BATCH_BYTES = 4 << 20


class RawName(str):
    """A header's name that is sent as these bytes."""

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, raw: bytes) -> Self:
        """The name."""
        made = super().__new__(cls, raw.decode("latin-1"))
        made.raw = raw
        return made

    def encode(self, *_: object, **__: object) -> bytes:
        """The bytes."""
        return self.raw


Headers = list[tuple[str, bytes | None]]


class Seed(NamedTuple):
    """A record of a real crawl."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class AnyRecords:
    """Draws records.

    Args:
        seeds: Of one topic.
    """

    def __init__(self, seeds: list[Seed], number: int) -> None:
        self._seeds = seeds or [Seed(b"k", b"{}", [])]
        self._random = random.Random(number)

    def draw(self) -> Seed:
        """The next one."""
        seed = self._random.choice(self._seeds)
        key = seed.key if self._random.random() < 0.7 else self._bytes(seed.key)
        return Seed(key, self._bytes(seed.value), self._headers(seed.headers))

    def _bytes(self, given: bytes | None) -> bytes | None:
        """Bytes that were mutated, or others."""
        draw, content = self._random, given or b"{}"
        way = draw.randrange(8)
        if way == 0:
            return None
        if way == 1:
            return draw.randbytes(draw.choice((0, 1, 40, 4_000)))
        if way == 2:
            return content[: draw.randrange(len(content) + 1)]
        if way == 3:
            return content + draw.randbytes(5)
        if way == 4:
            at = draw.randrange(len(content))
            return content[:at] + draw.randbytes(1) + content[at + 1 :]
        return self._odd_json(content)

    def _odd_json(self, content: bytes) -> bytes:
        try:
            value = json.loads(content)
        except ValueError:
            return content
        holders = [one for one in _walk(value) if one]
        if holders:
            holder = self._random.choice(holders)
            at = self._random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            holder[at] = self._random.choice(ODD)
        return json.dumps(value).encode()

    def _headers(self, given: Headers) -> Headers:
        """Headers that were mutated, or others beside them; now and then thousands."""
        draw, headers = self._random, list(given)
        name = draw.choice(("", "crawlog", "content-encoding", "handled", "topic", "\0é", RawName(draw.randbytes(6))))
        other = name, draw.choice((None, b"", b"gzip", b"br", b"zstd", draw.randbytes(40)))
        ways: tuple[Headers, ...] = (
            headers,
            [other, *headers],
            [*headers, other],
            [(name, self._bytes(value)) for name, value in headers],
            headers * 2,
            [],
            [(f"n{number}", b"") for number in range(5_000 if draw.random() < 0.02 else 5)],
        )
        return draw.choice(ways)


def _walk(value: Any) -> Iterator[Any]:
    """The dicts and lists in a value."""
    if isinstance(value, dict | list):
        yield value
        for one in value.values() if isinstance(value, dict) else value:
            yield from _walk(one)


def send(settings: Settings, records: Iterable[tuple[str, int, Seed]]) -> None:
    """Writes records: topic, partition, record."""
    asyncio.run(_send(settings, records))


async def _send(settings: Settings, records: Iterable[tuple[str, int, Seed]]) -> None:
    kafka = settings.kafka
    login = {
        "security_protocol": kafka.security_protocol,
        "sasl_mechanism": kafka.sasl_mechanism,
        "sasl_plain_username": kafka.sasl_username,
        "sasl_plain_password": kafka.sasl_password,
    }
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, max_request_size=2 * BATCH_BYTES, **login)
    await producer.start()
    waiting: dict[tuple[str, int], list[Seed]] = {}
    try:
        for topic, partition, record in records:
            batch = waiting.setdefault((topic, partition), [])
            batch.append(record)
            if len(batch) >= BATCH_RECORDS:
                await _send_batch(producer, topic, partition, waiting.pop((topic, partition)))
        for (topic, partition), batch in waiting.items():
            await _send_batch(producer, topic, partition, batch)
    finally:
        await producer.stop()


async def _send_batch(producer: AIOKafkaProducer, topic: str, partition: int, records: list[Seed]) -> None:
    batch = producer.create_batch()
    batch._builder = _DefaultRecordBatchBuilderPy(2, 0, False, -1, -1, -1, BATCH_BYTES)  # names of any bytes
    for record in records:
        assert batch.append(key=record.key, value=record.value, timestamp=1, headers=record.headers) is not None
    batch.close()
    await (await producer.send_batch(batch, topic, partition=partition))
