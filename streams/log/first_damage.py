"""Finds the damage that librdkafka cannot live with, by aiokafka: before a repair, and after an abort (`aborts.py`)."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from crawlog.schemas.progress import SUPERVISOR
from crawlog.streams import exit_codes
from crawlog.streams.cluster import aiokafka_login
from crawlog.streams.errors import DamagedLog

from .topics import TOPIC_KINDS

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

# A partition from which the broker gives nothing for so long is passed over: librdkafka reports such damage itself.
SILENT_S = 5.0

WHY = "there are bytes that are no record, such as zeros"


async def _damages(settings: "Settings") -> list[DamagedLog]:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.structs import TopicPartition

    from crawlog.streams.batches import take_any_names

    take_any_names()
    consumer = AIOKafkaConsumer(
        **aiokafka_login(settings),
        auto_offset_reset="none",
        check_crcs=True,
        fetch_max_wait_ms=20,  # a fetch of the partition before delays the next one by as much
        max_partition_fetch_bytes=settings.kafka.max_record_bytes,
    )
    found: list[DamagedLog] = []
    await consumer.start()
    try:
        for kind in TOPIC_KINDS:
            topic = settings.kafka.prefix + kind.name
            for number in sorted(await consumer._client._wait_on_metadata(topic)):  # noqa: SLF001  # no public way
                damage = await _first_damage(consumer, TopicPartition(topic, number))
                found += [damage] if damage is not None else []
    finally:
        with contextlib.suppress(Exception):  # its fetcher may wait for a partition that was given up
            async with asyncio.timeout(1.0):
                await consumer.stop()
    return found


async def _first_damage(consumer: Any, tp: Any) -> DamagedLog | None:
    """The first damage of a partition; it is met again record by record, since the client loses those before it."""
    first, end = (await consumer.beginning_offsets([tp]))[tp], (await consumer.end_offsets([tp]))[tp]
    consumer.assign([tp])
    at, most = first, 500
    consumer.seek(tp, at)
    while at < end:
        try:
            records = (await consumer.getmany(tp, timeout_ms=int(SILENT_S * 1000), max_records=most)).get(tp)
        except Exception:  # noqa: BLE001  # a decompressor may raise anything
            if most == 1:
                return DamagedLog(tp.topic, tp.partition, at, WHY)
            most = 1
            consumer.assign([tp])
            consumer.seek(tp, at)
            continue
        if not records:
            return None
        at = records[-1].offset + 1
    return None


def unreadable(settings: "Settings") -> list[DamagedLog]:
    """The first damage of each partition that the broker gives out and no client can read. Reads the whole log."""
    return asyncio.run(_damages(settings))


def _lines(found: list[DamagedLog]) -> Iterator[str]:
    for one in found[1:]:
        yield f"{one.topic}[{one.partition}] cannot be read at offset {one.offset} either"


def main(place: str) -> None:
    """Look for the damage at which a process was aborted, and end as it should have ended."""
    from crawlog.streams.settings import Kafka, Settings

    logging.disable(logging.CRITICAL)  # aiokafka tells of each error
    with os.fdopen(int(place), "rb") as file:
        settings = Settings.model_construct(kafka=Kafka.model_validate_json(file.read()))
    sys.stderr.write("librdkafka has met bytes in the log that it cannot read, and aborted; looking for them\n")
    found: list[DamagedLog] = []
    with contextlib.suppress(Exception):  # the broker is away: then the abort itself is all that is known
        found = unreadable(settings)
    if not found:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    if os.environ.get(SUPERVISOR):
        exit_codes.say(found[0])
    else:
        sys.stderr.write("\n".join([f"crawlog: {found[0]}", *_lines(found)]) + "\n")
    sys.exit(exit_codes.EX_DATAERR)
