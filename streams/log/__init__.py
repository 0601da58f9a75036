"""The log: the ten topics, and how their records are written and read outside the workers' consumer.

    topics ──► names and kinds        provision ──► creates and verifies them        health ──► how safely they are kept

    records ─► producer: never gives one up ─► crawl.* ─► read: one range, several partitions, or around damage
                                                 │
                                                 └─► first_damage: bytes that librdkafka cannot live with

Clients: `streams/cluster/`. Offsets of consumer groups: `streams/groups/`. Jobs and rewinds: `streams/control/`. Lost
or damaged records: `streams/recovery/`.
"""

from . import health
from .first_damage import unreadable
from .producer import CommandProducer, Producer, Send, send_letter
from .provision import TopicRow, ensure_topics, has_topics, partition_count, partition_count_if_any, topic_rows
from .read import (
    ReadPatience,
    check_jump,
    check_readable,
    is_log_end,
    read_around,
    read_error,
    read_partitions,
    read_records,
    record_at,
    record_headers,
    take,
)
from .topics import TOPIC_KINDS, Topics, stage_group

__all__ = [
    "TOPIC_KINDS",
    "CommandProducer",
    "Producer",
    "ReadPatience",
    "Send",
    "TopicRow",
    "Topics",
    "check_jump",
    "check_readable",
    "ensure_topics",
    "has_topics",
    "health",
    "is_log_end",
    "partition_count",
    "partition_count_if_any",
    "read_around",
    "read_error",
    "read_partitions",
    "read_records",
    "record_at",
    "record_headers",
    "send_letter",
    "stage_group",
    "take",
    "topic_rows",
    "unreadable",
]
