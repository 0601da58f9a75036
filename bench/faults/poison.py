"""Malformed records, mixed into every topic that workers read."""

import random
import struct
import time
from collections.abc import Callable

import msgspec
from confluent_kafka import Message, Producer

from bench.faults.crawl import JOB, Crawl
from bench.faults.judge import Poison
from bench.faults.schedule import Fault
from crawlog.streams.cluster.client import kafka_config

RECORDS = 1000
BATCH = 50
NAUGHTY = (
    "undefined", "\u202etest", "Ω≈ç√∫˜µ≤≥÷", "'; DROP TABLE urls; --", "\x00\x01", "﷽", "../../etc/passwd", "NaN",
)  # fmt: skip

Headers = list[tuple[str, str | bytes | None]]
Made = tuple[bytes | None, bytes | None, Headers]
"""Key, value, headers."""


def _junk(dice: random.Random) -> bytes:
    return dice.randbytes(dice.randrange(1, 200))


def _kinds(dice: random.Random) -> dict[str, Made]:
    """One of each kind that is no record in any topic; headers say the same as values, for crawl.pages reads those."""
    schema = json_of({"v": 1, "job": JOB, "results": {"a": [1]}})
    late = json_of({"v": 1, "job": JOB, "at": time.time() + 30 * 86_400, "results": "soon"})
    made: dict[str, Made] = {
        "empty": (b"127.3.0.1", b"", []),
        "null": (None, None, []),
        "not UTF-8": (b"\xff\xfe", b"\xff\xfe\x80" + _junk(dice), [("crawlog", b"\xff\xfe\x80")]),
        "not JSON": (b"127.3.0.1", b'{"v": 1, "urls": [', [("crawlog", b'{"v": 1,')]),
        "another version": (b"127.3.0.1", b'{"v": 99, "job": "judged", "urls": []}', [("crawlog", b'{"v": 99}')]),
        "another schema": (b"127.3.0.1", schema, [("crawlog", b'{"v":1}')]),
        "a megabyte": (b"x" * 100, dice.randbytes(1 << 20), []),
        "naughty string": (b"", dice.choice(NAUGHTY).encode(), [("crawlog", dice.choice(NAUGHTY).encode())]),
        "of the future": (b"127.3.0.1", late, [("crawlog", late)]),
        "deeply nested": (b"127.3.0.1", b"[" * 5000, [("crawlog", b"[" * 5000)]),
    }  # fmt: skip
    return made


def json_of(content: object) -> bytes:
    """As JSON."""
    return msgspec.json.encode(content)


TOMBSTONES = {("control", "null"), ("control", "empty"), ("progress", "null"), ("progress", "empty")}
"""On a compacted topic an empty value deletes a key, which is no poison."""

TOPICS = ("urls", "pages", "items", "control", "progress")


def _misplaced(crawl: Crawl, partitions: int) -> tuple[int, bytes]:
    """A found that was forwarded already, in a partition that it does not belong to: by Kafka's own partitioner."""
    host = crawl.graph.name(0)
    wrong = (murmur2(host.encode()) % partitions + 1) % partitions
    return wrong, json_of({"v": 1, "job": JOB, "fwd": 1, "urls": [{"url": crawl.graph.seeds[0]}]})


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, made positive; written from its definition, not taken from crawlog."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    found = (0x9747B28C ^ len(data)) & mask
    whole = len(data) // 4 * 4
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        mixed = (k * m) & mask
        mixed = ((mixed ^ (mixed >> 24)) * m) & mask
        found = ((found * m) & mask) ^ mixed
    if rest := data[whole:]:
        found = ((found ^ int.from_bytes(rest, "little")) * m) & mask
    found = ((found ^ (found >> 13)) * m) & mask
    return (found ^ (found >> 15)) & 0x7FFFFFFF


class Poisoned(Fault):
    """A thousand bad records of ten kinds."""

    name = "poison"
    says = "1,000 bad records of ten kinds on five topics, and misplaced founds"

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """In batches, spread over the crawl."""
        records = min(RECORDS, max(150, crawl.size.hosts * crawl.size.pages // 20))
        batches = -(-records // BATCH)
        for number in range(batches):
            if not crawl.until(0.8 * (number + 0.5) / batches, 600) or not crawl.note("poison"):
                break
            pour(crawl, dice, BATCH)
        return {"bad records": float(len(crawl.poison))}


def pour(crawl: Crawl, dice: random.Random, count: int, topics: tuple[str, ...] = TOPICS) -> None:
    """Writes bad records, and notes where the broker put them."""
    producer = Producer(kafka_config(crawl.log) | {"message.max.bytes": 4 << 20})
    partitions = len(producer.list_topics("crawl.urls", timeout=30).topics["crawl.urls"].partitions)
    for _ in range(count):
        topic = dice.choice(topics)
        kind, (key, value, headers) = dice.choice(list(_kinds(dice).items()))
        side = topic in ("control", "progress")
        partition = 0 if side else dice.randrange(partitions)
        is_dead = (topic, kind) not in TOMBSTONES
        if topic == "urls" and dice.random() < 0.1:
            kind, (partition, value) = "misplaced", _misplaced(crawl, partitions)
        name = f"crawl.{topic}"
        noted = _note(crawl, kind, name, is_dead=is_dead)
        producer.produce(name, value, key, partition=partition, headers=headers, on_delivery=noted)
    producer.flush(30)


def _note(crawl: Crawl, kind: str, topic: str, *, is_dead: bool) -> Callable[[object, Message], None]:
    def delivered(error: object, message: Message) -> None:
        if error is None:
            place = message.partition() or 0, message.offset() or 0
            crawl.poison.append(Poison(kind, topic, *place, is_dead))

    return delivered
