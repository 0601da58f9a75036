"""A crawl of pages in all codings: stored as they came, parsed, parsed again, asked for again, told."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brotli
import pytest
from backports import zstd

from crawlog.schemas import pages
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.coded_pages import coding_in
from crawlog.streams.log.read import read_partitions
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from tests.support.processes import crawlog, done
from tests.support.sites import Threaded

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HTML = b"<title>T</title>" + b"<p>words" * 2000
BODIES: dict[str, tuple[str, bytes]] = {
    "plain": ("", HTML),
    "gzip": ("gzip", gzip.compress(HTML)),
    "br": ("br", brotli.compress(HTML)),
    "zstd": ("zstd", zstd.compress(HTML)),
    "deflate": ("deflate", zlib.compress(HTML)),
    "twice": ("gzip, gzip", gzip.compress(gzip.compress(HTML))),
    "half": ("gzip", gzip.compress(HTML)[:-9]),
    "bomb": ("gzip", gzip.compress(HTML + bytes(1 << 20))),
    "checksum": ("gzip", gzip.compress(HTML)[:-8] + bytes(8)),
    "liar": ("gzip", HTML),
}
REFUSED = {"bomb": "too_large", "checksum": "bad_encoding", "liar": "bad_encoding"}


@pytest.fixture
def site() -> Iterator[Threaded]:
    """A first page with links to one of each kind."""
    first = b"".join(f"<a href=/{name}>".encode() for name in BODIES)

    def answer(path: str) -> tuple[int, str, bytes]:
        name = path.strip("/")
        if name in ("", *BODIES):
            return 200, "text/html", BODIES[name][1] if name else first
        return 404, "text/html", b""

    made = Threaded(
        answer,
        lambda path: f'"{path}"' if path != "/robots.txt" else "",
        coding=lambda path: BODIES.get(path.strip("/"), ("",))[0],
    )
    yield made
    made.close()


class Coded:
    """A crawl of the site on the session's broker."""

    def __init__(self, site: Threaded, cluster: Settings, folder: Path) -> None:
        self._site, self._settings, self._folder = site, cluster, folder
        at = ["--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={cluster.kafka.prefix}"]
        self._where = ["--data", folder / "data", *at]

    def run(self, *more: object) -> dict[str, dict[str, Any]]:
        """The rows after a run, by the last part of their URL."""
        fast = [
            "-s",
            "network.allow_private=true",
            "-s",
            "politeness.delay_s=0",
            "-s",
            f"fetch.max_body_bytes={1 << 20}",
        ]
        file = self._folder / "rows.jsonl"
        done(crawlog("run", f"{self._site.origin}/", "-o", file, "--json", *self._where, *fast, *more))
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return {row["url"].rpartition("/")[2]: row for row in rows}

    def told(self, *words: object) -> str:
        """What a command prints."""
        process = crawlog(*words, *self._where)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    def stored(self) -> dict[str, tuple[str, bytes, tuple[int, int]]]:
        """Coding, value and place of each page in the log."""
        topic = Topics(self._settings.kafka.prefix).pages
        bounds = log_bounds(self._settings, topic, [*range(self._settings.kafka.partitions)])
        found = {}
        for record in read_partitions(self._settings, topic, bounds):
            headers: list[Any] = list(record.headers() or ())
            name = pages.decode(dict(headers)[pages.HEADER]).url.rpartition("/")[2]
            found[name] = coding_in(headers), record.value() or b"", (record.partition() or 0, record.offset() or 0)
        return found


@pytest.mark.long
def test_pages_in_codings_are_one_crawl_with_plain_ones(site: Threaded, cluster: Settings, tmp_path: Path) -> None:
    """Rows, a replay of the stored pages, and a crawl again that is told what has not changed."""
    crawl = Coded(site, cluster, tmp_path)
    rows = crawl.run()
    assert rows.keys() == {"", *BODIES}
    for name, row in rows.items():
        error = REFUSED.get(name)
        assert (row["status"], row["error"], row["title"]) == (200, error, None if error or not name else "T"), name
    assert len({rows[name]["sha256"] for name in ("plain", "gzip", "br", "zstd", "deflate", "twice")}) == 1
    stored = crawl.stored()
    assert {name: stored[name][:2] for name in BODIES.keys() - {"liar"}} == {
        name: said for name, said in BODIES.items() if name != "liar"
    }
    for name, error in REFUSED.items():
        assert error in crawl.told("why", f"{site.origin}/{name}")
    partition, offset = stored["br"][2]
    assert crawl.told("pages", "cat", f"{partition}:{offset}", "--text") == f"{HTML.decode()}\n"

    heard = len(site.heard)
    crawl.told("replay", "--group", "parse", "--to-earliest", "--execute")
    assert crawl.run() == rows
    assert len([path for path, _ in site.heard[heard:] if path != "/robots.txt"]) == 0

    again = crawl.run("--fresh")
    modified = {name for name, row in again.items() if row["status"] != 304}
    assert modified == REFUSED.keys(), "what could not be unpacked is asked for as a whole"
    for name, row in again.items():
        assert row | {"status": 200, "fetched_at": 0} == rows[name] | {"fetched_at": 0}
    asked = [path.strip("/") for path, headers in site.heard[heard:] if "If-None-Match" in headers]
    assert set(asked) == {"", *BODIES} - {"liar"}, "fetch itself saw that this one is no gzip"
