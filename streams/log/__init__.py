"""The log: everything that talks to Kafka outside the workers' consumer.

    client ─► read ─────► one range, several partitions, or around damage    topics ──► names and kinds of the six
      │  address,         commits: offset and metadata of a commit           admin ───► requests to the cluster
      │  credentials                                                         provision ► creates and verifies topics
      └► producer ──────► never gives a record up ◄── seed_batches: seeds

    reset by a user     groups (members, commits) ─► offsets (new ones, pure) ─► groups.move
    dead_letters        which are open, how often each was tried     sink_groups: each output is a consumer group
    health              can the cluster take a record, and how safely is it kept
    job_lines           lines about jobs, on their way to crawl.logs

Import names from here; `groups`, `health` and `offsets` are used as modules.
Jobs and rewinds: `streams/control/`. What is lost or damaged: `streams/recovery/`.
"""

from . import groups, health, offsets
from .admin import FIRST, LAST, Admin
from .client import (
    BROKER_AWAY,
    CLUSTER_TIMEOUT_S,
    DAMAGE_CODES,
    DENIED_CODES,
    BrokerLogin,
    LogIdentity,
    access_denied,
    aiokafka_credentials,
    commit_metadata,
    committed_offsets,
    consumer_config,
    foreign_config,
    is_transient,
    kafka_config,
    log_bounds,
    log_end,
    log_identity,
    offset_at,
    partition_edges,
    weak_callback,
)
from .commits import (
    REPLAY_ALL,
    HeldRange,
    Position,
    ReplayPlan,
    WrittenEnds,
    is_ours,
    is_planned,
    merged_ends,
    reached_offset,
    replay_order,
    without_written,
    written_ends,
)
from .dead_letters import (
    CommonestError,
    Letter,
    LetterChoice,
    Letters,
    LetterTally,
    letter_fate,
    letter_mark,
    letters_by_error,
    letters_by_place,
    redrive_refusal,
)
from .first_damage import unreadable
from .groups import Group, check_group_name, known_sink_groups, member_names
from .job_lines import JobLines
from .offsets import Move, Target, TargetKind
from .producer import CommandProducer, Headers, Producer, Send, send_letter
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
)
from .seed_batches import SeedBatch, SeedBatches
from .sink_groups import (
    AGAIN,
    SINK_ENVIRONMENT,
    SINK_FILE,
    STDOUT,
    RewoundRange,
    SinkSpec,
    known_sinks,
    ordered_again,
    read_again,
)
from .topics import TOPIC_KINDS, Topics, stage_group

__all__ = [
    "AGAIN",
    "BROKER_AWAY",
    "CLUSTER_TIMEOUT_S",
    "DAMAGE_CODES",
    "DENIED_CODES",
    "FIRST",
    "LAST",
    "REPLAY_ALL",
    "SINK_ENVIRONMENT",
    "SINK_FILE",
    "STDOUT",
    "TOPIC_KINDS",
    "Admin",
    "BrokerLogin",
    "CommandProducer",
    "CommonestError",
    "Group",
    "Headers",
    "HeldRange",
    "JobLines",
    "Letter",
    "LetterChoice",
    "LetterTally",
    "Letters",
    "LogIdentity",
    "Move",
    "Position",
    "Producer",
    "ReadPatience",
    "ReplayPlan",
    "RewoundRange",
    "SeedBatch",
    "SeedBatches",
    "Send",
    "SinkSpec",
    "Target",
    "TargetKind",
    "TopicRow",
    "Topics",
    "WrittenEnds",
    "access_denied",
    "aiokafka_credentials",
    "check_group_name",
    "check_jump",
    "check_readable",
    "commit_metadata",
    "committed_offsets",
    "consumer_config",
    "ensure_topics",
    "foreign_config",
    "groups",
    "has_topics",
    "health",
    "is_log_end",
    "is_ours",
    "is_planned",
    "is_transient",
    "kafka_config",
    "known_sink_groups",
    "known_sinks",
    "letter_fate",
    "letter_mark",
    "letters_by_error",
    "letters_by_place",
    "log_bounds",
    "log_end",
    "log_identity",
    "member_names",
    "merged_ends",
    "offset_at",
    "offsets",
    "ordered_again",
    "partition_count",
    "partition_count_if_any",
    "partition_edges",
    "reached_offset",
    "read_again",
    "read_around",
    "read_error",
    "read_partitions",
    "read_records",
    "record_at",
    "record_headers",
    "redrive_refusal",
    "replay_order",
    "send_letter",
    "stage_group",
    "topic_rows",
    "unreadable",
    "weak_callback",
    "without_written",
    "written_ends",
]
