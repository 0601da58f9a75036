"""FEEDS as outputs: each file has the rows that Scrapy's own feed export writes of the same items."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import scrapy
from scrapy.extensions.feedexport import FeedExporter

from crawlog.schemas.job_orders import FEEDS_KEY
from crawlog.streams.sink.finish import write_file
from crawlog.streams.sink.formats import Sink
from crawlog.streams.sink.registry import sink_for
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.spiders.scrapy.feeds import Exporter
from tests.support.adapting import runner_of

HERE = __name__


class Plain(scrapy.Spider):
    """Has settings alone."""

    name = "plain"


class Book(scrapy.Item):
    """With a field that is serialised."""

    title = scrapy.Field()
    price = scrapy.Field(serializer=lambda value: f"{value} €")


class Novel(Book):
    """A class of its own."""


class Author(scrapy.Item):
    """Has other fields."""

    name = scrapy.Field()


ITEMS: list[Any] = [
    Book(title="Träume, 2", price=3),
    Author(name="Ann\nB"),
    Novel(title="=1+1 漢"),
    {"title": "x", "price": None},
]


def by_scrapy(feeds: dict[Any, Any], more: dict[str, Any], folder: Path) -> None:
    """Has Scrapy's extension write the files."""
    runner = runner_of(Plain, {"FEEDS": feeds} | more)
    exporter = FeedExporter(runner.crawler)
    exporter.open_spider(runner.spider)
    for item in ITEMS:
        exporter.item_scraped(item, runner.spider)
    for slot in exporter.slots:
        slot.start_exporting()
        slot.finish_exporting()
        slot.storage.store(exporter._get_file(slot))


def by_us(feeds: dict[Any, Any], more: dict[str, Any]) -> list[str]:
    """Writes the files as the sink does; the rows are those of the log."""
    runner = runner_of(Plain, {"FEEDS": feeds} | more)
    exporter = Exporter(runner.crawler.settings)
    lines = b"".join(bytes(exporter.row(item)) + b"\n" for item in ITEMS)
    source = SimpleNamespace(rows=len(ITEMS), chunks=lambda: iter([lines]))
    for feed in runner.facts.feeds:
        sink = sink_for(SinkSpec("j", feed.output, layout=feed.layout, formulas=True))
        assert isinstance(sink, Sink)
        write_file(source, sink, Path(feed.output))
    return [feed.output for feed in runner.facts.feeds]


READ: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "jsonlines": lambda text: [json.loads(line) for line in text.splitlines()],
    "csv": lambda text: [*csv.reader(io.StringIO(text))],
}

FEEDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "a.json": {"format": "json"},
            "b.txt": {"format": "csv", "fields": ["title"]},
            "c.jl": {"format": "jsonlines"},
        },
        {},
    ),
    ({"a.json": {"format": "json", "indent": 4, "fields": ["price", "title"]}, "b.jl": {"format": "jsonlines"}}, {}),
    ({"a.csv": {"format": "csv", "fields": {"title": "Titel", "none": "Nichts"}}}, {}),
    ({"a.csv": {"format": "csv"}, "b.json": {"format": "json"}}, {"FEED_EXPORT_FIELDS": ["title", "none"]}),
    (
        {"a.csv": {"format": "csv", "encoding": "utf-16"}, "b.json": {"format": "json", "encoding": "gb18030"}},
        {"FEED_EXPORT_FIELDS": ["title", "name"]},
    ),
    (
        {
            "books.json": {"format": "json", "item_classes": [Book]},
            "authors.jl": {"format": "jsonlines", "item_classes": [f"{HERE}.Author"], "fields": ["name"]},
            "all.csv": {"format": "csv", "fields": ["title"]},
        },
        {},
    ),
    (
        {"a.jl.gz": {"format": "jsonlines", "postprocessing": ["scrapy.extensions.postprocessing.GzipPlugin"]}},
        {},
    ),
]


@pytest.mark.parametrize(("feeds", "more"), FEEDS, ids=range(len(FEEDS)))
def test_each_feed_has_the_content_that_scrapy_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feeds: dict[str, Any], more: dict[str, Any]
) -> None:
    """Format, fields and their names, encoding, indent, the classes of items, gzip."""
    found: list[dict[str, Any]] = []
    for name, write in (("theirs", lambda: by_scrapy(feeds, more, tmp_path)), ("ours", lambda: by_us(feeds, more))):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write()
        content = {}
        for path, feed in feeds.items():
            raw = Path(path).read_bytes()
            text = (gzip.decompress(raw) if path.endswith(".gz") else raw).decode(feed.get("encoding", "utf-8"))
            content[path] = READ[feed["format"]](text.replace("\r\n", "\n"))
        found.append(content)
    assert found[1] == found[0]


def test_the_places_of_feeds_are_those_of_scrapy() -> None:
    """A time in them stays open until the job is known; parameters of the spider and of the project are set."""
    feeds = {
        Path("rel.json"): {},
        "file:///x/q.jsonl": {},
        "stdout:": {"format": "json"},
        "s3://bucket/%(name)s/%(time)s-%(batch_id)d.csv": {"overwrite": True},
    }
    places = runner_of(Plain, {"FEEDS": feeds}).facts.feeds
    assert [one.output for one in places] == [
        str(Path("rel.json").absolute()),
        "/x/q.jsonl",
        "-",
        f"s3://bucket/{Plain.name}/%(time)s-1.csv",
    ]
    assert [one.overwrite for one in places] == [False, False, False, True]
    params = {"FEEDS": {"%(mine)s.csv": {}}, "FEED_URI_PARAMS": f"{HERE}.mine"}
    assert runner_of(Plain, params).facts.feeds[0].output == f"of-{Plain.name}.csv"


def mine(params: dict[str, Any], spider: Any) -> dict[str, Any]:
    """FEED_URI_PARAMS."""
    return params | {"mine": f"of-{spider.name}"}


def test_an_output_of_the_command_has_the_fields_of_the_settings() -> None:
    """Also where feeds choose: their marks are in no output."""
    more = {"FEED_EXPORT_FIELDS": ["title"]}
    by_class = {"item_classes": [Book]}
    cases: list[tuple[dict[str, Any], bool]] = [({}, False), ({"fields": ["price"]}, True), (by_class, True)]
    for feed, has_all in cases:
        runner = runner_of(Plain, {"FEEDS": {"a.json": feed}} | more)
        row = json.loads(bytes(Exporter(runner.crawler.settings).row(ITEMS[0])))
        assert ("price" in row) == has_all
        assert (FEEDS_KEY in row) == ("item_classes" in feed)
        layout = runner.facts.layout
        assert (layout.keeps_rows, layout.fields) == (not has_all, (("title", "title"),) if has_all else ())


def test_what_an_output_cannot_do_of_a_feed_is_said_by_name() -> None:
    """Not what is empty."""
    unused = ("batch_item_count", "item_export_kwargs", "postprocessing")
    notes = runner_of(Plain, {"FEEDS": {"a.csv": dict.fromkeys(unused, "x") | {"batch_item_count": 100}}}).facts.notes
    assert [note.split()[1] for note in notes if " has no effect: " in note] == list(unused)
    notes = runner_of(Plain, {"FEEDS": {"s3://b/a.csv": {"store_empty": False}}, "AWS_ACCESS_KEY_ID": "k"}).facts.notes
    assert [note.split()[1] for note in notes if note.startswith("FEEDS: ")] == ["store_empty", "the"]
    assert not any("FEED" in note for note in runner_of(Plain, {"FEEDS": {"a.csv": dict.fromkeys(unused)}}).facts.notes)
