"""The consumer groups of a crawl, for `crawlog replay`: their members, their commits, and how their offsets are moved.

The broker moves a group only while it has no members. Where a stage continues differs by stage:

    parse   at the group's commit
    sink    at the offset in its state, which a replay moves; commits of its group are for displays
    fetch   at the offset of the fold; so a rewind is a record in crawl.urls
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it does not re-export them
    ConsumerGroupDescription,
    OffsetSpec,
)

from crawlog.streams.cluster import (
    ANSWER_TIMEOUT_S,
    CLUSTER_TIMEOUT_S,
    FIRST,
    LAST,
    POLL_S,
    Admin,
    consumer_config,
    is_transient,
)
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.log import Topics, is_log_end, read_error, stage_group, take
from crawlog.streams.sink_groups import known_sinks

from .commits import REPLAY_ALL, HeldRange, ReplayPlan

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

    from .offsets import Move

STAGES = ("parse", "sink", "fetch")

_SINK_ID = re.compile(r"(sink-)?[0-9a-f]{16}")

# Bytes fetched from a partition to see one record; a batch is seldom larger. The broker returns a batch over the limit
# for the first partition of a request only, so with a lower limit the other partitions would wait for their turn.
PEEKED_BYTES = 1 << 20

EMPTY = frozenset({ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD})


class Group(NamedTuple):
    """A consumer group.

    Attributes:
        of: The output of a sink: `job J to FILE`; empty where this machine does not know it.
    """

    name: str
    stage: str
    topic: str
    of: str = ""


def named(admin: Admin, text: str) -> list[Group]:
    """The groups that a text names: a stage, a group's full name, a sink's id, or a sink's output file.

    Raises: Misconfigured: no such group; the message lists the groups.
    """
    topics = Topics(admin.settings.kafka.prefix)
    for stage, topic in (("parse", topics.pages), ("fetch", topics.urls)):
        if text in (stage, stage_group(admin.settings, stage)):
            return [Group(stage_group(admin.settings, stage), stage, topic)]
    sinks = known_outputs(admin)
    if text in ("sink", stage_group(admin.settings, "sink")):
        if not sinks:
            raise Misconfigured(
                f"no sink has read {topics.items} yet: `crawlog run … -o FILE` is one, and a new one is filled from the"
                " first record on"
            )
        return list(sinks.values())
    as_sink = (f"sink-{text}", text, f"sink-{_id_of(admin.settings.run.data, text)}")
    ids = {text, *(stage_group(admin.settings, name) for name in as_sink)}
    if found := [sink for name, sink in sinks.items() if name in ids]:
        return found
    raise _no_group(text, (name.removeprefix(stage_group(admin.settings, "")) for name in sinks))


def check_group_name(settings: "Settings", text: str) -> None:
    """Refuses a text that cannot name a group, without asking the cluster.

    Raises: Misconfigured: it cannot; the message lists the groups that are known here.
    """
    names = [text, text.removeprefix(stage_group(settings, "")), text.removeprefix(stage_group(settings, "sink-"))]
    if not any(name in STAGES or _SINK_ID.fullmatch(name) for name in names) and not _id_of(settings.run.data, text):
        raise _no_group(text, (f"sink-{sink.id}" for sink in known_sinks(settings.run.data)))


def _no_group(text: str, sinks: Iterable[str]) -> Misconfigured:
    return Misconfigured(f"there is no group {text!r}; there are: {', '.join((*STAGES, *sinks))}")


def known_outputs(admin: Admin) -> dict[str, Group]:
    """The outputs of runs that have a state in this data folder, by the name that a replay gives each."""
    topic = Topics(admin.settings.kafka.prefix).items
    found = (
        Group(stage_group(admin.settings, f"sink-{sink.id}"), "sink", topic, f"job {sink.job} to {sink.output}")
        for sink in known_sinks(admin.settings.run.data)
        if not sink.is_fleet
    )
    return {of.name: of for of in found}


def known_sink_groups(admin: Admin) -> list[str]:
    """The groups of sink workers that have committed, by name."""
    topic = Topics(admin.settings.kafka.prefix).items
    names = admin.groups(stage_group(admin.settings, "sink"))
    return sorted(name for name in names if admin.committed(name, topic))


def _id_of(data: Path, output: str) -> str:
    """The id of the sink that writes a file; of several, the one of the newest epoch or rewind. Empty for none."""
    path = str(Path(output).absolute())
    found = sorted(
        (sink for sink in known_sinks(data) if sink.output == path),
        key=lambda sink: max([sink.epoch, *(void.epoch for void in sink.voids)]),
    )
    return found[-1].id if found else ""


def held(admin: Admin, of: Group, partitions: Iterable[int] | None = None) -> dict[int, HeldRange]:
    """The bounds and the commit of each partition. For fetch the log's end counts as committed: it folds all records.

    Raises: EngineError: no answer. Misconfigured: the topic does not exist yet.
    """
    if partitions is None:
        partitions = range(count(admin, of.topic))
    places = [TopicPartition(of.topic, number) for number in partitions]
    first, end = admin.offsets(places, FIRST), admin.offsets(places, LAST)
    committed: Mapping[tuple[str, int], int] = end if of.stage == "fetch" else admin.committed(of.name, of.topic)
    return {at[1]: HeldRange(committed.get(at), first[at], end[at]) for at in end}


def count(admin: Admin, topic: str) -> int:
    """Number of partitions of a topic. Raises: Misconfigured: it does not exist yet."""
    found = admin.metadata(topic).topics.get(topic)
    if found is None or not found.partitions:
        raise Misconfigured(f"there is no topic {topic} yet, so nothing to replay: the first crawl creates it")
    return len(found.partitions)


def offsets_at(admin: Admin, topic: str, partitions: Iterable[int], at_ms: int) -> dict[int, int]:
    """The first offset at or after a time, by partition; negative where there is none."""
    places = [TopicPartition(topic, number) for number in partitions]
    found = admin.offsets(places, OffsetSpec.for_timestamp(max(at_ms, 0)))
    return {number: offset for (_, number), offset in found.items()}


def times_ms(settings: "Settings", topic: str, moves: Sequence["Move"]) -> dict[int, tuple[int, int]]:
    """The timestamps of the first and the last record of each move, by partition."""
    moved = [move for move in moves if move.records]
    first = _times_ms(settings, topic, {move.partition: move.first for move in moved})
    last = _times_ms(settings, topic, {move.partition: move.end - 1 for move in moved})
    return {at: (first[at], last[at]) for at in first.keys() & last.keys()}


def _times_ms(settings: "Settings", topic: str, at: Mapping[int, int]) -> dict[int, int]:
    """The timestamp of one record of each partition, by one consumer for all of them."""
    config = {"enable.partition.eof": True, "max.partition.fetch.bytes": PEEKED_BYTES, "queued.min.messages": 1}
    found: dict[int, int] = {}
    waiting = set(at)
    deadline = time.monotonic() + CLUSTER_TIMEOUT_S
    consumer = Consumer(consumer_config(settings) | config)
    try:
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in at.items()])
        while waiting and time.monotonic() < deadline:
            for record in take(consumer, 1.0):
                error, number = record.error(), record.partition()
                if error is not None and not is_log_end(error):
                    if not is_transient(error):
                        raise read_error(record, settings)
                elif number is not None and number in waiting:
                    waiting.discard(number)
                    consumer.pause([TopicPartition(topic, number)])
                    if error is None:
                        found[number] = record.timestamp()[1]
    finally:
        consumer.close()
    return found


def members(admin: Admin, names: Iterable[str]) -> list[str]:
    """One text `GROUP: MEMBER, MEMBER` for each group that has members; empty when all groups may be moved.

    Raises: EngineError: no answer.
    """
    found = {name: _described(admin, name) for name in names}
    live = {name: one for name, one in found.items() if one is not None and one.state not in EMPTY}
    return [f"{name}: {_who(one) or one.state.name.lower()}" for name, one in live.items()]


def member_names(admin: Admin, name: str, within_s: float) -> set[str]:
    """The names of a group's members, also during a rebalance.

    Raises: EngineError: no answer in time.
    """
    found = _described(admin, name, within_s)
    return _names(found) if found is not None else set()


def _names(found: ConsumerGroupDescription) -> set[str]:
    return {member.group_instance_id or member.client_id for member in found.members}


def _who(found: ConsumerGroupDescription) -> str:
    return ", ".join(sorted(_names(found)))


def _described(admin: Admin, name: str, within_s: float = ANSWER_TIMEOUT_S) -> ConsumerGroupDescription | None:
    """The broker's description of a group; None for an unknown group. Retried while the broker loads its groups."""
    deadline = time.monotonic() + within_s
    while True:
        asked = admin.client.describe_consumer_groups([name], request_timeout=within_s)
        try:
            found: ConsumerGroupDescription = asked[name].result(within_s + 1)
        except KafkaException as error:
            why = error.args[0]
        else:
            return found
        if why.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        if not is_transient(why) or time.monotonic() > deadline:
            raise EngineError(f"{admin.settings.kafka.bootstrap} does not describe the group {name}: {why}")
        time.sleep(POLL_S)


def _order(move: "Move", job: str) -> str:
    """The metadata of a commit that moves a partition."""
    is_of_job = job and move.before is not None and move.after < move.before
    return ReplayPlan(job, move.before or 0).metadata if is_of_job else REPLAY_ALL


def move(admin: Admin, of: Group, moves: Iterable["Move"], job: str = "") -> None:
    """Commit the new offsets for a group that has no members.

    The metadata is that of a replay: so a stage tells an order from its own commits, and from a commit of another
    program. To replay one job in parse, the metadata names the job and the offset before the replay.

    Raises: Misconfigured: the group has members again. EngineError: the broker refused.
    """
    commit(admin, of, [TopicPartition(of.topic, one.partition, one.after, _order(one, job)) for one in moves])


def commit(admin: Admin, of: Group, places: list[TopicPartition]) -> None:
    """Commit offsets with their metadata for a group that has no members.

    Raises: Misconfigured: the group has members again. EngineError: the broker refused.
    """
    asked = admin.client.alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(of.name, places)], request_timeout=ANSWER_TIMEOUT_S
    )
    try:
        answer = asked[of.name].result(ANSWER_TIMEOUT_S + 1)
        refused = next((place.error for place in answer.topic_partitions if place.error is not None), None)
    except KafkaException as error:
        refused = error.args[0]
    if refused is None:
        return
    if refused.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP):
        raise Misconfigured(f"the group {of.name} has members again, so it was not moved; stop them and try again")
    raise EngineError(f"{admin.settings.kafka.bootstrap} did not move the group {of.name}: {refused}")
