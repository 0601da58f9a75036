"""SQL over a log that a test has written: the tables, what counts in them, and how they are kept."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from crawlog.query import answered, ask, kept_table, unchanged
from crawlog.query.kept_table import Kept
from crawlog.schemas import dead, items, pages, urls
from crawlog.schemas.control import Finished
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import FoundUrl, JobSpec, Result, ScopeSpec, UrlsRecord
from crawlog.streams import engine as local
from crawlog.streams.cluster.client import kafka_config, log_bounds, log_end, log_identity
from crawlog.streams.control import rewind_crawl, rewind_job, write_control, write_job
from crawlog.streams.engine import Engine
from crawlog.streams.errors import Misconfigured, UnknownName
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.read import read_partitions
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink.batch import entry
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.state import Database, StateMemory
from crawlog.streams.url import Places

pytestmark = pytest.mark.broker

HOST = "http://a.example"


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


class Log:
    """A crawl's log, written by a test."""

    def __init__(self, settings: Settings) -> None:
        ensure_topics(settings)
        self.settings = settings
        self.topics = Topics(settings.kafka.prefix)
        self.producer = Producer(settings, "test")
        self.partition = Places(2).of(f"{HOST}/").partition

    def send(self, topic: str, value: bytes, key: bytes | None = None, **more: Any) -> None:
        """A record in the partition of HOST."""
        self.producer.send(topic, value, key=key, partition=self.partition, **more)
        assert self.producer.flush(30)

    def job(self, name: str, epoch: int = 0, **spec: Any) -> None:
        """A job's record, in crawl.urls and crawl.control."""
        self.spec = msgspec.structs.replace(JobSpec(scope=ScopeSpec("domain", ("a.example",))), **spec)
        write_job(self.settings, self.producer, self.topics, name, self.spec, epoch)

    def item(self, name: str, *rows: dict[str, Any], job: str = "j", page: int = 0, epoch: int = 0) -> None:
        """The items of a page."""
        url = f"{HOST}/{name}"
        raw = [msgspec.Raw(json.dumps(row).encode()) for row in rows]
        record = ItemsRecord(job, url, (self.partition, page), raw, epoch)
        self.send(self.topics.items, items.encode(record), items.key(job, url))

    def page(self, name: str, status: int | None, *, job: str = "j", body: bytes = b"x", **more: Any) -> None:
        """A page."""
        meta = PageMeta(f"{HOST}/{name}", job, http=status, content_type="Text/HTML; charset=x", **more)
        self.send(self.topics.pages, body, b"a.example", headers=pages.headers(meta))

    def urls(self, job: str = "j", epoch: int = 0, **kind: Any) -> None:
        """Founds or results."""
        if "urls" in kind:
            self.found = log_end(self.settings, self.topics.urls, self.partition)
        self.send(self.topics.urls, urls.encode(UrlsRecord(job, epoch, **kind)), b"a.example")

    def row(self, index: int) -> int:
        """The queue row of a URL of the last founds."""
        return (self.found << 16) + index

    def files(self, topic: str) -> list[Path]:
        """The files of a kept table."""
        return sorted(
            (self.settings.run.data / "query" / f"{self.topics.items[: -len('items')]}{topic}").glob("*.parquet")
        )

    def kept(self, topic: str) -> Kept:
        """What a kept table names."""
        return msgspec.json.decode((self.files(topic)[0].parent / "kept.json").read_bytes(), type=Kept)

    def ask(self, sql: str, job: str = "", **more: Any) -> list[list[Any]]:
        """The rows of an answer."""
        return list(ask(self.settings, sql, job, **more).rows())


@pytest.fixture
def log(cluster: Settings, tmp_path: Path) -> Log:
    """With topics."""
    run = cluster.run.model_copy(update={"data": tmp_path / "data"})
    return Log(cluster.model_copy(update={"run": run}))


def test_rows_have_typed_columns_and_only_the_newest_items_of_each_page(log: Log) -> None:
    """As in the file of `run -o`: an older page changes nothing, a newer one without items removes the rows."""
    log.job("j")
    log.job("k")
    log.item("1", {"n": 1, "price": 2, "name": "a", "ok": True, "tags": ["x", "y"], "mixed": 1}, page=1)
    log.item("2", {"n": 2, "price": 2.5, "name": None, "tags": [], "mixed": "b"}, {"n": 3}, page=2)
    log.item("1", {"n": 9}, page=0)
    log.item("3", {"n": 4}, page=3)
    log.item("3", page=4)
    log.item("4", {"n": 5, "other": "k"}, job="k", page=5)
    log.send(log.topics.items, b"garbage", b"j x")
    log.send(log.topics.items, b'{"v":1,"job":"j","url":"u","page":[0,1],"items":[' + b"[" * 5000, b"j u")
    assert log.ask("SELECT n, price, name, ok, mixed FROM rows ORDER BY n", "j") == [
        [1, 2.0, "a", True, "1"],
        [2, 2.5, None, None, "b"],
        [3, None, None, None, None],
    ]
    assert log.ask("SELECT unnest(tags::VARCHAR[]), _url, _job FROM rows WHERE n = 1", "j") == [
        ["x", f"{HOST}/1", "j"],
        ["y", f"{HOST}/1", "j"],
    ]
    assert log.ask("SELECT _job, count(*), max(other) FROM rows GROUP BY 1 ORDER BY 1") == [
        ["j", 3, None],
        ["k", 1, "k"],
    ]
    types = {row[0]: row[1] for row in log.ask("DESCRIBE rows", "j")}
    assert types == {
        "n": "BIGINT",
        "price": "DOUBLE",
        "name": "VARCHAR",
        "ok": "BOOLEAN",
        "tags": "JSON",
        "mixed": "VARCHAR",
        "_job": "VARCHAR",
        "_url": "VARCHAR",
    }
    log.item("5", {"n": "five", "Name": "b", "_url": "own", "": 1, 'a"b': 2}, page=6)
    assert log.ask("SELECT n, name FROM rows ORDER BY n", "j") == [["1", "a"], ["2", None], ["3", None], ["five", "b"]]


def test_what_a_job_gave_before_it_began_again_does_not_count(log: Log) -> None:
    """Rows, pages and results of URLs; a query before and one after, on the same kept tables."""
    log.job("j")
    log.item("1", {"n": 1}, page=0)
    log.page("1", 200)
    tables = "SELECT (SELECT count(*) FROM rows), (SELECT count(*) FROM pages), (SELECT count(*) FROM urls)"
    log.urls(urls=[FoundUrl(f"{HOST}/1")])
    assert log.ask(tables) == [[1, 1, 1]]
    rewind_job(log.settings, log.producer, log.topics, "j", msgspec.structs.replace(log.spec, rev=2), 1)
    assert log.ask(tables) == [[0, 0, 0]]
    log.item("1", {"n": 2}, page=1, epoch=1)
    log.page("1", 200, epoch=1)
    log.urls(epoch=1, urls=[FoundUrl(f"{HOST}/1"), FoundUrl(f"{HOST}/2")])
    assert log.ask(tables) == [[1, 1, 2]]


def test_what_a_rewind_of_the_crawl_cancelled_does_not_count(log: Log) -> None:
    """Pages behind its offset, their rows, and the results there; the older items of a page count again."""
    log.job("j")
    log.urls(urls=[FoundUrl(f"{HOST}/1"), FoundUrl(f"{HOST}/2")])
    log.item("1", {"n": 1}, page=0)
    log.page("1", 200)
    log.urls(results=[Result(f"{HOST}/1", log.row(0), "fetched", page=(log.partition, 0), http=200)])
    places = {at: end for at, (_, end) in log_bounds(log.settings, log.topics.urls, [0, 1]).items()}
    log.item("1", {"n": 2}, page=1)
    log.page("2", 404)
    log.urls(results=[Result(f"{HOST}/2", log.row(1), "fetched", page=(log.partition, 1), http=404)])
    tables = "SELECT (SELECT list(n) FROM rows), (SELECT list(status ORDER BY url) FROM pages)"
    states = "SELECT url[-1], state, status FROM urls ORDER BY 1"
    assert log.ask(tables) == [[[2], [200, 404]]]
    assert log.ask(states) == [["1", "fetched", 200], ["2", "fetched", 404]]
    rewind_crawl(log.settings, places)
    assert log.ask(tables) == [[[1], [200]]]
    assert log.ask(states) == [["1", "fetched", 200], ["2", "queued", None]]


def test_pages_and_dead_letters_are_rows_too(log: Log) -> None:
    """A robots.txt is no page; a letter is open until a mark closes it."""
    log.job("j")
    log.page("1", 200, fetched_at=1.5, took_s=0.25, depth=2, body=b"12345", worker="fetch-0", exit="e")
    log.page("2", None, error="dns", body=b"")
    log.page("robots.txt", 200, kind="robots")
    told = (
        'SELECT url, status, reason, bytes, type, fetched_at::VARCHAR, took_s, attempt, worker, exit, "offset", depth'
    )
    assert log.ask(f"{told} FROM pages WHERE job = 'j' ORDER BY 1") == [
        [f"{HOST}/1", 200, None, 5, "text/html", "1970-01-01 00:00:01.5", 0.25, 1, "fetch-0", "e", 0, 2],
        [f"{HOST}/2", None, "dns", 0, "text/html", None, 0.0, 1, None, None, 1, 0],
    ]
    for number in range(2):
        letter = dead.DeadLetter(log.topics.pages, 0, number, "parse", "ValueError: no", job="j")
        log.producer.send(log.topics.dead, b"x", partition=0, headers=letter.headers())
    mark = dead.Mark([0], "dropped")
    log.producer.send(log.topics.dead, dead.encode_mark(mark), partition=0, headers=mark.headers())
    assert log.producer.flush(30)
    assert log.ask("SELECT number, stage, job, error, state FROM dead ORDER BY 1", "j") == [
        [0, "parse", "j", "ValueError: no", "dropped"],
        [1, "parse", "j", "ValueError: no", "open"],
    ]


def test_urls_are_those_in_the_queues_and_those_with_a_result(log: Log) -> None:
    """The fold decides: a link that is too deep or out of scope is not queued; a retry waits."""
    log.job("j", max_depth=1)
    found = [FoundUrl(f"{HOST}/{n}", depth=depth) for n, depth in (("1", 0), ("2", 1), ("3", 1), ("deep", 2))]
    log.urls(urls=[*found, FoundUrl("http://other.example/", source="link")])
    assert log.ask("SELECT url, state, depth, host, done_at FROM urls ORDER BY 1") == [
        [f"{HOST}/1", "queued", 0, "a.example", None],
        [f"{HOST}/2", "queued", 1, "a.example", None],
        [f"{HOST}/3", "queued", 1, "a.example", None],
    ]
    late = Result(f"{HOST}/1", log.row(0), "fetched", http=404, at=1.0, page=(0, 9))
    later = Result(f"{HOST}/2", log.row(1), "failed", reason="dns", at=5.0, next_at=9.0, delay_s=4.0, depth=1)
    log.urls(results=[late, later])
    log.urls(results=[Result(f"{HOST}/1", log.row(0), "fetched", http=200, at=1.0, page=(0, 0)), later])
    assert log.ask("SELECT url, state, status, attempt, next_at::VARCHAR FROM urls ORDER BY 1") == [
        [f"{HOST}/1", "fetched", 200, 1, None],
        [f"{HOST}/2", "waiting", None, 1, "1970-01-01 00:00:09"],
        [f"{HOST}/3", "queued", None, 0, None],
    ]
    log.urls(results=[Result(f"{HOST}/3", log.row(2), "fetched", http=404, at=1.0, page=(0, 1), depth=1)])
    log.urls(results=[Result(f"{HOST}/3", log.row(2), "fetched", http=200, at=2.0, page=(0, 2), depth=1)])
    assert log.ask("SELECT url, status FROM urls WHERE state = 'fetched' ORDER BY 1") == [
        [f"{HOST}/1", 200],
        [f"{HOST}/3", 200],
    ]


def test_a_checkpoint_of_a_worker_in_this_data_folder_is_taken_for_the_queues(log: Log) -> None:
    """The answer is that of a fold of the query's own, and the worker's state stays as it was."""
    log.job("j")
    log.urls(urls=[FoundUrl(f"{HOST}/{n}") for n in range(3)])
    states = "SELECT url, state FROM urls ORDER BY 1"
    own = log.ask(states)
    folder = log.settings.run.data
    (folder / "query" / f"{log.topics.urls}.queues" / "state").rename(folder / "state")
    shutil.rmtree(folder / "query")
    log.urls(results=[Result(f"{HOST}/0", log.row(0), "fetched", http=200, page=(0, 0))])
    assert own == [[f"{HOST}/{n}", "queued"] for n in range(3)]
    assert log.ask(states) == [[f"{HOST}/0", "fetched"], *own[1:]]
    with closing(Database(folder / "state" / str(log.partition), StateMemory(8), read_only=True)) as database:
        assert sum(key.startswith(b"q") for key, _ in database.scan(b"q")) == 3


def test_only_the_tables_that_the_sql_names_are_read_and_only_what_is_new(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each from the offset that the query before has reached; many small files become one."""
    read: list[tuple[str, int]] = []

    def reading(settings: Settings, topic: str, ranges: dict[int, tuple[int, int]]) -> Any:
        read.append((topic, sum(end - start for start, end in ranges.values())))
        return read_partitions(settings, topic, ranges)

    monkeypatch.setattr(kept_table, "read_partitions", reading)
    monkeypatch.setattr(kept_table, "SMALL_FILES", 4)
    log.job("j")
    for number in range(6):
        log.item(str(number), {"n": number, "x": None if number < 5 else 1})
        assert log.ask("SELECT count(*) FROM rows") == [[number + 1]]
    assert log.ask("SELECT sum(n), sum(x) FROM rows") == [[15, 1]]
    assert read == [(log.topics.items, 1)] * 6 + [(log.topics.items, 0)]
    assert len(log.kept("items").files) == 3
    log.item("0", {"n": 100}, page=9)
    assert log.ask("SELECT count(*), sum(n) FROM rows") == [[6, 115]], "it replaces the row of an earlier file"
    log.ask("SELECT 'rows and dead' FROM jobs JOIN pages USING (job)")
    assert {topic for topic, _ in read[8:]} == {log.topics.pages}


def test_a_log_that_was_made_again_is_read_anew(log: Log) -> None:
    """Its topic has another identity; what was kept of the other one does not count."""
    log.job("j")
    log.item("1", {"n": 1})
    assert log.ask("SELECT n FROM rows") == [[1]]
    admin = AdminClient(kafka_config(log.settings))
    for future in admin.delete_topics([log.topics.items]).values():
        future.result(30)
    again = Log(log.settings)
    again.item("2", {"n": 2})
    again.item("3", {"n": 3})
    assert again.ask("SELECT n FROM rows ORDER BY 1") == [[2], [3]]


def test_a_query_that_died_leaves_nothing_and_several_at_once_give_the_same(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that `kept.json` does not name does not count; a query waits for another one that extends the table."""
    log.job("j")
    for number in range(4):
        log.item(str(number), {"n": number})
    monkeypatch.setattr(kept_table, "CHUNK_ROWS", 2)
    note = kept_table._note
    dies = Mock(side_effect=[None, KeyboardInterrupt])
    with monkeypatch.context() as patched:
        patched.setattr(kept_table, "_note", lambda *given: dies() or note(*given))
        with pytest.raises(KeyboardInterrupt):
            log.ask("SELECT count(*) FROM rows")
    assert (sum(one.rows for one in log.kept("items").files), len(log.files("items"))) == (2, 2)
    with ThreadPoolExecutor() as pool:
        given = list(pool.map(log.ask, ["SELECT count(*), sum(n) FROM rows"] * 4))
    assert given == [[[4, 6]]] * 4
    assert sum(one.rows for one in log.kept("items").files) == 4
    monkeypatch.setattr(kept_table, "LEFT_S", -1.0)
    log.ask("SELECT 1 FROM rows")
    assert {path.name for path in log.files("items")} == {one.name for one in log.kept("items").files}
    path = log.files("items")[0]
    path.write_bytes(path.read_bytes()[:10])
    assert log.ask("SELECT count(*), sum(n) FROM rows") == [[4, 6]], "a power cut cut a file: the log is read again"


def test_an_answer_has_pages_and_an_unknown_job_is_named(log: Log) -> None:
    """For a list of the service; a job that was deleted is unknown, and its rows are gone."""
    log.job("j")
    log.item("1", *({"n": number} for number in range(10)))
    assert log.ask("SELECT n FROM rows ORDER BY n DESC", first=2, most=3) == [[7], [6], [5]]
    found = ask(log.settings, "SELECT n, n, 1.5::DECIMAL(3, 1) AS d FROM rows ORDER BY n", most=1)
    assert (found.columns, found.types) == (["n", "n_1", "d"], ["BIGINT", "BIGINT", "DECIMAL(3,1)"])
    assert list(found.rows()) == [[0, 0, Decimal("1.5")]]
    with pytest.raises(UnknownName, match="there is no job 'k' in the log"):
        log.ask("FROM rows", "k")
    assert log.ask("SELECT job, state FROM jobs") == [["j", "pending"]]
    assert log.ask("SHOW TABLES") == [["dead"], ["jobs"], ["pages"], ["rows"], ["urls"]]
    log.job("j", state="deleted", rev=2)
    assert log.ask("SELECT count(*) FROM rows") == [[0]]
    with pytest.raises(UnknownName):
        log.ask("FROM rows", "j")


ERRORS = {
    "SELECT a\nFROM page": r"(?s)Table with name page does not exist.*LINE 2: FROM page.*\^.*Tables: rows, pages",
    "SELECT statu FROM pages": r"(?s)\"statu\" not found.*status.*LINE 1: SELECT statu",
    "SELEC 1": r"(?s)syntax error at or near \"SELEC\".*LINE 1",
    "SELECT offset FROM pages": r'(?s)syntax error.*"offset", stands in double quotes',
    "SELECT error('no') FROM jobs": "the SQL cannot be run: .*no",
    "SELECT url FROM pages WHERE job = ?": "parameter",
}


def test_an_error_of_the_sql_names_its_line_and_what_to_do(log: Log) -> None:
    """As DuckDB shows it; also one that comes with the rows."""
    log.job("j")
    for sql, told in ERRORS.items():
        with pytest.raises(Misconfigured, match=told):
            log.ask(sql)


def test_a_query_that_needs_too_much_memory_ends_with_an_error(log: Log) -> None:
    """It names the setting."""
    log.job("j")
    little = log.settings.query.model_copy(update={"memory_mb": 64})
    log.settings = log.settings.model_copy(update={"query": little})
    with pytest.raises(Misconfigured, match=r"-s query\.memory_mb=N"):
        log.ask("SELECT i || 'x' AS t, count(*) FROM range(20_000_000) r(i) GROUP BY 1 ORDER BY 2")


def test_a_local_log_that_has_not_grown_is_asked_without_kafka(
    log: Log, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What earlier queries read is enough while the files of the stopped engine are as they were."""
    run = log.settings.run.model_copy(update={"data": engine.data})
    log.settings = log.settings.model_copy(update={"run": run})
    kafka = log.settings.kafka.model_copy(update={"bootstrap": ""})
    stopped = log.settings.model_copy(update={"kafka": kafka})
    log.job("j")
    log.item("1", {"n": 1})
    log.ask("FROM rows")
    assert unchanged(stopped, ["rows"]) is None, "it runs"
    monkeypatch.setattr(local, "is_up", lambda _: False)
    known = unchanged(stopped, ["rows"])
    assert known is not None
    assert list(answered(stopped, known, "SELECT n FROM rows", "j").rows()) == [[1]]
    with pytest.raises(UnknownName):
        answered(stopped, known, "SELECT n FROM rows", "k")
    assert unchanged(stopped, ["rows", "jobs"]) is None, "jobs were not read"
    log.ask("FROM jobs")
    assert unchanged(stopped, ["rows", "jobs"]) is not None
    known = unchanged(stopped, ["jobs"])
    assert known is not None
    assert list(known.tables) == ["jobs"], "no other table is read"
    log.item("2", {"n": 2})
    assert unchanged(stopped, ["rows"]) is None, "the log has grown"


def test_the_rows_of_pipelines_are_those_that_a_sink_worker_has_here(log: Log) -> None:
    """Else the items as scraped, and the answer names the job; other jobs' rows are as they were."""
    log.job("j", pipelines=True)
    log.job("k")
    log.item("1", {"n": 7}, job="k")
    record = ItemsRecord("j", f"{HOST}/1", (0, 0), [msgspec.Raw(b'{"price": {"$decimal": "1.50"}}')], raw=True)
    log.send(log.topics.items, items.encode(record), items.key("j", record.url))
    found = ask(log.settings, "SELECT price, n FROM rows ORDER BY 1")
    assert (list(found.rows()), found.raw) == ([["1.50", None], [None, 7]], ["j"])
    sink = SinkSpec("j", "none:", pipelines=True)
    with SinkState(log.settings.run.data, sink, log_identity(log.settings, log.topics.items)) as state:
        state.fold([(log.partition, 1, entry(items.encode(record), sink, raw=True))])
        assert state.made is not None
        state.made.take([(state.made.blocks()[0], [b'{"price":3.0}', b'{"price":4.5}'])])
        state.made.closed()
    ends = tuple(end for _, (_, end) in sorted(log_bounds(log.settings, log.topics.items, [0, 1]).items()))
    write_control(log.producer, log.topics, [Finished("j", 1.0, items=ends)])
    for _ in range(2):
        found = ask(log.settings, "SELECT price, n, _job FROM rows ORDER BY 1")
        assert (list(found.rows()), found.raw) == ([[3.0, None, "j"], [4.5, None, "j"], [None, 7, "k"]], [])
    assert log.ask("SELECT count(*) FROM rows", "j") == [[2]]
