"""Projects with ImagesPipeline and FilesPipeline: items and files are those of Scrapy, which is not killed."""

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.both import Items, by_scrapy, differing, without
from tests.support.crawls import there
from tests.support.gallery import Gallery
from tests.support.processes import until
from tests.support.quotes_runs import QuotesRun
from tests.support.s3 import S3Server, s3_server

__all__ = ["there"]  # a fixture

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]

PAGES = 30


@pytest.fixture
def site() -> Iterator[Gallery]:
    """The site."""
    gallery = Gallery(PAGES)
    yield gallery
    gallery.close()


def files_in(folder: Path) -> dict[str, str]:
    """The digest of each file below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def told(items: Items) -> Items:
    """Without what became of each file: one that was there when its item came again is `uptodate`."""
    rows = [json.loads(item) for item in items.elements()]
    for row in rows:
        for one in row.get("images", ()):
            assert one.pop("status") in ("downloaded", "uptodate")
    return without(rows)


def killed_twice(run: QuotesRun, site: Gallery, asked: int) -> None:
    """Supervisor, workers, their children and the broker, twice; then the run ends by itself."""
    site.latency_s = 0.03
    for share in (0.4, 0.75):
        run.start().reaches(site, int(share * asked))  # type: ignore[arg-type]  # it reads `asked` alone
        run.kill_all()
    site.latency_s = 0.0
    code, summary, err = run.start().end()
    assert (code, summary["dead"]) == (0, 0), err
    assert summary["reason"] in ("finished", "already_finished")  # the last pages may be there before their files


def test_pictures_and_thumbnails_are_scrapys_own_after_two_kills(site: Gallery, tmp_path: Path) -> None:
    """No file is asked for again that was there: only what was under way."""
    theirs, ours = (site.project(tmp_path / name) for name in ("theirs", "ours"))
    items = by_scrapy(theirs, {"pictures": {}})["pictures"]
    asked, site.asked = site.counts(), []
    run = QuotesRun(ours, "pictures", tmp_path)
    killed_twice(run, site, asked.total())
    assert differing(told(run.items()), told(items)) == ""
    files = files_in(theirs / "pictures")
    assert files_in(ours / "pictures") == files
    assert {name.partition("/")[0] for name in files} == {"full", "thumbs"}
    assert set(site.counts()) == set(asked)
    again = site.counts() - asked
    assert sum(count for path, count in again.items() if path.startswith("/img/")) <= 3 * 16, again


def test_redirects_of_files_are_followed_where_the_project_wants_it(
    site: Gallery, there: list[str], tmp_path: Path
) -> None:
    """MEDIA_ALLOW_REDIRECTS; a file keeps the name of the URL that was asked for."""
    theirs, ours = (site.project(tmp_path / name) for name in ("theirs", "ours"))
    items = by_scrapy(theirs, {"moved": {}})["moved"]
    run = QuotesRun(ours, "moved", tmp_path, *there)
    code, _, err = run.start().end()
    assert code == 0, err
    assert differing(told(run.items()), told(items)) == ""
    assert files_in(ours / "moved") == files_in(theirs / "moved")


def test_requests_in_a_callback_give_what_scrapy_gives(site: Gallery, there: list[str], tmp_path: Path) -> None:
    """By two parse workers."""
    theirs, ours = (site.project(tmp_path / name) for name in ("theirs", "ours"))
    items = by_scrapy(theirs, {"inline": {}})["inline"]
    run = QuotesRun(ours, "inline", tmp_path, *there, "--workers", "parse=2")
    code, _, err = run.start().end()
    assert code == 0, err
    assert differing(run.items(), items) == ""


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """A server of S3."""
    with s3_server() as server:
        yield server


def papers(project: Path, folder: Path, server: S3Server, *options: object) -> QuotesRun:
    """A run whose files go to a bucket."""
    env = ",".join(server.environ)
    where = (
        "-s",
        "FILES_STORE=s3://bucket/",
        "-s",
        "FILES_STORE_S3_ACL=public-read",
    )  # this test reads without a login
    run = QuotesRun(project, "papers", folder, *where, "-s", f"spider.env={env}", *options)
    run.environment = server.environ
    return run


def check_bucket(server: S3Server, folder: Path) -> None:
    """The bucket has what Scrapy wrote into a folder."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert len(names) == PAGES
    for name in names:
        assert server.content(name.replace(" ", "%20")) == (folder / name).read_bytes(), name


def test_files_in_s3_are_scrapys_own_after_two_kills(site: Gallery, s3: S3Server, tmp_path: Path) -> None:
    """By a subclass of FilesPipeline with paths of its own; Scrapy's run keeps them in a folder."""
    theirs, ours = (site.project(tmp_path / name) for name in ("theirs", "ours"))
    items = by_scrapy(theirs, {"papers": {}})["papers"]
    asked, site.asked = site.counts(), []
    run = papers(ours, tmp_path, s3)
    killed_twice(run, site, asked.total())
    assert differing(run.items(), items) == ""
    check_bucket(s3, theirs / "papers")
    assert set(site.counts()) == set(asked)


def test_rows_wait_for_a_store_that_is_away(site: Gallery, there: list[str], tmp_path: Path) -> None:
    """From the start on, with a row for each item once it is there; the log names the store and the cause."""
    theirs, ours = (site.project(tmp_path / name) for name in ("theirs", "ours"))
    items = by_scrapy(theirs, {"papers": {}})["papers"]
    server = S3Server()
    run = papers(ours, tmp_path, server, *there).start()
    lines = partial(_lines, run.data)
    until(lambda: "s3://bucket/ cannot be written" in lines(), "the trouble is told")
    assert not run.output.exists()
    server.start()
    try:
        code, summary, err = run.end()
        assert (code, summary["reason"], summary["dead"]) == (0, "finished", 0), err
        assert differing(run.items(), items) == ""
        check_bucket(server, theirs / "papers")
    finally:
        server.stop()


def _lines(data: Path) -> str:
    """All lines of the workers."""
    return "".join(path.read_text(errors="replace") for path in data.rglob("*.log"))
