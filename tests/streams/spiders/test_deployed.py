"""Spiders of deployed code by their names, and the settings that a job's record may carry."""

from pathlib import Path

import pytest
from scrapy.settings import default_settings

from crawlog.agents.sandbox import ChildRules, SpiderChild
from crawlog.commands.projects import LISTING
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import SpiderRef, wire_refusal
from crawlog.streams.spiders.deployed import deployed_class, spider_names
from tests.support.deployed import RULES

QUOTES = Path(__file__).parent.parent.parent / "projects" / "quotes"

SPIDERS = """
import crawlog

class Base(crawlog.Spider):
    def parse(self, response): ...

class Shop(Base):
    name = "shop"

class Plain(Base): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of spiders of crawlog's own."""
    found = tmp_path / "code"
    found.mkdir()
    (found / "spiders.py").write_text(SPIDERS)
    (found / "items.py").write_text("class Item(dict): ...")
    return found


def test_spiders_are_found_by_their_names(folder: Path) -> None:
    """The class's own name where it has no other."""
    assert spider_names(folder) == ["Base", "Plain", "shop"]
    assert deployed_class(folder, "shop").kind.__name__ == "Shop"
    assert deployed_class(folder, "Plain").kind.__name__ == "Plain"


def test_a_project_whose_spiders_cannot_be_listed_names_the_line(tmp_path: Path) -> None:
    """An error without a text is its type."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "__init__.py").touch()
    (tmp_path / "m" / "settings.py").write_text('SPIDER_MODULES = ["m.spiders"]\n')
    (tmp_path / "m" / "spiders.py").write_text("import scrapy\n\nassert not scrapy\n")
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = m.settings\n")
    with (
        SpiderChild(SpiderRef("", folder=str(tmp_path)), RULES, LISTING) as child,
        pytest.raises(Misconfigured, match=r"cannot be loaded: AssertionError \(m/spiders.py, line 3\)$"),
    ):
        child.call("names")


def test_the_name_of_a_spider_is_never_a_path(folder: Path, tmp_path: Path) -> None:
    """It is compared with the names that the code has; no other file is run."""
    touched, evil = tmp_path / "touched", tmp_path / "evil.py"
    evil.write_text(
        f"open({str(touched)!r}, 'w')\nimport crawlog\nclass E(crawlog.Spider):\n    def parse(self, r): ...\n"
    )
    for name in (str(evil), f"{evil}:E", "os:system", f"{tmp_path}:evil:E", "../evil", "evil:E", ""):
        with pytest.raises(Misconfigured, match="no spider"):
            deployed_class(folder, name)
    with (
        SpiderChild(SpiderRef(f"{tmp_path}:evil:E", folder=str(QUOTES)), RULES) as child,
        pytest.raises(Misconfigured, match="no spider of this name"),
    ):
        child.facts()
    assert not touched.exists()


def test_a_job_with_code_never_runs_a_file_or_a_module(tmp_path: Path) -> None:
    """Without a source of deployed code its child loads nothing, whatever its name says."""
    spec = JobSpec(code=CodeRef("p", "1", "0" * 64))
    with (
        SpiderChild(SpiderRef(str(tmp_path / "x.py"), spec=spec), ChildRules()) as child,
        pytest.raises(Misconfigured, match="runs no deployed code"),
    ):
        child.facts()


def _names_code(value: object) -> bool:
    return "scrapy." in str(value) and not str(value).startswith("Scrapy/")


def test_no_setting_of_scrapys_that_names_code_may_come_with_a_job() -> None:
    """Of all that have a default: those whose default has an import path, and the ones of files and addresses."""
    names = [name for name in dir(default_settings) if name.isupper()]
    code = [name for name in names if _names_code(getattr(default_settings, name))]
    assert len(code) > 25
    assert [name for name in code if not wire_refusal(name)] == []
    more = (
        "ADDONS ITEM_PIPELINES SPIDER_MODULES EXTENSIONS FEEDS FEED_URI FEED_TEMPDIR LOG_FILE JOBDIR HTTPCACHE_DIR "
        "FILES_STORE IMAGES_STORE TEMPLATES_DIR EDITOR COMMANDS_MODULE AWS_ENDPOINT_URL FTP_PASSWORD MAIL_HOST "
        "HTTPCACHE_DBM_MODULE DOWNLOADER_MIDDLEWARES SPIDER_MIDDLEWARES DOWNLOAD_HANDLERS RETRY_EXCEPTIONS"
    )
    assert [name for name in more.split() if not wire_refusal(name)] == []
    fine = "DOWNLOAD_DELAY USER_AGENT DEPTH_LIMIT CLOSESPIDER_PAGECOUNT LOG_LEVEL COOKIES_ENABLED MY_SECTION"
    assert [name for name in fine.split() if wire_refusal(name)] == []
