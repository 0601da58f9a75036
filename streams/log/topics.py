"""The six topics: one table, made and verified by an admin client before anything reads or writes them.

The number of partitions is fixed when the topics are created and equal for all topics keyed by domain or URL, since
`partition_of` and the state depend on it. Nothing expires by itself: crawl.pages is trimmed by crawlog, by offset.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it does not re-export them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from crawlog.schemas import control
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.settings import PREFIX

from .client import DENIED, bounds, commits_of, denied, kafka_config, read
from .producer import Producer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # so too
        ClusterMetadata,
        TopicMetadata,
    )

    from crawlog.streams.settings import Settings

ANSWER_TIMEOUT_S = 15.0
"""Longest wait for one answer of the cluster."""

REFUSED_TIMEOUT_S = 1.0
"""Longest wait where nobody listens at the address, there is no such name, or who listens refuses us."""

REFUSALS = frozenset({KafkaError._RESOLVE, *DENIED})
"""What a cluster that is up says to a client that has the wrong credentials, certificates or address."""

POLL_S = 0.02
"""Between two looks at topics that are being created."""

LEADER_CHANGES = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # a new topic's leader is elected before the broker knows of it
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader does not know yet how far the others are
        KafkaError._NOENT,  # the client knows of no leader, and did not ask
    }
)
"""Answers of a broker that has just become a partition's leader, or is about to: it is asked again."""

COORDINATOR_CHANGES = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    }
)
"""Answers of a broker that has just started and still reads the groups' offsets: it is asked again."""

FIRST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # its stub has no types
LAST = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # so too


class Kind(NamedTuple):
    """A row of the table.

    Attributes:
        name: After the prefix.
        key: What its records are keyed by.
        split: Whether it has `kafka.partitions` partitions, or one.
        cleanup: Kafka's `cleanup.policy`.
        kept: How long, in words.
        stage: The stage that reads it as a consumer group, if one does.
    """

    name: str
    key: str
    split: bool
    cleanup: str
    kept: str
    stage: str = ""


TABLE = (
    Kind("urls", "domain", split=True, cleanup="delete", kept="for the crawl's life", stage="fetch"),
    Kind("pages", "domain", split=True, cleanup="delete", kept="log.pages_keep_days", stage="parse"),
    Kind("items", "job, URL", split=True, cleanup="delete", kept="for the crawl's life", stage="sink"),
    Kind("dead", "as it was", split=False, cleanup="delete", kept="for the crawl's life"),
    Kind("control", "name", split=False, cleanup="compact", kept="the newest per key"),
    Kind("progress", "worker, partition", split=False, cleanup="compact", kept="the newest per key"),
)


class Topics:
    """Full names of the topics."""

    def __init__(self, prefix: str) -> None:
        self.urls = f"{prefix}urls"
        self.pages = f"{prefix}pages"
        self.items = f"{prefix}items"
        self.dead = f"{prefix}dead"
        self.control = f"{prefix}control"
        self.progress = f"{prefix}progress"

        self.inputs = {"frontier": self.urls, "parse": self.pages, "sink": self.items}
        """The topic that each stage reads, by the stage's name in dead letters."""

    def partitions(self, settings: "Settings") -> int:
        """Partitions of crawl.urls as they are in the cluster; see the function of this name."""
        return partitions(settings)


class TopicRow(NamedTuple):
    """What `crawlog topics` shows of one topic.

    Attributes:
        records: Between the first and the last offset; of a compacted topic some are gone.
        size_bytes: On disk; None where the log is not on this machine.
        lag: Records not yet committed, by consumer group.
    """

    name: str
    partitions: int
    key: str
    kept: str
    records: int
    size_bytes: int | None
    lag: dict[str, int]


def group(settings: "Settings", stage: str) -> str:
    """The consumer group of a stage; topics of another prefix have groups of their own."""
    prefix = settings.kafka.prefix
    return f"{'' if prefix == PREFIX else prefix}crawlog-{stage}"


def ensure(settings: "Settings") -> None:
    """Creates the topics that are missing and verifies those that exist.

    Raises:
        EngineError: no answer, no permission, or a topic that does not fit; all misfits at once.
        Misconfigured: a topic has grown.
    """
    admin = Admin(settings)
    known = admin.metadata().topics
    begun = _begun_with(settings, known)
    _refuse_grown(settings, known, begun)
    missing = [kind for kind in TABLE if settings.kafka.prefix + kind.name not in known]
    if missing:
        admin.create([_new(kind, settings, begun or settings.kafka.partitions) for kind in missing])
    _verify(admin, settings)
    if not begun:
        _note_layout(settings)


def partitions(settings: "Settings") -> int:
    """Partitions of crawl.urls, crawl.pages and crawl.items: as many as the log was begun with.

    Raises: EngineError: no answer, or no such topic. Misconfigured: a topic has grown.
    """
    name = Topics(settings.kafka.prefix).urls
    known = Admin(settings).metadata().topics
    if name not in known:
        raise EngineError(
            f"The cluster {settings.kafka.bootstrap} has no topic {name}. `crawlog run` and `crawlog up` create it."
        )
    begun = _begun_with(settings, known)
    _refuse_grown(settings, known, begun)
    return begun or len(known[name].partitions)


def found_partitions(settings: "Settings") -> int:
    """Partitions of crawl.urls as they are in the cluster; 0 where there is no such topic yet.

    Raises: EngineError: no answer.
    """
    name = Topics(settings.kafka.prefix).urls
    topic = Admin(settings).metadata(name).topics.get(name)
    return len(topic.partitions) if topic is not None else 0


def _begun_with(settings: "Settings", known: "Mapping[str, TopicMetadata]") -> int:
    """How many partitions the log was begun with; 0 for one that does not say, as it is new or of an older version."""
    name = Topics(settings.kafka.prefix).control
    if name not in known:
        return 0
    start, end = bounds(settings, name, [0])[0]
    for record in read(settings, name, 0, start, end):  # the first record of all, but in a log of an older version
        if record.key() == control.LAYOUT:
            with contextlib.suppress(ValueError):
                said = control.decode(record.key(), record.value())
                return said.partitions if isinstance(said, control.Layout) else 0
    return 0


def _note_layout(settings: "Settings") -> None:
    """Puts on record how many partitions the log has."""
    producer, layout = Producer(settings, "crawlog-topics"), control.Layout(settings.kafka.partitions)
    name = Topics(settings.kafka.prefix).control
    producer.send(name, control.encode(layout), key=control.key(layout), partition=0)
    if not producer.flush(ANSWER_TIMEOUT_S):
        raise EngineError(f"{name} did not acknowledge a record for {ANSWER_TIMEOUT_S:.0f} s; see `crawlog doctor`")


def _refuse_grown(settings: "Settings", known: "Mapping[str, TopicMetadata]", begun: int) -> None:
    """Ends with what to do where somebody has added partitions to a topic.

    Raises: Misconfigured: somebody has.
    """
    prefix = settings.kafka.prefix
    for name in [prefix + kind.name for kind in TABLE if kind.split]:
        has = len(known[name].partitions) if name in known else 0
        if begun and has > begun:
            raise Misconfigured(
                f"{name} has {has} partitions, but its log was begun with {begun}: somebody added some, which Kafka "
                "cannot take back. This log cannot be crawled on; nothing in it is lost. Begin a new one with the "
                f"seeds of this one: `crawlog seed --from-log {prefix} --job NAME -s kafka.prefix=NEW. "
                f"-s kafka.partitions={has}`, then `crawlog run --job NAME -s kafka.prefix=NEW. "
                f"-s kafka.partitions={has}`"
            )


def describe(settings: "Settings", sinks: Iterable[str] = ()) -> list[TopicRow]:
    """The topics with their counts, sizes and lag, in the table's order.

    Args:
        sinks: The groups of the sinks.
    """
    admin = Admin(settings)
    known = admin.metadata().topics
    kinds = [kind for kind in TABLE if settings.kafka.prefix + kind.name in known]
    full = {kind: settings.kafka.prefix + kind.name for kind in kinds}
    places = [TopicPartition(name, number) for name in full.values() for number in known[name].partitions]
    first, last = admin.offsets(places, FIRST), admin.offsets(places, LAST)
    readers = {
        "fetch": [group(settings, "fetch")],
        "parse": [group(settings, "parse")],
        "sink": list(sinks),
    }
    rows = []
    for kind, name in full.items():
        mine = [(name, number) for number in known[name].partitions]
        lag = {}
        for reader in readers.get(kind.stage, []):
            committed = admin.committed(reader, name)
            lag[reader] = sum(last[at] - max(committed.get(at, 0), first[at]) for at in mine)
        records = sum(last[at] - first[at] for at in mine)
        rows.append(TopicRow(name, len(mine), kind.key, kind.kept, records, _size_bytes(settings, name), lag))
    return rows


def _size_bytes(settings: "Settings", name: str) -> int | None:
    """Bytes of a topic's segments where the local engine keeps them."""
    log = settings.run.data / "kafka" / "log"
    folders = [folder for folder in log.glob(f"{name}-*") if folder.name.removeprefix(f"{name}-").isdigit()]
    return sum(_file_bytes(segment) for folder in folders for segment in folder.glob("*.log")) if folders else None


def _file_bytes(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # a segment that was deleted meanwhile
        return path.stat().st_size
    return 0


# --- what a topic must be like --------------------------------------------------------------------------------------


def _config(kind: Kind, settings: "Settings") -> dict[str, str]:
    config = {
        "cleanup.policy": kind.cleanup,
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(settings.kafka.max_record_bytes),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": "2" if settings.kafka.replication >= 3 else "1",
        "unclean.leader.election.enable": "false",
    }
    if kind.name == "pages":
        config["segment.bytes"] = str(128 << 20)  # trimming frees whole segments
    if kind.cleanup == "compact":
        config["segment.ms"] = str(3_600_000)  # only closed segments are compacted
    return config


def _new(kind: Kind, settings: "Settings", partitions: int) -> NewTopic:
    name = settings.kafka.prefix + kind.name
    return NewTopic(name, partitions if kind.split else 1, settings.kafka.replication, config=_config(kind, settings))


MUST_EQUAL = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")
"""Settings without which the log loses records or time; the others of a user's cluster are the user's."""


def _verify(admin: "Admin", settings: "Settings") -> None:
    prefix = settings.kafka.prefix
    known = admin.metadata().topics
    actual = admin.configs([prefix + kind.name for kind in TABLE])
    problems: list[str] = []
    too_small: list[str] = []
    for kind in TABLE:
        name, wanted, has = prefix + kind.name, _config(kind, settings), actual[prefix + kind.name]
        count = settings.kafka.partitions if kind.split else 1
        if len(known[name].partitions) != count:
            problems.append(_miscounted(kind, name, len(known[name].partitions), count))
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


def _miscounted(kind: Kind, name: str, has: int, wanted: int) -> str:
    hint = (
        f": pass `-s kafka.partitions={has}`, as the number is fixed when the topics are created" if kind.split else ""
    )
    return f"{name} has {has} partitions, not {wanted}{hint}"


# --- the admin client -----------------------------------------------------------------------------------------------


class Admin:
    """An admin client whose failures are EngineErrors that name the cluster; kept open it answers in a millisecond."""

    def __init__(self, settings: "Settings") -> None:
        self.settings = settings
        self._last = ""
        self._is_refused = False
        self._is_denied = False
        config: dict[str, Any] = kafka_config(settings) | {"error_cb": self._noted}
        self.client = AdminClient(config)

    def _noted(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # stands among its causes, in no order
            self._last = error.str()
            self._is_refused = error.code() in REFUSALS or "refused" in self._last
            self._is_denied = error.code() in DENIED

    def metadata(self, topic: str | None = None) -> "ClusterMetadata":
        """What the cluster consists of; tried for as long as a broker may take that is not refusing connections."""
        for wait_s in (REFUSED_TIMEOUT_S, ANSWER_TIMEOUT_S - REFUSED_TIMEOUT_S):
            try:
                return self.client.list_topics(topic, timeout=wait_s)
            except KafkaException as error:
                failure = error
            self.client.poll(0)  # librdkafka tells the cause by a callback
            if self._is_refused:
                break
        raise self._failed(failure) from None

    def result(self, future: "Future[Any]") -> Any:
        """What a request was answered."""
        try:
            return future.result(ANSWER_TIMEOUT_S + 1)
        except KafkaException as error:
            raise self._failed(error) from None

    def create(self, new: list[NewTopic]) -> None:
        """Creates topics and returns when all of them take records; another command may have been faster."""
        futures = self.client.create_topics(new, operation_timeout=ANSWER_TIMEOUT_S, request_timeout=ANSWER_TIMEOUT_S)
        for future in futures.values():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self._failed(error) from None
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not self._have_leaders({topic.topic for topic in new}):
            if time.monotonic() > deadline:
                raise EngineError(
                    f"The topics created on {self.settings.kafka.bootstrap} have no leaders yet. Run it again."
                )
            time.sleep(POLL_S)
        self.offsets((TopicPartition(one.topic, at) for one in new for at in range(one.num_partitions)), LAST)

    def _have_leaders(self, names: set[str]) -> bool:
        known = self.metadata().topics
        return all(
            name in known and known[name].partitions and all(p.leader >= 0 for p in known[name].partitions.values())
            for name in names
        )

    def configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        """The settings of topics, by name."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self.client.describe_configs(resources, request_timeout=ANSWER_TIMEOUT_S)
        return {
            resource.name: {key: entry.value for key, entry in self.result(future).items()}
            for resource, future in answers.items()
        }

    def raise_limit(self, names: list[str], max_bytes: int) -> None:
        """Lets topics take records as large as the setting says: the setting was raised since they were created."""
        entry = ConfigEntry("max.message.bytes", str(max_bytes), incremental_operation=AlterConfigOpType.SET)
        resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in names]
        for future in self.client.incremental_alter_configs(resources, request_timeout=ANSWER_TIMEOUT_S).values():
            self.result(future)

    def offsets(self, places: Iterable[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """First or next offsets, by (topic, partition); asked again where leaders have just changed."""
        asked = dict.fromkeys(places, spec)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            self.client.poll(0)  # librdkafka tells by a callback that access is denied, and answers nothing
            wait_s = REFUSED_TIMEOUT_S if self._is_denied else ANSWER_TIMEOUT_S
            answers = self.client.list_offsets(asked, request_timeout=wait_s)
            try:
                found = {(at.topic, at.partition): future.result().offset for at, future in answers.items()}
            except KafkaException as error:
                if error.args[0].code() not in LEADER_CHANGES or time.monotonic() > deadline:
                    raise self._failed(error) from None
            else:
                self._is_denied = False
                return found
            time.sleep(POLL_S)
            self.metadata()  # the client would ask with the leader epochs it knows for ever

    def ends(self, names: Iterable[str], count: int) -> dict[str, tuple[int, ...]]:
        """The next offset of each partition, by topic, for topics of `count` partitions."""
        names = list(names)
        found = self.offsets((TopicPartition(name, number) for name in names for number in range(count)), LAST)
        return {name: tuple(found[name, number] for number in range(count)) for name in names}

    def groups(self, prefix: str) -> list[str]:
        """Names of the consumer groups that begin so: each sink is one."""
        self.metadata()  # says soon that nobody listens; the request below would wait for as long as it may
        found = self.result(self.client.list_consumer_groups(request_timeout=ANSWER_TIMEOUT_S))
        return sorted(one.group_id for one in found.valid if one.group_id.startswith(prefix))

    def committed(self, group_id: str, topic: str) -> dict[tuple[str, int], int]:
        """What a group has committed on a topic; empty for a group that never was."""
        known = self.metadata(topic).topics.get(topic)
        found = commits_of(self.settings, group_id, topic, known.partitions) if known else {}
        return {(topic, number): offset for number, (offset, _) in found.items()}

    def _failed(self, error: KafkaException) -> EngineError:
        kafka = self.settings.kafka
        said = error.args[0].str() + (f" ({self._last})" if self._last else "")
        if self._is_denied or error.args[0].code() in DENIED:
            return denied(self.settings, said)
        if error.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR:
            return EngineError(
                f"The Kafka broker at {kafka.bootstrap} cannot write its log: {said}.\n"
                "Its disk is full, or fails: free some space where it keeps its data (of the local engine the data "
                "folder, `--data DIR`), then the same command goes on."
            )
        return EngineError(
            f"The Kafka cluster at {kafka.bootstrap} ({kafka.security_protocol}) does not do what was asked: {said}.\n"
            "Check that it runs and that the address (`--bootstrap`), the kafka.security_protocol, the credentials and "
            "the permissions are right; `crawlog doctor` tells more."
        )
