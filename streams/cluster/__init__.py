"""Access to the Kafka cluster: how a client reaches it, what it asks, and why that failed.

    settings.kafka ─► client: address, credentials ─┬─► consumers, producers (of `streams/log/` and the agents)
                                                    ├─► bounds of a topic, its identity, offsets of a time, commits
                                                    └─► admin: topics, configs, groups; an open client answers in 1 ms
    an error ─► is_transient? ask again │ DENIED_CODES: AccessDenied │ DAMAGE_CODES: DamagedLog
    no connection ─► listener: the advertised address does not answer, or it wants another protocol
    librdkafka aborts at damage ─► aborts ─► the process continues as `streams/log/first_damage.py`

No topic of the crawl is known here: `streams/log/` has them.
"""

from .admin import ANSWER_TIMEOUT_S, FIRST, LAST, POLL_S, Admin
from .client import (
    BROKER_AWAY,
    CLUSTER_TIMEOUT_S,
    DAMAGE_CODES,
    DENIED_CODES,
    SILENT_S,
    BrokerLogin,
    LogIdentity,
    access_denied,
    aiokafka_credentials,
    aiokafka_login,
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
from .listener import address_problems

__all__ = [
    "ANSWER_TIMEOUT_S",
    "BROKER_AWAY",
    "CLUSTER_TIMEOUT_S",
    "DAMAGE_CODES",
    "DENIED_CODES",
    "FIRST",
    "LAST",
    "POLL_S",
    "SILENT_S",
    "Admin",
    "BrokerLogin",
    "LogIdentity",
    "access_denied",
    "address_problems",
    "aiokafka_credentials",
    "aiokafka_login",
    "commit_metadata",
    "committed_offsets",
    "consumer_config",
    "foreign_config",
    "is_transient",
    "kafka_config",
    "log_bounds",
    "log_end",
    "log_identity",
    "offset_at",
    "partition_edges",
    "weak_callback",
]
