"""Settings of Scrapy's that no job's record may bring."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from scrapy.settings import default_settings

from crawlog.streams.spiders.deployed import REFUSED, wire_refusal
from crawlog.streams.spiders.scrapy.settings_table import SETTINGS

_PATH = re.compile(r"[a-z_]\w*(\.\w+)+")
"""An import path."""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for part in (*value, *value.values()):
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def test_every_setting_whose_default_is_an_import_path_is_refused() -> None:
    """A later Scrapy with another such setting fails here."""
    named = {name: getattr(default_settings, name) for name in dir(default_settings) if name.isupper()}
    code = {name for name, value in named.items() if any(map(_PATH.fullmatch, _texts(value)))}
    allowed = {"TELNETCONSOLE_HOST", "MAIL_HOST"}
    assert code - REFUSED.keys() - allowed == set()
    assert len(code) > 20


def test_the_table_names_settings_that_scrapy_has_or_had() -> None:
    """A misspelt name would refuse nothing."""
    older = {"DOWNLOADER_HTTPCLIENTFACTORY"}
    assert REFUSED.keys() - SETTINGS.keys() - older == set()


@pytest.mark.parametrize(
    "name",
    [
        "ITEM_PIPELINES",
        "LOG_FILE",
        "SPIDER_MIDDLEWARES",
        "FEEDS",
        "FEED_URI",
        "JOBDIR",
        "AWS_SECRET_ACCESS_KEY",
        "MY_CLASS",
        "SPLASH_MODULE",
        "EXPORT_FILE",
        "OUTPUT_DIR",
        "DB_PASSWORD",
        "MONGO_URI",
        "my_class",
        "ITEM_PIPELINES_OF\nMY_CLASS",
    ],
)
def test_code_files_and_credentials_are_refused(name: str) -> None:
    """Also those of a project's own, by the words of their names, in any case."""
    assert "the settings of the project itself" in wire_refusal(name)


@pytest.mark.parametrize(
    "name",
    [
        "DOWNLOAD_DELAY",
        "CLOSESPIDER_PAGECOUNT",
        "USER_AGENT",
        "ROBOTSTXT_OBEY",
        "LOG_LEVEL",
        "COOKIES_ENABLED",
        "CONCURRENT_REQUESTS",
        "DEPTH_LIMIT",
        "MY_SECTION",
        "CLOSESPIDER_TIMEOUT",
        "DEFAULT_REQUEST_HEADERS",
    ],
)
def test_plain_values_may_come_with_a_job(name: str) -> None:
    """These are what ScrapydWeb's form and its users send."""
    assert wire_refusal(name) == ""


@pytest.mark.parametrize("name", ["TELNETCONSOLE_ENABLED", "SCHEDULER_DEBUG", "SPIDER_CACHE_ENABLED", "ftp_debug"])
def test_a_switch_may_come_with_a_job_whatever_its_other_words_say(name: str) -> None:
    """As a boolean only: any other value may name code, a file or an address."""
    for value in ("True", "False", "true", "false", "0", "1"):
        assert wire_refusal(name, value) == ""
    for value in ("", "os.system", "/tmp/log", "[]", "1.0", "True\n", "maybe"):
        assert wire_refusal(name, value)


def test_a_boolean_switches_on_nothing_that_is_refused_by_its_name() -> None:
    """Nor does it make another setting pass."""
    for name in ("REMOTE_CONTROL_ENABLED", "SCHEDULER", "LOG_FILE_APPEND", "SPIDER_DEBUGGER", "DEBUG_CLASS"):
        assert wire_refusal(name, "True")
