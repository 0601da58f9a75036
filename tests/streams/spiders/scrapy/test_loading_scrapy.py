"""Spiders of Scrapy are found by file, by module and by name in a project, with the settings that Scrapy gives them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from crawlog.agents.sandbox.zygote_process import PASSED
from crawlog.schemas.urls import JobSpec
from crawlog.streams.spiders import SpiderFacts, SpiderRef
from tests.support.forked import Server, start
from tests.support.processes import forked

LOADING = """
import os, sys, msgspec
sys.path[0] = ""
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import SpiderRef, load_runner
ref = msgspec.json.decode({ref!r}, type=SpiderRef)
try:
    runner = load_runner(ref)
except Misconfigured as error:
    print("refused:", error, file=sys.stderr, flush=True)
    os._exit(1)  # as the child does: to give up the modules one by one takes a third of a second
open({facts!r}, "wb").write(msgspec.json.encode(runner.facts))
os._exit(0)
"""

SPIDER = """
import scrapy

class Books(scrapy.Spider):
    name = "books"
    start_urls = ["http://books.test/"]
    custom_settings = {"DOWNLOAD_DELAY": 3}

    def __init__(self, section="all", **kwargs):
        super().__init__(**kwargs)
        if section == "none":
            raise ValueError("no such section")

    def parse(self, response):
        yield {"url": response.url}
"""


class Loading:
    """Loads spiders, each in a process of its own, as the child does: a fork that has imported Scrapy, or a new one."""

    def __init__(self, forks: Server | None, results: Path) -> None:
        self._forks = forks
        self._facts, self._errors = results / "facts", results / "errors"

    def load(self, ref: SpiderRef, folder: Path) -> tuple[int, str]:
        """Exit code and standard error of the process."""
        self._facts.unlink(missing_ok=True)
        code = LOADING.format(ref=msgspec.json.encode(ref), facts=str(self._facts))
        with self._errors.open("wb") as errors:
            if self._forks is None:
                ended = subprocess.run([sys.executable, "-c", code], cwd=folder, stderr=errors, check=False).returncode
            else:
                ended = forked(code, folder, os.environ, errors, self._forks).wait()
        return ended, self._errors.read_text()

    def facts_of(self, ref: SpiderRef, folder: Path) -> SpiderFacts:
        """The facts of a spider that can be loaded."""
        ended, errors = self.load(ref, folder)
        assert ended == 0, errors
        return msgspec.json.decode(self._facts.read_bytes(), type=SpiderFacts)

    def refusal(self, ref: SpiderRef, folder: Path) -> str:
        """Why a spider cannot be loaded."""
        ended, errors = self.load(ref, folder)
        assert ended == 1
        assert "refused: " in errors, errors
        return errors.partition("refused: ")[2].strip()


@pytest.fixture(scope="module")
def scrapy_forks() -> Iterator[Server]:
    """What forks processes that have imported Scrapy."""
    with start("crawlog.streams.spiders.scrapy") as server:
        yield server


@pytest.fixture
def loading(scrapy_forks: Server, tmp_path_factory: pytest.TempPathFactory) -> Loading:
    """In forks."""
    return Loading(scrapy_forks, tmp_path_factory.mktemp("results"))


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Loading:
    """In new processes: these claims are about the import of Scrapy and of its adapter."""
    return Loading(None, tmp_path_factory.mktemp("results"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two spiders."""
    spiders = tmp_path / "shop" / "spiders"
    spiders.mkdir(parents=True)
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "settings.py").write_text(
        'SPIDER_MODULES = ["shop.spiders"]\nUSER_AGENT = "shopbot/2 (+http://shop.test)"\nDOWNLOAD_DELAY = 2\n'
    )
    (spiders / "__init__.py").touch()
    (spiders / "books.py").write_text(SPIDER)
    (spiders / "plain.py").write_text(
        'import scrapy\n\nclass Plain(scrapy.Spider):\n    name = "plain"\n    custom_settings = None\n'
    )
    return tmp_path


def test_by_name_in_a_project(project: Path, loading: Loading) -> None:
    """Project settings, then the spider's own, then `-s`; as Scrapy orders them."""
    facts = loading.facts_of(SpiderRef(f"{project}:plain"), project)
    assert facts.path == f"{project}:plain"
    assert facts.label.startswith("plain@")
    assert facts.is_scrapy
    assert facts.starts
    assert facts.settings["politeness.delay_s"] == 2.0
    assert facts.settings["fetch.user_agent"] == "shopbot/2 (+http://shop.test)"
    assert facts.settings["robots.token"] == "shopbot"
    assert loading.facts_of(SpiderRef(f"{project}:books"), project).settings["politeness.delay_s"] == 3.0
    by_command = SpiderRef(f"{project}:books", scrapy=(("DOWNLOAD_DELAY", "0.5"),))
    assert loading.facts_of(by_command, project).settings["politeness.delay_s"] == 0.5


@pytest.mark.parametrize(
    "environment", [{"SCRAPY_PROJECT": "slow"}, {"SCRAPY_SETTINGS_MODULE": "shop.slow", "SCRAPY_PROJECT": "gone"}]
)
def test_the_environment_says_which_settings_a_project_has(
    environment: dict[str, str], project: Path, monkeypatch: pytest.MonkeyPatch, fresh: Loading
) -> None:
    """A section of scrapy.cfg, or a module: by Scrapy's variables, which each child gets."""
    (project / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\nslow = shop.slow\n")
    (project / "shop" / "slow.py").write_text("from shop.settings import *\nDOWNLOAD_DELAY = 9\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert fresh.facts_of(SpiderRef(f"{project}:plain"), project).settings["politeness.delay_s"] == 9
    assert environment.keys() <= set(PASSED)


def test_by_file(tmp_path: Path, loading: Loading) -> None:
    """FILE.py with its only spider, or with the class."""
    file = tmp_path / "books.py"
    file.write_text(SPIDER)
    facts = loading.facts_of(SpiderRef(str(file)), tmp_path)
    assert facts.path == f"{file}:Books"
    assert loading.facts_of(SpiderRef(facts.path), tmp_path).digest == facts.digest
    assert "politeness.per_host" not in facts.settings


RUNS_ITSELF = """
from scrapy.crawler import CrawlerProcess

process = CrawlerProcess(settings={"USER_AGENT": "x"})
process.crawl(Books)
process.start()
"""


def test_a_script_that_would_crawl_by_itself_is_refused(tmp_path: Path, fresh: Loading) -> None:
    """Each process that loads it would. Below a look at `__name__` it does no harm."""
    file = tmp_path / "books.py"
    file.write_text(SPIDER + RUNS_ITSELF)
    assert "a crawl of Books would crawl by Scrapy" in fresh.refusal(SpiderRef(str(file)), tmp_path)
    file.write_text(SPIDER + 'if __name__ == "__main__":\n' + RUNS_ITSELF.replace("\n", "\n    "))
    assert fresh.facts_of(SpiderRef(str(file)), tmp_path).label.startswith("books@")


REACTS = """
from scrapy.crawler import CrawlerRunner
from scrapy.utils.reactor import install_reactor
from twisted.internet.task import react

install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
react(lambda reactor: CrawlerRunner().crawl(Books))
"""

IN_A_FUNCTION = """
from scrapy.crawler import CrawlerProcess

def main():
    process = CrawlerProcess()
    process.crawl(Books)
    process.start()

main()
"""

BY_ASYNCIO = """
import asyncio
from scrapy.crawler import AsyncCrawlerRunner

async def main():
    await AsyncCrawlerRunner({"TWISTED_REACTOR_ENABLED": False}).crawl(Books)

asyncio.run(main())
"""


@pytest.mark.parametrize("runs", [REACTS, IN_A_FUNCTION, BY_ASYNCIO], ids=["react", "function", "asyncio"])
def test_no_form_of_a_crawl_begins_when_a_spider_is_loaded(runs: str, tmp_path: Path, fresh: Loading) -> None:
    """Whatever the script makes of the refusal: Scrapy's own processes only log it."""
    file = tmp_path / "books.py"
    starts = "\n    async def start(self):\n        open('crawled', 'w')\n        return\n        yield\n"
    file.write_text(SPIDER + starts + runs)
    refused = "a crawl of Books would crawl by Scrapy in each process that loads it"
    assert refused in fresh.refusal(SpiderRef(str(file)), tmp_path)
    if runs is IN_A_FUNCTION:
        assert refused in fresh.refusal(SpiderRef(f"{tmp_path}:books:Books"), tmp_path)
    assert not (tmp_path / "crawled").exists()


def test_a_base_class_without_a_name_is_no_spider(tmp_path: Path, loading: Loading) -> None:
    """As for Scrapy's loader; alone, it says what it lacks."""
    file = tmp_path / "books.py"
    base = "import scrapy\n\nclass Base(scrapy.Spider):\n    def parse(self, response):\n        pass\n"
    file.write_text(f'{base}\nclass Books(Base):\n    name = "books"\n')
    assert loading.facts_of(SpiderRef(str(file)), tmp_path).path == f"{file}:Books"
    file.write_text(base)
    assert "Base must have a name" in loading.refusal(SpiderRef(str(file)), tmp_path)


def test_settings_name_components_of_the_file_by_its_stem(tmp_path: Path, loading: Loading) -> None:
    """As `scrapy runspider`; a module of Python's own of this name stays."""
    pipe = "class Pipe:\n    def process_item(self, item):\n        return item\n"
    for stem in ("shop_spider", "queue"):
        file = tmp_path / f"{stem}.py"
        file.write_text(SPIDER.replace('"DOWNLOAD_DELAY": 3', f'"ITEM_PIPELINES": {{"{stem}.Pipe": 1}}') + pipe)
    assert loading.facts_of(SpiderRef(str(tmp_path / "shop_spider.py")), tmp_path.parent).has_pipelines
    assert "Module 'queue' doesn't define" in loading.refusal(SpiderRef(str(tmp_path / "queue.py")), tmp_path.parent)


def test_a_file_in_a_project_has_its_settings(project: Path, loading: Loading) -> None:
    """As `scrapy runspider` in the project's folder."""
    facts = loading.facts_of(SpiderRef(str(project / "shop" / "spiders" / "plain.py")), project)
    assert facts.settings["politeness.delay_s"] == 2.0


def test_a_file_in_a_project_imports_from_it(project: Path, loading: Loading) -> None:
    """At its top; each file that it imports is checked before."""
    items = project / "shop" / "items.py"
    items.write_text("import scrapy\n\nclass Book(scrapy.Item):\n    title = scrapy.Field()\n")
    file = project / "shop" / "spiders" / "books.py"
    file.write_text(f"from shop.items import Book\n{SPIDER}")
    assert loading.facts_of(SpiderRef(str(file)), project.parent).path == f"{file}:Books"
    items.chmod(0o666)
    assert "items.py" in loading.refusal(SpiderRef(str(file)), project.parent)


def test_by_module(project: Path, loading: Loading) -> None:
    """`pkg.module:Class`, of a package that can be imported."""
    for path in ("shop.spiders.books:Books", f"{project}:shop.spiders.books:Books"):
        facts = loading.facts_of(SpiderRef(path), project)
        assert facts.path == path
        assert facts.settings["politeness.delay_s"] == 3.0


def test_the_digest_is_of_all_code(project: Path, loading: Loading) -> None:
    """A changed item class is another version, although the spider's file is the same."""
    before = loading.facts_of(SpiderRef(f"{project}:plain"), project)
    (project / "shop" / "items.py").write_text("# new\n")
    after = loading.facts_of(SpiderRef(f"{project}:plain"), project)
    assert before.digest != after.digest


def test_what_cannot_be_loaded_says_why(project: Path, loading: Loading) -> None:
    """Each in one line, before anything is asked for."""
    assert "no spider of this name" in loading.refusal(SpiderRef(f"{project}:other"), project)
    assert "it has books, plain" in loading.refusal(SpiderRef(f"{project}:other"), project)
    assert "ValueError: no such section" in loading.refusal(
        SpiderRef(f"{project}:books", args=(("section", "none"),)), project
    )
    assert "there is no module nothing" in loading.refusal(SpiderRef("nothing.here:Books"), project)
    (project / "shop" / "settings.py").write_text("1 / 0\n")
    assert "ZeroDivisionError" in loading.refusal(SpiderRef(f"{project}:plain"), project)
    assert "No such file" in loading.refusal(SpiderRef(f"{project}/gone:plain"), project)


@pytest.mark.parametrize(
    ("file", "source", "args", "said"),
    [
        ("helper.py", "\n{}['KEY']\n", (), "loaded: KeyError: 'KEY' (shop/helper.py, line 2)"),
        ("helper.py", "\n\nassert False\n", (), "loaded: AssertionError (shop/helper.py, line 3)"),
        ("helper.py", "def x(:\n", (), "loaded: SyntaxError: invalid syntax (shop/helper.py, line 1)"),
        ("settings.py", "1 / 0\n", (), "loaded: ZeroDivisionError: division by zero (shop/settings.py, line 1)"),
        ("helper.py", "", (("section", "none"),), "made: ValueError: no such section (shop/spiders/books.py, line 12)"),
    ],
)
def test_an_error_of_a_projects_code_has_its_file_and_line(
    file: str, source: str, args: tuple[tuple[str, str], ...], said: str, project: Path, loading: Loading
) -> None:
    """Below the folder of the code, which is gone when the message is read."""
    (project / "shop" / "spiders" / "books.py").write_text(f"import shop.helper{SPIDER}")
    (project / "shop" / "helper.py").touch()
    (project / "shop" / file).write_text(source)
    assert said in loading.refusal(SpiderRef("books", folder=str(project), args=args), project)


@pytest.mark.parametrize(
    ("name", "value"), [("DOWNLOAD_DELAY", "abc"), ("ROBOTSTXT_OBEY", "maybe"), ("RETRY_TIMES", "2.5")]
)
def test_a_setting_that_cannot_be_read_is_named(name: str, value: str, project: Path, loading: Loading) -> None:
    """Beside the error of its value, which has no name."""
    given = SpiderRef(f"{project}:plain", scrapy=((name, value),))
    assert f"Plain cannot be made: {name} = {value!r}: ValueError: " in loading.refusal(given, project)


@pytest.mark.parametrize(
    ("level", "of_job", "wanted"),
    [("", "info", ["INFO", "ERROR"]), ("ERROR", "info", ["ERROR"]), ("", "error", ["ERROR"])],
)
def test_what_a_spider_logs_while_it_is_made_has_its_level(
    project: Path, level: str, of_job: Literal["info", "error"], wanted: list[str], loading: Loading
) -> None:
    """As with Scrapy: LOG_LEVEL, before the job's `spider.log`."""
    path = project / "shop" / "spiders" / "books.py"
    said = 'self.logger.info("in init")\n        self.logger.error("in init")\n        '
    path.write_text(SPIDER.replace('if section == "none"', f'{said}if section == "none"'))
    ref = SpiderRef(f"{path}", scrapy=(("LOG_LEVEL", level),) if level else (), spec=JobSpec(log=of_job))
    ended, errors = loading.load(ref, project)
    assert ended == 0, errors
    lines = [line for line in errors.splitlines() if line.endswith("in init")]
    assert [line.partition(" [books] ")[2] for line in lines] == [f"{one}: in init" for one in wanted]


def test_an_unknown_log_level_is_named_with_its_setting(project: Path, loading: Loading) -> None:
    """And with the levels that there are: `info` is none of them, as in Scrapy."""
    said = loading.refusal(SpiderRef(f"{project}:plain", scrapy=(("LOG_LEVEL", "info"),)), project)
    assert said.startswith("LOG_LEVEL = 'info' is wrong; it must be a number or one of CRITICAL, ")


def test_a_long_value_of_a_setting_is_named_alone(project: Path, loading: Loading) -> None:
    """It may hold a login; what Python's own error says of it stays."""
    given = SpiderRef(f"{project}:plain", scrapy=(("RETRY_TIMES", "http://user:password@proxy.test"),))
    assert "made: RETRY_TIMES: ValueError: " in loading.refusal(given, project)


def test_a_wrong_name_of_the_settings_is_no_module_to_install(project: Path, loading: Loading) -> None:
    """What is missing is in the project itself; a module that the settings import is named as it is."""
    (project / "scrapy.cfg").write_text("[settings]\ndefault = shpo.settings\n")
    said = loading.refusal(SpiderRef("books", folder=str(project)), project)
    assert said.startswith("scrapy.cfg, or the entry point [scrapy] of an egg, names the settings shpo.settings")
    assert "install" not in said
    (project / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (project / "shop" / "settings.py").write_text("import nosuchdep\n")
    assert "The module nosuchdep is not installed" in loading.refusal(SpiderRef("books", folder=str(project)), project)


def test_a_file_that_others_may_change_is_not_run(project: Path, loading: Loading) -> None:
    """Every Python file of the project, whichever is imported."""
    (project / "shop" / "settings.py").chmod(0o666)
    assert "settings.py" in loading.refusal(SpiderRef(f"{project}:plain"), project)
