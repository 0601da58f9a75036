"""Damage of the log under a whole crawl: it ends complete, or names what is missing with an exit code of its own."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from crawlog.streams.batches import PREFIX_BYTES
from tests.support.crawls import on_folder, workers
from tests.support.processes import Process, crawlog, done, ended, until
from tests.support.sites import Answer, Threaded

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PAGES = 40


@pytest.fixture
def site() -> Iterator[str]:
    """The origin of a site of pages without links."""

    def answer(path: str) -> Answer:
        return (404, "text/html", b"") if path == "/robots.txt" else (200, "text/html", b"<title>page</title>" * 50)

    server = Threaded(answer)
    yield server.origin
    server.close()


class Crawl:
    """A crawl of seeds alone, by the local engine."""

    def __init__(self, folder: Path, origin: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.urls = sorted(f"{origin}/{number}" for number in range(PAGES))
        (folder / "seeds.txt").write_text("\n".join(self.urls))

    def start(self, output: str = "rows.jsonl") -> Process:
        """`crawlog run`."""
        where = ["--seeds", self.folder / "seeds.txt", "--data", self.data, "-o", self.folder / output, "--json"]
        pairs = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01"]
        return crawlog("run", *where, *pairs, "--workers", "fetch=1,parse=1")

    def rows(self, output: str = "rows.jsonl") -> list[str]:
        """URLs of the results."""
        return sorted(json.loads(line)["url"] for line in (self.folder / output).read_text().splitlines())

    def until_fetched(self, run: Process) -> None:
        """Waits until everything is fetched, with parse stopped."""
        until(lambda: "parse-0" in workers(self.data), "parse", run)
        os.kill(workers(self.data)["parse-0"], signal.SIGSTOP)

        until(lambda: self.fetched() == PAGES, "all pages to be fetched", run)

    def fetched(self) -> int:
        """Pages that the job has."""
        out, _ = crawlog("status", "--data", self.data, "--json").communicate()
        return int((json.loads(out)["jobs"] or [{}])[0].get("fetched", 0))

    def parsed(self) -> bool:
        """Whether everything is fetched, and parse has committed that it is through."""
        out, _ = crawlog("topics", "--data", self.data, "--json").communicate()
        lag = next(json.loads(line)["lag"] for line in out.splitlines() if json.loads(line)["name"] == "crawl.pages")
        return self.fetched() == PAGES and lag.get("crawlog-parse") == 0

    def files(self, topic: str) -> list[Path]:
        """The folders of a topic's partitions that have records."""
        return [
            path
            for path in sorted((self.data / "kafka" / "log").glob(f"crawl.{topic}-*"))
            if any(segment.stat().st_size for segment in path.glob("*.log"))
        ]

    def verified(self) -> tuple[int, str]:
        """What `crawlog verify --log` says."""
        process = crawlog("verify", "--log", "--data", self.data)
        out, err = process.communicate()
        return process.returncode, out + err


@pytest.fixture
def crawl(tmp_path: Path, site: str) -> Iterator[Crawl]:
    """A crawl that has not begun; its broker is stopped afterwards."""
    made = Crawl(tmp_path, site)
    yield made
    crawlog("down", "--data", made.data).communicate()


CRC_FROM = 21
"""Where the bytes of a batch begin that its CRC covers: behind first offset, length, leader epoch, version and CRC."""


def flip(crawl: Crawl) -> None:
    """Flip a byte in the middle of crawl.pages: a broker that was killed gives up what comes behind it."""
    for folder in crawl.files("pages"):
        (segment,) = folder.glob("*.log")
        content = bytearray(segment.read_bytes().rstrip(b"\0"))
        content[middle_batch(content) + CRC_FROM] ^= 0xFF
        segment.write_bytes(content)


def middle_batch(content: bytes | bytearray) -> int:
    """Where the batch in the middle of a file of records begins."""
    begins = [0]
    while (at := begins[-1]) < len(content):
        begins.append(at + PREFIX_BYTES + int.from_bytes(content[at + 8 : at + PREFIX_BYTES], "big"))
    return begins[(len(begins) - 1) // 2]


def cut(crawl: Crawl) -> None:
    """Cut crawl.pages in half."""
    for folder in crawl.files("pages"):
        (segment,) = folder.glob("*.log")
        content = segment.read_bytes().rstrip(b"\0")
        segment.write_bytes(content[: len(content) // 2])


def gone(process: psutil.Process) -> None:
    """Kills a process and waits until it is gone."""
    process.kill()
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "a process to end")


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.long
def test_pages_that_a_killed_broker_has_lost_while_parse_lags_are_fetched_again(
    crawl: Crawl, damage: Callable[[Crawl], None]
) -> None:
    """The run goes on beside it: it ends complete, and says which partition ended too early."""
    process = crawl.start()
    crawl.until_fetched(process)
    parse = workers(crawl.data)["parse-0"]
    os.kill(process.pid, signal.SIGSTOP)
    gone(on_folder(crawl.data)[0])
    damage(crawl)
    os.kill(parse, signal.SIGCONT)
    os.kill(process.pid, signal.SIGCONT)
    code, _, err = ended(process)
    assert code == 0, err
    assert crawl.rows() == crawl.urls, err
    assert "the log is damaged: crawl.pages[" in err
    assert crawl.verified()[0] == 0, crawl.verified()


@pytest.mark.long
def test_a_run_of_a_log_that_lost_pages_while_nobody_looked_ends_complete(crawl: Crawl) -> None:
    """Everything is killed, crawl.pages is cut, and the same command goes on."""
    process = crawl.start()
    crawl.until_fetched(process)
    pids = [psutil.Process(pid) for pid in workers(crawl.data).values()]
    process.kill()
    process.communicate()
    gone(on_folder(crawl.data)[0])
    for one in pids:
        gone(one)
    cut(crawl)
    code, _, err = ended(crawl.start())
    assert code == 0, err
    assert crawl.rows() == crawl.urls, err
    assert crawl.verified()[0] == 0, crawl.verified()


@pytest.mark.long
def test_items_that_no_sink_had_read_are_made_again(crawl: Crawl) -> None:
    """Only parse knew that they were in the log: its commits say so."""
    process = crawl.start()
    until(lambda: "sink-0" in workers(crawl.data), "sink")
    os.kill(workers(crawl.data)["sink-0"], signal.SIGSTOP)
    until(crawl.parsed, "all pages to be parsed")
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130
    shutil.rmtree(crawl.files("items")[0])
    code, _, err = ended(crawl.start())
    assert code == 0, err
    assert crawl.rows() == crawl.urls, err
    assert "the log is damaged: crawl.items[" in err
    code, _, err = ended(crawl.start())
    assert "the log is damaged" not in err
    assert crawl.verified()[0] == 0, crawl.verified()


@pytest.mark.parametrize("topic", ["pages", "items"])
@pytest.mark.long
def test_a_partition_that_is_deleted_after_the_crawl_is_made_again(crawl: Crawl, topic: str) -> None:
    """A finished job's run notices, and both its old FILE and a new one are complete."""
    done(crawl.start())
    for folder in crawl.files(topic):
        shutil.rmtree(folder)
    code, _, err = ended(crawl.start())
    assert code == 0, err
    assert crawl.rows() == crawl.urls, err
    assert f"the log is damaged: crawl.{topic}[" in err
    code, _, err = ended(crawl.start("other.jsonl"))
    assert (code, crawl.rows("other.jsonl")) == (0, crawl.urls), err
    assert crawl.verified()[0] == 0, crawl.verified()


@pytest.mark.long
def test_a_file_that_is_changed_after_the_crawl_is_made_again(crawl: Crawl) -> None:
    """Bytes flipped in the middle of files that a broker trusts: the next run of the finished job has them checked."""
    done(crawl.start())
    flip(crawl)
    code, _, err = ended(crawl.start())
    assert code == 0, err
    assert crawl.rows() == crawl.urls, err
    assert "files of Apache Kafka were changed while it did not run: crawl.pages-" in err
    assert crawl.verified()[0] == 0, crawl.verified()
