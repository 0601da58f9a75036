"""Stores: outputs that take the rows of a job as they come.

    SinkState.changes ─► Store.write: the rows of some keys, and how far they are, in one transaction
      ▲ position           │ an error: the connection is closed; `open` gives the position that the store has
      └────────────────────┘
    the job has ended, all is written ─► Store.finish: rows that are gone

    changes    what a store gets: the keys whose rows changed, in order
    base       `Store`: what each store does
    columns    which columns a table gets from the rows, and how a value fits one
    sql        `SqlStore`: what stores with SQL share; rows and position in one transaction
    postgres, mysql, sqlite    its dialects
    remote_files  files in object stores, for the formats of streams/sink
    mongodb    MongoDB
    redis      Redis
    kafka      an output topic, for Kafka Connect

Each store imports its library where it connects. agents/outputs feeds it.
"""

from .base import RowState, Store, fill, lost_place, needed
from .changes import CHANGES_BYTES, MOST_CHANGES, Feed, KeyRows, RowChanges, feed_of
from .kafka import KafkaTopic
from .mongodb import MongoDB
from .mysql import MySql
from .postgres import Postgres
from .redis import Redis
from .remote_files import RemoteFile
from .sqlite import Sqlite

__all__ = [
    "CHANGES_BYTES",
    "MOST_CHANGES",
    "Feed",
    "KafkaTopic",
    "KeyRows",
    "MongoDB",
    "MySql",
    "Postgres",
    "Redis",
    "RemoteFile",
    "RowChanges",
    "RowState",
    "Sqlite",
    "Store",
    "feed_of",
    "fill",
    "lost_place",
    "needed",
]
