"""`python -m bench.faults.lost`: a cluster loses records; a run must end complete, or say what is missing.

    python -m bench.faults.lost                 9 points: half an hour of a quiet machine
    python -m bench.faults.lost --seeds 1 --dry

A point is one crawl on three brokers with three replicas, by `crawlog run --bootstrap`. A partition is copied while the
crawl goes on. Later all brokers die at once, and come back: with that copy on all three (disks that were put back from
an old backup), with nothing on any of them (lost disks), or with the copy on two of them while the third one, which has
all records, stays away until another leads (an unclean election, asked for where Kafka waits for the third one: this
one then gives up what it had alone). The verdict is
that of the damaged logs (`damage.py`): by the site's access log, the rows of FILE, the exit code and the message.
"""

import argparse
import contextlib
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Literal

from confluent_kafka import ElectionType, TopicPartition

from bench.faults import damage
from bench.faults.__main__ import keep, tell
from bench.faults.crawl import JOB, Crawl, Size
from bench.faults.graph import Graph
from bench.faults.judge import Evidence
from bench.faults.schedule import Outcome
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.errors import EngineError
from crawlog.streams.settings.sources import load
from tests.support.synthetic_site import WORK, free_port
from tests.support.three_brokers import Cluster

NAME = "lost-records"
TOPICS = ("urls", "pages", "items")
Deed = Literal["backup", "gone", "unclean"]
DEEDS: tuple[Deed, ...] = ("unclean", "backup", "gone")

SIZE = Size(hosts=12, pages=25, delay_s=0.4, latency_s=(0.0, 0.02), fetch=1, concurrency=32)
REPLICATION = 3
END_S = 300.0
LED_S = 120.0
LOOK_S = 1.0
PARTITIONS = 8


def one(seed: int, folder: Path) -> Outcome:
    """A point; its folder is removed when all was well. A harness that fails is an outcome."""
    dice = random.Random(f"{NAME}/{seed}")
    topic, deed = TOPICS[seed % len(TOPICS)], DEEDS[seed // len(TOPICS) % len(DEEDS)]
    shutil.rmtree(folder, ignore_errors=True)
    cluster = Cluster(folder / "cluster", REPLICATION)
    settings = {"kafka.replication": REPLICATION, "kafka.bootstrap": cluster.bootstrap}
    began = time.monotonic()
    graph = Graph(SIZE.hosts, SIZE.pages, seed, free_port())
    try:
        cluster.start()
        with Crawl(folder, graph, SIZE, settings=settings) as crawl:
            crawl.title = f"{NAME} seed {seed}"
            crawl.bootstrap = cluster.bootstrap
            outcome = _judged(crawl, seed, deed, _hurt(crawl, cluster, topic, deed, dice), began)
    except Exception as error:  # noqa: BLE001  # a night of points goes on with the next seed
        traceback.print_exception(error)
        problem = f"the harness failed: {type(error).__name__}: {error}".splitlines()[0]
        outcome = _outcome(seed, deed, began, 0, "harness", {}, [problem])
    finally:
        cluster.kill()
    if outcome.is_good:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _hurt(crawl: Crawl, cluster: Cluster, topic: str, deed: Deed, dice: random.Random) -> tuple[str, int]:
    """Copies, kills, puts back, and waits for the run's end; what was damaged."""
    crawl.start()
    _until(crawl, dice.uniform(0.15, 0.4))
    name = f"crawl.{topic}"
    before = _ends(cluster, name)
    for number in range(PARTITIONS):
        shutil.copytree(_folder(cluster, 0, name, number), crawl.folder / "copies" / str(number))
    _until(crawl, dice.uniform(0.5, 0.8))
    number = dice.choice(
        [at for at, (then, now) in enumerate(zip(before, _ends(cluster, name), strict=True)) if now > then]
    )
    kept_copy = crawl.folder / "copies" / str(number)
    cluster.kill()
    crawl.note(f"{deed} of {name}[{number}]")
    whole = len(cluster.nodes) - 1 if deed == "unclean" else len(cluster.nodes)
    for at in range(whole):
        there = _folder(cluster, at, name, number)
        shutil.rmtree(there)
        if deed != "gone":
            shutil.copytree(kept_copy, there)
    for node in cluster.nodes[:whole]:
        node.start()
    if deed == "unclean":
        _until_led(cluster, name, number)
    cluster.start()
    crawl.finish(END_S)
    return topic, number


def _until(crawl: Crawl, share: float) -> None:
    if not crawl.until(share, 300):
        raise RuntimeError("the crawl ended before the damage")


def _ends(cluster: Cluster, name: str) -> tuple[int, ...]:
    return Admin(load({"kafka.bootstrap": cluster.bootstrap})).ends((name,), PARTITIONS)[name]


def _folder(cluster: Cluster, at: int, name: str, number: int) -> Path:
    return cluster.nodes[at].folder / "log" / f"{name}-{number}"


def _until_led(cluster: Cluster, name: str, number: int) -> None:
    """Has one of the brokers that run lead the partition, uncleanly where Kafka waits for the third."""
    deadline = time.monotonic() + LED_S
    admin = Admin(load({"kafka.bootstrap": cluster.bootstrap}))
    while True:
        with contextlib.suppress(EngineError):
            known = admin.metadata()
            leader = known.topics[name].partitions[number].leader if name in known.topics else -1
            if 0 < leader < len(cluster.nodes):
                return
            asked = [TopicPartition(name, number)]
            admin.client.elect_leaders(ElectionType.UNCLEAN, asked)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}[{number}] has no leader after {LED_S:.0f} s")
        time.sleep(LOOK_S)


def _judged(crawl: Crawl, seed: int, deed: Deed, place: tuple[str, int], began: float) -> Outcome:
    """By the site and by FILE; what was not noticed is a problem too, as the next crawl of that log may lack it."""
    code = crawl.code
    crawl.kill_all()
    requests = crawl.site.requests()
    evidence = Evidence(crawl.graph, JOB, SIZE.delay_s, requests, [], [], [], [], crawl.rows(), {})
    said = crawl.said.read_bytes().decode("utf-8", "replace")
    seen = damage.Seen(place, code, said, tuple(damage.missing(evidence)), tuple(damage.invented(evidence)))
    came = damage.verdict(seen)
    is_named = damage.names(said, *place)
    what = f"{deed} of {place[0]}[{place[1]}]"
    problems = [] if came in damage.GOOD else [damage.problem(came, seen, what)]
    problems += [] if is_named else [f"{what} was not noticed"]
    figures = {"code": float(-1 if code is None else code), "noticed": float(is_named)}
    return _outcome(seed, deed, began, len(requests), came, figures, problems)


def _outcome(
    seed: int, deed: str, began: float, requests: int, came: str, figures: dict[str, float], problems: list[str]
) -> Outcome:
    took_s = round(time.monotonic() - began, 1)
    return Outcome(
        f"{NAME}-{deed}", seed, SIZE.hosts, SIZE.pages, took_s, requests, 1, 1, 0.0, 0, {came: 1}, figures, problems
    )  # fmt: skip


def main() -> int:
    """Exit code 1 when a point ended as none may."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=9, help="points; they go through all deeds and topics")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--dry", action="store_true", help="keep no outcome, write no section")
    asked = parser.parse_args()
    is_good = True
    for seed in range(asked.seed, asked.seed + asked.seeds):
        outcome = one(seed, WORK / NAME / str(seed))
        is_good &= outcome.is_good
        tell(outcome)
        if not asked.dry:
            keep(outcome, SIZE)
    if not asked.dry:
        publish(" ".join(["python -m bench.faults.lost", *sys.argv[1:]]))
    return int(not is_good)


def publish(command: str) -> None:
    """Writes the section of RESULTS.md."""
    where = f"{damage.site(SIZE)}; three brokers, three replicas"
    columns = (
        "unclean: two brokers come back with an older copy and lead, before the third; backup: all three "
        "have an older copy; gone: none has anything; the others as in “A damaged log”"
    )
    facts = {"run": command, "site": where, "columns": columns}
    damage.record(NAME, "Records that a cluster has lost", SIZE, facts)


if __name__ == "__main__":
    sys.exit(main())
