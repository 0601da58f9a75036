"""What a run says of a site that gives no pages, in the terminal, in the log of its job and of each URL."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crawls import data, there
from tests.support.processes import crawlog, ended
from tests.support.sites import Answer, Threaded

__all__ = ["data", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SPIDER = """
from crawlog import Spider


class Shop(Spider):
    settings = {"politeness.delay_s": 0.01, "fetch.attempts": 1, "robots.obey": False, "network.allow_private": True}

    def __init__(self, origin, paths):
        self.start_urls = [f"{origin}/{path}" for path in paths.split(",")]

    def parse(self, response):
        if response.url.endswith("api"):
            yield response.json()
"""


@pytest.fixture
def site() -> Iterator[Threaded]:
    """Answers with the status that a path names, and with JSON at `/api`."""

    def answer(path: str) -> Answer:
        name = path.strip("/")
        return (int(name), "text/html", b"<p>no") if name.isdigit() else (200, "application/json", b'{"a": 1}')

    made = Threaded(answer)
    yield made
    made.close()


def told(*command: object) -> str:
    """What a command prints."""
    process = crawlog(*command)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


def test_a_site_that_refuses_is_not_green(site: Threaded, data: Path, there: list[str]) -> None:
    """Its statuses are in the summary, in `jobs show`, line by line in the job's log, and in `why` of each URL."""
    data.parent.joinpath("shop.py").write_text(SPIDER)
    about = ["--data", data, *there]
    spider = ["--spider", data.parent / "shop.py", "-a", f"origin={site.origin}", "--job", "shop"]
    run = crawlog("run", *spider, "-a", "paths=403,500,404", "-o", data.parent / "rows.jsonl", "--json", *about)
    code, summary, err = ended(run)
    assert (code, summary["fetched"], summary["rows"]) == (6, 3, 0), err
    assert summary["statuses"] == {"403": 1, "500": 1, "404": 1}
    assert "finished, and no answer was a page" in err
    assert "  no page: 1 × status " in err
    assert "1 × status 403" in told("jobs", "show", "shop", *about)
    lines = [json.loads(line) for line in told("jobs", "logs", "shop", "--json", *about).splitlines()]
    unread = {line["url"].rpartition("/")[2]: line["text"] for line in lines if line["source"] == "no_callback"}
    assert unread == {status: f"reason=status {status}" for status in ("403", "500", "404")}
    assert "no callback ran: status 403" in told("why", f"{site.origin}/403", *about)


def test_a_json_start_url_gives_its_rows_and_a_page_without_a_row_is_named(
    site: Threaded, data: Path, there: list[str]
) -> None:
    """The default spider, which takes links of HTML alone, names the setting."""
    data.parent.joinpath("shop.py").write_text(SPIDER)
    about = ["--data", data, "-o", data.parent / "rows.jsonl", "--json", *there]
    spider = ["--spider", data.parent / "shop.py", "-a", f"origin={site.origin}", "-a", "paths=api,200"]
    code, summary, err = ended(crawlog("run", *spider, *about))
    assert (code, summary["rows"], summary["first_rowless"]) == (0, 1, f"{site.origin}/200"), err
    assert data.parent.joinpath("rows.jsonl").read_text() == '{"a":1}\n'
    assert f"  1 page gave no row, the first: {site.origin}/200" in err
    options = ["-s", "network.allow_private=true", "-s", "robots.obey=false"]
    code, summary, err = ended(crawlog("run", f"{site.origin}/api", *options, *about))
    assert (code, summary["no_page"]) == (0, {"application/json": 1}), err
    assert "  body not kept: 1 × application/json; the setting fetch.content_types lists the types that are" in err
