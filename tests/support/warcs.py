"""Archives of pages in tests: a page that was answered, and what lies in a folder of WARC files."""

import gzip
from collections import Counter
from pathlib import Path

import msgspec
from warcio.archiveiterator import ArchiveIterator

from crawlog.schemas.pages import PageMeta
from crawlog.streams.cluster import LogIdentity

LOG = LogIdentity("cluster", "topic")
URL = "http://a.com/x?y=1"
BODY = b"<p>\xff\x00 a"
META = PageMeta(
    URL,
    "news",
    http=200,
    content_type="text/html; charset=x",
    fetched_at=1_764_390_000.9,
    headers=(("Content-Type", "text/html; charset=x"), ("X-\xe9", "\xe9"), ("Content-Length", str(len(BODY)))),
    sent=(("Host", "a.com"), ("Cookie", "a=\xe9")),
    status_line="HTTP/1.0 200 Ye\xe9s",
)


def written(folder: Path) -> Counter[tuple[str, str]]:
    """How often each URL has a record of each type; by warcio, which checks the digests."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(folder.glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file, check_digests="raise"):
                record.raw_stream.read()
                found[record.rec_type, record.rec_headers.get_header("WARC-Target-URI") or ""] += 1
    return found


def urls(folder: Path) -> dict[str, int]:
    """How often each page is there, by its number."""
    counts = Counter[str]()
    for (kind, url), count in written(folder).items():
        if kind in ("response", "revisit"):
            counts[url.rpartition("/")[2]] += count
    return dict(counts)


def indexed(folder: Path) -> list[bytes]:
    """What stands at the places that the indexes name."""
    found = []
    for path in sorted(folder.glob("*.cdxj")):
        for line in path.read_bytes().splitlines():
            fields = msgspec.json.decode(line.split(b" ", 2)[2], type=dict[str, str])
            content = (folder / fields["filename"]).read_bytes()[int(fields["offset"]) :][: int(fields["length"])]
            assert f"WARC-Target-URI: {fields['url']}\r\n".encode() in gzip.decompress(content)
            found.append(line)
    return found
