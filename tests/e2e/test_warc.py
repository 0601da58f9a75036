"""A crawl that is archived: whatever dies, each page of the log is in the WARC files once."""

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from warcio.archiveiterator import ArchiveIterator

from crawlog.schemas import pages
from crawlog.streams.cluster import log_bounds, log_identity
from crawlog.streams.coded_pages import coding_in
from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.log import Topics, partition_count, read_partitions, record_headers
from crawlog.streams.settings import Settings
from crawlog.streams.warc.captures import id_of
from tests.support.cluster import Cluster, log_of, needs_site
from tests.support.warcs import written

pytestmark = [pytest.mark.broker, pytest.mark.slow, needs_site]


def in_log(settings: Settings) -> dict[str, pages.PageMeta]:
    """The pages of the log by the ids that their records have."""
    topic = Topics(settings.kafka.prefix).pages
    bounds = log_bounds(settings, topic, list(range(partition_count(settings))))
    identity = log_identity(settings, topic)
    found = {}
    for record in read_partitions(settings, topic, bounds):
        place = f"{record.partition()}:{record.offset()}"
        meta = pages.meta_in(record_headers(record))
        if meta.http is not None and meta.kind != "robots":
            found[f"<urn:uuid:{id_of(identity, place)}>"] = meta
    return found


def ids(folder: Path) -> Counter[str]:
    """How often each page is in the archive, by the id of its record."""
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file):
                if record.rec_type in ("response", "revisit"):
                    found[record.rec_headers.get_header("WARC-Record-ID")] += 1
    return found


def index(lines: list[str]) -> list[tuple[str, str, dict[str, str]]]:
    """The lines of an index in order, without what only ours have."""
    found = []
    for line in lines:
        key, stamp, fields = line.split(" ", 2)
        about = msgspec.json.decode(fields, type=dict[str, str])
        about.pop("page", None)
        found.append((key, stamp, about))
    return sorted(found, key=lambda one: (one[0], one[2]["filename"], int(one[2]["offset"])))


def check(folder: Path, settings: Settings) -> None:
    """Each page once; files that warcio's checker passes; an index that pywb's indexer would make, and sorted."""
    assert ids(folder) == dict.fromkeys(in_log(settings), 1)
    files = sorted(map(str, folder.glob("*.warc.gz")))
    programs = Path(sys.executable).parent
    subprocess.run([programs / "warcio", "check", *files], check=True, capture_output=True)
    indexer = [sys.executable, "-W", "ignore", str(programs / "cdxj-indexer"), *files]
    made = subprocess.run(indexer, check=True, capture_output=True, text=True)
    own = [path.read_text().splitlines() for path in sorted(folder.glob("*.cdxj"))]
    assert index([line for lines in own for line in lines]) == index(made.stdout.splitlines())
    assert all(lines == sorted(lines) for lines in own)


def test_an_archive_has_each_page_once_after_deaths_of_the_sink_worker(tmp_path: Path, cluster: Settings) -> None:
    """Before and behind a manifest, and at any moment; one page is equal to the log, byte by byte."""
    spent, folder = tmp_path / "spent", tmp_path / "warc"
    spent.mkdir()
    settings = {"fetch.concurrency": 8, "politeness.delay_s": 0.1, "sink.warc_mb": 1} | log_of(cluster)
    with Cluster(tmp_path, hosts=4, pages=20, flags={"bytes": 20_000}, settings=settings) as crawl:
        crawl.environment = {VARIABLE: f"{spent} warc.pages.written:1 warc.manifest.written:1"}
        crawl.start("-o", f"warc:{folder}")
        crawl.until(0.6)
        crawl.kill("sink")
        summary = crawl.finish()
        assert {file.name for file in spent.iterdir()} == {"warc.pages.written", "warc.manifest.written"}
        check(folder, cluster)
        assert {url for (kind, url) in written(folder) if kind == "response"} >= crawl.urls
        assert (summary["rows"], summary["dead"]) == (len(crawl.urls), 0)
    _is_equal_to_the_log(folder, cluster)


def _is_equal_to_the_log(folder: Path, settings: Settings) -> None:
    """Body, status and headers of one record."""
    topic = Topics(settings.kafka.prefix).pages
    bounds = log_bounds(settings, topic, list(range(partition_count(settings))))
    identity = log_identity(settings, topic)
    [path, *_] = sorted(folder.glob("*.warc.gz"))
    with path.open("rb") as file:
        one = next(record for record in ArchiveIterator(file) if record.rec_type == "response")
        body, its_id = one.raw_stream.read(), one.rec_headers.get_header("WARC-Record-ID")
    for record in read_partitions(settings, topic, bounds):
        if its_id == f"<urn:uuid:{id_of(identity, f'{record.partition()}:{record.offset()}')}>":
            headers = record_headers(record)
            meta = pages.meta_in(headers)
            assert (body, one.http_headers.get_statuscode()) == (record.value(), str(meta.http))
            assert tuple(one.http_headers.headers) == meta.headers
            assert (one.http_headers.get_header("Content-Encoding") or "") == coding_in(headers)
            return
    pytest.fail(f"{its_id} is not in the log")


@pytest.mark.long
def test_two_thousand_pages_are_archived_once_while_the_sink_worker_is_killed_again_and_again(
    tmp_path: Path, cluster: Settings
) -> None:
    """Each time at another moment; files of 1 MiB, so that kills meet new ones and sorted indexes."""
    chosen, folder, kills = random.Random(43), tmp_path / "warc", 0
    settings = {"politeness.delay_s": 0.2, "sink.warc_mb": 1} | log_of(cluster)
    with Cluster(tmp_path, hosts=20, pages=100, settings=settings) as crawl:
        crawl.start("-o", f"warc:{folder}")
        while not crawl.reaches(0.99, chosen.uniform(0.3, 3)):
            kills += crawl.kill("sink")
        crawl.finish()
        check(folder, cluster)
        assert {url for (kind, url) in written(folder) if kind in ("response", "revisit")} >= crawl.urls
        assert len(crawl.urls) == 2000
    assert kills >= 5
    assert len(list(folder.glob("*.warc.gz"))) > 1
