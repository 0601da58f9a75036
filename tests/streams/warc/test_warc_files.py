"""The files of an archive: what counts after a kill, what is made again, and when a new file begins."""

import gzip
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import Misconfigured, RetryLater
from crawlog.streams.warc.captures import Capture, PageRecord
from crawlog.streams.warc.warc_files import WarcArchive, about
from tests.support.warcs import LOG, META, indexed, urls, written

STARTS = {0: 5, 1: 0}


def page(number: int, body: bytes = b"", partition: int = 0, **changed: Any) -> PageRecord:
    """A page with a URL of its own."""
    meta = msgspec.structs.replace(META, url=f"http://a.com/{number}", headers=(), **changed)
    return PageRecord(partition, number, meta, body or f"body {number}".encode(), "")


def opened(folder: Path, log: LogIdentity = LOG, most_bytes: int = 1 << 30) -> WarcArchive:
    """The archive of the job `news`."""
    archive = WarcArchive(folder, "news", log, about("news", "test"), most_bytes)
    archive.manifest.offsets = archive.manifest.offsets or dict(STARTS)
    return archive


def add(archive: WarcArchive, *pages: PageRecord) -> None:
    for one in pages:
        archive.add(one, archive.original(one, lambda _: None))


def test_what_was_not_committed_is_cut_and_comes_again(tmp_path: Path) -> None:
    """A kill between the files and the manifest leaves half a record; its pages are read again."""
    with closing(opened(tmp_path)) as archive:
        add(archive, page(5), page(6))
        archive.commit({0: 7, 1: 0})
        add(archive, page(7))
        archive._close_files()  # as the kernel writes what a killed process has given it
    with (tmp_path / "news-00000.warc.gz").open("ab") as file:
        file.write(b"half a rec")
    with closing(opened(tmp_path)) as archive:
        assert (archive.manifest.offsets, archive.manifest.pages) == ({0: 7, 1: 0}, 2)
        assert list(archive.broken()) == []
        add(archive, page(7), page(8))
        archive.commit({0: 9, 1: 0})
        archive.finish()
    assert urls(tmp_path) == {"5": 1, "6": 1, "7": 1, "8": 1}
    assert indexed(tmp_path) == sorted(indexed(tmp_path))
    assert len(indexed(tmp_path)) == 4


def test_a_new_file_that_no_manifest_names_yet_begins_anew(tmp_path: Path) -> None:
    """The first one, or the next; its pages are read again."""
    for number in (5, 6):
        with closing(opened(tmp_path)) as archive:
            add(archive, page(number))
            archive._close_files()
        with closing(opened(tmp_path)) as archive:
            add(archive, page(number))
            archive.commit({0: number + 1, 1: 0})
            archive.finish()
    assert urls(tmp_path) == {"5": 1, "6": 1}
    assert len(indexed(tmp_path)) == 2


@pytest.mark.parametrize("suffix", ["warc.gz", "cdxj"])
@pytest.mark.parametrize("left", [None, 0, 100])
def test_a_file_that_lacks_something_is_made_again(tmp_path: Path, suffix: str, left: int | None) -> None:
    """From the offsets at which it began to those at which the next one did; a kill amid that makes it again."""
    with closing(opened(tmp_path, most_bytes=1)) as archive:
        for number in (5, 6, 7):
            add(archive, page(number))
            archive.commit({0: number + 1, 1: 0})
    before = sorted(tmp_path.glob("*.warc.gz"))
    assert [path.name for path in before] == [f"news-0000{number}.warc.gz" for number in range(3)]
    spoiled = tmp_path / f"news-00001.{suffix}"
    if left is None:
        spoiled.unlink()
    else:
        spoiled.write_bytes(spoiled.read_bytes()[:left])
    with closing(opened(tmp_path, most_bytes=1)) as archive:
        [(file, ranges)] = archive.broken()
        assert (file.name, ranges) == ("news-00001.warc.gz", {0: (6, 7), 1: (0, 0)})
        with pytest.raises(KeyboardInterrupt):
            archive.remake(file, _interrupted())
    with closing(opened(tmp_path, most_bytes=1)) as archive:
        [(file, ranges)] = archive.broken()
        archive.remake(file, [(page(6), None)])
        assert list(archive.broken()) == []
        assert archive.manifest.pages == 3
    with closing(opened(tmp_path)) as archive:
        assert list(archive.broken()) == []
    assert urls(tmp_path) == {"5": 1, "6": 1, "7": 1}
    assert len(indexed(tmp_path)) == 3


def _interrupted() -> Any:
    yield page(6), None
    raise KeyboardInterrupt


def test_the_open_file_goes_on_after_it_was_made_again(tmp_path: Path) -> None:
    """Its pages end where the manifest does."""
    with closing(opened(tmp_path)) as archive:
        add(archive, page(5))
        archive.commit({0: 6, 1: 0})
    (tmp_path / "news-00000.warc.gz").unlink()
    with closing(opened(tmp_path)) as archive:
        [(file, ranges)] = archive.broken()
        assert ranges == {0: (5, 6), 1: (0, 0)}
        archive.remake(file, [(page(5), None)])
        add(archive, page(6))
        archive.commit({0: 7, 1: 0})
    assert urls(tmp_path) == {"5": 1, "6": 1}
    assert [path.name for path in tmp_path.glob("*.warc.gz")] == ["news-00000.warc.gz"]


def test_a_body_is_kept_once_also_over_restarts(tmp_path: Path) -> None:
    """The second page with it is a revisit; a 304 refers to the response that has the body."""
    with closing(opened(tmp_path)) as archive:
        add(archive, page(5, b"same"), page(6, b"same"))
        archive.commit({0: 7, 1: 0})
    with closing(opened(tmp_path)) as archive:
        not_modified = page(8, b" ", http=304, status_line="HTTP/1.1 304 x", same_as=(0, 6))._replace(body=b"")
        add(archive, page(7, b"same"), not_modified)
        archive.commit({0: 9, 1: 0})
    kinds = {(kind, url[-1:]): count for (kind, url), count in written(tmp_path).items() if kind != "request"}
    assert kinds == {("warcinfo", ""): 1, ("response", "5"): 1, **{("revisit", one): 1 for one in "678"}}
    content = gzip.decompress((tmp_path / "news-00000.warc.gz").read_bytes())
    assert content.count(b"WARC-Refers-To-Target-URI: http://a.com/5\r\n") == 3


def test_the_older_page_of_a_304_is_read_from_the_log_where_the_archive_forgot_it(tmp_path: Path) -> None:
    """It is asked for once per page."""
    asked: list[str] = []

    def read(one: PageRecord) -> Capture | None:
        asked.append(one.meta.url)
        return Capture("0:1", "http://a.com/1", "2025-11-01T00:00:00Z", "sha1:A")

    with closing(opened(tmp_path)) as archive:
        one = page(5, http=304, status_line="HTTP/1.1 304 x", same_as=(0, 1))
        archive.add(one, archive.original(one, read))
        archive.commit({0: 6, 1: 0})
    assert asked == ["http://a.com/5"]


def test_two_processes_do_not_write_one_archive(tmp_path: Path) -> None:
    """A worker that was stopped may hold it yet; the same folder may have another job."""
    with closing(opened(tmp_path)):
        with pytest.raises(RetryLater, match="another process"):
            opened(tmp_path)
        WarcArchive(tmp_path, "other", LOG, {}, 1 << 30).close()
    opened(tmp_path).close()


@pytest.mark.parametrize("content", [None, b"", b'{"log": 1}'])
def test_files_whose_manifest_is_gone_are_not_overwritten(tmp_path: Path, content: bytes | None) -> None:
    """Nobody knows which pages they have."""
    with closing(opened(tmp_path)) as archive:
        add(archive, page(5))
        archive.commit({0: 6, 1: 0})
    if content is None:
        (tmp_path / "news.manifest.json").unlink()
    else:
        (tmp_path / "news.manifest.json").write_bytes(content)
    with pytest.raises(Misconfigured, match="Move these files away"):
        opened(tmp_path)
    assert urls(tmp_path) == {"5": 1}


def test_a_log_that_was_made_anew_adds_files(tmp_path: Path) -> None:
    """What the old one gave stays, and cannot be made again."""
    with closing(opened(tmp_path)) as archive:
        add(archive, page(5))
        archive.commit({0: 6, 1: 0})
    (tmp_path / "news-00000.cdxj").unlink()
    with closing(opened(tmp_path, LogIdentity("cluster", "new"))) as archive:
        assert (list(archive.broken()), archive.manifest.offsets) == ([], STARTS)
        add(archive, page(5, b"new"))
        archive.commit({0: 6, 1: 0})
    assert [file.name for file in sorted(tmp_path.glob("*.gz"))] == ["news-00000.warc.gz", "news-00001.warc.gz"]
    assert urls(tmp_path) == {"5": 2}


def test_an_archive_is_emptied_once_to_be_filled_again(tmp_path: Path) -> None:
    """As `crawlog outputs fill` orders it; one that is not of a fleet knows nothing of that, and empties nothing."""
    with closing(opened(tmp_path)) as archive:
        add(archive, page(5))
        archive.commit({0: 6, 1: 0})
    with closing(WarcArchive(tmp_path, "news", LOG, {}, 1 << 30, fill=1)) as archive:
        assert (urls(tmp_path), archive.manifest.offsets) == ({}, {})
        archive.manifest.offsets = dict(STARTS)
        add(archive, page(5))
        archive.commit({0: 6, 1: 0})
    for fill in (1, 0):
        WarcArchive(tmp_path, "news", LOG, {}, 1 << 30, fill).close()
        assert urls(tmp_path) == {"5": 1}


def test_pages_without_records_are_counted(tmp_path: Path) -> None:
    """They make no file."""
    with closing(opened(tmp_path)) as archive:
        add(archive, page(5, http=None, error="dns"))
        archive.commit({0: 6, 1: 0})
        archive.finish()
        assert (archive.manifest.empty, archive.manifest.pages, archive.manifest.files) == (1, 0, [])
