"""A parse worker whose one partition is long, and the process that helps it: killed, in turn."""

import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from crawlog.schemas import control, items, pages, urls
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams import groups
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.read import read_records
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings, to_environ
from tests.support.processes import Process, crawlog, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PAGES = 8_000
LINKS = "".join(f"<a href=/all-{number}>{number}</a>" for number in range(60))


@pytest.fixture
def site(cluster: Settings) -> Settings:
    """The pages of one site in partition 3, none of them parsed; each has a link of its own."""
    ensure_topics(cluster)
    names = Topics(cluster.kafka.prefix)
    producer = Producer(cluster, "test")
    copy = control.JobCopy("j", JobSpec(scope=ScopeSpec(names=("a.test",))), 0)
    producer.send(names.control, control.encode(copy), key=control.key(copy), partition=0)
    for number in range(PAGES):
        meta = PageMeta(url=f"http://a.test/{number}", job="j", http=200, content_type="text/html")
        body = f"<title>{number}</title>{LINKS}<a href=/of-{number}>".encode()
        producer.send(names.pages, body, partition=3, headers=pages.headers(meta))
    producer.flush(60.0)
    return cluster


def worker(site: Settings, folder: Path) -> Process:
    """A parse worker with one helper."""
    environ = os.environ | to_environ(site) | {"CRAWLOG_WORKER": "parse-0"}
    with (folder / "worker.log").open("ab") as said:
        options = ["--data", str(folder), "-s", "parse.helpers=1"]
        return crawlog("worker", "parse", *options, env=environ, stdout=said, stderr=said)


def helper_of(process: Process) -> psutil.Process:
    """The helper of a worker, once it has loaded."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        assert process.poll() is None
        children = psutil.Process(process.pid).children()
        found[:] = [one for one in children if "helper" in " ".join(one.cmdline())]
        return any(one.cmdline()[0].startswith("crawlog: parse-0 helper") for one in found)

    until(is_there, "a helper")
    return found[0]


def unparsed(site: Settings) -> int:
    """Pages before the end of the partition that are not committed."""
    admin = Admin(site)
    held = groups.held(admin, groups.named(admin, "parse")[0], [3])[3]
    return held.end - (held.committed or 0)


def outputs(site: Settings) -> tuple[Counter[str], set[str]]:
    """How often each page has a record in crawl.items, and the URLs that were found."""
    names = Topics(site.kafka.prefix)
    rows: Counter[str] = Counter()
    found: set[str] = set()
    for topic in (names.items, names.urls):
        for partition, (first, end) in log_bounds(site, topic, list(range(8))).items():
            for record in read_records(site, topic, partition, first, end):
                value = record.value() or b""
                if topic == names.items:
                    rows[items.decode(value).url] += 1
                else:
                    found.update(one.url for one in urls.decode(value).urls or ())
    return rows, found


@pytest.mark.long
def test_killed_helpers_and_workers_lose_no_page(site: Settings, tmp_path: Path) -> None:
    """The owner parses what its helper had; the next worker parses what its predecessor and that one's helper had."""
    first = worker(site, tmp_path)
    helper_of(first).kill()
    until(lambda: unparsed(site) < PAGES, "a commit behind the pages that the helper had", first)
    first.send_signal(signal.SIGSTOP)  # some pages are left for the next worker
    rows, _ = outputs(site)
    assert set(rows.values()) == {1}
    orphan = psutil.Process(first.pid).children()
    first.kill()
    first.wait(60)
    until(lambda: not any(one.is_running() for one in orphan), "the end of a killed worker's helper")
    second = worker(site, tmp_path)
    until(lambda: unparsed(site) == 0, "the end of the partition", second)
    second.terminate()
    assert second.wait(60) == 0
    rows, found = outputs(site)
    assert set(rows) == {f"http://a.test/{number}" for number in range(PAGES)}
    own = {f"http://a.test/of-{number}" for number in range(PAGES)}
    assert found == own | {f"http://a.test/all-{number}" for number in range(60)}
