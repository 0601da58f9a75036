"""`crawlog worker exit`, the real command: each machine lends its address to the owner of a domain."""

from pathlib import Path

import pytest

from crawlog.commands.control import list_workers, order_worker
from crawlog.commands.doctor import examine
from crawlog.streams.log import ensure_topics
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import data, there
from tests.support.processes import crawlog, until

__all__ = ["data", "there"]

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_an_exit_worker_is_listed_found_by_doctor_and_ends_by_an_order(
    cluster: Settings, data: Path, there: list[str]
) -> None:
    """Its address is the one from which it reaches the cluster."""
    ensure_topics(cluster)
    process = crawlog("worker", "exit", "--data", data, *there, "-s", 'exits.addresses=["127.0.0.2", "127.0.0.3"]')
    until(lambda: bool(list_workers(cluster)) or process.poll() is not None, "its report")
    assert process.poll() is None, process.communicate()
    (worker,) = list_workers(cluster)
    assert (worker.stage, worker.pid, worker.partitions) == ("exit", process.pid, ())
    assert [name.rpartition("@")[2] for name in worker.exits] == ["127.0.0.2", "127.0.0.3"]
    found = [one.status for one in examine(cluster) if one.check == "exits"]
    assert found == ["ok", "ok"]
    order_worker(cluster, worker.id, "drain")
    assert process.wait() == 0
