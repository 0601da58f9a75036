"""Three real brokers, and one that gives its clients a wrong address: what is made of them, and what is said."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import OPEN, Foreign
from tests.support.processes import crawlog, until
from tests.support.synthetic_site import free_port
from tests.support.three_brokers import Cluster

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The brokers, with Kafka's own times."""
    made = Cluster(tmp_path_factory.mktemp("three"), 3)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def said(*words: object, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and answer of a command with --json."""
    process = crawlog(*words, "--json", "--data", folder / "data")
    out, _ = process.communicate()
    return process.returncode, [json.loads(line) for line in out.splitlines()]


def test_topics_have_three_replicas_and_doctor_finds_two_brokers_that_hang(three: Cluster, tmp_path: Path) -> None:
    """The third one still repeats the metadata of a cluster that was well."""
    where = ("--bootstrap", three.bootstrap)
    code, rows = said("topics", "--create", *where, folder=tmp_path)
    assert code == 0
    assert {(row["replicas"], row["in_sync"]) for row in rows} == {(3, 3)}
    assert {broker for row in rows for broker in row["leaders"]} == {"1", "2", "3"}
    code, found = said("doctor", *where, folder=tmp_path)
    assert (code, [one["found"] for one in found if one["status"] == "fail"]) == (0, [])
    hung = three.nodes[1:]
    try:
        for node in hung:
            node.process.send_signal(signal.SIGSTOP)
        code, found = said("doctor", *where, folder=tmp_path)
    finally:
        for node in hung:
            node.process.send_signal(signal.SIGCONT)
    assert code == 3
    failed = {one["check"]: one["found"] for one in found if one["status"] == "fail"}
    assert failed.keys() == {"broker", "controller", "leaders", "in sync"}
    assert "it hangs" in failed["broker"]
    until(lambda: said("doctor", *where, folder=tmp_path)[0] == 0, "a cluster that is well again")


def test_an_address_that_the_broker_gives_and_nobody_knows_is_named(tmp_path: Path) -> None:
    """The first mistake of every new cluster: --bootstrap answers, and nothing else does."""
    port, controller = free_port(), free_port()
    wrong = "advertised.listeners=PLAINTEXT://kafka-9.invalid:9092\n"
    broker = Foreign(tmp_path / "broker", OPEN.format(port=port, controller=controller) + wrong, port, controller)
    try:
        process = crawlog("topics", "--create", "--bootstrap", broker.bootstrap, "--data", tmp_path / "data")
        _, err = process.communicate()
        code, found = said("doctor", "--bootstrap", broker.bootstrap, folder=tmp_path)
    finally:
        broker.kill()
    assert process.returncode == code == 3
    named = "kafka-9.invalid:9092 (advertised.listeners), which has a name that does not resolve here"
    assert named in err
    assert any("kafka-9.invalid:9092 has a name that does not resolve" in one["found"] for one in found)
