"""How a command names a spider, its arguments and Scrapy's settings; and what its job is called then."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from crawlog.cli import arguments
from crawlog.cli.main import main
from crawlog.commands.named_spider import arguments_in, named, path_of, scrapy_apart
from crawlog.jobs.request import JobRequest, LocalParts, job_name
from crawlog.jobs.submit import wanted_of
from crawlog.streams.errors import Misconfigured
from crawlog.streams.job_spec import JobSpider, resolve_spec
from crawlog.streams.settings.settings import Settings
from crawlog.streams.spiders import SpiderFacts

SPIDER = """
from crawlog import Spider

class Books(Spider):
    def parse(self, response):
        yield {}
"""


def test_files_and_projects_are_absolute_in_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have other working folders."""
    below = tmp_path / "quotes" / "spiders"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    with pytest.raises(Misconfigured, match=r"neither FILE.py.* no Scrapy project is here"):
        path_of("toscrape.com")
    (tmp_path / "scrapy.cfg").touch()
    assert path_of("toscrape.com") == f"{tmp_path}:toscrape.com"
    assert path_of("books.py") == f"{below}/books.py"
    assert path_of("../books.py:Books") == f"{below}/../books.py:Books"


def test_arguments_and_scrapys_settings_are_taken_apart() -> None:
    """By upper case; the last value of a name counts."""
    assert arguments_in(["b=2", "a=1=1", "b=3"]) == (("a", "1=1"), ("b", "3"))
    assert arguments_in(["qs:year=2020", "1st=", "a b=c"]) == (("1st", ""), ("a b", "c"), ("qs:year", "2020"))
    own, scrapy = scrapy_apart(["scope=host", "LOG_LEVEL=INFO", "fetch.attempts=2", "LOG_LEVEL=DEBUG", "UPPER"])
    assert own == ("scope=host", "fetch.attempts=2", "UPPER")
    assert scrapy == (("LOG_LEVEL", "DEBUG"),)


@pytest.mark.parametrize("wrong", ["section", "=x", "a\n=c", "\udcff=x"])
def test_an_argument_that_is_none_says_so(wrong: str) -> None:
    """Nor is one whose name no line can show."""
    with pytest.raises(Misconfigured, match="NAME=VALUE, such as -a section=books"):
        arguments_in([wrong])


@pytest.mark.parametrize("option", [["-a", "section=books"], ["-s", "LOG_LEVEL=INFO"]])
def test_what_only_a_spider_takes_needs_one(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It would be ignored."""
    with pytest.raises(SystemExit) as end:
        main(["run", "http://a.example/", *option])
    assert end.value.code == 2
    assert "give --spider, too" in capsys.readouterr().err


def test_a_setting_of_scrapys_is_no_setting_of_our_own_spider(tmp_path: Path) -> None:
    """It would be ignored."""
    (tmp_path / "books.py").write_text(SPIDER)
    with pytest.raises(Misconfigured, match=r"-s LOG_LEVEL: a setting of Scrapy's, and .*books.py:Books is"):
        named(f"{tmp_path}/books.py", (), (("LOG_LEVEL", "INFO"),), Settings())


QUOTES = """
import scrapy

class Quotes(scrapy.Spider):
    name = "quotes"
"""


def test_proxies_of_the_environment_that_scrapy_would_use_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the user names proxies or turns them off; their logins are not shown."""
    file, said = tmp_path / "quotes.py", "http_proxy, https_proxy of the environment: "
    file.write_text(QUOTES)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    assert not any("_proxy" in note for note in named(str(file), (), (), Settings()).facts.notes)
    monkeypatch.setenv("HTTP_PROXY", "http://ann:hush@10.9.9.9:3128")
    monkeypatch.setenv("https_proxy", "http://ann:hush@10.9.9.9:3128")
    [note] = [note for note in named(str(file), (), (), Settings()).facts.notes if "_proxy" in note]
    assert note.startswith(said)
    assert "exits.proxies" in note
    assert "hush" not in note
    given = Settings.model_validate({"exits": {"proxies": ["http://one:3128"]}})
    assert not any(said in note for note in named(str(file), (), (), given).facts.notes)
    off = (("HTTPPROXY_ENABLED", "False"),)
    assert not any(said in note for note in named(str(file), (), off, Settings()).facts.notes)


def test_a_larger_download_maxsize_than_a_record_holds_is_lowered_and_said(tmp_path: Path) -> None:
    """Scrapy's own is 1 GiB. A record may be larger where the user says so."""
    file = tmp_path / "quotes.py"
    file.write_text(QUOTES)
    large = Settings.model_validate({"kafka": {"max_record_bytes": 64 << 20}})
    for size, settings, wanted in (
        (1 << 30, Settings(), Settings().body_room),
        (1 << 30, large, large.body_room),
        (32 << 20, large, 32 << 20),
    ):
        facts = named(str(file), (), (("DOWNLOAD_MAXSIZE", str(size)),), settings).facts
        assert facts.settings["fetch.max_body_bytes"] == wanted
        said = f"DOWNLOAD_MAXSIZE = {size}: bodies have at most {wanted} bytes"
        assert any(note.startswith(said) for note in facts.notes) == (size > wanted)


def test_a_job_is_called_by_seeds_spider_and_arguments(tmp_path: Path) -> None:
    """Not by the folder; without arguments as before there were any."""
    assert job_name(["http://a.example/"]) == "job-b4f9c4f84b"

    def name(folder: str, *seeds: str, args: dict[str, str] | None = None) -> str:
        request = JobRequest(urls=seeds, args=args or {})
        facts = SpiderFacts(f"{folder}/books.py:Books", "books@1", starts=True)
        with ExitStack() as opened:
            return wanted_of(Settings(), request, LocalParts(seeds, facts), print, opened).name

    plain, args = name(str(tmp_path), "http://a.example/"), {"b": "2", "a": "1"}
    assert plain == name("", "http://a.example/")
    more = name("", "http://a.example/", args=args)
    assert more == job_name(["http://a.example/"], "books.py:Books", [("a", "1"), ("b", "2")])
    assert len({more, plain, name("", args=args)}) == 3


def test_the_record_of_a_job_has_them(tmp_path: Path) -> None:
    """Each worker loads the same spider by it."""
    (tmp_path / "books.py").write_text(SPIDER.replace("def parse", "def __init__(self, n): self.n = n\n    def parse"))
    spider = arguments.spider(f"{tmp_path}/books.py", ["n=1"], (), Settings)
    settings, request, parts = arguments.requested(Settings(), ["http://a.example/"], spider=spider)
    with ExitStack() as opened:
        wanted = wanted_of(settings, request, parts, print, opened)
    assert wanted.spider == JobSpider(f"{tmp_path}/books.py:Books", (("n", "1"),))
    assert JobSpider.of(resolve_spec(Settings(), wanted.spider)) == wanted.spider


def test_a_run_into_an_archive_keeps_all_headers() -> None:
    """Nobody wants WARC files without them."""
    for output, headers in (("warc:x", "full"), ("-", "needed")):
        settings, _, _ = arguments.requested(Settings(), ["http://a.example/"], outputs=[output])
        assert settings.pages.headers == headers
