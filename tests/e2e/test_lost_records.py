"""Records that a cluster has lost although its log is as long again: an unclean election, a disk that was lost.

The partition's folder is replaced by an older copy while its broker is away. Clients see the same: a leader of a later
epoch that lacks records, and gives their offsets out again.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from bench.node import Node
from bench.site import free_port
from crawlog.commands.verify import verify_log
from crawlog.streams.engine import broker
from crawlog.streams.errors import EngineError
from crawlog.streams.log import provision
from crawlog.streams.log.admin import Admin
from crawlog.streams.log.client import kafka_config
from crawlog.streams.log.damage import CutPartition
from crawlog.streams.log.marks import EndMark, Marks, is_suspect
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.e2e.test_run import workers
from tests.support.processes import Process, crawlog, ended, until
from tests.support.sites import Answer, Threaded

PROPERTIES = """\
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=1500
"""

READY_S = 90.0


class Lossy:
    """A broker of somebody else's whose partitions can be set back."""

    def __init__(self, folder: Path) -> None:
        port, controller = free_port(), free_port()
        self._identity = broker.Identity(broker.new_id(), port, controller)
        self._node = Node(folder, PROPERTIES.format(port=port, controller=controller), self._identity.cluster_id)
        self.log = folder / "log"
        self.bootstrap = f"127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        """Until it answers."""
        self._node.start()
        broker.Readiness(self._node.folder, self._identity, self._node.process, READY_S).wait()

    def kill(self) -> None:
        """Kill -9."""
        self._node.kill()

    def stop(self) -> None:
        """A clean stop."""
        self._node.process.terminate()
        self._node.process.wait(READY_S)

    def copy(self, topic: str, partition: int) -> Path:
        """A copy of a partition as it is now."""
        kept = self.log.parent / f"copy-{topic}-{partition}"
        shutil.rmtree(kept, ignore_errors=True)
        return Path(shutil.copytree(self.log / f"{topic}-{partition}", kept))

    def set_back(self, *copies: Path) -> None:
        """Dies, and comes back with these copies."""
        self.kill()
        for kept in copies:
            there = self.log / kept.name.removeprefix("copy-")
            shutil.rmtree(there)
            shutil.copytree(kept, there)
        self.start()


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lossy]:
    """One broker for all tests here."""
    made = Lossy(tmp_path_factory.mktemp("lossy"))
    yield made
    made.kill()


@pytest.fixture
def log(lossy: Lossy, tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    """An empty log of this test alone, of two partitions."""
    prefix = f"{request.node.name[:60].replace('[', '-').replace(']', '-')}."
    given = {"kafka.bootstrap": lossy.bootstrap, "kafka.prefix": prefix, "kafka.partitions": 2}
    settings = load(given | {"run.data": str(tmp_path / "data")})
    provision.ensure_topics(settings)
    (tmp_path / "data" / "run").mkdir(parents=True)
    return settings


def put(settings: Settings, topic: str, count: int, partition: int = 1) -> None:
    """Records, each in a batch of its own."""
    producer = Producer(kafka_config(settings) | {"batch.num.messages": 1})
    for number in range(count):
        producer.produce(topic, f"{number}".encode(), partition=partition)
    assert producer.flush(READY_S) == 0


def until_led(settings: Settings) -> None:
    """Waits until all partitions have leaders again."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            Admin(settings).ends((Topics(settings.kafka.prefix).urls,), 2)
        except (KafkaException, EngineError):
            assert time.monotonic() < deadline
        else:
            return


def looked(marks: Marks, is_enough: Callable[[], bool] = lambda: False) -> list[CutPartition]:
    """What looks find, until they find something or have seen enough."""
    deadline = time.monotonic() + READY_S
    while not (found := marks.look()) and not is_enough():
        assert time.monotonic() < deadline
    return found


@pytest.mark.parametrize(
    ("now", "suspect"),
    [
        (EndMark(20, 4), False),
        (EndMark(21, 4), False),
        (EndMark(19, 4), True),
        (EndMark(20, 6), True),
        (EndMark(30, 6), True),
    ],
)
def test_a_partition_is_suspect_with_another_leader_or_a_lower_end(now: EndMark, suspect: bool) -> None:
    """A leader alone adds records, and takes none away."""
    assert is_suspect(EndMark(20, 4), now) == suspect


@pytest.mark.broker
def test_records_that_were_lost_are_named_though_the_log_is_longer_than_before(lossy: Lossy, log: Settings) -> None:
    """Once, and to each command until it is made again. A leader with all records lost none; trimming is no loss."""
    names = Topics(log.kafka.prefix)
    put(log, names.pages, 10)
    copies = [lossy.copy(names.pages, 1)]
    put(log, names.pages, 10)
    put(log, names.items, 5)
    copies.append(lossy.copy(names.items, 1))
    put(log, names.items, 5)
    put(log, names.urls, 7)
    marks = Marks(log, 2)
    assert marks.look() == []
    lossy.set_back(*copies)
    put(log, names.pages, 15)
    until_led(log)
    told = sorted(map(str, Marks(log, 2).look()))
    assert [line.partition(": ")[0] for line in told] == [
        f"{names.items}[1] ends at offset 5, and its leader of epoch 0 was at 10",
        f"{names.pages}[1] has lost its records 10 to 19, and others came in their place",
    ]
    assert sorted(map(str, looked(marks))) == told  # its first answer is that its leader's epoch is an old one
    assert marks.look() == []
    assert sorted(map(str, Marks(log, 2).look())) == told
    marks.mended()
    assert Marks(log, 2).look() == []

    admin = Admin(log)
    for future in admin.client.delete_records([TopicPartition(names.pages, 1, 25)]).values():
        admin.result(future)
    lossy.set_back()
    put(log, names.urls, 1)
    until_led(log)
    assert looked(marks, lambda: marks.at(names.urls, 1).end == 8) == []


PAGES = 70


class Tree:
    """A site whose pages link to two others each."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_linked = True
        self._server = Threaded(self._answer)
        self.seed = f"{self._server.origin}/1"
        self.urls = sorted(f"{self._server.origin}/{number}" for number in range(1, PAGES + 1))

    def _answer(self, path: str) -> Answer:
        self.asked.append(path)
        if not path[1:].isdigit():
            return 404, "text/html", b""
        number = int(path[1:])
        links = "".join(f'<a href="/{at}">' for at in (2 * number, 2 * number + 1) if at <= PAGES and self.is_linked)
        return 200, "text/html", f"<title>{number}</title>{links}".encode()

    def close(self) -> None:
        """Ends the server."""
        self._server.close()


@pytest.fixture
def tree() -> Iterator[Tree]:
    """A site of this test alone."""
    made = Tree()
    yield made
    made.close()


def crawl(tree: Tree, log: Settings, *seeds: str) -> Process:
    """`crawlog run` of the tree, on the cluster."""
    kafka = ["--bootstrap", log.kafka.bootstrap, "-s", f"kafka.prefix={log.kafka.prefix}", "-s", "kafka.partitions=2"]
    pairs = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.05"]
    where = ["--data", log.run.data, "-o", log.run.data.parent / "rows.jsonl"]
    return crawlog("run", *seeds, "--job", "j", *where, "--json", *kafka, *pairs)


def rows(log: Settings) -> list[str]:
    """URLs of the results."""
    lines = (log.run.data.parent / "rows.jsonl").read_text().splitlines()
    return sorted(json.loads(line)["url"] for line in lines)


def overtake(log: Settings, topic: str, partition: int, end: int) -> None:
    """Writes the partition's first record again, until the log is longer than it was."""
    until_led(log)
    producer = Producer(kafka_config(log) | {"batch.num.messages": 1})
    (first,) = read_records(log, topic, partition, 0, 1)
    for _ in range(end + 3 - Admin(log).ends((topic,), 2)[topic][partition]):
        producer.produce(topic, first.value(), first.key(), partition=partition, headers=first.headers())
    assert producer.flush(READY_S) == 0


def fullest(log: Settings, topic: str) -> tuple[int, int]:
    """A partition with records, and its end."""
    ends = Admin(log).ends((topic,), 2)[topic]
    return max(enumerate(ends), key=lambda one: one[1])


@pytest.mark.broker
@pytest.mark.slow
def test_founds_that_were_lost_while_a_run_goes_on_are_found_again(lossy: Lossy, log: Settings, tree: Tree) -> None:
    """Others come in their place before anybody looks. The run says so, and ends complete."""
    topic = Topics(log.kafka.prefix).urls
    run = crawl(tree, log, tree.seed)
    try:
        until(lambda: len(tree.asked) > 15, "some pages")
        partition, _ = fullest(log, topic)
        kept = lossy.copy(topic, partition)
        until(lambda: len(tree.asked) > 35, "more pages")
        everybody = [run.pid, *workers(log.run.data).values()]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        _, end = fullest(log, topic)
        lossy.set_back(kept)
        overtake(log, topic, partition, end)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        code, _, err = ended(run)
    finally:
        run.kill()
    assert (code, rows(log)) == (0, tree.urls), err
    assert f"the log is damaged: {topic}[{partition}] has lost its records" in err


@pytest.mark.broker
@pytest.mark.slow
def test_pages_and_items_that_were_lost_while_nobody_looked_are_made_again(
    lossy: Lossy, log: Settings, tree: Tree
) -> None:
    """Others came in their place, so no end tells of it. The same command on the finished job notices."""
    names = Topics(log.kafka.prefix)
    run = crawl(tree, log, tree.seed)
    until(lambda: len(tree.asked) > 35, "some pages")
    kept = [lossy.copy(topic, fullest(log, topic)[0]) for topic in (names.pages, names.items)]
    code, _, err = ended(run)
    assert (code, rows(log)) == (0, tree.urls), err
    held = {topic: fullest(log, topic) for topic in (names.pages, names.items)}
    lossy.set_back(*kept)
    for topic, (partition, end) in held.items():
        overtake(log, topic, partition, end)
    code, _, err = ended(crawl(tree, log, tree.seed))
    assert (code, rows(log)) == (0, tree.urls), err
    for topic, (partition, _) in held.items():
        assert f"the log is damaged: {topic}[{partition}] has lost its records" in err
    (log.run.data.parent / "rows.jsonl").unlink()
    shutil.rmtree(log.run.data)
    code, _, err = ended(crawl(tree, log, tree.seed))
    assert (code, rows(log)) == (0, tree.urls), err
    assert verify_log(log, as_json=True, say=lambda _: None) == 0


@pytest.mark.broker
@pytest.mark.slow
def test_seeds_that_were_lost_while_a_run_goes_on_are_sent_again(lossy: Lossy, log: Settings, tree: Tree) -> None:
    """Nothing else finds them. A command that was given none says that some may be missing, and ends with 5."""
    topic = Topics(log.kafka.prefix).urls
    tree.is_linked = False
    empty = [lossy.copy(topic, number) for number in range(2)]
    run = crawl(tree, log, *tree.urls)
    until(lambda: len(tree.asked) > 35, "some pages")
    partition, _ = fullest(log, topic)
    lossy.set_back(empty[partition])
    code, _, err = ended(run)
    assert (code, rows(log)) == (0, tree.urls), err
    assert f"the log is damaged: {topic}[{partition}] ends at offset " in err
    lossy.set_back(empty[partition])
    code, _, err = ended(crawl(tree, log))
    assert code == 5, err
    assert f"{topic}[{partition}] ends at offset 0" in err
    assert "may be among what is gone: give them again" in err
