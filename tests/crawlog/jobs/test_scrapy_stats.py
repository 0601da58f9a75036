"""Scrapy's stats of a job, from the records of its items; and what became of its settings."""

from pathlib import Path

import msgspec
import pytest

from crawlog.cli import summary_text
from crawlog.cli.main import main
from crawlog.jobs import job_closing
from crawlog.jobs.job_closing import job_stats
from crawlog.jobs.summary import Summary
from crawlog.schemas import items
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.progress import JobCounts
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings


@pytest.mark.broker
def test_what_pages_changed_is_added_up_and_each_page_counts_once(cluster: Settings) -> None:
    """Of this job, in its epoch; a page parsed twice has two records. The newest record of `start` has all of it."""
    ensure_topics(cluster)
    producer, topic = Producer(cluster, "test"), Topics(cluster.kafka.prefix).items
    row = [msgspec.Raw(b"{}")]
    one = {"item_scraped_count": 1.0, "custom": 2.0, "<max>depth": 3.0}
    for record in (
        ItemsRecord("j", "http://a.test/", (0, 1), row, 1, stats=one),
        ItemsRecord("j", "http://a.test/", (0, 9), row, 1, stats=one),
        ItemsRecord("j", "http://a.test/", (0, 3), row, 1, id=7, stats=one),
        ItemsRecord("j", "start#0", (0, 0), row, 1, stats={"custom": 1.0, "<max>depth": 1.0}),
        ItemsRecord("j", items.START_STATS, (0, 0), [], 1, stats={"custom": 3.0}),
        ItemsRecord("j", items.START_STATS, (0, 0), [], 1, stats={"custom": 4.0}),
        ItemsRecord("j", "http://old.test/", (0, 4), row, 0, stats=one),
        ItemsRecord("k", "http://a.test/", (0, 5), row, 1, stats=one),
        ItemsRecord("j", "http://b.test/", (0, 6), row, 1),
    ):
        key = items.key(record.job, record.url, record.id)
        producer.send(topic, items.encode(record), key=key, partition=0)
    producer.send(topic, b'{"stats":{nonsense', partition=0)
    assert producer.flush(10)
    every = {"custom": 9, "item_scraped_count": 2, "<max>depth": 3}
    assert job_stats(cluster, "j", 1) == every
    assert job_stats(cluster, "j", 1, [0]) == every
    assert job_stats(cluster, "j", 1, [99]) == every, "the log was made again since"
    assert job_stats(cluster, "j", 1, [3]) == {"custom": 5, "<max>depth": 1}
    assert job_stats(cluster, "j", 1, [0], [1]) == {"custom": 2, "item_scraped_count": 1, "<max>depth": 3}
    assert job_stats(cluster, "j", 1, [3], [1]) == {}


@pytest.mark.broker
def test_crawl_items_is_not_read_to_its_end_for_a_spider_that_has_no_stats(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may have a million pages, and only Scrapy's spiders count."""
    ensure_topics(cluster)
    monkeypatch.setattr(job_closing, "WITHOUT", 3)
    producer, topic = Producer(cluster, "test"), Topics(cluster.kafka.prefix).items
    late = ItemsRecord("j", "http://a.test/", (0, 1), [], stats={"custom": 1.0})
    for record in (*(ItemsRecord("j", f"http://a.test/{n}", (0, n), []) for n in range(3)), late):
        producer.send(topic, items.encode(record), key=items.key("j", record.url), partition=0)
    assert producer.flush(10)
    assert [job_stats(cluster, "j", 0, starts) for starts in ([0], [3], [])] == [{}, {"custom": 1}, {"custom": 1}]


def test_they_are_told_with_the_summary() -> None:
    """As Scrapy dumps them."""
    summary = Summary("j", reason="finished", counts=JobCounts(fetched=1), stats={"a/b": 1234.0, "c": 0.5})
    lines = summary_text.lines(summary)
    assert lines[-3:] == ["  Scrapy's stats of the job:", "    a/b: 1,234", "    c: 0.5"]
    assert msgspec.json.decode(summary_text.as_json(summary))["stats"] == summary.stats


SPIDER = """
import scrapy

class Quotes(scrapy.Spider):
    name = "quotes"
    custom_settings = {"DOWNLOAD_DELAY": 3, "MY_PASSWORD": "hush", "MY_OWN": [1]}

    def parse(self, response):
        pass
"""


def test_what_became_of_each_setting_of_scrapys_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who set it, what of crawlog it sets, or who reads it; what may be a secret is hidden."""
    (tmp_path / "quotes.py").write_text(SPIDER)
    named = ["--spider", f"{tmp_path}/quotes.py", "-s", "RETRY_TIMES=5", "-s", "politeness.per_host=2"]
    with pytest.raises(SystemExit) as end:
        main(["settings", "--origins", *named])
    assert end.value.code == 0
    lines = {line.split()[0]: line.split(None, 3)[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert lines["politeness.delay_s"][:2] == ["3.0", "spider"]
    assert lines["politeness.per_host"][:2] == ["2", "-s"]
    assert lines["fetch.attempts"][:2] == ["6", "spider"]
    assert lines["DOWNLOAD_DELAY"] == ["3", "spider", "mapped: politeness.delay_s"]
    assert lines["RETRY_TIMES"] == ["'5'", "cmdline", "mapped: fetch.attempts"]
    assert lines["MY_OWN"] == ["[1]", "spider", "kept: read by the project's own code"]
    assert lines["MY_PASSWORD"][0] == "********"


def test_what_cannot_work_is_told_before_anything_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with the way out; nothing is started."""
    (tmp_path / "quotes.py").write_text(SPIDER)
    named = ["--spider", f"{tmp_path}/quotes.py", "-s", "DUPEFILTER_CLASS=mine.Filter"]
    with pytest.raises(SystemExit) as end:
        main(["run", *named, "--data", f"{tmp_path}/d"])
    assert end.value.code == 2
    assert "DUPEFILTER_CLASS = mine.Filter: requests are filtered in the log" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()
