"""Jobs on a real `crawlog up`, by the command line: submitted, followed, steered; and its workers, told to end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.crawls import PAGES, Numbered, workers
from tests.support.processes import Process, crawlog, done, ended, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PRIVATE = ["-s", "network.allow_private=true", "-s", "robots.obey=false"]
SLOW = [*PRIVATE, "-s", "politeness.delay_s=10"]
"""40 pages take over 6 minutes: no job ends before it is steered, on however slow a machine."""

WORKERS = ["--workers", "fetch=1,parse=2", *PRIVATE]
FAST = [*PRIVATE, "-s", "politeness.delay_s=0"]

PATIENT = """
from crawlog.jobs import joined
joined.AGAIN_S = 180.0
from crawlog.__main__ import main
main()
"""
"""The command line, for a second Ctrl-C that may come late."""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of a running `up`; one of its parse workers owns no partition."""
    monkeypatch.setenv("CRAWLOG_KAFKA__PARTITIONS", "1")
    data = tmp_path / "data"
    done(crawlog("up", "--data", data, *WORKERS))
    yield data
    crawlog("down", "--data", data).communicate()


def ask(fleet: Path, *words: object) -> str:
    """Standard output of a command that succeeds."""
    process = crawlog(*words, "--data", fleet)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def state(fleet: Path, name: str) -> str:
    """A job's state; empty if there is none."""
    jobs = [json.loads(line) for line in ask(fleet, "jobs", "--json").splitlines()]
    return next((str(one["state"]) for one in jobs if one["name"] == name), "")


def heard(process: Process, words: str) -> None:
    """Waits until a command has said something."""
    assert process.stderr is not None
    while words not in (line := process.stderr.readline()):
        assert line, f"it ended without {words!r}"


def test_a_fleet_works_off_what_is_submitted_and_obeys(fleet: Path) -> None:
    """One engine for all of it: each part takes seconds."""
    site = Numbered()
    try:
        _crawls(fleet, site)
        _fills_outputs(fleet)
        _reaches_its_limit(fleet)
        _steers(fleet, site)
        _detaches(fleet, site)
        _pauses_a_worker(fleet)
        _ends_workers(fleet)
    finally:
        site.close()


@pytest.mark.long
def test_who_follows_a_job_goes_on_after_down_and_up(fleet: Path) -> None:
    """The engine has another password then; the command hung for ever."""
    site, rows = Numbered(), fleet.parent / "rows.jsonl"
    try:
        brisk = [*PRIVATE, "-s", "politeness.delay_s=0.1"]
        words = ["run", site.url, *brisk, "--job", "e", "-o", rows, "--json", "--data", fleet]
        attached = crawlog(*words)
        until(lambda: site.asked.total() > 2, "some pages")
        lines = crawlog("jobs", "logs", "e", "-f", "--data", fleet)
        done(crawlog("down", "--data", fleet))
        done(crawlog("up", "--data", fleet, *WORKERS))
        code, summary, err = ended(attached)
        assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err
        assert lines.poll() is None
        lines.kill()
    finally:
        site.close()


def _fills_outputs(fleet: Path) -> None:
    """A finished job gets another output, filled from the log; an output is emptied and filled again."""
    job = next(str(one["name"]) for one in map(json.loads, ask(fleet, "jobs", "--json").splitlines()))
    more = fleet / "outputs" / job / "more.csv"
    ask(fleet, "outputs", "add", job, "-o", more.name)
    until(lambda: more.exists() and state(fleet, job) == "finished", "the output that was added")
    rows = more.read_text()
    assert len(rows.splitlines()) == PAGES + 1
    more.write_text("of somebody else")
    again = ["replay", "--group", "sink", "--job", job, "--output", more.name, "--to-earliest"]
    assert ask(fleet, *again) == ""
    assert more.read_text() == "of somebody else"
    ask(fleet, *again, "--execute")
    until(lambda: more.read_text() == rows and state(fleet, job) == "finished", "the output that is filled again")


def _crawls(fleet: Path, site: Numbered) -> None:
    code, summary, err = ended(crawlog("submit", site.url, *FAST, "--job", "a", "--wait", "--json", "--data", fleet))
    assert (code, summary["reason"], summary["fetched"]) == (0, "finished", PAGES), err
    rows = fleet.parent / "rows.jsonl"
    attached = crawlog("run", site.url, *FAST, "--job", "b", "-o", rows, "--json", "--data", fleet)
    code, summary, err = ended(attached)
    assert (code, summary["reason"], summary["rows"]) == (0, "finished", PAGES), err
    assert summary["pages"] == PAGES
    assert len(rows.read_text().splitlines()) == PAGES
    assert (state(fleet, "a"), state(fleet, "b")) == ("finished", "finished")
    code, summary, err = ended(crawlog("run", site.url, *FAST, "--job", "b", "-o", rows, "--json", "--data", fleet))
    assert (code, summary["rows"], site.pages()["/1"]) == (0, PAGES, 2), err
    assert (summary["reason"], summary["pages"]) == ("already_finished", 0)
    page = json.loads(ask(fleet, "why", site.url, "--job", "a", "--json"))
    place = next(f"{one['partition']}:{one['offset']}" for one in page["events"] if one["kind"] == "page")
    assert "<title>1</title>" in ask(fleet, "pages", "cat", place)
    assert json.loads(ask(fleet, "pages", "cat", place, "--headers"))["http"] == 200


def _reaches_its_limit(fleet: Path) -> None:
    site = Numbered()
    site.holds_from = PAGES // 2  # however late the limit is noticed
    limited = crawlog("submit", site.url, *FAST, "--max-pages", 3, "--job", "l", "--wait", "--json", "--data", fleet)
    until(lambda: state(fleet, "l") == "stopped", "the limit", limited)
    site.goes_on.set()
    code, summary, err = ended(limited)
    assert (code, summary["reason"]) == (0, "max_pages"), err
    code, _, err = ended(crawlog("jobs", "resume", "l", "--data", fleet))
    assert code == 2
    assert "with more than 3 lets it go on" in err
    code, summary, err = ended(crawlog("submit", "--job", "l", "--max-pages", 999, "--wait", "--json", "--data", fleet))
    assert (code, summary["reason"]) == (0, "finished"), err
    shown = json.loads(ask(fleet, "jobs", "show", "l", "--json"))
    assert (shown["counts"]["fetched"], shown["settings"]["run.max_pages"]) == (PAGES, 999)
    site.close()


def _steers(fleet: Path, site: Numbered) -> None:
    assert ask(fleet, "submit", site.url, *SLOW, "--job", "c").strip() == "c"
    ask(fleet, "jobs", "pause", "c")
    assert state(fleet, "c") == "paused"
    ask(fleet, "jobs", "resume", "c")
    assert state(fleet, "c") in ("running", "pending")
    shown = json.loads(ask(fleet, "jobs", "show", "c", "--json"))
    assert shown["settings"]["politeness.delay_s"] == 10.0
    ask(fleet, "jobs", "cancel", "c")
    assert state(fleet, "c") == "cancelled"
    ask(fleet, "jobs", "delete", "c")
    assert state(fleet, "c") == ""
    code, _, err = ended(crawlog("jobs", "show", "c", "--data", fleet))
    assert code == 2
    assert "there is no job 'c'" in err


def _detaches(fleet: Path, site: Numbered) -> None:
    words = ("run", site.url, *SLOW, "--job", "d", "--data", fleet)
    first = crawlog(*words)
    heard(first, "job d")
    until(lambda: state(fleet, "d") == "running", "the first page")
    first.send_signal(signal.SIGINT)
    _, err = first.communicate()
    assert first.returncode == 130
    assert "crawlog jobs cancel d" in err
    assert state(fleet, "d") == "running"
    second = Process([sys.executable, "-c", PATIENT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    heard(second, "job d")
    second.send_signal(signal.SIGINT)
    heard(second, "detached")
    second.send_signal(signal.SIGINT)
    assert second.wait() == 7
    assert state(fleet, "d") == "cancelled"


def _listed(fleet: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ask(fleet, "workers", "--json").splitlines()]


def _parsing(fleet: Path) -> dict[str, list[int]]:
    """Partitions of the parse workers that are listed."""
    return {one["id"]: one["partitions"] for one in _listed(fleet) if one["stage"] == "parse"}


def _lost(fleet: Path) -> set[tuple[str, str, bool]]:
    """Name and end of the workers that have ended, and whether another process of the name came."""
    lost = [json.loads(line) for line in ask(fleet, "workers", "lost", "--json").splitlines()]
    return {(one["id"], one["reason"].partition(" by ")[0], one["is_replaced"]) for one in lost}


def _pauses_a_worker(fleet: Path) -> None:
    """It keeps its partitions, and the job that waits for it names it."""
    site = Numbered()
    try:
        ask(fleet, "workers", "pause", "fetch-0")
        until(lambda: any(one["paused"] for one in _listed(fleet)), "the pause")
        ask(fleet, "submit", site.url, *FAST, "--job", "p")
        shown = json.loads(ask(fleet, "jobs", "show", "p", "--json"))
        assert (shown["state"], shown["paused_workers"], site.pages()) == ("pending", ["fetch-0"], {})
        paused = next(one for one in _listed(fleet) if one["id"] == "fetch-0")
        assert (paused["partitions"], paused["is_held"], paused["is_coordinator"]) == ([0], True, True)
        ask(fleet, "workers", "resume", "fetch-0")
        until(lambda: state(fleet, "p") == "finished", "the job that waited")
    finally:
        site.close()


def _ends_workers(fleet: Path) -> None:
    before = workers(fleet)
    parsing = _parsing(fleet)
    waiting, owner = sorted(parsing, key=parsing.__getitem__)
    assert (parsing[waiting], parsing[owner]) == ([], [0])

    def is_another(name: str) -> bool:
        return workers(fleet).get(name, before[name]) != before[name]

    for name in ("fetch-0", waiting):
        ask(fleet, "workers", "stop", name)
        until(partial(is_another, name), "another process")
    os.kill(workers(fleet)["fetch-0"], signal.SIGKILL)
    ask(fleet, "workers", "drain", owner)
    until(lambda: owner not in workers(fleet), "the drained one to end")
    again = {(waiting, "stopped", True), ("fetch-0", "stopped", True), ("fetch-0", "killed", True)}
    until(lambda: _lost(fleet) == again | {(owner, "drained", False)}, "the list of those that ended")
    until(lambda: _parsing(fleet).get(waiting) == [0], "the one that waited to own its partition")
    assert {one["supervisor"] for one in _listed(fleet) if one["stage"] in ("fetch", "parse")} == {"up"}
    assert owner not in workers(fleet)
    code, _, err = ended(crawlog("workers", "stop", "fetch-9", "--data", fleet))
    assert code == 2
    assert "no worker 'fetch-9' reports; there are: " in err


LATE = """
from pathlib import Path
from crawlog import Spider


class Late(Spider):
    follow_links = True

    def parse(self, response):
        if response.url.endswith("/7") and not Path({mended!r}).exists():
            raise ValueError("not mended")
        yield {{"url": response.url, "word": {word!r}}}
"""


@pytest.mark.long
def test_rows_that_come_after_the_end_of_a_job_reach_its_file(fleet: Path) -> None:
    """Of a page that was redriven, and of pages that were parsed again; the same command makes a lost FILE again."""
    site, spider, mended = Numbered(), fleet.parent / "late.py", fleet.parent / "mended"
    made = fleet / "outputs" / "j" / "rows.jsonl"

    def rows(word: str) -> bool:
        found = [json.loads(line) for line in made.read_text().splitlines()] if made.exists() else []
        return len(found) == PAGES and {row["word"] for row in found} == {word}

    def submitted() -> int:
        words = ["submit", site.url, *FAST, "--spider", spider, "-o", made.name, "--job", "j", "--wait", "--json"]
        return ended(crawlog(*words, "--data", fleet))[0]

    try:
        spider.write_text(LATE.format(mended=str(mended), word="old"))
        assert submitted() == 4
        assert len(made.read_text().splitlines()) == PAGES - 1
        mended.touch()
        ask(fleet, "dead", "redrive", "--all", "--execute")
        until(lambda: rows("old"), "the row of the redriven page")
        until(lambda: state(fleet, "j") == "finished", "the job's next end")
        made.unlink()
        submitted()
        assert rows("old")
        done(crawlog("down", "--data", fleet))
        spider.write_text(LATE.format(mended=str(mended), word="new"))
        done(crawlog("replay", "--group", "parse", "--job", "j", "--to-earliest", "--execute", "--data", fleet))
        done(crawlog("up", "--data", fleet, *WORKERS))
        until(lambda: rows("new"), "the rows of pages that were parsed again")
        assert set(site.pages().values()) == {1}
    finally:
        site.close()


PIPED = """
import time
from pathlib import Path
from crawlog import Spider


class Noted:
    def process_item(self, item):
        with Path({noted!r}).open("a") as file:
            print(item["url"], file=file)
        time.sleep(0.05)
        if item["url"].endswith("/7"):
            raise ValueError("broken")
        return {{"passed": item["url"]}}


class Piped(Spider):
    follow_links = True
    pipelines = [Noted]

    def parse(self, response):
        yield {{"url": response.url}}
"""


@pytest.mark.long
def test_pipelines_run_where_no_output_of_the_fleet_is_wanted(fleet: Path) -> None:
    """By `run`, whose FILE has the rows that they made, and by `submit`; both wait for them."""
    site, spider, noted = Numbered(), fleet.parent / "piped.py", fleet.parent / "noted"
    file = fleet.parent / "rows.jsonl"
    spider.write_text(PIPED.format(noted=str(noted)))
    words = [site.url, *FAST, "--spider", spider, "--json", "--data", fleet]

    def passed() -> int:
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    try:
        code, summary, err = ended(crawlog("run", *words, "--job", "r", "-o", file))
        assert (code, summary["rows"], summary["dead"]) == (4, PAGES - 1, 1), err
        assert all(list(json.loads(line)) == ["passed"] for line in file.read_text().splitlines())
        assert "as they were scraped" not in err
        assert passed() == PAGES
        code, summary, err = ended(crawlog("submit", *words, "--job", "s", "--wait"))
        assert (code, summary["dead"]) == (4, 1), err
        assert passed() == 2 * PAGES
    finally:
        site.close()


SHARED = """
from pathlib import Path
from crawlog import Spider


class Noted:
    def open_spider(self):
        self.note("opened")

    def process_item(self, item):
        self.note(item["url"])
        return item

    def close_spider(self):
        self.note("closed")

    def note(self, word):
        with Path({noted!r}).open("a") as file:
            print(word, file=file)


class Shared(Spider):
    follow_links = True
    pipelines = [Noted]

    def parse(self, response):
        yield {{"url": response.url}}
"""


@pytest.mark.long
def test_items_pass_the_pipelines_once_for_two_outputs_of_a_job_whose_worker_dies_between_them(tmp_path: Path) -> None:
    """It dies when one has its rows: what a pipeline does outside is not done again for the other one."""
    data, spider, noted, spent = (tmp_path / name for name in ("data", "shared.py", "noted", "spent"))
    spent.mkdir()
    spider.write_text(SHARED.format(noted=str(noted)))
    site, made = Numbered(), data / "outputs" / "j"
    try:
        environ = os.environ | {"CRAWLOG_CRASH": f"{spent} copy.written:1"}
        done(crawlog("up", "--data", data, *WORKERS, env=environ))
        words = ["-o", "rows.jsonl", "-o", "table.csv", "--spider", spider, "--job", "j", "--wait", "--data", data]
        done(crawlog("submit", site.url, *FAST, *words))
        until(lambda: all((made / name).exists() for name in ("rows.jsonl", "table.csv")), "both files")
        urls = sorted(json.loads(line)["url"] for line in (made / "rows.jsonl").read_text().splitlines())
        assert len(urls) == PAGES
        assert sorted((made / "table.csv").read_text().split()[1:]) == urls
        assert sorted(noted.read_text().split()) == sorted(["opened", "closed", *urls])
        assert [path.name for path in spent.iterdir()] == ["copy.written"]
    finally:
        crawlog("down", "--data", data).communicate()
        site.close()
