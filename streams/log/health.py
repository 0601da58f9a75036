"""Whether the cluster can take a record, and how safely it keeps one.

    look ─► ClusterView: which brokers answer, is there a controller, leaders and replicas of our topics
              ├► ailments (pure)   what is wrong now: `crawlog doctor` shows it, a watchdog forgives its worker for it
              └► weaknesses (pure) what the next lost broker or disk will cost: said at every start

Metadata alone proves little: a broker that has lost its controller repeats the last that it heard, and one that stands
still takes connections. So each broker is asked itself, and the controllers are asked for a decision.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic, ResourceType  # type: ignore[attr-defined]  # it does not re-export them

from crawlog.streams.cluster import address_problems

from .topics import TOPIC_KINDS

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka.admin import TopicMetadata  # type: ignore[attr-defined]  # so too

    from crawlog.streams.cluster import Admin

LOOK_S = 2.5  # Limit of each of the three steps of `look`: `doctor` answers within 10 s

# Kafka's topic of the groups: without the leader of its partition no worker gets or keeps an assignment.
GROUPS = "__consumer_offsets"

# Of a topic, where there are so many brokers: one may be down for an upgrade, and another may die meanwhile.
REPLICAS = 3

HANGS = "takes connections and does not answer: it hangs, or another program listens there"

# Answers of a broker that finds no controller; all others are the controller's.
_UNDECIDED = frozenset({KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER, KafkaError.NETWORK_EXCEPTION})


class PartitionView(NamedTuple):
    """A partition; `leader` is -1 where there is none."""

    topic: str
    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class ClusterView(NamedTuple):
    """The cluster as a client sees it.

    Attributes:
        brokers: Address by id, of those that the cluster counts as alive.
        silent: Of those, the ones that do not answer, with the reason.
        has_controller: Whether a controller takes decisions.
        partitions: Of our topics, and of GROUPS.
        configs: Of these topics, as far as they could be read.
        defaults: Settings of a broker that answers.
    """

    brokers: Mapping[int, str]
    silent: Mapping[int, str]
    has_controller: bool
    partitions: tuple[PartitionView, ...]
    configs: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, str] = {}
    cluster: str = ""

    def min_in_sync(self, topic: str) -> int:
        return int(self.configs.get(topic, {}).get("min.insync.replicas") or 1)


class Ailment(NamedTuple):
    """What is wrong now.

    Attributes:
        stops: Whether it keeps the crawl from going on: no worker can help it.
    """

    check: str
    found: str
    advice: str
    stops: bool


def ailments(view: ClusterView) -> list[Ailment]:
    """All that is wrong with the cluster now, the causes first."""
    found = [
        Ailment("broker", f"broker {number} at {view.brokers[number]} {why}", _SILENT, stops=False)
        for number, why in sorted(view.silent.items())
    ]
    if not view.has_controller:
        what = "no controller takes decisions: no leader is elected, no topic is made"
        found.append(Ailment("controller", what, "start brokers until more than half of the controllers run", True))
    live = view.brokers.keys() - view.silent.keys()
    unled = [at for at in view.partitions if at.leader not in live]
    if unled:
        what = f"partitions without a leader that answers, so nothing is read or written there: {_places(unled)}"
        found.append(Ailment("leaders", what, _awaited(unled, live), stops=True))
    led = [at for at in view.partitions if at.leader in live]
    counts = {at: len(live.intersection(at.in_sync)) for at in led}
    few = [at for at, count in counts.items() if count < view.min_in_sync(at.topic)]
    if few:
        what = f"partitions below min.insync.replicas, which acknowledge no record: {_places(few)}"
        found.append(Ailment("in sync", what, _awaited(few, live), stops=True))
    least = [at for at, count in counts.items() if count == view.min_in_sync(at.topic) and count < len(at.replicas)]
    if least:
        what = f"partitions at min.insync.replicas, where the next death stops the crawl: {_places(least)}"
        found.append(Ailment("in sync", what, _awaited(least, live), stops=False))
    return found


_SILENT = "is it up? An address that is wrong from here stands in the broker's advertised.listeners"


def _awaited(partitions: Iterable[PartitionView], live: Iterable[int]) -> str:
    away = {number for at in partitions for number in at.replicas if number not in at.in_sync or number not in live}
    away |= {number for at in partitions if at.leader < 0 for number in at.replicas if number not in live}
    if not away:
        return "wait for an election; if none comes, look at the brokers' logs"
    return f"start broker {', '.join(map(str, sorted(away)))} again, or let it catch up"


def _places(partitions: Iterable[PartitionView]) -> str:
    counts = Counter(at.topic for at in partitions)
    return ", ".join(f"{count} of {topic}" for topic, count in counts.items())


def weaknesses(view: ClusterView, prefix: str) -> list[str]:
    """What a lost broker or disk will cost, one line each; none on a single broker, which has no choice."""
    if len(view.brokers) < 2:
        return []
    wanted = min(REPLICAS, len(view.brokers))
    least: dict[str, int] = {}
    for at in view.partitions:
        least[at.topic] = min(len(at.replicas), least.get(at.topic, len(at.replicas)))
    found = [
        f"{_named(prefix, topics)}: {count} replica{'s' * (count > 1)} on {len(view.brokers)} brokers, so "
        + ("a lost disk loses records and a dead broker stops the crawl" if count == 1 else "two deaths stop the crawl")
        + ". docs/operations.md, Your own cluster, shows how to add some."
        for count in range(1, wanted)
        if (topics := [topic for topic, has in least.items() if has == count])
    ]
    single = [topic for topic, has in least.items() if has > 1 and topic != GROUPS and view.min_in_sync(topic) == 1]
    if single and view.configs:
        then = "one broker may then be away" if wanted > 2 else "each broker's death then stops the crawl"
        found.append(
            f"{_named(prefix, single)}: min.insync.replicas=1, so a record counts as written while it is on one disk "
            f"only. Set min.insync.replicas=2 on them: {then}, but no lost disk loses a record."
        )
    unclean = [topic for topic in least if view.configs.get(topic, {}).get("unclean.leader.election.enable") == "true"]
    if unclean:
        found.append(
            f"{_named(prefix, unclean)}: unclean.leader.election.enable=true, so a replica that lags may become the "
            "leader, and acknowledged records are gone. Set it to false."
        )
    return found


def _named(prefix: str, topics: list[str]) -> str:
    ours = [topic for topic in topics if topic != GROUPS]
    all_ours = [f"the topics {prefix}*"] if len(ours) == len(TOPIC_KINDS) else ours
    return ", ".join(all_ours + [topic for topic in topics if topic == GROUPS])


def replicas_for(brokers: int, default: int, wanted: int = 0) -> int:
    """Replication factor of new topics.

    Args:
        brokers: Those that are up.
        default: The brokers' `default.replication.factor`, which may be higher: some brokers are down now.
        wanted: The user's; 0 for none.
    """
    return wanted or max(min(REPLICAS, brokers), default)


def min_in_sync_for(replicas: int, default: int) -> int:
    """`min.insync.replicas` of new topics: one replica of three may be away.

    Of two, both would have to be there: a single dead broker would stop the crawl. So the brokers' default decides.
    """
    return min(replicas, max(2 if replicas >= REPLICAS else 1, default))


# --- asking ---------------------------------------------------------------------------------------------------------


def view_of(
    prefix: str,
    brokers: Mapping[int, str],
    topics: "Mapping[str, TopicMetadata]",
    configs: Mapping[str, Mapping[str, str]],
) -> ClusterView:
    """A view from metadata alone: enough for `weaknesses`."""
    names = [name for kind in TOPIC_KINDS if (name := prefix + kind.name) in topics]
    names += [GROUPS] if GROUPS in topics else []
    partitions = tuple(
        PartitionView(name, number, at.leader, tuple(at.replicas), tuple(at.isrs))
        for name in names
        for number, at in sorted(topics[name].partitions.items())
    )
    return ClusterView(brokers, {}, True, partitions, configs)


def look(admin: "Admin") -> ClusterView:
    """Asks each broker, and the controllers; within 3 × LOOK_S.

    Raises: EngineError: no broker answers.
    """
    prefix = admin.settings.kafka.prefix
    known = admin.metadata(within_s=LOOK_S)
    addresses = {number: f"{broker.host}:{broker.port}" for number, broker in known.brokers.items()}
    asked = {number: admin.ask_config(ResourceType.BROKER, str(number), LOOK_S) for number in addresses}
    silent = [number for number, future in asked.items() if _code(future) < 0]
    tried = address_problems([addresses[number] for number in silent])
    problems = {number: why or HANGS for number, why in zip(silent, tried, strict=True)}
    view = view_of(prefix, addresses, known.topics, {})._replace(silent=problems, cluster=str(known.cluster_id))
    if len(silent) == len(addresses):
        return view._replace(has_controller=False)
    _turn_to_living(admin, silent)
    topics = dict.fromkeys(at.topic for at in view.partitions)
    told = {topic: admin.ask_config(ResourceType.TOPIC, topic, LOOK_S) for topic in topics}
    has_controller = _decides(admin, f"{prefix}{TOPIC_KINDS[0].name}")
    configs = {topic: found for topic, future in told.items() if (found := _entries(future))}
    defaults = next((found for future in asked.values() if (found := _entries(future))), {})
    return view._replace(has_controller=has_controller, configs=configs, defaults=defaults)


def _code(future: "Future[Any]") -> int:
    """The error's code; 0 for an answer. Negative ones are the client's own: no broker has answered."""
    try:
        future.result(LOOK_S + 1)
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


def _entries(future: "Future[Any]") -> dict[str, str]:
    return {} if _code(future) else {name: entry.value for name, entry in future.result().items()}


def _turn_to_living(admin: "Admin", silent: list[int]) -> None:
    """Asks for metadata until it names a broker that answers as the controller, to which the client turns.

    In KRaft it names any one, which passes requests on.
    """
    until = time.monotonic() + LOOK_S / 2
    while admin.metadata(within_s=LOOK_S).controller_id in silent and time.monotonic() < until:
        time.sleep(0.01)


def _decides(admin: "Admin", name: str) -> bool:
    """Whether a controller answers about a topic that is not created, only validated; a refusal is an answer."""
    asked = admin.client.create_topics([NewTopic(name, 1, 1)], validate_only=True, request_timeout=LOOK_S)
    code = _code(asked[name])
    return code >= 0 and code not in _UNDECIDED
