"""The topics are created and verified before any command reads or writes them. `crawlog topics` shows them.

    ensure ─► metadata ─► with how many partitions did the log begin? (`control.Layout`) ─► has a topic grown? refuse
           └► verify those there ─► create missing topics ─► verify all ─► write the layout into crawl.control

Several commands may do this at once: a topic that another command has just created is no error.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic, ResourceType  # type: ignore[attr-defined]  # it does not re-export them

from crawlog.schemas import control
from crawlog.streams.cluster import ANSWER_TIMEOUT_S, FIRST, LAST, Admin, log_bounds
from crawlog.streams.errors import AccessDenied, EngineError, Misconfigured

from .health import ClusterView, min_in_sync_for, replicas_for, view_of, weaknesses
from .producer import CommandProducer
from .read import read_records
from .topics import TOPIC_KINDS, TopicKind, Topics, stage_group

if TYPE_CHECKING:
    from confluent_kafka.admin import TopicMetadata  # type: ignore[attr-defined]  # so too

    from crawlog.streams.settings import Settings

# Wrong values of these settings lose records or their times. All other settings of a cluster are the user's choice.
MUST_EQUAL = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")

GROUPS_AT_ONCE = 4  # Groups that are asked for their commits at once


def ensure_topics(settings: "Settings", say: Callable[[str], None] = lambda _: None) -> None:
    """Creates the topics that are missing and verifies those that exist.

    Args:
        say: Takes a line for each weakness of the cluster's replication.

    Raises:
        EngineError: no answer, no permission, or wrong topics; the message names all of them.
        Misconfigured: partitions were added to a topic.
    """
    admin = Admin(settings)
    known = admin.metadata().topics
    begun = _begun_with(settings, known)
    _refuse_grown(settings, known, begun)
    there = [kind for kind in TOPIC_KINDS if settings.kafka.prefix + kind.name in known]
    missing = [kind for kind in TOPIC_KINDS if kind not in there]
    if missing:
        if there:  # the missing ones are made to fit these
            _verify(admin, settings, there)
        copies = _copies(admin, settings)
        admin.create([_new(kind, settings, begun or settings.kafka.partitions, copies) for kind in missing])
    for line in weaknesses(_verify(admin, settings, TOPIC_KINDS), settings.kafka.prefix):
        say(line)
    if not begun:
        _note_layout(settings)


def _begun_with(settings: "Settings", known: "Mapping[str, TopicMetadata]") -> int:
    """The number of partitions that the log began with; 0 for a new log."""
    name = Topics(settings.kafka.prefix).control
    if name not in known:
        return 0
    start, end = log_bounds(settings, name, [0])[0]
    with contextlib.closing(read_records(settings, name, 0, start, end)) as records:
        for record in records:  # it is the first one, except in a log of an older version
            if record.key() == control.LAYOUT:
                with contextlib.suppress(ValueError):
                    said = control.decode(record.key(), record.value())
                    return said.partitions if isinstance(said, control.Layout) else 0
    return 0


def _note_layout(settings: "Settings") -> None:
    """Writes the number of partitions into crawl.control.

    Not idempotent, as a second copy does no harm: a new broker gives a producer its id only after half a second.
    """
    producer = CommandProducer(settings, "crawlog-topics", extra={"enable.idempotence": False})
    layout = control.Layout(settings.kafka.partitions)
    name = Topics(settings.kafka.prefix).control
    producer.send(name, control.encode(layout), key=control.key(layout), partition=0)
    if not producer.flush(ANSWER_TIMEOUT_S):
        raise EngineError(f"{name} did not acknowledge a record for {ANSWER_TIMEOUT_S:.0f} s; see `crawlog doctor`")


def _refuse_grown(settings: "Settings", known: "Mapping[str, TopicMetadata]", begun: int) -> None:
    """Refuses a log whose topics have more partitions than it began with.

    Raises: Misconfigured: partitions were added; the message says how to go on.
    """
    prefix = settings.kafka.prefix
    for name in [prefix + kind.name for kind in TOPIC_KINDS if kind.split]:
        has = len(known[name].partitions) if name in known else 0
        if begun and has > begun:
            raise Misconfigured(
                f"{name} has {has} partitions, but its log was begun with {begun}: somebody added some, which Kafka "
                "cannot take back. This log cannot be crawled on; nothing in it is lost. Begin a new one with the "
                f"seeds of this one: `crawlog seed --from-log {prefix} --job NAME -s kafka.prefix=NEW. "
                f"-s kafka.partitions={has}`, then `crawlog run --job NAME -s kafka.prefix=NEW. "
                f"-s kafka.partitions={has}`"
            )


def _config(kind: TopicKind, settings: "Settings") -> dict[str, str]:
    config = {
        "cleanup.policy": kind.cleanup,
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(settings.kafka.max_record_bytes),
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
    }
    if kind.name == "pages":
        config["segment.bytes"] = str(128 << 20)  # trimming frees whole segments
    if kind.name == "hosts":
        config["segment.bytes"] = str(16 << 20)  # a busy crawl of many hosts writes 100 MB an hour: compacted early
    if kind.name == "logs":
        config |= {
            "retention.ms": str(7 * 86_400_000),
            "retention.bytes": str(256 << 20),
            "segment.bytes": str(16 << 20),
        }
    if kind.cleanup == "compact":
        config["segment.ms"] = str(3_600_000)  # only closed segments are compacted
    return config


class _Copies(NamedTuple):
    replicas: int
    min_in_sync: int


def _copies(admin: "Admin", settings: "Settings") -> _Copies:
    """Of new topics. Who may not read the brokers' settings gets what fits the brokers that are up."""
    brokers, default = admin.metadata().brokers, _Copies(0, 0)
    with contextlib.suppress(AccessDenied):
        found = admin.result(admin.ask_config(ResourceType.BROKER, str(min(brokers)), ANSWER_TIMEOUT_S))
        names = ("default.replication.factor", "min.insync.replicas")
        default = _Copies(*(int(found[name].value) if name in found else 0 for name in names))
    replicas = replicas_for(len(brokers), default.replicas, settings.kafka.replication)
    return _Copies(replicas, min_in_sync_for(replicas, default.min_in_sync))


def _new(kind: TopicKind, settings: "Settings", partitions: int, copies: _Copies) -> NewTopic:
    config = _config(kind, settings) | {"min.insync.replicas": str(copies.min_in_sync)}
    return NewTopic(settings.kafka.prefix + kind.name, partitions if kind.split else 1, copies.replicas, config=config)


def _verify(admin: "Admin", settings: "Settings", kinds: Sequence[TopicKind]) -> ClusterView:
    """Verifies topics that exist; returns the cluster as its metadata shows it.

    Raises: EngineError: some do not fit.
    """
    prefix = settings.kafka.prefix
    cluster = admin.metadata()
    known = cluster.topics
    actual = admin.configs([prefix + kind.name for kind in kinds])
    counts = {len(known[prefix + kind.name].partitions) for kind in kinds if kind.split}
    problems: list[str] = []
    too_small: list[str] = []
    for kind in kinds:
        name, wanted, has = prefix + kind.name, _config(kind, settings), actual[prefix + kind.name]
        count = settings.kafka.partitions if kind.split else 1
        if len(known[name].partitions) != count:
            problems.append(_miscounted(kind, name, len(known[name].partitions), count, is_equal=len(counts) == 1))
        problems += [
            f"{name} has {key}={has[key]}, but must have {wanted[key]}" for key in MUST_EQUAL if has[key] != wanted[key]
        ]
        if int(has["max.message.bytes"]) < settings.kafka.max_record_bytes:
            too_small.append(name)
    if problems:
        raise EngineError(
            f"The topics of {settings.kafka.bootstrap} do not fit:\n  " + "\n  ".join(problems) + "\n"
            "Change them, or crawl with topics of another prefix (`-s kafka.prefix=NAME.`), "
            "or on the local engine into another folder (`--data DIR`)."
        )
    if too_small:
        admin.raise_limit(too_small, settings.kafka.max_record_bytes)
    return view_of(prefix, {number: str(broker) for number, broker in cluster.brokers.items()}, known, actual)


def _miscounted(kind: TopicKind, name: str, has: int, wanted: int, *, is_equal: bool) -> str:
    """Args: is_equal: Whether all topics that are split have the same number."""
    hint = f": pass `-s kafka.partitions={has}`, as the number is fixed when the topics are created"
    hint = hint if kind.split and is_equal else ""
    return f"{name} has {has} partitions, not {wanted}{hint}"


def partition_count(settings: "Settings") -> int:
    """Partitions of crawl.urls, crawl.pages and crawl.items: the number that the log began with.

    Raises: EngineError: no answer, or a topic is missing. Misconfigured: partitions were added to a topic.
    """
    known = Admin(settings).metadata().topics
    if missing := _missing(settings, known):
        raise EngineError(
            f"The cluster {settings.kafka.bootstrap} has no topic {', '.join(missing)}. `crawlog run` and `crawlog up` "
            "create what is missing."
        )
    begun = _begun_with(settings, known)
    _refuse_grown(settings, known, begun)
    return begun or len(known[Topics(settings.kafka.prefix).urls].partitions)


def has_topics(settings: "Settings") -> bool:
    """Whether the cluster has the topics of a crawl. Raises: EngineError: no answer."""
    return not _missing(settings, Admin(settings).metadata().topics)


def _missing(settings: "Settings", known: "Mapping[str, TopicMetadata]") -> list[str]:
    names = [settings.kafka.prefix + kind.name for kind in TOPIC_KINDS]
    return [name for name in names if name not in known]


def partition_count_if_any(settings: "Settings") -> int:
    """Present number of partitions of crawl.urls; 0 where there is no such topic yet.

    Raises: EngineError: no answer.
    """
    name = Topics(settings.kafka.prefix).urls
    topic = Admin(settings).metadata(name).topics.get(name)
    return len(topic.partitions) if topic is not None else 0


class TopicRow(NamedTuple):
    """One row of `crawlog topics`.

    Attributes:
        records: Offsets from the first to the end; a compacted topic has fewer records.
        places: First and next offset of each partition.
        size_bytes: On disk; None where the log is on another machine.
        lag: Records not yet committed, by consumer group.
        replicas: The fewest of a partition.
        in_sync: The fewest replicas of a partition that have all records.
        leaders: How many partitions each broker leads, by its id; -1 for no leader.
    """

    name: str
    partitions: int
    key: str
    kept: str
    records: int
    size_bytes: int | None
    lag: dict[str, int]
    replicas: int
    in_sync: int
    leaders: dict[int, int]
    places: list[tuple[int, int]]


def topic_rows(admin: Admin, sinks: Iterable[str] = ()) -> list[TopicRow]:
    """The topics with their counts, sizes and lag, in the order of TOPIC_KINDS.

    Args:
        sinks: Consumer groups of the sinks.
    """
    settings = admin.settings
    known = admin.metadata().topics
    kinds = [kind for kind in TOPIC_KINDS if settings.kafka.prefix + kind.name in known]
    full = {kind: settings.kafka.prefix + kind.name for kind in kinds}
    places = [TopicPartition(name, number) for name in full.values() for number in known[name].partitions]
    first, last = admin.offsets(places, FIRST), admin.offsets(places, LAST)
    readers = {
        "fetch": [stage_group(settings, "fetch")],
        "parse": [stage_group(settings, "parse")],
        "sink": list(sinks),
    }
    asked = [(reader, name) for kind, name in full.items() for reader in readers.get(kind.stage, [])]
    with ThreadPoolExecutor(GROUPS_AT_ONCE) as threads:  # each group is asked by a client of its own
        commits = dict(zip(asked, threads.map(lambda one: admin.committed(*one), asked), strict=True))
    rows = []
    for kind, name in full.items():
        mine = [(name, number) for number in known[name].partitions]
        lag = {
            reader: sum(last[at] - max(commits[reader, name].get(at, 0), first[at]) for at in mine)
            for reader in readers.get(kind.stage, [])
        }
        records = sum(last[at] - first[at] for at in mine)
        led = known[name].partitions.values()
        copies = (min(len(at.replicas) for at in led), min(len(at.isrs) for at in led))
        leaders = dict(sorted(Counter(at.leader for at in led).items()))
        size_bytes = _size_bytes(settings, name)
        bounds = [(first[at], last[at]) for at in sorted(mine)]
        rows.append(TopicRow(name, len(mine), kind.key, kind.kept, records, size_bytes, lag, *copies, leaders, bounds))
    return rows


def _size_bytes(settings: "Settings", name: str) -> int | None:
    """Bytes of a topic's segments in the local engine's folder; None without any."""
    log = settings.run.data / "kafka" / "log"
    folders = [folder for folder in log.glob(f"{name}-*") if folder.name.removeprefix(f"{name}-").isdigit()]
    return sum(_file_bytes(segment) for folder in folders for segment in folder.glob("*.log")) if folders else None


def _file_bytes(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # the segment was deleted meanwhile
        return path.stat().st_size
    return 0
