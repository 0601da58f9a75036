"""A job whose spider is mended while a fleet works: another version, letters redriven, stored pages parsed again."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawlog.streams.crash_points import VARIABLE
from tests.support.crawls import PAGES, Numbered, data, there
from tests.support.processes import crawlog, done, ended, until

__all__ = ["data", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUICK = ("-s", "network.allow_private=true", "-s", "service.enabled=false", "-s", "politeness.delay_s=0")

SHOP = """
import crawlog

class Shop(crawlog.Spider):
    name = "shop"
    follow_links = True

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        if number in {broken}:
            raise ValueError("the page has another layout")
        yield {{"version": {version}, "page": number}}
"""


@pytest.fixture
def partitions() -> int:
    """Two: each has stored pages of the job."""
    return 2


@pytest.fixture
def sites() -> Iterator[tuple[Numbered, Numbered]]:
    """One that is crawled, and one of another job, which answers only at the end."""
    first, second = Numbered(), Numbered()
    second.holds_from = 3
    yield first, second
    for one in (first, second):
        one.goes_on.set()
        one.close()


def test_a_mended_spider_parses_the_stored_pages_again_while_another_job_goes_on(
    tmp_path: Path,
    data: Path,
    there: list[str],
    sites: tuple[Numbered, Numbered],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parse workers die amid that. The rows are those of the new code, and no page is fetched again."""
    shop, other = sites
    spent, folder, rows = tmp_path / "spent", tmp_path / "shop", data / "outputs" / "shop" / "rows.jsonl"
    spent.mkdir()
    folder.mkdir()

    def ask(*words: object) -> str:
        """Standard output of a command that succeeds."""
        process = crawlog(*words, "--data", data, *there)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out

    def job(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ask("jobs", "show", name, "--json"))
        return found

    def deploy(version: int, broken: set[int]) -> None:
        (folder / "spiders.py").write_text(SHOP.format(version=version, broken=broken or "()"))
        ask("deploy", folder, "--version", version)

    monkeypatch.setenv(VARIABLE, f"{spent} parse.again.noting:2 parse.again.noted:1")
    done(crawlog("up", "--data", data, "--workers", "fetch=1,parse=2", *there, *QUICK))
    deploy(1, {7, 12})
    private = ("-s", "network.allow_private=true", "-s", "robots.obey=false", "-s", "politeness.delay_s=0")
    submit = ("submit", "--project", "shop", "--spider", "shop", "-o", "rows.jsonl", "--job", "shop", *private)
    code, summary, err = ended(crawlog(*submit, shop.url, "--wait", "--json", "--data", data, *there))
    assert (code, summary["dead"]) == (4, 2), err
    ask("submit", other.url, "--job", "other", *private)
    until(lambda: other.asked.total() >= 3, "the other job's pages")

    deploy(2, set())
    ask("jobs", "update", "shop", "--version", 2, "--parse-again")
    assert "2 records went back" in ask("jobs", "retry", "shop", "--dead")
    until(lambda: job("shop")["outputs"][0]["state"] == "complete", "the end of the mended job")
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert Counter(one["page"] for one in found) == Counter(range(1, PAGES + 1))
    assert {one["version"] for one in found} == {2}
    assert set(shop.asked.values()) == {1}
    assert {file.name for file in spent.iterdir()} == {"parse.again.noting", "parse.again.noted"}
    shown = job("shop")
    assert (shown["state"], shown["dead"]) == ("finished", 0)
    assert (shown["parsed_again"]["is_done"], shown["parsed_again"]["read"]) == (True, 1.0)
    assert shown["parsed_again"]["pages"] >= PAGES - 2
    assert job("other")["state"] == "running"
