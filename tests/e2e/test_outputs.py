"""`crawlog run` with several outputs: the same rows in each format, on the disk and in an object store."""

import gzip
import json
import os
from pathlib import Path

import openpyxl
import pyarrow.parquet as pq
import pytest

from crawlog.streams.settings.settings import Settings
from tests.support.processes import crawlog, ended
from tests.support.s3 import s3_server
from tests.support.sites import Threaded

PAGE = b"<title>here</title><a href=/2>two</a>"


def options(cluster: Settings, data: Path, *outputs: object) -> list[object]:
    """Those of a `run`."""
    log = [
        "--bootstrap",
        cluster.kafka.bootstrap,
        "-s",
        f"kafka.prefix={cluster.kafka.prefix}",
        "--data",
        data,
        "--json",
    ]
    pairs = ("network.allow_private=true", "politeness.delay_s=0.01", "results.times=iso")
    return [
        *log,
        *(part for pair in pairs for part in ("-s", pair)),
        *(part for one in outputs for part in ("-o", one)),
    ]


@pytest.mark.broker
@pytest.mark.slow
def test_a_run_writes_its_rows_in_each_format(tmp_path: Path, cluster: Settings) -> None:
    """All from one reading of the log; times as the job asks for them."""
    site = Threaded(lambda _: (200, "text/html", PAGE))
    files = [tmp_path / name for name in ("rows.jsonl.gz", "rows.xlsx", "rows.parquet")]
    with s3_server() as server:
        given = options(cluster, tmp_path, *files, "s3://bucket/rows.jsonl")
        code, summary, said = ended(crawlog("run", f"{site.origin}/1", *given, env=os.environ | server.environ))
        rows = [json.loads(line) for line in (server.content("rows.jsonl") or b"").splitlines()]
    site.close()
    assert (code, summary.get("rows")) == (0, 2), said
    told = sorted((row["url"], row["title"], row["fetched_at"][-1]) for row in rows)
    assert told == [(f"{site.origin}/{n}", "here", "Z") for n in (1, 2)]
    assert [json.loads(line) for line in gzip.decompress(files[0].read_bytes()).splitlines()] == rows
    assert pq.read_table(files[2]).to_pylist() == rows
    header, *found = openpyxl.load_workbook(files[1]).worksheets[0].values
    assert [dict(zip(header, values, strict=True)) for values in found] == rows
    assert not [*tmp_path.glob("*.partial")]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_an_object_store_that_is_away_at_the_end_gets_its_rows_by_the_same_command(
    tmp_path: Path, cluster: Settings
) -> None:
    """The other output is made; the message names the address and the way on. No page is asked for again."""
    asked: list[str] = []

    def answer(path: str) -> tuple[int, str, bytes]:
        if path == "/2":
            server.stop()
        asked.append(path)
        return 200, "text/html", PAGE

    site = Threaded(answer)
    with s3_server() as server:
        given = options(cluster, tmp_path, tmp_path / "rows.csv", "s3://bucket/rows.jsonl")
        command = ["run", f"{site.origin}/1", *given]
        code, _, said = ended(crawlog(*command, env=os.environ | server.environ))
        assert code == 3, said
        assert "s3://bucket/rows.jsonl: cannot be written: " in said
        assert "the same command writes them" in said
        assert (tmp_path / "rows.csv").exists()
        server.start()
        pages = [path for path in asked if path != "/robots.txt"]
        code, summary, said = ended(crawlog(*command, env=os.environ | server.environ))
        assert (code, summary.get("rows")) == (0, 2), said
        assert len((server.content("rows.jsonl") or b"").splitlines()) == 2
    site.close()
    assert sorted(pages) == ["/1", "/2"] == sorted(path for path in asked if path != "/robots.txt")


PIPED = """
from crawlog import Spider


class Marked:
    def open_spider(self):
        self.count = 0

    def process_item(self, item):
        self.count += 1
        return {"url": item["url"], "mark": "piped"} if self.count else None


class Piped(Spider):
    follow_links = True
    pipelines = [Marked]

    def parse(self, response):
        yield {"url": response.url}
"""


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("leads", [pytest.param("file", marks=pytest.mark.long), "store"])
def test_stores_get_the_rows_that_pipelines_make(tmp_path: Path, cluster: Settings, leads: str) -> None:
    """Whether the store is the first output, which the pipelines fill, or another one beside FILE."""
    site = Threaded(lambda _: (200, "text/html", PAGE))
    spider, file, store = tmp_path / "piped.py", tmp_path / "rows.jsonl", tmp_path / "shop"
    spider.write_text(PIPED)
    outputs = [file, f"file://{store}/"]
    given = options(cluster, tmp_path / leads, *(outputs if leads == "file" else outputs[::-1]))
    code, summary, said = ended(crawlog("run", f"{site.origin}/1", "--spider", spider, *given))
    site.close()
    assert (code, summary.get("rows")) == (0, 2), said
    rows = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda row: row["url"])
    assert rows == [{"url": f"{site.origin}/{n}", "mark": "piped"} for n in (1, 2)]
    stored = pq.read_table(store, partitioning=None).select(["url", "mark"]).to_pylist()
    assert sorted(stored, key=lambda row: row["url"]) == rows
