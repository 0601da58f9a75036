"""The names that users program against, and `crawl` where no engine is needed."""

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from scrapy.settings import Settings as ScrapySettings

import crawlog
from crawlog import CrawlError, EngineError, GiveUp, Misconfigured, RetryLater, Settings, Spider, Summary, crawl
from crawlog.api import Ended, _outcome, _scrapy_apart
from crawlog.streams.errors import DamagedLog

PROMISED = {
    *("BadAnswer", "ConnectionFailed", "DnsFailed", "Failure", "FetchError", "HttpError", "NotSent", "TimedOut"),
    *("DropItem", "Request", "Response", "Rule", "Spider", "TlsFailed", "Tried", "every", "try_page"),
    *("Settings", "Sink", "SnapshotStore", "Store", "Summary", "Transport", "crawl"),
    *("CrawlError", "EngineError", "Misconfigured", "GiveUp", "RetryLater", "__version__"),
}


def test_the_front_door_is_complete() -> None:
    """What is promised is exported, sorted, imports, and is what type checkers see."""
    assert set(crawlog.__all__) == PROMISED
    assert list(crawlog.__all__) == sorted(crawlog.__all__)
    assert all(getattr(crawlog, name) is not None for name in crawlog.__all__)
    source = ast.parse(Path(crawlog.__file__).read_text())
    typed = {name.asname for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert typed | {"__version__", None} == PROMISED | {None}


def test_asking_for_no_name_imports_nothing() -> None:
    """`import crawlog` stays as cheap as an empty module."""
    code = "import sys; before = set(sys.modules); import crawlog; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["crawlog"]


def test_errors_stay_what_they_are() -> None:
    """Their classes say what the caller does."""
    assert all(issubclass(kind, CrawlError) for kind in (EngineError, GiveUp, Misconfigured, RetryLater))


@pytest.mark.parametrize(
    ("urls", "more", "told"),
    [
        (["example.com"], {}, "did you mean https://example.com/ ?"),
        ([], {}, "nothing to crawl"),
        ("http://a.example/", {}, "give a list: ['http://a.example/']"),
        (["http://a.example/"], {"output": "-"}, "standard output is the script's own"),
        (["http://a.example/"], {"settings": {"politeness.dely_s": 1}}, "unknown setting 'politeness.dely_s'"),
        (["http://a.example/"], {"job": "a b"}, "a job's name"),
        (["http://a.example/"], {"spider": "nowhere.py"}, "nowhere.py"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(
    urls: list[str] | str, more: dict[str, object], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command line does: no folder, no process."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misconfigured) as error:
        asyncio.run(crawl(urls, **more))  # type: ignore[arg-type]  # of several types
    assert told in str(error.value)
    assert list(tmp_path.iterdir()) == []


async def test_a_spider_without_urls_is_told_of_start_urls(tmp_path: Path) -> None:
    """It is the likely cause."""
    file = tmp_path / "bare.py"
    file.write_text("from crawlog import Spider\nclass Bare(Spider):\n    def parse(self, response): pass\n")
    with pytest.raises(Misconfigured, match="give the spider start_urls"):
        await crawl(spider=file, settings={"run.data": tmp_path / "data"})


async def test_a_class_without_a_file_is_refused() -> None:
    """No worker could import it."""
    typed = type("Typed", (Spider,), {"__module__": "nowhere"})
    with pytest.raises(Misconfigured, match="stands in no file"):
        await crawl(["http://a.example/"], spider=typed)


def test_a_setting_of_scrapys_means_what_it_says() -> None:
    """Lists and dicts too: it travels as text, which Scrapy reads."""
    retrying = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
    own, pairs = _scrapy_apart(
        {
            "politeness.delay_s": 1,
            "RETRY_HTTP_CODES": [500, 418],
            "FEED_EXPORT_FIELDS": ("a", "b"),
            "DOWNLOADER_MIDDLEWARES": {retrying: None},
            "COOKIES_ENABLED": False,
        }
    )
    assert own == {"politeness.delay_s": 1}
    read = ScrapySettings(dict(pairs), "cmdline")
    assert read.getlist("RETRY_HTTP_CODES") == ["500", "418"]
    assert read.getdictorlist("FEED_EXPORT_FIELDS") == ["a", "b"]
    assert read.getdict("DOWNLOADER_MIDDLEWARES") == {retrying: None}
    assert read.getbool("COOKIES_ENABLED") is False


def test_a_set_in_a_setting_of_scrapys_has_one_order() -> None:
    """Each process has another one, and a job goes on only under the same settings."""
    assert _scrapy_apart({"COMPRESSION_TYPES": {"c", "a", "b"}})[1] == (("COMPRESSION_TYPES", "a,b,c"),)


@pytest.mark.parametrize("value", [None, Spider, {Spider: 1}, {"a": Spider}])
def test_a_setting_of_scrapys_that_no_text_says_is_refused(value: object) -> None:
    """Scrapy would read the text `None`, or fail at a class's."""
    with pytest.raises(Misconfigured, match="custom_settings"):
        _scrapy_apart({"DOWNLOADER_MIDDLEWARES": value})


@pytest.mark.parametrize("kind", [Misconfigured, EngineError, DamagedLog, CrawlError])
def test_an_error_of_the_run_is_raised_as_itself(kind: type[CrawlError]) -> None:
    """With its message."""
    with pytest.raises(kind, match="no disk") as error:
        _outcome(Ended(error=kind.__name__, message="no disk"))
    assert type(error.value) is kind


def test_a_summary_is_handed_on() -> None:
    """As it is."""
    assert _outcome(Ended(Summary("j", reason="finished"))).reason == "finished"


def test_settings_are_taken_as_they_are(tmp_path: Path) -> None:
    """An engine that cannot be reached is an error, not an exit; it comes from the run's own process."""
    run = Settings().run.model_copy(update={"data": tmp_path / "data"})
    kafka = Settings().kafka.model_copy(update={"bootstrap": "127.0.0.1:9", "answer_s": 1.0})
    settings = Settings().model_copy(update={"run": run, "kafka": kafka})
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        asyncio.run(crawl(["http://a.example/"], settings=settings))
