"""The log: everything that talks to Kafka outside the workers' consumer, and the records that steer a crawl.

    client ─► read ─────► one range, several partitions, or around damage    topics ──► names and kinds of the six
      │  address,         commits: offset and metadata of a commit           admin ───► requests to the cluster
      │  credentials                                                         provision ► creates and verifies topics
      └► producer ──────► never gives a record up ◄── job_records, seed_batches: jobs, seeds, commands, joins
                                                      job_changes: orders, and their answers

    reset by a user     groups (members, commits) ─► offsets (new ones, pure) ─► groups.move; rewind: a job or the crawl
    lost or damaged     marks, damage (is something missing?) ─► check + ledger (which pages?) ─► power_cut (recovery)
    dead_letters        which are open, how often each was tried     sink_groups: each output is a consumer group
    job_lines           lines about jobs, on their way to crawl.logs

Import names from here; `groups`, `offsets` and `power_cut` are used as modules.
"""

from . import groups, offsets, power_cut
from .admin import Admin
from .check import Check, CheckFinding
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
    log_identity,
    offset_at,
    partition_edges,
)
from .commits import (
    HeldRange,
    Position,
    ReplayOrder,
    WrittenEnds,
    is_ours,
    merged_ends,
    reached_offset,
    replay_order,
    written_ends,
)
from .damage import REPORTS_READ, CutPartition, cuts_against, find_cuts, pages_named
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
from .groups import Group, check_group_name, known_sink_groups, member_names, remove_groups
from .job_changes import ANSWERED_S, cancel_job, change_job, remove_notes
from .job_lines import JobLines
from .job_records import (
    NO_SPIDER,
    JobSpider,
    commands_in_force,
    control_entries,
    is_end_of,
    job_end,
    job_keys,
    kept_settings,
    known_job,
    limits_of,
    own_manner,
    pages_done,
    resolve_spec,
    said_rules,
    write_command,
    write_control,
    write_finished,
    write_job,
    write_joins,
    write_names,
)
from .job_values import job_values
from .marks import Marks
from .offsets import Move, Target, TargetKind
from .producer import CommandProducer, Producer
from .provision import TopicRow, ensure_topics, partition_count, partition_count_if_any, topic_rows
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
from .rewind import counting_epochs, rewind_crawl, rewind_job, settled_control
from .seed_batches import SeedBatch, SeedBatches
from .sink_groups import SINK_ENVIRONMENT, SINK_FILE, STDOUT, SinkSpec, Void, known_sinks, sink_from, sink_name_of
from .topics import TOPIC_KINDS, Topics, stage_group

__all__ = [
    "ANSWERED_S",
    "BROKER_AWAY",
    "CLUSTER_TIMEOUT_S",
    "DAMAGE_CODES",
    "DENIED_CODES",
    "NO_SPIDER",
    "REPORTS_READ",
    "SINK_ENVIRONMENT",
    "SINK_FILE",
    "STDOUT",
    "TOPIC_KINDS",
    "Admin",
    "BrokerLogin",
    "Check",
    "CheckFinding",
    "CommandProducer",
    "CommonestError",
    "CutPartition",
    "Group",
    "HeldRange",
    "JobLines",
    "JobSpider",
    "Letter",
    "LetterChoice",
    "LetterTally",
    "Letters",
    "LogIdentity",
    "Marks",
    "Move",
    "Position",
    "Producer",
    "ReadPatience",
    "ReplayOrder",
    "SeedBatch",
    "SeedBatches",
    "SinkSpec",
    "Target",
    "TargetKind",
    "TopicRow",
    "Topics",
    "Void",
    "WrittenEnds",
    "access_denied",
    "aiokafka_credentials",
    "cancel_job",
    "change_job",
    "check_group_name",
    "check_jump",
    "check_readable",
    "commands_in_force",
    "commit_metadata",
    "committed_offsets",
    "consumer_config",
    "control_entries",
    "counting_epochs",
    "cuts_against",
    "ensure_topics",
    "find_cuts",
    "foreign_config",
    "groups",
    "is_end_of",
    "is_log_end",
    "is_ours",
    "is_transient",
    "job_end",
    "job_keys",
    "job_values",
    "kafka_config",
    "kept_settings",
    "known_job",
    "known_sink_groups",
    "known_sinks",
    "letter_fate",
    "letter_mark",
    "letters_by_error",
    "letters_by_place",
    "limits_of",
    "log_bounds",
    "log_identity",
    "member_names",
    "merged_ends",
    "offset_at",
    "offsets",
    "own_manner",
    "pages_done",
    "pages_named",
    "partition_count",
    "partition_count_if_any",
    "partition_edges",
    "power_cut",
    "reached_offset",
    "read_around",
    "read_error",
    "read_partitions",
    "read_records",
    "record_at",
    "record_headers",
    "redrive_refusal",
    "remove_groups",
    "remove_notes",
    "replay_order",
    "resolve_spec",
    "rewind_crawl",
    "rewind_job",
    "said_rules",
    "settled_control",
    "sink_from",
    "sink_name_of",
    "stage_group",
    "topic_rows",
    "write_command",
    "write_control",
    "write_finished",
    "write_job",
    "write_joins",
    "write_names",
    "written_ends",
]
