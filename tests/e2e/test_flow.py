"""Jobs that are connected with others, on a real `crawlog up` whose processes are all killed in between."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.crawls import PAGES, Numbered, on_folder
from tests.support.processes import LIMIT_S, crawlog, done, until

pytestmark = [pytest.mark.broker, pytest.mark.slow]

OPTIONS = ["-s", "network.allow_private=true", "-s", "robots.obey=false", "-s", "politeness.delay_s=0.02"]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data folder of a running `up`."""
    monkeypatch.setenv("CRAWLOG_KAFKA__PARTITIONS", "2")
    data = tmp_path / "data"
    _up(data)
    yield data
    crawlog("down", "--data", data).communicate()


def _up(data: Path) -> None:
    done(crawlog("up", "--data", data, "--workers", "fetch=1,parse=1", *OPTIONS))


def kill_all(data: Path) -> None:
    """Kills every process of a data folder, the broker too, as a power cut of the machine would end them."""
    supervisor = psutil.Process(json.loads((data / "run" / "holder.json").read_text())["pid"])
    family = [supervisor, *supervisor.children(recursive=True), *on_folder(data)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, LIMIT_S)


def submit(data: Path, name: str, *words: object) -> None:
    """Submits a job."""
    done(crawlog("submit", *words, "--job", name, *OPTIONS, "--data", data, "--json"))


def job(data: Path, name: str) -> dict[str, Any]:
    """A job, as `jobs show` has it."""
    out, err = crawlog("jobs", "show", name, "--json", "--data", data).communicate()
    assert out, err
    shown: dict[str, Any] = json.loads(out)
    return shown


def test_a_chain_a_group_a_last_job_and_a_feed_end_in_their_order_over_a_kill_of_everything(fleet: Path) -> None:
    """All are submitted first. Each job asks for another site, which shows when it began, and for which pages."""
    lists, other, chained, last = (Numbered(last=number) for number in (PAGES, 3, 3, 3))
    sites = (lists, other, chained, last)
    lists.holds_from = PAGES // 2
    try:
        submit(fleet, "lists", lists.url, "--group", "night")
        submit(fleet, "fed", "--feed", "lists:url", "--group", "night", "-o", "fed.jsonl")
        submit(fleet, "other", other.url, "--group", "night", "--after", "fed")
        submit(fleet, "chained", chained.url, "--after", "lists", "--after", "other")
        submit(fleet, "last", last.url, "--after", "group:night", "--after", "chained")
        assert job(fleet, "last")["reason"] == "after lists, fed, other and 1 more"
        until(lambda: len(lists.pages()) >= lists.holds_from, "half of the pages")
        kill_all(fleet)
        lists.goes_on.set()
        assert not other.asked
        _up(fleet)
        until(lambda: job(fleet, "last")["state"] == "finished", "the last job")
        views = {name: job(fleet, name) for name in ("lists", "fed", "other", "chained", "last")}
        assert {one["state"] for one in views.values()} == {"finished"}
        ends = {name: one["ended_at"] for name, one in views.items()}
        assert ends["lists"] < ends["fed"] < ends["other"] < ends["chained"] < ends["last"]
        rows = [json.loads(line)["url"] for line in (fleet / "outputs/fed/fed.jsonl").read_text().splitlines()]
        assert sorted(rows) == sorted(f"{lists.origin}/{number}" for number in range(1, PAGES + 1))
        assert [site.pages().keys() for site in sites[1:]] == [{"/1", "/2", "/3"}] * 3
        assert views["fed"]["feeds"][0]["state"] == "complete"
    finally:
        for site in sites:
            site.close()
