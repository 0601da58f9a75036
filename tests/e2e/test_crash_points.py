"""Crash points: they are where the table says, and a crawl in which a worker dies at each of them loses nothing."""

import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from crawlog.streams.crash_points import POINTS, VARIABLE
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from crawlog.streams.state.restore import RESTORE_CHANGES
from crawlog.streams.state.verify import verify
from tests.support.cluster import ROOT, Cluster, log_of, needs_site
from tests.support.warcs import written

IN_WORKERS = [
    name
    for name in POINTS
    if name.partition(".")[0] in ("fold", "checkpoint", "fetch", "commit", "parse", "sink", "store", "warc")
]
LOST_DONES = ("restore.dones.sending", "restore.dones.acknowledged")
PARSE_AGAIN = {"parse.again.noting", "parse.again.noted"}
NOT_HERE = {"parse.dead.sending", "fetch.began.sending", "fetch.began.acknowledged", *PARSE_AGAIN}
"""Only garbage leads there, a request that is never sent twice (`test_sessions.py`), or `test_parse_again.py`."""


def test_the_table_names_exactly_the_points_in_the_code() -> None:
    """A point that nobody reaches would be a check that cannot fail."""
    called = re.compile(r'crash_points\.point(?:\(|,)\s*"([^"]+)"')
    sources = [file for folder in ("schemas", "streams", "agents", "crawlog") for file in (ROOT / folder).rglob("*.py")]
    assert {name for file in sources for name in called.findall(file.read_text())} == set(POINTS)


@pytest.mark.parametrize(
    "spec",
    ["{} nowhere:1", "{} fold.taken", "{} fold.taken:0", "{} fold.taken:1:pause", "{}", "/no/such/folder fold.taken:1"],
)
def test_a_wrong_setting_is_refused_at_the_start(tmp_path: Path, spec: str) -> None:
    """With the form and the points that there are."""
    done = _python(tmp_path, spec, "import crawlog.streams.crash_points")
    assert done.returncode == 1
    assert "FOLDER POINT:COUNT" in done.stderr


def test_a_process_dies_at_the_count_and_only_once(tmp_path: Path) -> None:
    """The file that it leaves keeps the next one alive."""
    program = "from crawlog.streams import crash_points as crash\n"
    program += "for n in range(3): print(n, flush=True); crash.point('fold.taken')"
    first, second = (_python(tmp_path, "{} fold.taken:2", program) for _ in range(2))
    assert (first.returncode, first.stdout.split()) == (-9, ["0", "1"])
    assert (second.returncode, second.stdout.split()) == (0, ["0", "1", "2"])


def _python(folder: Path, spec: str, program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {VARIABLE: spec.format(folder)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.broker
@pytest.mark.slow
@needs_site
def test_a_crawl_whose_workers_die_at_every_point_once_has_every_page_once(tmp_path: Path, cluster: Settings) -> None:
    """Some twenty deaths in one crawl; `python -m bench.crashes` tries each point alone, and those of the commands."""
    wanted = set(IN_WORKERS) - NOT_HERE
    spent = tmp_path / "spent"
    spent.mkdir()
    settings = {"fetch.concurrency": 8, "politeness.delay_s": 0.2, "recrawl.age": 86_400} | log_of(cluster)
    with Cluster(tmp_path, hosts=10, pages=40, settings=settings) as crawl:
        counts = (
            f"{name}:{1 if name.startswith(('sink.', 'store.', 'warc.')) else 2}" for name in sorted(wanted)
        )  # a sink may take all at once
        crawl.environment = {VARIABLE: " ".join([str(spent), *counts])}
        folder = tmp_path / "warc"
        outputs = ["-o", f"warc:{folder}", "-o", f"sqlite:{tmp_path}/rows.db"]
        crawl.start("--workers", "fetch=3,parse=2", *outputs)  # each worker has a back-off of its own
        summary = crawl.finish()
        rows = crawl.rows()
        assert {file.name for file in spent.iterdir()} == wanted
        assert set(rows) == crawl.urls
        assert set(rows.values()) == {1}
        with closing(sqlite3.connect(tmp_path / "rows.db")) as table:
            assert sorted(url for (url,) in table.execute("SELECT url FROM items")) == sorted(rows)
        assert (summary["dead"], summary["queued"]) == (0, 0)
        assert crawl.site.stats().private == 0
        archived = Counter(url for kind, url in written(folder).elements() if kind in ("response", "revisit"))
        assert archived.keys() >= crawl.urls
        assert set(archived.values()) == {1}


@pytest.mark.broker
@pytest.mark.slow
@needs_site
@pytest.mark.long
def test_a_page_whose_done_was_lost_is_not_requested_again(tmp_path: Path, cluster: Settings) -> None:
    """The page is in the log when its worker dies; the next one writes the done, and dies of that twice."""
    deaths = {"fetch.page.acknowledged": 5, "fetch.done.sending": 9} | dict.fromkeys(LOST_DONES, 1)
    spent = tmp_path / "spent"
    spent.mkdir()
    settings = {"fetch.concurrency": 1, "politeness.delay_s": 0.05} | log_of(cluster)
    with Cluster(tmp_path, hosts=2, pages=20, settings=settings) as crawl:
        crawl.environment = {VARIABLE: " ".join([str(spent), *(f"{name}:{count}" for name, count in deaths.items())])}
        crawl.start()
        crawl.finish()
        assert {file.name for file in spent.iterdir()} == set(deaths)
        assert crawl.rows() == dict.fromkeys(crawl.urls, 1)
        assert crawl.site.stats().duplicates == 0
        state = load(crawl.settings | {"run.data": str(crawl.data)})
        assert all(verdict.equal for verdict in verify(state, crawl.data / "state"))


@pytest.mark.broker
@pytest.mark.slow
@needs_site
@pytest.mark.long
def test_a_worker_that_dies_after_a_checkpoint_amid_a_restore_goes_on_from_there(
    tmp_path: Path, cluster: Settings
) -> None:
    """It takes a log of many URLs to get there: another job's, which is not crawled."""
    many, spent, point = tmp_path / "many.txt", tmp_path / "spent", "restore.checkpointed"
    many.write_text("".join(f"http://many.example/{n}\n" for n in range(RESTORE_CHANGES * 6 // 10)))
    spent.mkdir()
    with Cluster(tmp_path, hosts=4, pages=10, settings={"politeness.delay_s": 0.1} | log_of(cluster)) as crawl:
        pairs = [f"-s{key}={value}" for key, value in log_of(cluster).items()]
        command = [sys.executable, "-m", "crawlog", "seed", str(many), "--job", "many", "--data", str(crawl.data)]
        subprocess.run([*command, *pairs], check=True)
        crawl.environment = {VARIABLE: f"{spent} {point}:1"}
        crawl.start()
        crawl.finish()
        assert (spent / point).exists()
        assert crawl.rows() == dict.fromkeys(crawl.urls, 1)
        settings = load(crawl.settings | {"run.data": str(crawl.data)})
        assert all(verdict.equal for verdict in verify(settings, crawl.data / "state"))
