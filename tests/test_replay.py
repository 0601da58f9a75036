"""`crawlog replay` on a real broker: stored pages parsed again, nothing asked of the site, FILE made anew."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawlog.streams.engine import Engine
from crawlog.streams.topics import Admin, Topics

sys.path.insert(0, str(Path(__file__).parent))
from test_run import PAGES, Site, crawlog, ended  # the same site and command line

from crawlog.streams.settings import Settings

pytestmark = [pytest.mark.broker, pytest.mark.slow]


class Crawl:
    """A crawl of the small site on the session's broker."""

    def __init__(self, site: Site, cluster: Settings, folder: Path) -> None:
        self.site = site
        self.settings = cluster
        self.file = folder / "rows.jsonl"
        prefix = cluster.kafka.prefix
        self.where = ["--data", folder / "data", "--bootstrap", cluster.kafka.bootstrap, "-s", f"kafka.prefix={prefix}"]

    def run(self, *more: object) -> dict[str, object]:
        """The same command each time; it must end with 0."""
        fast = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0"]
        code, summary, err = ended(crawlog("run", self.site.url, "-o", self.file, "--json", *self.where, *fast, *more))
        assert code == 0, err
        return summary

    def replay(self, *options: object) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        process = crawlog("replay", *options, *self.where)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def rows(self) -> list[str]:
        """The file's URLs, sorted."""
        return sorted(json.loads(line)["url"] for line in self.file.read_text().splitlines())

    def records(self, topic: str) -> int:
        """Records of a topic."""
        return sum(Admin(self.settings).ends((topic,), self.settings.kafka.partitions)[topic])


@pytest.fixture
def crawl(cluster: Settings, tmp_path: Path) -> Iterator[Crawl]:
    """Not begun."""
    site = Site()
    yield Crawl(site, cluster, tmp_path)
    site.close()


def test_stored_pages_are_parsed_again_and_nothing_is_fetched(crawl: Crawl) -> None:
    """Plan, execution, and the next run works it off; then the sink alone, and a file that was lost."""
    assert crawl.run()["rows"] == PAGES
    asked, items, rows = crawl.site.asked.total(), Topics(crawl.settings.kafka.prefix).items, crawl.rows()
    assert crawl.records(items) == PAGES

    code, out, err = crawl.replay("--group", "parse", "--to-earliest", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert (plan["again"], plan["gone"], plan["executed"]) == (PAGES, 0, False)
    assert "dry run: nothing was changed" in err

    code, out, err = crawl.replay("--group", "parse", "--to-earliest", "--execute")
    assert code == 0, err
    assert f"{PAGES} pages are parsed again" in err
    assert out.splitlines()[-1].split()[:2] == ["total", str(PAGES)]
    before = time.time()
    summary = crawl.run()
    assert (summary["parsed"], summary["pages"], summary["rows"]) == (PAGES, 0, PAGES)
    assert crawl.records(items) == 2 * PAGES
    assert crawl.file.stat().st_mtime >= before
    assert crawl.rows() == rows

    crawl.file.write_text("lost\n")
    code, out, err = crawl.replay("--group", crawl.file, "--to-earliest", "--execute")
    assert code == 0, err
    assert f"{2 * PAGES} item records are taken again" in err
    assert crawl.run()["rows"] == PAGES
    assert crawl.rows() == rows
    assert crawl.site.asked.total() == asked


def test_a_live_group_is_not_moved(engine: Engine, crawl: Crawl) -> None:
    """The message names the member and how to stop it."""
    process = crawlog(
        "run", crawl.site.url, *crawl.where, "-s", "network.allow_private=true", "-s", "politeness.delay_s=5"
    )
    try:
        while not crawl.site.pages():
            time.sleep(0.1)
        code, out, err = crawl.replay("--group", "parse", "--to-earliest", "--execute")
        assert (code, out) == (2, "")
        assert "the group is live (crawlog-parse: parse-0-" in err
        assert f"kill {process.pid}" in err
    finally:
        process.terminate()
        process.communicate(timeout=30)
