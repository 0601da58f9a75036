"""Scrapyd's plain pages: their columns, folders, links and headers."""

import re
from collections.abc import AsyncIterator, Iterator

import pytest
import requests

from crawlog.schemas.log_lines import LogLine
from crawlog.service.pages import runtime
from crawlog.service.scrapyd_fleet import ScrapydJob
from tests.support.scrapyd_service import ToldFleet, ask, served

CELL = r"<td>(.*?)</td>\s*"
JOB_ROW = re.compile(rf"<tr>\s*{CELL * 9}[\w\W]*?</tr>")
"""A reader of the page, such as ScrapydWeb, finds the columns by their order, each on one line."""
FILE_ROW = re.compile(
    r'<tr class="(?:odd|even)">\n'
    r"\s+<td>(.*?)</td>\n\s+<td>(.*?)</td>\n\s+<td>(.*?)</td>\n\s+<td>(.*?)</td>\n\s+<td>(.*?)</td>\n\s+</tr>".replace(
        r"\n\s+</tr>", r"\n</tr>"
    )
)


@pytest.fixture
def fleet() -> ToldFleet:
    """A project with a job in each state, and a job without a project."""
    jobs = [
        ScrapydJob("p", "quotes", "one", "pending", 1.0),
        ScrapydJob("r", "quotes", "one", "running", 1.0, 1_000.0),
        ScrapydJob("e", "quotes", "two", "finished", 1.0, 1_000.5, 1_065.5),
        ScrapydJob("x", "default", "default", "finished", 1.0, 1_000.0, 1_001.0),
    ]
    return ToldFleet(
        all_jobs={job.id: job for job in jobs},
        all_projects={"quotes": {"r1": ("one",)}},
        logged=[
            LogLine(0.0, "Spider opened", "info", "scrapy.core.engine"),
            LogLine(1.0, "<b>\x1b[31m\nünïcode", "error", url="http://x.test/"),
        ],
        items=[b'{"a": 1}\n', b'{"b": "<b>"}\n'],
    )


@pytest.fixture
def address(fleet: ToldFleet) -> Iterator[str]:
    """Of the service."""
    with served(fleet) as url:
        yield url


def _get(url: str, **headers: str) -> requests.Response:
    return ask("GET", url, headers=headers)


def test_jobs_are_rows_in_the_columns_of_scrapyd(address: str) -> None:
    """Pending, running, finished; times are this machine's, without fractions; no process id."""
    text = _get(f"{address}/jobs").text
    assert "<h1>Jobs</h1>" in text
    rows = {row[2]: row for row in JOB_ROW.findall(text)}
    assert list(rows) == ["p", "r", "e", "x"]
    assert rows["p"] == ("quotes", "one", "p", "", "", "", "", "", "")
    project, spider, job, pid, start, took, finish, log, items = rows["e"]
    assert (project, spider, job, pid, took) == ("quotes", "two", "e", "", "0:01:05")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", start)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", finish)
    assert log == '<a href="/logs/quotes/two/e.log">Log</a>'
    assert items == '<a href="/items/quotes/two/e.jl">Items</a>'
    assert (rows["r"][6], bool(rows["r"][4])) == ("", True)


def test_jobs_that_have_not_ended_have_a_button(address: str) -> None:
    """A form with project and job; no script asks whether one is sure."""
    text = _get(f"{address}/jobs").text
    assert re.findall(r'name="job" value="(.*?)"', text) == ["p", "r"]
    assert text.count('<form method="post" action="/cancel.json">') == 2
    assert "onsubmit" not in text


def test_folders_are_projects_then_spiders_then_files(address: str) -> None:
    """Pending jobs have no files."""
    names = {
        path: [row[0] for row in FILE_ROW.findall(_get(address + path).text)]
        for path in ("/logs/", "/logs/quotes/", "/logs/quotes/one/", "/items/quotes/two/")
    }
    assert names == {
        "/logs/": ['<a href="default/">default/</a>', '<a href="quotes/">quotes/</a>'],
        "/logs/quotes/": ['<a href="one/">one/</a>', '<a href="two/">two/</a>'],
        "/logs/quotes/one/": ['<a href="r.log">r.log</a>'],
        "/items/quotes/two/": ['<a href="e.jl">e.jl</a>'],
    }
    text = _get(f"{address}/logs").text
    assert "<h1>Directory listing for /logs/</h1>" in text
    assert "<th>Last modified</th>" in text


def test_a_log_is_plain_text_in_scrapys_form(address: str) -> None:
    """Control characters are escaped, so that a terminal obeys none."""
    got = _get(f"{address}/logs/quotes/two/e.log")
    assert got.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    first, second = got.text.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[scrapy\.core\.engine\] INFO: Spider opened", first)
    assert second.endswith(" [crawlog] ERROR: <b>\\u001b[31m\\nünïcode (http://x.test/)")


def test_items_are_json_lines_as_plain_text(address: str) -> None:
    """As they stand in the log."""
    got = _get(f"{address}/items/quotes/two/e.jl")
    assert (got.headers["Content-Type"], got.headers["X-Content-Type-Options"]) == (
        "text/plain; charset=utf-8",
        "nosniff",
    )
    assert got.content == b'{"a": 1}\n{"b": "<b>"}\n'


@pytest.mark.parametrize(
    "path",
    [
        "/logs/none/",
        "/logs/quotes/none/",
        "/logs/quotes/one/p.log",
        "/logs/quotes/one/e.log",
        "/logs/quotes/two/e.jl",
        "/logs/quotes/two/e",
        "/logs/quotes/two/.log",
        "/logs/..%2f..%2fetc/",
        "/items/quotes/two/e.log",
        "/items/..%2f..%2fetc%2fpasswd",
        "/jobs/",
    ],
)
def test_what_is_not_there_is_not_found(path: str, address: str) -> None:
    """Files of pending jobs, of other spiders, of other kinds; paths that lead out."""
    got = _get(address + path)
    assert got.status_code == 404


def test_pages_take_no_other_method(address: str) -> None:
    """As Scrapyd's."""
    assert [ask("POST", address + path).status_code for path in ("/jobs", "/logs/")] == [405] * 2
    assert ask("HEAD", f"{address}/jobs").status_code == 200
    assert ask("HEAD", f"{address}/logs/quotes/two/e.log").content == b""


@pytest.mark.parametrize("path", ["/jobs", "/logs/", "/items/quotes/two/", "/items/quotes/two/e.jl"])
def test_no_page_may_run_a_script(path: str, address: str) -> None:
    """Its policy allows the stylesheet and forms of the same origin, no frame, nothing inline."""
    policy = _get(address + path).headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; form-action 'self'")
    assert "unsafe" not in policy
    text = _get(f"{address}/jobs").text
    assert not re.search(r"<script|<style|\son\w+=|\sstyle=", text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9, "0:00:00"), (65, "0:01:05"), (93_784, "1 day, 2:03:04"), (200_000, "2 days, 7:33:20")]
)
def test_durations_are_written_as_python_does(seconds: float, text: str) -> None:
    """As Scrapyd's."""
    assert runtime(seconds) == text
    assert runtime(-5) == "0:00:00"


class _WithoutLog(ToldFleet):
    """A fleet whose log does not answer."""

    async def lines(self, job: str) -> AsyncIterator[LogLine]:
        """None."""
        raise OSError(job)
        yield LogLine(0.0, "")


def test_an_error_before_the_first_line_has_its_status(fleet: ToldFleet) -> None:
    """The answer has not begun."""
    with served(_WithoutLog(all_jobs=fleet.all_jobs)) as address:
        assert _get(f"{address}/logs/quotes/two/e.log").status_code == 500
