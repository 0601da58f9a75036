"""Formats at addresses: an object is whole, or not there; what is wrong is told before anything is crawled."""

import io
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink.formats import ResultRows, Sink
from crawlog.streams.sink.registry import is_file, sink_for, sink_of
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.stores import Store, fill
from tests.support.s3 import S3Server, s3_server
from tests.support.storing import Feeding
from tests.support.synthetic_site import free_port

ROWS = [b'{"n":1}\n', b'{"n":2}\n']


def put(address: str, rows: ResultRows | None = None) -> None:
    """Write two rows."""
    sink = sink_for(SinkSpec("j", address))
    assert isinstance(sink, Sink)
    sink.write(rows or ResultRows(lambda: ROWS), io.BytesIO())


def breaks_off() -> Iterator[bytes]:
    """One row, then the state's disk fails."""
    yield ROWS[0] * 100_000
    raise OSError("Input/output error")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server with an empty bucket."""
    with s3_server() as made:
        yield made


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The same, which this process finds."""
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server


def test_a_data_set_grows_in_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    """Each write makes a file here; at the end each row stands once, and pyarrow reads them all."""
    feeding = Feeding(tmp_path, sink_of("j", "s3://bucket/shop/"))
    store = sink_for(feeding.state.sink)
    assert isinstance(store, Store)
    store.check()
    for number, url in enumerate(("http://a/", "http://b/", "http://a/")):
        feeding.page(number, url, {"n": number})
        fill(store, feeding.state)
    files = fs.S3FileSystem(endpoint_override=s3.origin)
    rows = pq.read_table("bucket/shop/", filesystem=files, partitioning="hive").select(["_url", "n"]).to_pylist()
    assert sorted(rows, key=lambda row: row["n"]) == [{"_url": "http://b/", "n": 1}, {"_url": "http://a/", "n": 2}]
    feeding.state.close()


def test_a_format_is_written_to_an_address_of_fsspec(tmp_path: Path) -> None:
    """By the suffix of its path. With an error in the middle nothing is there, and an older file stays."""
    for address in ("memory://results/rows.jsonl", f"file://{tmp_path}/new/rows.jsonl"):
        assert not is_file(address)
        sink_of("j", address)
        put(address)
        with pytest.raises(OSError, match="Input/output error"):
            put(address, ResultRows(breaks_off))
        with fsspec.open(address) as file:
            assert file.read() == b"".join(ROWS)


def test_a_format_is_written_to_s3(s3: S3Server, tmp_path: Path) -> None:
    """Read back by pyarrow. With an error in the middle there is no object: half a one would look like a whole."""
    sink_of("j", "s3://bucket/a/rows.parquet")
    put("s3://bucket/a/rows.parquet")
    (tmp_path / "rows.parquet").write_bytes(s3.content("a/rows.parquet") or b"")
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == [{"n": 1}, {"n": 2}]
    with pytest.raises(OSError, match="Input/output error"):
        put("s3://bucket/half.jsonl", ResultRows(breaks_off))
    assert s3.content("half.jsonl") is None


def test_a_bucket_that_is_missing_is_refused(s3: S3Server) -> None:
    """Crawlog makes none."""
    with pytest.raises(Misconfigured, match=r"s3://nobody/rows.csv: there is no bucket nobody; make it"):
        sink_of("j", "s3://nobody/rows.csv")


class Refusing(BaseHTTPRequestHandler):
    """A server that knows no credentials."""

    def do_HEAD(self) -> None:
        """Answers as S3 does."""
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_server_that_refuses_or_is_away_is_told_with_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never with what they hold."""
    refusing = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=refusing.serve_forever, daemon=True).start()
    cases = [
        (
            f"http://127.0.0.1:{refusing.server_port}",
            "ACCESS_DENIED.* Are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        (f"http://127.0.0.1:{free_port()}", "NETWORK_CONNECTION.* Is it up, and AWS_ENDPOINT_URL right"),
    ]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "geheim")
    for origin, told in cases:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", origin)
        with pytest.raises(
            Misconfigured, match=rf"(?s)^s3://bucket/rows.csv: cannot.*{told}.*Nothing is lost"
        ) as caught:
            sink_of("j", "s3://bucket/rows.csv")
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
    refusing.shutdown()
    refusing.server_close()
