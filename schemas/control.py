"""crawl.control: what every worker must know, compacted by name.

Keys: `job/NAME` (a copy of the job record, for parse), `finished/NAME` (the supervisor's word that a job ended, and
how), `join/NAME/HOST` (a host that a seed led to and that joined the job's scope; `HOST+HASH` where the record names
more of them), `missing/NAME/URL` (what a probe for
soft 404s was answered), `rewind/EPOCH.MARK/NAME` (a rewind of a job or, without a name, of the crawl),
`command/job/NAME`, `command/host/HOST`, `command/stage/NAME` (what the operator wants of it: the newest command for a
target holds, until `resume`, `unblock` or a tombstone). Any Kafka client with the log's credentials may write commands:

    echo 'command/job/news|{"v": 1, "action": "pause", "job": "news"}' |
        kcat -F <(crawlog kcat-config) -P -t crawl.control -p 0 -K '|'
"""

import re
from hashlib import sha256
from typing import Annotated, Literal

import msgspec

from .codec import decoded
from .progress import JobCounts
from .urls import JobSpec

VERSION = 1


class JobCopy(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A copy of a job record."""

    job: str
    spec: JobSpec
    epoch: int = 0


class Finished(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A job has ended: every fold, parse and sink had passed these offsets.

    Attributes:
        reason: `finished`, `max_pages` or `cancelled`.
        urls: End of each partition of crawl.urls at that moment.
        dead: Records of this job in crawl.dead by then.
        counts: What the folds had counted of it; None in records written before there was this field.
        spider: Hash of the spider's file that the run had; empty for the default spider, and in records from before.
    """

    job: str
    at: float
    epoch: int = 0
    reason: str = "finished"
    urls: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()
    items: tuple[int, ...] = ()
    dead: int = 0
    counts: JobCounts | None = None
    spider: str = ""


class Join(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A scope name (host:port or registrable domain) that joined a job's scope while it ran.

    Attributes:
        more: Further ones: seeds of 200,000 hosts are some hundred records, which every command reads.
    """

    job: str
    name: str
    more: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All that join."""
        return (self.name, *self.more)


class Missing(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """What a host answered with 200 to a URL that cannot exist: pages like it are soft 404s.

    Attributes:
        url: The probe's, canonical.
        sketch: SimHash of the answer.
    """

    job: str
    url: Annotated[str, msgspec.Meta(pattern=r"^https?://[^/]+/")]
    sketch: int


Action = Literal["pause", "resume", "block", "unblock", "slow", "stop"]

ENDS = ("resume", "unblock")
"""Actions after which no command for the target is in force."""

_MAY: dict[str, tuple[str, ...]] = {
    "job": ("pause", "resume", "slow", "stop"),
    "host": ("pause", "resume", "block", "unblock", "slow"),
    "stage": ("pause", "resume", "slow"),
}
"""Actions by kind of target."""

_STAGES = ("fetch", "parse", "sink")

_NAME = r"[a-z0-9_-][a-z0-9_.-]*|\[[0-9a-f:.]+\]"

_HOST = re.compile(rf"https?://({_NAME})(:\d{{1,5}})?|({_NAME})(:\d{{1,5}})?|\.[a-z0-9_-][a-z0-9_.-]*")


class Command(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """What the operator wants of a job, a host or a stage: of exactly one of them.

    Attributes:
        action: `pause` hands nothing more out, `slow` lengthens the rest between two requests to a host. `block` (a
            host) and `stop` (a job) are pauses that a `run` does not wait for: it ends, and the queue stays.
        host: `http://name:port`; or `name`, `name:port` for both schemes; or `.name` with all names below it.
        stage: `fetch`, `parse` or `sink`; only fetch can be slowed.
        delay_s: Least rest between two requests to one host, for `slow`.
        at: UTC epoch seconds, for the reader.
    """

    action: Action
    job: str = ""
    host: str = ""
    stage: str = ""
    delay_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    at: float = 0.0

    @property
    def kind(self) -> str:
        """`job`, `host` or `stage`."""
        return next((kind for kind in _MAY if getattr(self, kind)), "")

    @property
    def target(self) -> str:
        """Its name."""
        return self.job or self.host or self.stage

    @property
    def holds(self) -> bool:
        """Whether it wants anything."""
        return self.action not in ENDS

    def check(self) -> "Command":
        """Itself.

        Raises: ValueError: it is none that can be obeyed; the message says why.
        """
        if sum(map(bool, (self.job, self.host, self.stage))) != 1:
            raise ValueError("a command has exactly one of job, host, stage (--job, --host, --stage)")
        if self.action not in _MAY[self.kind]:
            raise ValueError(f"a {self.kind} cannot be given {self.action!r}, only: {', '.join(_MAY[self.kind])}")
        if self.stage and self.stage not in _STAGES:
            raise ValueError(f"no stage {self.stage!r:.50}; there are: {', '.join(_STAGES)}")
        if self.action == "slow" and (not self.delay_s or self.stage not in ("", "fetch")):
            raise ValueError("slow needs delay_s (--delay SECONDS) above 0, and no stage but fetch can be slowed")
        if self.host and not _HOST.fullmatch(self.host):
            raise ValueError(
                f"{self.host!r:.100} is no host: http://name:port, name, name:port or .name, in lower case"
            )
        return self


class Rewound(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A rewind: written before its first epoch record, and again when all of it is in the log.

    Who finds one that is not complete goes on with it, so that a kill leaves no partition in another epoch.

    Attributes:
        job: The job that begins again; empty for the whole crawl.
        epoch: The epoch that begins.
        spec: The job's new record.
        start: By partition of crawl.urls, the first record that no longer counts.
        end: By partition, where the epoch record stands.
        pages: By partition of crawl.pages, the end of those whose dones still count: results of later ones, up to
            this epoch, do not.
        before: The epochs that jobs were in.
        complete: Whether all of it is in the log.
        upto: By partition of crawl.urls, where the log ended then: one that ends before has lost some of it.
        mark: Of the command that began it, at random: two that take one epoch at the same instant write two notes.
    """

    epoch: int
    job: str = ""
    spec: JobSpec | None = None
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    pages: dict[int, int] = {}
    before: dict[str, int] = {}
    complete: bool = False
    upto: dict[int, int] = {}
    mark: str = ""


class Layout(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """What the log was begun with, and keeps for its life: written when its topics are made.

    Attributes:
        partitions: Of crawl.urls, crawl.pages and crawl.items, each. Which of them is a domain's depends on it.
    """

    partitions: Annotated[int, msgspec.Meta(ge=1)]


Control = JobCopy | Finished | Join | Missing | Command | Rewound | Layout

LAYOUT = b"layout"
"""Key of the one record of this kind."""

_command = msgspec.json.Decoder(Command)
_decoders: dict[bytes, msgspec.json.Decoder[JobCopy | Finished | Join | Missing | Rewound | Layout]] = {
    b"job": msgspec.json.Decoder(JobCopy),
    b"finished": msgspec.json.Decoder(Finished),
    b"join": msgspec.json.Decoder(Join),
    b"missing": msgspec.json.Decoder(Missing),
    b"rewind": msgspec.json.Decoder(Rewound),
    b"layout": msgspec.json.Decoder(Layout),
}
_encoder = msgspec.json.Encoder()


def key(record: Control) -> bytes:
    """The compaction key of a record."""
    if isinstance(record, JobCopy | Finished):
        return f"{'job' if isinstance(record, JobCopy) else 'finished'}/{record.job}".encode()
    if isinstance(record, Command):
        return f"command/{record.kind}/{record.target}".encode()
    if isinstance(record, Rewound):
        return f"rewind/{record.epoch}.{record.mark}/{record.job}".encode()
    if isinstance(record, Missing):
        return f"missing/{record.job}/{record.url}".encode()
    if isinstance(record, Layout):
        return LAYOUT
    others = f"+{sha256(','.join(record.more).encode()).hexdigest()[:16]}" if record.more else ""
    return f"join/{record.job}/{record.name}{others}".encode()


def encode(record: Control) -> bytes:
    """The record as JSON."""
    return _encoder.encode(record)


def decode(record_key: bytes | None, value: bytes | None) -> Control | None:
    """The record, or None for a tombstone; that of a command is its end.

    Raises: ValueError: a name that this version does not know, not JSON, or not what its key says.
    """
    kind = (record_key or b"").partition(b"/")[0]
    if kind == b"command":
        return _decode_command(record_key or b"", value)
    if not value:
        return None
    if kind in _decoders:
        return decoded(_decoders[kind], value)
    raise ValueError(f"nothing is known by the key {record_key!r:.100}")


def _decode_command(record_key: bytes, value: bytes | None) -> Command:
    if value:
        record = decoded(_command, value).check()
        if key(record) != record_key:
            raise ValueError(f"the key {record_key!r:.100} is not that of a command for {record.kind} {record.target}")
        return record
    _, kind, target = [*record_key.decode().split("/", 2), "", ""][:3]
    if kind not in _MAY:
        raise ValueError(f"nothing is known by the key {record_key!r:.100}")
    return Command(
        "resume",
        job=target if kind == "job" else "",
        host=target if kind == "host" else "",
        stage=target if kind == "stage" else "",
    ).check()
