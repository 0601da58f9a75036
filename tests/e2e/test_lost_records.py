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

import pytest
from confluent_kafka import Producer, TopicPartition

from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.recovery.check import Check
from crawlog.streams.recovery.damage import CutPartition
from crawlog.streams.recovery.marks import EndMark, Marks, is_suspect
from crawlog.streams.settings.settings import Settings
from tests.support.brokers import READY_S, Lossy, log, lossy, put, until_led
from tests.support.crawls import Numbered, workers
from tests.support.processes import Process, crawlog, ended, until

__all__ = ["log", "lossy"]  # fixtures


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
@pytest.mark.long
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


@pytest.fixture
def tree() -> Iterator[Numbered]:
    """A site whose pages link to two others each."""
    made = Numbered(PAGES, lambda number: (2 * number, 2 * number + 1))
    yield made
    made.close()


def crawl(tree: Numbered, log: Settings, *seeds: str) -> Process:
    """`crawlog run` of the tree, on the cluster."""
    kafka = ["--bootstrap", log.kafka.bootstrap, "-s", f"kafka.prefix={log.kafka.prefix}", "-s", "kafka.partitions=2"]
    pairs = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.05"]
    where = ["--data", log.run.data, "-o", log.run.data.parent / "rows.jsonl"]
    return crawlog("run", *seeds, "--job", "j", *where, "--json", *kafka, *pairs)


def every_page(tree: Numbered) -> list[str]:
    """URLs of the site."""
    return sorted(f"{tree.origin}/{number}" for number in range(1, PAGES + 1))


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


def marked(log: Settings, topic: str, partition: int) -> int:
    """The end of a partition at the last look of the run's supervisor; 0 before the first one."""
    try:
        kept = json.loads((log.run.data / "run" / "ends.json").read_text())
        return int(kept["marks"][topic][partition][0])
    except (FileNotFoundError, KeyError, ValueError):
        return 0


def fullest(log: Settings, topic: str) -> tuple[int, int]:
    """A partition with records, and its end."""
    ends = Admin(log).ends((topic,), 2)[topic]
    return max(enumerate(ends), key=lambda one: one[1])


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.slow
def test_founds_that_were_lost_while_a_run_goes_on_are_found_again(lossy: Lossy, log: Settings, tree: Numbered) -> None:
    """Others come in their place before anybody looks. The run says so, and ends complete."""
    topic = Topics(log.kafka.prefix).urls
    tree.holds_from = 40
    run = crawl(tree, log, tree.url)
    try:
        until(lambda: tree.asked.total() > 15, "some pages")
        partition, _ = fullest(log, topic)
        kept = lossy.copy(topic, partition)
        copied = Admin(log).ends((topic,), 2)[topic][partition]
        until(lambda: marked(log, topic, partition) > copied, "a look of the run at a later end")
        everybody = [run.pid, *workers(log.run.data).values()]
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        _, end = fullest(log, topic)
        lossy.set_back(kept)
        overtake(log, topic, partition, end)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        tree.goes_on.set()
        code, _, err = ended(run)
    finally:
        run.kill()
    assert (code, rows(log)) == (0, every_page(tree)), err
    assert f"the log is damaged: {topic}[{partition}] has lost its records" in err


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_pages_and_items_that_were_lost_while_nobody_looked_are_made_again(
    lossy: Lossy, log: Settings, tree: Numbered
) -> None:
    """Others came in their place, so no end tells of it. The same command on the finished job notices."""
    names = Topics(log.kafka.prefix)
    tree.holds_from = 10
    run = crawl(tree, log, tree.url)
    until(lambda: len(tree.pages()) >= tree.holds_from, "some pages")  # the others come after the copies
    hurt = {topic: fullest(log, topic)[0] for topic in (names.pages, names.items)}
    kept = [lossy.copy(topic, partition) for topic, partition in hurt.items()]
    tree.goes_on.set()
    code, _, err = ended(run)
    assert (code, rows(log)) == (0, every_page(tree)), err
    ends = Admin(log).ends(tuple(hurt), 2)
    held = {topic: (partition, ends[topic][partition]) for topic, partition in hurt.items()}
    lossy.set_back(*kept)
    for topic, (partition, end) in held.items():
        overtake(log, topic, partition, end)
    code, _, err = ended(crawl(tree, log, tree.url))
    assert (code, rows(log)) == (0, every_page(tree)), err
    for topic, (partition, _) in held.items():
        assert f"the log is damaged: {topic}[{partition}] has lost its records" in err
    (log.run.data.parent / "rows.jsonl").unlink()
    shutil.rmtree(log.run.data)
    code, _, err = ended(crawl(tree, log, tree.url))
    assert (code, rows(log)) == (0, every_page(tree)), err
    assert not Check(log).missing


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_seeds_that_were_lost_while_a_run_goes_on_are_sent_again(lossy: Lossy, log: Settings, tree: Numbered) -> None:
    """Nothing else finds them. A command that was given none says that some may be missing, and ends with 5."""
    topic = Topics(log.kafka.prefix).urls
    tree.hidden = set(range(1, PAGES + 1))
    empty = [lossy.copy(topic, number) for number in range(2)]
    run = crawl(tree, log, *every_page(tree))
    until(lambda: tree.asked.total() > 35, "some pages")
    partition, _ = fullest(log, topic)
    lossy.set_back(empty[partition])
    code, _, err = ended(run)
    assert (code, rows(log)) == (0, every_page(tree)), err
    assert f"the log is damaged: {topic}[{partition}] ends at offset " in err
    lossy.set_back(empty[partition])
    code, _, err = ended(crawl(tree, log))
    assert code == 5, err
    assert f"{topic}[{partition}] ends at offset 0" in err
    assert "may be among what is gone: give them again" in err
