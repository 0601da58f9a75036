"""The tables of settings and of meta keys, entry by entry, and compared with the installed Scrapy and its plug-in."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.dupefilters import BaseDupeFilter
from scrapy.extensions.memusage import MemoryUsage
from scrapy.settings import Settings, default_settings

from crawlog.commands.named_spider import _with_defaults
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings import Sources, resolve
from crawlog.streams.spiders.exchange import RequestOut
from crawlog.streams.spiders.scrapy import META, SETTINGS, ScrapyRunner
from crawlog.streams.spiders.scrapy.scraping import NO_SLOTS
from tests.support.adapting import SITE, asking, failed_page_of, given_by, page_of, runner_of, started

pytestmark = pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")

SOURCES = [
    path.read_text()
    for library in (scrapy, pytest.importorskip("scrapy_playwright"))
    for path in Path(str(library.__file__)).parent.rglob("*.py")
    if "templates" not in path.parts
]


NOT_A_SETTING = {"CHECK", "PROJECT", "PYTHON_SHELL", "SETTINGS_MODULE", "SOME_SETTING", "SHELL"}
"""Names that Scrapy's commands alone use."""


BROWSED = {"DOWNLOAD_HANDLERS": {"https": "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"}}
"""Of a project with scrapy-playwright."""


class Plain(scrapy.Spider):
    """Gives what the test wants."""

    name = "plain"
    start_urls = [f"{SITE}/"]  # noqa: RUF012  # as users write it
    given: Any = None

    def parse(self, response: Any) -> Any:  # noqa: ARG002  # Scrapy's own signature
        """Gives a request with this meta, and says what it sees."""
        if self.given is not None:
            yield scrapy.Request(f"{SITE}/next", self.seen, meta=self.given)
        yield {"settings": {name: repr(self.settings[name]) for name in SETTINGS}}

    def seen(self, response: Any) -> Any:
        """Says the meta."""
        yield {key: repr(value) for key, value in response.meta.items()}


# Compared with the installed Scrapy.


def test_every_setting_of_scrapy_is_in_the_table() -> None:
    """Those with a default, and those that its code reads without one."""
    names = {name for name in dir(default_settings) if name.isupper()}
    read = re.compile(r"settings(?:\.get\w*\(|\[)\s*\"([A-Z][A-Z0-9_]+)\"")
    names |= {name for text in SOURCES for name in read.findall(text)}
    assert names - set(SETTINGS) - NOT_A_SETTING == set()


def test_the_table_has_no_setting_that_scrapy_does_not_know() -> None:
    """A name that is gone would promise something."""
    text = "\n".join(SOURCES)
    assert [name for name in SETTINGS if name not in text] == []


def test_every_meta_key_of_scrapy_is_in_the_table() -> None:
    """All keys that its code reads or writes, and those that its documentation names."""
    uses = re.compile(r"""meta(?:\.(?:get|pop|setdefault)\(\s*|\[)"([a-z_]+)"|"([a-z_]+)" (?:not )?in [\w.]*meta\b""")
    names = {name for text in SOURCES for found in uses.findall(text) for name in found if name}
    names |= {name for text in SOURCES for name in re.findall(r"reqmeta:(?:: |`)(\w+)", text)}
    of_items = {"serializer", "_callback", "_depth", "_meta"}
    assert names - set(META) - of_items == set()


# Settings.

OTHERWISE: dict[str, Any] = {
    "DOWNLOADER": "other.Downloader",
    "DOWNLOADER_CLIENTCONTEXTFACTORY": "other.Factory",
    "DOWNLOAD_BIND_ADDRESS": "10.0.0.1",
    "DOWNLOAD_FAIL_ON_DATALOSS": False,
    "DOWNLOAD_HANDLERS": {"https": "other.Handler"},
    "HTTPCACHE_IGNORE_MISSING": True,
    "ITEM_PROCESSOR": "other.Processor",
    "PLAYWRIGHT_ABORT_REQUEST": "other.aborts",
    "PLAYWRIGHT_BROWSER_PROVIDER": "other.Provider",
    "PLAYWRIGHT_CDP_URL": "ws://127.0.0.1:9222",
    "PLAYWRIGHT_CONNECT_URL": "ws://127.0.0.1:9223",
    "PLAYWRIGHT_PROCESS_REQUEST_HEADERS": "other.headers",
    "SCHEDULER": "frontera.contrib.scrapy.schedulers.frontier.FrontierScheduler",
}
"""Of each refused setting, a value that is refused."""

REFUSED = [name for name, row in SETTINGS.items() if row.effect == "refused"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_setting_is_refused_with_its_reason(name: str) -> None:
    """Before anything is asked; its own default is not refused."""
    with pytest.raises(Misconfigured) as refusal:
        runner_of(Plain, {name: OTHERWISE[name]})
    assert name in str(refusal.value)
    assert SETTINGS[name].what in str(refusal.value)
    runner_of(Plain, {name: Settings()[name]})


def test_handlers_that_are_turned_off_are_not_refused() -> None:
    """Nothing else than http and https is fetched anyway."""
    runner_of(Plain, {"DOWNLOAD_HANDLERS": {"ftp": None, "s3": None}})


def job(name: str) -> Callable[[ScrapyRunner], Any]:
    """A setting of the job."""
    return lambda runner: runner.facts.settings.get(name)


def in_vain(runner: ScrapyRunner) -> Any:
    """Middlewares that run here."""
    return [type(one).__name__ for one in runner.crawler.downloading.middlewares]


class Tagging:
    """A middleware of each kind, and a pipeline."""

    async def process_spider_output(self, response: Any, result: Any) -> Any:  # noqa: ARG002  # as above
        """Tags."""
        async for one in result:
            yield one


class LengthFingerprinter:
    """Requests with URLs of one length are the same."""

    def fingerprint(self, request: Any) -> bytes:
        """Its length."""
        return len(request.url).to_bytes(20, "big")


class CountingStats(scrapy.statscollectors.MemoryStatsCollector):
    """Of a project."""


HERE = __name__

MAPPED: dict[str, tuple[Any, Callable[[ScrapyRunner], Any], Any]] = {
    "CLOSESPIDER_ERRORCOUNT": (1, lambda runner: closes(runner, broken=True), "closespider_errorcount"),
    "CLOSESPIDER_ITEMCOUNT": (1, lambda runner: closes(runner, broken=False), "closespider_itemcount"),
    "CLOSESPIDER_PAGECOUNT": (5, job("run.max_pages"), 5),
    "CLOSESPIDER_PAGECOUNT_NO_ITEM": (1, lambda runner: closes(runner, broken=True), "closespider_pagecount_no_item"),
    "CLOSESPIDER_TIMEOUT": (0.0001, lambda runner: closes(runner, broken=False), "closespider_timeout"),
    "CLOSESPIDER_TIMEOUT_NO_ITEM": (0.0001, lambda runner: closes(runner, broken=True), "closespider_timeout_no_item"),
    "CONCURRENT_REQUESTS_PER_DOMAIN": (3, job("politeness.per_host"), 3),
    "COOKIES_ENABLED": (False, job("fetch.cookies"), False),
    "DEFAULT_REQUEST_HEADERS": ({"Accept": "a/b"}, job("fetch.headers"), ["Accept: a/b"]),
    "DOWNLOADER_MIDDLEWARES": (
        {"scrapy.downloadermiddlewares.retry.RetryMiddleware": None},
        job("fetch.attempts"),
        1,
    ),
    "DOWNLOADER_MIDDLEWARES_BASE": ({}, job("fetch.cookies"), False),
    "DOWNLOAD_DELAY": (2.5, job("politeness.delay_s"), 2.5),
    "DOWNLOAD_MAXSIZE": (5000, job("fetch.max_body_bytes"), 5000),
    "DOWNLOAD_TIMEOUT": (12, job("fetch.timeout_s"), 12.0),
    "DOWNLOADER_CLIENT_TLS_CIPHERS": ("DEFAULT:@SECLEVEL=0", job("network.tls"), "DEFAULT:@SECLEVEL=0"),
    "DOWNLOAD_TLS_MIN_VERSION": ("TLSv1.3", job("network.min_tls"), "1.3"),
    "DOWNLOAD_VERIFY_CERTIFICATES": (True, job("network.verify_tls"), True),
    "DUPEFILTER_CLASS": ("scrapy.dupefilters.BaseDupeFilter", lambda runner: ids(runner, "/a", "/a"), 2),
    "FEEDS": ({"a.csv": {}}, lambda runner: [one.output for one in runner.facts.feeds], ["a.csv"]),
    "FEED_EXPORT_ENCODING": ("latin-1", lambda runner: runner.facts.layout.encoding, "iso8859-1"),
    "FEED_EXPORT_INDENT": (4, lambda runner: runner.facts.layout.indent, 4),
    "FEED_EXPORT_FIELDS": (["b"], lambda runner: exported(runner, {"a": 1, "b": 2}), b'{"b": 2}'),
    "ITEM_PIPELINES": ({f"{HERE}.Tagging": 1}, lambda runner: runner.facts.has_pipelines, True),
    "ITEM_PIPELINES_BASE": ({f"{HERE}.Tagging": 1}, lambda runner: runner.facts.has_pipelines, True),
    "LOG_ENABLED": (False, lambda runner: runner.crawler.settings.getbool("LOG_ENABLED"), False),
    "LOG_LEVEL": ("ERROR", lambda runner: runner.crawler.settings["LOG_LEVEL"], "ERROR"),
    "PLAYWRIGHT_CONTEXTS": (
        {"default": {"locale": "de-DE", "ignore_https_errors": True}},
        lambda runner: runner._recorder._browsed.actions({"playwright": True})[0].args,
        {"locale": "de-DE"},
    ),
    "PLAYWRIGHT_DEFAULT_NAVIGATION_TIMEOUT": (9000, job("render.timeout_s"), 9.0),
    "REQUEST_FINGERPRINTER_CLASS": (f"{HERE}.LengthFingerprinter", lambda runner: ids(runner, "/a", "/b"), 1),
    "RETRY_ENABLED": (False, job("fetch.attempts"), 1),
    "RETRY_HTTP_CODES": ([500, 418], job("fetch.retry_statuses"), ["500", "418"]),
    "RETRY_TIMES": (5, job("fetch.attempts"), 6),
    "ROBOTSTXT_OBEY": (False, job("robots.obey"), False),
    "ROBOTSTXT_USER_AGENT": ("shopbot/1", job("robots.token"), "shopbot"),
    "SCHEDULER_MEMORY_QUEUE": ("scrapy.squeues.FifoMemoryQueue", job("frontier.order"), "fifo"),
    "SPIDER_LOADER_CLASS": ("", None, "tests/streams/spiders/scrapy/test_loading_scrapy.py"),  # type: ignore[dict-item]  # elsewhere
    "SPIDER_LOADER_WARN_ONLY": ("", None, "as SPIDER_LOADER_CLASS"),  # type: ignore[dict-item]  # as above
    "SPIDER_MODULES": ("", None, "as SPIDER_LOADER_CLASS"),  # type: ignore[dict-item]  # as above
    "SPIDER_MIDDLEWARES": (
        {f"{HERE}.Tagging": 1},
        lambda runner: runner.crawler.get_spider_middleware(Tagging) is not None,
        True,
    ),
    "SPIDER_MIDDLEWARES_BASE": ({}, lambda runner: len(runner.crawler.spidermw.middlewares), 0),
    "STATS_CLASS": (f"{HERE}.CountingStats", lambda runner: isinstance(runner.crawler.stats, CountingStats), True),
    "STATS_DUMP": (False, lambda runner: runner.crawler.settings.getbool("STATS_DUMP"), False),
    "USER_AGENT": ("mine/1", job("fetch.user_agent"), "mine/1"),
}
"""Of each mapped setting: a value, what shows its effect, and the effect."""


def closes(runner: ScrapyRunner, *, broken: bool = False) -> str:
    """Why a page closes the job."""
    runner.spider.given = {"bindaddress": "10.0.0.1"} if broken else None  # type: ignore[attr-defined]  # Plain has it
    return given_by(runner, page_of(asking(), "<p>")).closes


def test_a_time_that_the_project_chose_is_for_connecting_too() -> None:
    """Scrapy's default of three minutes is not: mute hosts would hold up the crawl."""
    connects = job("fetch.connect_timeout_s")
    chosen = type("Chosen", (Plain,), {"download_timeout": 40})
    assert connects(runner_of(Plain, {"DOWNLOAD_TIMEOUT": 60})) == 60
    assert connects(runner_of(chosen)) == 40
    plain = runner_of(Plain).facts.settings
    assert "fetch.connect_timeout_s" not in plain
    assert [plain[f"fetch.{name}_s"] for name in ("timeout", "first_byte_timeout", "chunk_timeout")] == [180.0] * 3


def test_redirects_and_failures_are_no_pages_without_items() -> None:
    """Scrapy counts responses that the spider gets."""
    runner = runner_of(Plain, {"CLOSESPIDER_PAGECOUNT_NO_ITEM": 1})
    redirect = given_by(runner, page_of(asking(), http=302, headers=(("Location", "/b"),)))
    assert (len(redirect.requests), redirect.closes) == (1, "")
    assert given_by(runner, failed_page_of(asking(), "dns")).closes == ""
    assert closes(runner, broken=True) == "closespider_pagecount_no_item"


def ids(runner: ScrapyRunner, *paths: str) -> int:
    """How many requests the fold would tell apart."""

    async def start() -> Any:
        for path in paths:
            yield scrapy.Request(SITE + path)

    runner.spider.start = start  # type: ignore[method-assign]  # of this object
    return len({out.id for result in started(runner) for out in result.requests})


def exported(runner: ScrapyRunner, item: dict[str, Any]) -> bytes:
    """The row of an item."""

    async def start() -> Any:
        yield item

    runner.spider.start = start  # type: ignore[method-assign]  # as above
    return bytes(started(runner)[0].items[0])


def test_every_mapped_setting_has_an_example() -> None:
    """Entry by entry."""
    assert set(MAPPED) == {name for name, row in SETTINGS.items() if row.effect == "mapped"}


@pytest.mark.parametrize("name", [name for name, (_, shown, _) in MAPPED.items() if shown is not None])
def test_a_mapped_setting_has_its_effect(name: str) -> None:
    """And without it another one."""
    value, shown, effect = MAPPED[name]
    rest = BROWSED if name.startswith("PLAYWRIGHT") else {}
    assert shown(runner_of(Plain, {name: value, **rest})) == effect
    if name not in {"DOWNLOADER_MIDDLEWARES_BASE", "LOG_LEVEL", "STATS_DUMP", "LOG_ENABLED"}:
        assert shown(runner_of(Plain, rest)) != effect


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if row.effect == "kept"])
def test_a_kept_setting_is_what_the_project_says(name: str) -> None:
    """The spider's code reads it, the job's settings are the same; what changes more is said."""
    plain = runner_of(Plain)
    default = plain.crawler.settings[name]
    value = {bool: not default, int: 7, float: 7.0, str: default, list: ["x"], dict: {}}.get(type(default), default)
    if name in {"TWISTED_REACTOR_ENABLED", "EXTENSIONS_BASE", "LOG_FORMATTER", "REFERRER_POLICY"}:
        value = default
    runner = runner_of(Plain, {name: value})
    if name not in {"EXTENSIONS_BASE", "EXTENSIONS"}:
        assert runner.crawler.settings[name] == value
    assert runner.facts.settings == plain.facts.settings
    if SETTINGS[name].is_said and value != default:
        assert any(note.startswith(f"{name}: ") and SETTINGS[name].what in note for note in runner.facts.notes)


@pytest.mark.parametrize(
    "fields", [["c"], ("c",), {"c"}, frozenset("c"), {"c": scrapy.Field()}.keys(), {"c": "c"}, "c", '["c"]']
)
def test_the_fields_of_rows_may_come_in_any_collection(fields: Any) -> None:
    """Scrapy refuses a set only where it has feeds; a project with pipelines alone runs there."""
    kind = type("Chosen", (Plain,), {"custom_settings": {"FEED_EXPORT_FIELDS": fields}})
    assert exported(runner_of(kind), {"a": 1, "c": 3}) == b'{"c": 3}'


def test_the_fields_of_a_set_stand_in_one_order_in_each_process() -> None:
    """A set of text has another order in each, which columns of a CSV file would take."""
    names = {f"f{n}" for n in range(30)}
    kind = type("Chosen", (Plain,), {"custom_settings": {"FEED_EXPORT_FIELDS": names}})
    assert list(json.loads(exported(runner_of(kind), dict.fromkeys(names, 1)))) == sorted(names)


def test_settings_of_the_job_are_settings_of_crawlog() -> None:
    """Each name and each value is accepted, with all that a project may set."""
    everything = {name: value for name, (value, shown, _) in MAPPED.items() if shown is not None}
    del everything["DOWNLOADER_MIDDLEWARES_BASE"], everything["REQUEST_FINGERPRINTER_CLASS"]
    for settings in ({}, everything):
        facts = runner_of(Plain, settings).facts
        resolve(Sources(flags={}, spider=facts.settings))


DEFAULTS = resolve(Sources(flags={}, environ={})).settings
"""Of a user who sets nothing."""


def test_the_start_says_where_crawlogs_defaults_count() -> None:
    """robots.txt, delay, concurrency, and what else; not what the project or the user's own settings set."""
    facts = runner_of(Plain).facts
    (said,) = _with_defaults(facts, DEFAULTS).notes
    for name in ("ROBOTSTXT_OBEY", "DOWNLOAD_DELAY", "CONCURRENT_REQUESTS_PER_DOMAIN", "DOWNLOAD_VERIFY_CERTIFICATES"):
        assert name in said
    given = resolve(Sources(flags={"politeness.delay_s": 1.0, "network.verify_tls": False}, environ={})).settings
    assert not [name for name in ("DOWNLOAD_DELAY", "VERIFY") if name in _with_defaults(facts, given).notes[0]]
    facts = runner_of(Plain, {"ROBOTSTXT_OBEY": True, "DOWNLOAD_DELAY": 0}).facts
    (said,) = _with_defaults(facts, DEFAULTS).notes
    assert "ROBOTSTXT_OBEY" not in said
    assert "DOWNLOAD_DELAY" not in said
    flags = {"fetch.max_body_bytes": 2048, "politeness.per_host": 2, "network.verify_tls": False}
    given = resolve(Sources(flags=flags, environ={})).settings
    assert _with_defaults(facts, given).notes == facts.notes


def test_a_limit_that_is_turned_off_counts_still_and_is_said() -> None:
    """Scrapy reads bodies of any size then."""
    facts = runner_of(Plain, {"DOWNLOAD_MAXSIZE": 0}).facts
    assert "fetch.max_body_bytes" not in facts.settings
    assert any(note.startswith("DOWNLOAD_MAXSIZE = 0: ") for note in facts.notes)
    assert not any("DOWNLOAD_MAXSIZE = 0" in note for note in runner_of(Plain).facts.notes)


def test_scrapys_own_extensions_that_a_project_enables_are_said_not_to_run() -> None:
    """Not those that run or whose work is done here, nor those that are turned off."""
    room = "scrapy.extensions"
    enabled = {
        f"{room}.periodic_log.PeriodicLog": 1,
        MemoryUsage: 2,
        f"{room}.corestats.CoreStats": 3,
        f"{room}.closespider.CloseSpider": 4,
        f"{room}.telnet.TelnetConsole": None,
    }
    said = [note.split()[1] for note in runner_of(Plain, {"EXTENSIONS": enabled}).facts.notes if "EXTENSIONS" in note]
    assert said == [f"{room}.periodic_log.PeriodicLog", f"{room}.memusage.MemoryUsage"]
    assert not any("EXTENSIONS" in note for note in runner_of(Plain).facts.notes)


@pytest.mark.parametrize(("version", "said"), [("TLSv1.0", True), ("TLSv1.2", False), (None, False)])
def test_a_version_of_tls_that_is_not_spoken_is_said(version: str | None, said: bool) -> None:
    """The job has crawlog's own then."""
    facts = runner_of(Plain, {"DOWNLOAD_TLS_MIN_VERSION": version}).facts
    assert any(note.startswith("DOWNLOAD_TLS_MIN_VERSION = ") for note in facts.notes) == said
    assert ("network.min_tls" in facts.settings) == (version == "TLSv1.2")


def test_a_setting_of_an_extension_that_does_not_run_is_said() -> None:
    """Not where it asks for nothing."""
    wanted = {"STATSMAILER_RCPTS": ["ann@shop.test"], "PERIODIC_LOG_STATS": True, "MEMUSAGE_NOTIFY_MAIL": ["x"]}
    notes = runner_of(Plain, wanted).facts.notes
    assert {name for name in wanted if any(note.startswith(f"{name}: ") for note in notes)} == set(wanted)
    assert not any("PERIODIC_LOG" in note for note in runner_of(Plain, {"PERIODIC_LOG_STATS": False}).facts.notes)


def test_no_filter_may_be_named_by_its_class() -> None:
    """As Scrapy takes it."""
    assert ids(runner_of(Plain, {"DUPEFILTER_CLASS": BaseDupeFilter}), "/a", "/a") == 2


def test_settings_count_in_the_order_of_scrapy() -> None:
    """Project, spider, command line."""

    class Own(Plain):
        name = "own"
        custom_settings = {"DOWNLOAD_DELAY": 2}  # noqa: RUF012  # as users write it

    assert runner_of(Own, {"DOWNLOAD_DELAY": 1}).facts.settings["politeness.delay_s"] == 2.0
    by_command = runner_of(Own, {"DOWNLOAD_DELAY": 1}, command={"DOWNLOAD_DELAY": "3"})
    assert by_command.facts.settings["politeness.delay_s"] == 3.0


# Meta keys.

MAPPED_KEYS: dict[str, tuple[Any, str, Any]] = {
    "cookiejar": ("first", "jar", "first"),
    "dont_merge_cookies": (True, "keeps_cookies", False),
    "proxy": ("http://proxy.test:3128", "proxy", "http://proxy.test:3128"),
    "download_timeout": (7, "timeout_s", 7.0),
    "dont_retry": (True, "attempts", 1),
    "max_retry_times": (4, "attempts", 5),
    "retry_times": (1, "attempts", 2),
    "handle_httpstatus_list": ([404, 500], "answers", (404, 500)),
    "handle_httpstatus_all": (True, "all_answers", True),
    "dont_redirect": (True, "follows", False),
    "playwright": (True, "render", True),
    "playwright_context": ("second", "jar", ""),
    "playwright_context_kwargs": ({"locale": "de"}, "render", None),
    "playwright_page_goto_kwargs": ({"wait_until": "load"}, "render", None),
    "playwright_page_methods": ([], "render", None),
}
"""Of each mapped key: a value, the field of the record, and what it has."""

REFUSED_KEYS: dict[str, Any] = {
    "dont_obey_robotstxt": True,
    "bindaddress": "10.0.0.1",
    "download_maxsize": 1000,
    "download_fail_on_dataloss": False,
    "ftp_user": "ann",
    "ftp_password": "hush",
    "ftp_passive": 1,
    "ftp_local_filename": "x",
    "is_secure": False,
    "playwright_include_page": True,
    "playwright_page": "a page",
    "playwright_page_event_handlers": {"request": "on_request"},
    "playwright_page_init_callback": "other.init",
}


def of_fate(fate: str) -> list[str]:
    """Keys of one fate."""
    return [key for key, row in META.items() if row.fate == fate]


def asked_with(
    key: str, value: Any, settings: dict[str, Any] | None = None
) -> tuple[ScrapyRunner, list[RequestOut], str]:
    """The request that a callback gives with this meta, and the page's error."""
    runner = runner_of(Plain, {"ROBOTSTXT_OBEY": True} | BROWSED | (settings or {}))
    runner.spider.given = {key: value}  # type: ignore[attr-defined]  # Plain has it
    result = given_by(runner, page_of(asking(), "<p>"))
    return runner, result.requests, result.error


def test_every_key_has_an_example() -> None:
    """Entry by entry."""
    assert set(MAPPED_KEYS) == set(of_fate("mapped"))
    assert set(REFUSED_KEYS) == set(of_fate("refused"))


@pytest.mark.parametrize("key", of_fate("mapped"))
def test_a_mapped_key_is_a_field_of_the_record(key: str) -> None:
    """And the callback reads it."""
    value, field, wanted = MAPPED_KEYS[key]
    runner, [out], error = asked_with(key, value)
    assert error == ""
    assert getattr(out.request, field) == wanted
    [seen] = given_by(runner, page_of(out, "<p>")).items
    assert f'"{key}": "{value!r}"'.encode() in bytes(seen)


def test_statuses_may_be_a_range() -> None:
    """As Scrapy asks only whether a status is in it."""
    runner, [out], error = asked_with("handle_httpstatus_list", range(400, 403))
    assert error == ""
    assert out.request is not None
    assert out.request.answers == (400, 401, 402)
    [seen] = given_by(runner, page_of(out, "<p>")).items
    assert b'"handle_httpstatus_list": "range(400, 403)"' in bytes(seen)


@pytest.mark.parametrize("key", of_fate("run"))
def test_a_key_of_scrapys_classes_travels(key: str) -> None:
    """What they read is there when the page comes; `depth` they write themselves."""
    values = {"referrer_policy": "no-referrer", "http_user": "ann", "http_pass": "hush"}
    runner, [out], error = asked_with(key, values.get(key, 1))
    assert error == ""
    [seen] = given_by(runner, page_of(out, "<p>")).items
    assert (f'"{key}"'.encode() in bytes(seen)) == (key != "depth_reset")


def test_a_slot_that_a_spider_chooses_is_warned_of() -> None:
    """Not the slot of a host, which each page's request has and its copies take along."""
    runner = runner_of(Plain)
    runner.spider.given = {"download_slot": "gentle"}  # type: ignore[attr-defined]  # Plain has it
    result = given_by(runner, page_of(asking(), "<p>"))
    assert [told for told in result.warnings if "download_slot" in told] == [NO_SLOTS]
    runner.spider.given = {"download_slot": "shop.test"}  # type: ignore[attr-defined]  # as above
    result = given_by(runner, page_of(asking(), "<p>"))
    assert not any("download_slot" in told for told in result.warnings)
    moved = page_of(asking(), http=302, headers=(("Location", "http://other.test/"),))
    redirect = given_by(runner, moved)
    assert (redirect.requests[0].url, redirect.warnings) == ("http://other.test/", [])


@pytest.mark.parametrize("key", of_fate("left"))
def test_a_key_that_is_made_anew_does_not_travel(key: str) -> None:
    """The record has no room for it."""
    _, [out], error = asked_with(key, 1)
    assert error == ""
    assert out.request is not None
    assert key not in out.request.meta


@pytest.mark.parametrize("key", of_fate("refused"))
def test_a_refused_key_is_refused_with_its_reason(key: str) -> None:
    """The page gives nothing more and becomes a dead letter."""
    _, requests, error = asked_with(key, REFUSED_KEYS[key])
    assert requests == []
    assert f"meta['{key}']" in error
    assert META[key].what in error
    _, [_], error = asked_with(key, None)
    assert error == ""


def test_robots_need_not_be_left_out_where_nobody_asks() -> None:
    """With ROBOTSTXT_OBEY = False the key says what is so anyway."""
    _, [_], error = asked_with("dont_obey_robotstxt", True, {"ROBOTSTXT_OBEY": False})  # a value
    assert error == ""
