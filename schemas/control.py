"""crawl.control: jobs, commands and rewinds, which every worker reads; compacted by name.

Keys: `job/NAME` (a copy of the job record, for parse), `finished/NAME` (a note that a job ended, and how),
`start/NAME` (the spider's `start` has given all its requests), `output/JOB/NAME` (what became of an output),
`hook/JOB/HASH` (what became of a call at its end), `again/JOB/PARTITION` (its pages that were parsed again),
`worker/NAME` (a planned stop, or a pause, of one process), `code/PROJECT/VERSION` (a version was hidden),
`join/NAME/HOST` (a host that a seed redirected to and that joined the job's scope; `HOST+HASH` if the record names more
hosts),
`rewind/EPOCH.MARK/NAME` (a rewind of a job or, without a name, of the crawl),
`skipped/PARTITION/OFFSET` (pages that the operator left out), `schedule/NAME` and `planned/NAME` (`schedules.py`),
`command/job/NAME`, `command/host/HOST`, `command/stage/NAME`, `command/exit/NAME` (a command of the operator: the
newest one for a target is in force, until `resume`, `unblock` or a tombstone), `command/clear/HOST` (acts once). Any
Kafka client with the log's credentials may write commands:

    echo 'command/job/news|{"v": 1, "action": "pause", "job": "news"}' |
        kcat -F <(crawlog kcat-config) -P -t crawl.control -p 0 -K '|'
"""

# long: one file a topic, with a struct for each kind of its records.

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec

from .codec import decoded
from .progress import JobCounts
from .schedules import JobSchedule, Planned
from .urls import MAX_EPOCH, JobSpec

VERSION = 1

NO_EPOCH = -1  # Epoch of no job


class JobCopy(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A copy of a job record, written when every partition has the record.

    Attributes:
        answers: Offset of the last order for this job that was folded, taken or refused; -1 before the first.
        refusal: Why that order was refused; empty if it was taken.
        after: Epoch of the deleted job that had the name: pages of it and before do not count. Compaction removes its
            own record.
    """

    job: str
    spec: JobSpec
    epoch: int = 0
    answers: int = -1
    refusal: str = ""
    after: int = NO_EPOCH


class Finished(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A job has ended: every fold, parse and sink had passed these offsets.

    Attributes:
        reason: `finished`, `max_pages`, `cancelled`, `failed`, or the reason with which its spider closed it.
        urls: End of each partition of crawl.urls at that moment.
        dead: Records of this job in crawl.dead by then.
        counts: The counts of all folds; None if nobody counted.
        spider: Hash of the spider's file in that run; empty for the default spider.
        rev: Revision of the job's record that ended it: another one means that the job goes on, or ended again.
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
    rev: int = 0


class StartEnded(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """The `start` of a job's spider has ended: all that it gave is in the log. The job cannot be finished before.

    Attributes:
        at: When it ended, or the one before it if it begins again: UTC epoch seconds.
        epoch: The job's; `NO_EPOCH` if it begins again, by a command after an error or by `@every`.
        spider: Hash of the spider's code: another `start` begins again.
        args: Arguments of the spider: `start` with other ones begins again.
        requests, items: What it gave.
        error: With which it ended, or else the first beside which it went on, one line; empty without one. The next
            command begins it again.
    """

    job: str
    at: float
    epoch: int = 0
    spider: str = ""
    args: tuple[tuple[str, str], ...] = ()
    requests: int = 0
    items: int = 0
    error: str = ""

    def is_of(self, copy: JobCopy) -> bool:
        """Whether it is about the present `start` of a job."""
        return (self.epoch, self.args) == (copy.epoch, copy.spec.args)


class ParsedAgain(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """How far the stored pages of a job are parsed again in one partition: noted by its owner.

    Attributes:
        partition: Of crawl.pages.
        epoch: The job's.
        number: As in `ParseAgain`.
        next: All outputs of the job's pages before this offset are in the log.
        end: Where it ends: later pages were not parsed yet when the owner knew the job's new record.
        pages: Pages of the job that were parsed again so far; a kill repeats some, which count again.
    """

    job: str
    partition: Annotated[int, msgspec.Meta(ge=0)]
    epoch: int
    number: int
    next: int
    end: int
    pages: int = 0

    @property
    def is_done(self) -> bool:
        return self.next >= self.end


class OutputNote(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """What became of an output of a job on a fleet: written by the sink worker that has it.

    Attributes:
        rev: Revision of the job's record that it is about, of a completed output that of the job's end; 0 if a command
            has the worker look at it again, and of an output that had failed and is being written.
        is_partial: Whether the operator stopped or cancelled the job: its rows stay in `place`, FILE.partial.
        rows: Rows in it.
        place: For people: the file's path on that worker's machine, or the declared output's name. With an error: FILE
            could not be made; without a place, its rows could not be written.
        worker, machine: Name of the worker, and of its machine.
        error: Why it cannot be written, one line; empty if all is well.
        stats: Scrapy's, that the job's pipelines counted, as `ItemsRecord` has those of a page.
        is_refused: Whether the error is that its name, or its place, is no good: nothing is written for it.
    """

    job: str
    output: str
    at: float
    epoch: int = 0
    rev: int = 0
    rows: int = 0
    place: str = ""
    worker: str = ""
    error: str = ""
    is_partial: bool = False
    stats: dict[str, float] = {}
    is_refused: bool = False
    machine: str = ""

    @property
    def became(self) -> str:
        """What became of it, as `OutputView.state` names that: `failed`, `partial` or `complete`."""
        return "failed" if self.error else "partial" if self.is_partial else "complete"


class HookNote(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """What became of a call at the end of a job (`--on-finish`).

    Attributes:
        target: A URL, or a name that the workers' settings declare.
        epoch, rev: Of the job's record: they name the end.
        tries: Calls so far.
        next_at: UTC epoch seconds of the next one; 0 if there is none.
        error: Why the last one was not taken; empty if it was.
    """

    job: str
    target: str
    at: float
    epoch: int = 0
    rev: int = 0
    tries: int = 0
    next_at: float = 0.0
    error: str = ""


WorkerAction = Literal["pause", "resume", "drain", "stop"]


class WorkerCommand(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """An operator's order to one process of a worker. Another process of that name ignores it.

    Attributes:
        pid: Of the process.
        started: UTC epoch seconds of its start, as in its reports: with `pid` and the name it is one process.
        action: `drain`: it hands its partitions over and ends; its supervisor starts no other one. `stop`: it ends, and
            a supervisor starts another one. `pause`: it keeps its partitions and handles nothing, until `resume`.
    """

    worker: str
    pid: int
    started: float
    action: WorkerAction = "stop"
    at: float = 0.0
    by: str = ""

    def is_to(self, worker: str, pid: int, started: float) -> bool:
        """Whether it is for this very process; an order for an earlier one of the name stays in the log."""
        return (self.worker, self.pid, self.started) == (worker, pid, started)


class CodeNote(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A project's version was hidden (deleted) or its code revoked; a later note replaces it.

    Attributes:
        version: Empty for the whole project.
        hidden: Whether lists leave it out and nothing new can be submitted with it; jobs that pin it go on. It concerns
            versions that were deployed before `at`.
        revoked: Whether no worker starts it any more, jobs that pin it included. It concerns versions that were
            deployed before `revoked_at`, or before `at` without it.
        revoked_at: Of the last revocation; a later note that only hides keeps it.
    """

    project: str
    version: str = ""
    hidden: bool = True
    revoked: bool = False
    at: float = 0.0
    by: str = ""
    revoked_at: float = 0.0

    def revokes(self, deployed_at: float) -> bool:
        """Whether no worker starts a version that was deployed at this time."""
        return self.revoked and deployed_at <= (self.revoked_at or self.at)


class Join(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A scope name (host:port or registrable domain) that joined a job's scope while it ran.

    Attributes:
        more: Further names. Seeds on 200,000 hosts make some hundred records, and every command reads them.
    """

    job: str
    name: str
    more: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.more)


Action = Literal["pause", "resume", "block", "unblock", "slow", "stop", "clear", "rest"]

ENDS = ("resume", "unblock")  # Actions after which no command for the target is in force

# Actions by kind of target.
_MAY: dict[str, tuple[str, ...]] = {
    "job": ("pause", "resume", "slow", "stop"),
    "host": ("pause", "resume", "block", "unblock", "slow", "clear"),
    "stage": ("pause", "resume", "slow"),
    "exit": ("pause", "resume", "rest"),
}

_STAGES = ("fetch", "parse", "sink")

_NAME = r"[a-z0-9_-][a-z0-9_.-]*|\[[0-9a-f:.]+\]"

_HOST = re.compile(rf"https?://({_NAME})(:\d{{1,5}})?|({_NAME})(:\d{{1,5}})?|\.[a-z0-9_-][a-z0-9_.-]*")


MAX_DELAY_S = 1_000_000_000.0  # Longest rest that a command may give a host, seconds: 31 years


class Command(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A command of the operator for exactly one target: a job, a host, a stage or an exit.

    Attributes:
        action: `pause` hands out no more URLs, `slow` lengthens the rest between two requests to a host. `block` (of a
            host) and `stop` (of a job) are pauses for which a `run` does not wait: it ends, and the queue stays.
            `clear` (of a host) ends its back-off once, and no other command. `rest` (of an exit) is a pause that ends
            by itself.
        host: `http://name:port`; or `name` or `name:port` for both schemes; or `.name` for a name and all below it.
        stage: `fetch`, `parse` or `sink`; only fetch can be slowed.
        exit: Name of an exit, on all workers.
        delay_s: Least rest between two requests to one host, for `slow`; length of the rest, for `rest`.
        at: UTC epoch seconds: a `rest` counts from then on.
        reason: Why a spider closed its job (`stop`); empty for a command of the operator.
    """

    action: Action
    job: str = ""
    host: str = ""
    stage: str = ""
    delay_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    at: float = 0.0
    reason: str = ""
    exit: str = ""

    @property
    def kind(self) -> str:
        """`job`, `host`, `stage` or `exit`."""
        return next((kind for kind in _MAY if getattr(self, kind)), "")

    @property
    def target(self) -> str:
        return self.job or self.host or self.stage or self.exit

    def is_over(self, now: float) -> bool:
        """Whether it is a rest whose time has passed; `now` is UTC epoch seconds."""
        return self.action == "rest" and self.at + self.delay_s <= now

    @property
    def holds(self) -> bool:
        """Whether it is in force: `resume` and `unblock` end a command."""
        return self.action not in ENDS

    def check(self) -> "Command":
        """The command, if it can be obeyed.

        Raises: ValueError: it cannot be obeyed; the message says why.
        """
        if sum(map(bool, (self.job, self.host, self.stage, self.exit))) != 1:
            raise ValueError("a command has exactly one of job, host, stage, exit (--job, --host, --stage, --exit)")
        if self.action not in _MAY[self.kind]:
            raise ValueError(f"a {self.kind} cannot be given {self.action!r}, only: {', '.join(_MAY[self.kind])}")
        if self.stage and self.stage not in _STAGES:
            raise ValueError(f"no stage {self.stage!r:.50}; there are: {', '.join(_STAGES)}")
        if self.action == "slow" and (not self.delay_s or self.stage not in ("", "fetch")):
            raise ValueError("slow needs delay_s (--delay SECONDS) above 0, and no stage but fetch can be slowed")
        if self.action == "rest" and not self.delay_s:
            raise ValueError("rest needs delay_s (--delay SECONDS) above 0; pause ends with resume")
        if self.delay_s > MAX_DELAY_S:
            raise ValueError(f"delay_s (--delay SECONDS) is at most {MAX_DELAY_S:.0f}")
        if self.host and not _HOST.fullmatch(self.host):
            raise ValueError(
                f"{self.host!r:.100} is no host: http://name:port, name, name:port or .name, in lower case"
            )
        return self


class Rewound(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """A rewind: written before its first epoch record, and again when all of it is in the log.

    The next command that finds an incomplete rewind completes it, so that a kill leaves no partition in another epoch.

    Attributes:
        job: The job that begins again; empty for the whole crawl.
        epoch: The epoch that begins.
        spec: The job's new record.
        start: By partition of crawl.urls, the first record that no longer counts.
        end: By partition, the offset of the epoch record.
        pages: By partition of crawl.pages, the end of the pages whose dones still count: results of later pages, up to
            this epoch, do not.
        before: The epochs of the jobs until then.
        complete: Whether all of it is in the log.
        upto: By partition of crawl.urls, the end of the log then: a log that ends before it has lost records.
        mark: A random number of the command that began it: two commands that take one epoch write two records.
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

    def check(self) -> "Rewound":
        """The rewind, if one can be so. Raises: ValueError: it cannot; readers would stumble over it.

        Its epoch is later than those of before, no offset is negative, and pages belong to rewound partitions.
        """
        offsets = (*self.start.values(), *self.end.values(), *self.pages.values(), *self.upto.values())
        is_later = all(0 <= epoch < self.epoch for epoch in self.before.values())
        if not 0 < self.epoch <= MAX_EPOCH or not is_later or min(offsets, default=0) < 0:
            raise ValueError(f"no rewind begins epoch {self.epoch} so: its epochs or offsets are impossible")
        if self.complete and (self.pages.keys() - self.start.keys() or self.pages.keys() - self.end.keys()):
            raise ValueError(f"the rewind of epoch {self.epoch} names pages of partitions that it does not rewind")
        return self


class Layout(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """Properties that the log keeps for its life: written when its topics are made.

    Attributes:
        partitions: Number of partitions of crawl.urls, of crawl.pages and of crawl.items: it decides the partition of a
            domain.
    """

    partitions: Annotated[int, msgspec.Meta(ge=1)]


class Skipped(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """The operator had parse leave out pages: by `crawlog replay`, or by `--accept-skipped` after another tool did so.

    Attributes:
        partition: Of crawl.pages.
        start, end: The first of these offsets, and the one behind the last.
    """

    partition: Annotated[int, msgspec.Meta(ge=0)]
    start: Annotated[int, msgspec.Meta(ge=0)]
    end: Annotated[int, msgspec.Meta(ge=0)]


_OfJob = JobCopy | Finished | StartEnded | ParsedAgain | OutputNote | HookNote | Join
Control = _OfJob | WorkerCommand | CodeNote | Command | Rewound | Skipped | Layout | JobSchedule | Planned

LAYOUT = b"layout"  # Key of the one record of this kind

_command = msgspec.json.Decoder(Command)
_decoders: dict[bytes, msgspec.json.Decoder[Any]] = {
    b"output": msgspec.json.Decoder(OutputNote),
    b"hook": msgspec.json.Decoder(HookNote),
    b"worker": msgspec.json.Decoder(WorkerCommand),
    b"code": msgspec.json.Decoder(CodeNote),
    b"job": msgspec.json.Decoder(JobCopy),
    b"finished": msgspec.json.Decoder(Finished),
    b"start": msgspec.json.Decoder(StartEnded),
    b"again": msgspec.json.Decoder(ParsedAgain),
    b"join": msgspec.json.Decoder(Join),
    b"rewind": msgspec.json.Decoder(Rewound),
    b"skipped": msgspec.json.Decoder(Skipped),
    b"layout": msgspec.json.Decoder(Layout),
    b"schedule": msgspec.json.Decoder(JobSchedule),
    b"planned": msgspec.json.Decoder(Planned),
}
_encoder = msgspec.json.Encoder()


JOINS = b"join/"  # Prefix of the keys of joins


_Kind = Literal["job", "finished", "start", "again", "output", "worker", "command", "schedule", "planned"]


def key_of(kind: _Kind, *names: str) -> bytes:
    """The key of the record about a job, an output, a worker, a schedule, or the target (kind, name) of a command."""
    return "/".join((kind, *names)).encode()


def hook_key(job: str, target: str) -> bytes:
    """The key of the note about a call; a URL may be long."""
    return f"hook/{job}/{sha256(target.encode()).hexdigest()[:16]}".encode()


def _join_key(record: Join) -> bytes:
    others = f"+{sha256(','.join(record.more).encode()).hexdigest()[:16]}" if record.more else ""
    return JOINS + f"{record.job}/{record.name}{others}".encode()


_KEYS: dict[type[Control], Callable[[Any], bytes]] = {
    JobCopy: lambda record: key_of("job", record.job),
    Finished: lambda record: key_of("finished", record.job),
    StartEnded: lambda record: key_of("start", record.job),
    ParsedAgain: lambda record: key_of("again", record.job, str(record.partition)),
    OutputNote: lambda record: key_of("output", record.job, record.output),
    HookNote: lambda record: hook_key(record.job, record.target),
    WorkerCommand: lambda record: key_of("worker", record.worker),
    CodeNote: lambda record: f"code/{record.project}/{record.version}".encode(),
    Command: lambda record: key_of("command", "clear" if record.action == "clear" else record.kind, record.target),
    Join: _join_key,
    Rewound: lambda record: f"rewind/{record.epoch}.{record.mark}/{record.job}".encode(),
    Skipped: lambda record: f"skipped/{record.partition}/{record.start}".encode(),
    Layout: lambda _: LAYOUT,
    JobSchedule: lambda record: key_of("schedule", record.name),
    Planned: lambda record: key_of("planned", record.schedule),
}


def key(record: Control) -> bytes:
    """The compaction key of a record."""
    return _KEYS[type(record)](record)


def encode(record: Control) -> bytes:
    return _encoder.encode(record)


def decode(record_key: bytes | None, value: bytes | None) -> Control | None:
    """The record, or None for a tombstone; the tombstone of a command ends the command.

    Raises: ValueError: a name that this version does not know, not JSON, or not what its key says.
    """
    kind = (record_key or b"").partition(b"/")[0]
    if kind == b"command":
        return _decode_command(record_key or b"", value)
    if not value:
        return None
    if kind in _decoders:
        record: Control = decoded(_decoders[kind], value)
        _check_key(record, record_key)
        return record.check() if isinstance(record, Rewound | JobSchedule) else record
    raise ValueError(f"nothing is known by the key {record_key!r:.100}")


def _check_key(record: Control, record_key: bytes | None) -> None:
    """Raise ValueError for another record's key: compaction would keep both, and readers would show both."""
    if key(record) != record_key:
        raise ValueError(f"the key {record_key!r:.100} is not that of its record, {key(record)!r:.100}")


def _decode_command(record_key: bytes, value: bytes | None) -> Command:
    if value:
        record = decoded(_command, value).check()
        _check_key(record, record_key)
        return record
    _, kind, target = [*record_key.decode().split("/", 2), "", ""][:3]
    if kind == "clear":
        return Command("clear", host=target).check()
    if kind not in _MAY:
        raise ValueError(f"nothing is known by the key {record_key!r:.100}")
    return Command(
        "resume",
        job=target if kind == "job" else "",
        host=target if kind == "host" else "",
        stage=target if kind == "stage" else "",
        exit=target if kind == "exit" else "",
    ).check()
