"""A sector of the log's files that reads back as zeros, in a crawl that was interrupted: no command dies of it."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.crawls import PAGES, Numbered, data, rows, run, site
from tests.support.damaging import Batch, batches, write
from tests.support.processes import crawlog, done, ended, until

__all__ = ["data", "site"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.long]

PARTITIONS = 2


PARTS = {"first": (0,), "middle": (1 / 2,), "two": (1 / 3, 2 / 3)}
"""Where the zeroed batches lie. Kafka itself notices the last one of a file, and names `repair --execute`."""


def zeroed(data: Path, topic: str, part: str) -> tuple[int, Batch]:
    """Zeros in the place of batches, silently: the file keeps its time. Returns partition and first such batch."""
    number = max(range(PARTITIONS), key=lambda one: len(batches(data, topic, one)))
    found = batches(data, topic, number)
    hurt = [found[int(len(found) * at)] for at in PARTS[part]]
    for batch in hurt:
        before = batch.file.stat()
        write(batch, 0, bytes(batch.size))
        os.utime(batch.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    return number, hurt[0]


@pytest.mark.parametrize(
    ("topic", "part", "words"),
    [
        ("crawl.urls", "first", ["verify"]),
        ("crawl.urls", "middle", ["up", "-s", f"kafka.partitions={PARTITIONS}"]),
        ("crawl.urls", "two", ["verify"]),
        ("crawl.pages", "middle", ["verify", "--log"]),
    ],
)
def test_a_zeroed_batch_is_named_and_the_crawl_is_whole_by_the_command_that_is_named(
    data: Path, site: Numbered, topic: str, part: str, words: list[str]
) -> None:
    """Librdkafka aborted `run`, `up`, `verify`, `verify --log` and `repair` there (SIGABRT)."""
    partitions = ["-s", f"kafka.partitions={PARTITIONS}"]
    begun = run(site, data, *partitions, "--job", "j", delay_s=0.1)
    until(lambda: len(site.pages()) > PAGES // 2, "half of the pages", begun)
    begun.send_signal(signal.SIGINT)
    assert ended(begun)[0] == 130
    until((data / "kafka" / "log" / ".kafka_cleanshutdown").exists, "a clean end of the broker")
    number, batch = zeroed(data, topic, part)
    named = f"{topic}[{number}] cannot be read at offset {batch.offset}"
    code, said, err = ended(crawlog(*words, "--data", data))
    assert (code, named in err, "`crawlog repair" in err) == (65, True, True), (said, err)
    code, said, err = ended(crawlog("repair", "--data", data))
    assert f"{topic}[{number}] is cut at offset {batch.offset}" in str(said), err
    assert "`crawlog repair --execute" in str(said) + err
    done(crawlog("repair", "--execute", "--data", data))
    code, summary, err = ended(run(site, data, *partitions, "--job", "j"))
    assert (code, summary["reason"]) == (0, "finished"), err
    assert sorted(rows(data)) == sorted(map(str, range(1, PAGES + 1)))
