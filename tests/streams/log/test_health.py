"""What is said of a cluster: pure functions over views of it."""

import socket

import pytest

from crawlog.streams.cluster.listener import address_problems
from crawlog.streams.log import health
from crawlog.streams.log.health import GROUPS, HANGS, ClusterView, PartitionView
from crawlog.streams.log.topics import TOPIC_KINDS

BROKERS = {1: "a:9092", 2: "b:9092", 3: "c:9092"}


def cluster(
    *partitions: PartitionView,
    brokers: int = 3,
    silent: dict[int, str] | None = None,
    controller: bool = True,
    **config: str,
) -> ClusterView:
    """A view in which all topics have these settings."""
    configs = {at.topic: {name.replace("_", "."): value for name, value in config.items()} for at in partitions}
    alive = dict(list(BROKERS.items())[:brokers])
    return ClusterView(alive, silent or {}, controller, partitions, configs)


def at(topic: str = "crawl.urls", leader: int = 1, replicas: str = "123", in_sync: str = "123") -> PartitionView:
    """A partition; each digit is a broker."""
    return PartitionView(topic, 0, leader, tuple(map(int, replicas)), tuple(map(int, in_sync)))


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (cluster(at(), min_insync_replicas="2"), []),
        (cluster(at(replicas="1", in_sync="1"), min_insync_replicas="1"), []),
        (cluster(at(leader=-1, in_sync="")), [("leaders", True)]),
        (cluster(at(GROUPS, leader=-1, in_sync="")), [("leaders", True)]),
        (cluster(at(in_sync="12"), min_insync_replicas="2"), [("in sync", False)]),
        (cluster(at(in_sync="1"), min_insync_replicas="2"), [("in sync", True)]),
        (cluster(at(in_sync="12"), min_insync_replicas="1"), []),
        (cluster(at(), controller=False), [("controller", True)]),
        (cluster(at(), silent={2: HANGS}, min_insync_replicas="2"), [("broker", False), ("in sync", False)]),
        (cluster(at(), silent={2: HANGS, 3: HANGS}, min_insync_replicas="2"),
         [("broker", False), ("broker", False), ("in sync", True)]),
        (cluster(at(leader=2), silent={2: HANGS}, min_insync_replicas="1"), [("broker", False), ("leaders", True)]),
    ],
    ids=["well", "alone", "no leader", "no leader of groups", "at the minimum", "below it", "spare", "no controller",
         "one silent", "two silent", "silent leader"],
)  # fmt: skip
def test_what_stops_a_crawl_is_told_from_what_does_not(view: ClusterView, found: list[tuple[str, bool]]) -> None:
    """A broker that metadata counts as alive does not count unless it answers."""
    assert [(one.check, one.stops) for one in health.ailments(view)] == found


def test_an_ailment_names_the_broker_to_start() -> None:
    """Kafka names the replicas that are in sync; the operator needs the ones that are not."""
    [one] = health.ailments(cluster(at(in_sync="12"), min_insync_replicas="2"))
    assert "1 of crawl.urls" in one.found
    assert one.advice == "start broker 3 again, or let it catch up"


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (cluster(at(), min_insync_replicas="2"), ""),
        (cluster(at(replicas="1"), brokers=1, min_insync_replicas="1"), ""),
        (cluster(at(replicas="1"), min_insync_replicas="1"), "crawl.urls: 1 replica on 3 brokers, so a lost disk"),
        (cluster(at(replicas="1"), brokers=2), "1 replica on 2 brokers"),
        (cluster(at(replicas="12"), min_insync_replicas="2"), "2 replicas on 3 brokers"),
        (cluster(at(replicas="12"), brokers=2, min_insync_replicas="2"), ""),
        (cluster(at(replicas="12"), brokers=2, min_insync_replicas="1"), "each broker's death then stops"),
        (cluster(at(), min_insync_replicas="1"), "one broker may then be away"),
        (cluster(at(), min_insync_replicas="2", unclean_leader_election_enable="true"), "unclean.leader.election"),
        (cluster(at(GROUPS, replicas="1"), min_insync_replicas="1"), "__consumer_offsets: 1 replica"),
        (cluster(*(at(f"crawl.{kind.name}", replicas="1") for kind in TOPIC_KINDS)), "the topics crawl.*: 1 replica"),
    ],
    ids=["three", "one broker", "one of three", "one of two", "two of three", "two safe", "two unsafe", "three unsafe",
         "unclean", "groups", "all"],
)  # fmt: skip
def test_what_the_next_death_costs_is_said_beforehand(view: ClusterView, said: str) -> None:
    """Nothing where the replicas are as many as they can be, and enough of them must have a record."""
    lines = health.weaknesses(view, "crawl.")
    assert (len(lines), said in "".join(lines)) == (bool(said), True)


@pytest.mark.parametrize(
    ("brokers", "default", "wanted", "replicas"),
    [(1, 1, 0, 1), (2, 1, 0, 2), (3, 1, 0, 3), (9, 1, 0, 3), (2, 3, 0, 3), (5, 5, 0, 5), (3, 1, 1, 1), (3, 3, 2, 2)],
)
def test_new_topics_have_three_replicas_where_three_fit(brokers: int, default: int, wanted: int, replicas: int) -> None:
    """The brokers' own default counts where it is higher, and the user's word always."""
    assert health.replicas_for(brokers, default, wanted) == replicas


@pytest.mark.parametrize(
    ("replicas", "default", "least"), [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 2), (3, 1, 2), (3, 2, 2), (5, 3, 3)]
)
def test_two_replicas_of_three_must_have_a_record(replicas: int, default: int, least: int) -> None:
    """One broker may then be away; never more are wanted than there are."""
    assert health.min_in_sync_for(replicas, default) == least


def test_an_address_that_takes_no_connection_is_told_by_its_reason() -> None:
    """A name that does not resolve, a port that nobody listens on, one that somebody does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        told = address_problems(["kafka-2.invalid:9092", "127.0.0.1:1", f"127.0.0.1:{port}"])
    assert told == ["has a name that does not resolve here", "refuses connections", ""]
