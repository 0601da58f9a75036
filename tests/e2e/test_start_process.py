"""`crawlog worker start`, the real command: without `up` and `run`, jobs get the first requests of their spiders."""

from pathlib import Path

import pytest

from crawlog.commands.fleet_workers import list_workers, order_worker
from crawlog.schemas import urls
from crawlog.schemas.control import StartEnded
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import read_control, write_job
from crawlog.streams.log import Producer, Topics, ensure_topics, read_partitions
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import data, there
from tests.support.processes import crawlog, until

__all__ = ["data", "there"]

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SPIDER = """
from crawlog import Request, Spider

class Numbers(Spider):
    def parse(self, response):
        pass

    async def start(self):
        for number in range(20):
            yield Request(f"http://a.test/{number}")
"""


def _founds(settings: Settings, topics: Topics) -> list[tuple[str | None, str]]:
    """Job and URL of each found in the log."""
    founds = []
    ranges = log_bounds(settings, topics.urls, list(range(settings.kafka.partitions)))
    for record in read_partitions(settings, topics.urls, ranges):
        value = urls.decode(record.value())
        founds += [(value.job, found.url) for found in value.urls or ()]
    return founds


def test_start_of_a_job_runs_where_neither_up_nor_run_does(
    cluster: Settings, data: Path, there: list[str], tmp_path: Path
) -> None:
    """What it gives and the note of its end are in the log; a file that this machine does not trust is left alone.

    It is listed among the workers, and can be told to end.
    """
    settings, topics = cluster, Topics(cluster.kafka.prefix)
    ensure_topics(settings)
    for folder in ("trusted", "strange"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "numbers.py").write_text(SPIDER)
    producer = Producer(settings, "test")
    for folder in ("strange", "trusted"):
        spider = f"{tmp_path}/{folder}/numbers.py:Numbers"
        write_job(settings, producer, topics, folder, JobSpec(spider=spider, starts=True, scope=ScopeSpec(kind="any")))
    trusted = f'security.spider_folders=["{tmp_path}/trusted"]'
    process = crawlog("worker", "start", "--data", data, *there, "-s", trusted)
    until(lambda: read_control(settings, topics).start("trusted") is not None or process.poll() is not None, "the note")
    assert process.poll() is None, process.communicate()
    said = read_control(settings, topics)
    note = said.start("trusted")
    assert isinstance(note, StartEnded)
    assert (note.requests, note.error) == (20, "")
    assert said.start("strange") is None
    (worker,) = list_workers(settings)
    assert (worker.stage, worker.pid, worker.partitions) == ("start", process.pid, ())
    assert sorted(_founds(settings, topics)) == sorted(("trusted", f"http://a.test/{number}") for number in range(20))
    order_worker(settings, worker.id, "stop")
    assert process.wait() == 0
