"""What crawlog's own spiders log reaches the log of their job, with its level."""

import subprocess
import sys
from pathlib import Path

import pytest

from crawlog.agents.job_lines import PRINTED, line_of

LOADING = """
import sys
from crawlog.streams.spiders import SpiderRef, load_runner
from crawlog.schemas.urls import JobSpec
for _ in range(2):
    runner = load_runner(SpiderRef(sys.argv[1], spec=JobSpec(log="LEVEL")))
runner._spider.parse(None)
"""

TRYING = """
import logging, sys
from crawlog.streams.spiders import StoredPage, try_page
from crawlog.schemas.pages import PageMeta
page = StoredPage(PageMeta(url="http://a.test/", job="j", http=200), b"")
try_page(sys.argv[1], page)
assert not logging.root.handlers, logging.root.handlers
"""

SPIDER = """
import logging
import library
from crawlog import Spider
{set_up}

class Books(Spider):
    name = "books"

    def __init__(self):
        {later}

    def parse(self, response):
        self.logger.debug("a try")
        self.logger.info("a page")
        self.logger.warning("no price")
        logging.getLogger("shop.prices").info("a price")
        library.asks()
        return []
"""

LIBRARY = """
import logging

def asks():
    logging.getLogger("library").info("GET https://api.test/?token=secret")
    logging.getLogger("library").warning("slow")
"""

UNNAMED = """
import logging
from crawlog import Spider

class Books(Spider):
    def parse(self, response):
        logging.getLogger(__name__).info("a page")
        return []
"""

ALL = ("[books] INFO: a page", "[books] WARNING: no price", "[shop.prices] INFO: a price", "[library] WARNING: slow")


def logged(
    program: str, folder: Path, set_up: str = "", later: str = "pass", spider: str = SPIDER, level: str = "info"
) -> list[str]:
    """What a process writes to standard error that loads a spider, of which a library is installed."""
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "library.py").write_text(LIBRARY)
    (folder / "books.py").write_text(spider.format(set_up=set_up, later=later))
    command = [sys.executable, "-c", program.replace("LEVEL", level), str(folder / "books.py")]
    done = subprocess.run(command, env={"PYTHONPATH": str(installed)}, capture_output=True, check=True, text=True)
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("set_up", "lines"),
    [
        ("", ALL),
        ("logging.getLogger().setLevel('ERROR')", ()),
        ("logging.getLogger('books').setLevel('DEBUG')", ("[books] DEBUG: a try", *ALL)),
        ("logging.basicConfig(format='%(message)s')", ("no price", "slow")),
    ],
)
def test_lines_of_a_spider_are_written_from_info_up_and_those_of_libraries_from_warning_up(
    tmp_path: Path, set_up: str, lines: tuple[str, ...]
) -> None:
    """Once each, however often the spider is loaded; what its module sets up by itself holds."""
    assert logged(LOADING, tmp_path, set_up) == list(lines)


@pytest.mark.parametrize(
    ("set_up", "lines"),
    [
        ("logging.basicConfig(format='%(message)s', level='WARNING')", ("no price", "slow")),
        ("logging.getLogger('shop').handlers = [logging.StreamHandler()]", (*ALL[:2], "a price", ALL[3])),
    ],
)
def test_what_a_spider_sets_up_when_it_is_made_holds_too(tmp_path: Path, set_up: str, lines: tuple[str, ...]) -> None:
    """Each line is written once, by the spider's own handler."""
    assert logged(LOADING, tmp_path, later=set_up) == list(lines)


@pytest.mark.parametrize(
    ("level", "lines"),
    [("debug", ("[books] DEBUG: a try", *ALL)), ("warning", (ALL[1], ALL[3])), ("error", ())],
)
def test_the_jobs_setting_is_the_least_level(tmp_path: Path, level: str, lines: tuple[str, ...]) -> None:
    """`spider.log` stands in the job's record, so it holds on each machine."""
    assert logged(LOADING, tmp_path, level=level) == list(lines)


def test_the_module_of_a_spider_is_named_as_its_file_is(tmp_path: Path) -> None:
    """The name that it is loaded under has a hash."""
    assert logged(LOADING, tmp_path, spider=UNNAMED) == ["[books] INFO: a page"]


def test_a_line_of_the_root_logger_sets_up_nothing(tmp_path: Path) -> None:
    """Python's `logging.info` did: a handler without our filter, to which libraries told their tokens."""
    assert logged(LOADING, tmp_path, later="logging.info('made')") == [*["[root] INFO: made"] * 2, *ALL]


def test_crawl_logs_has_the_level_of_a_line_of_an_own_spider() -> None:
    """Its text names it."""
    levels = [line_of({"event": PRINTED, "line": line}).level for line in ALL]
    assert levels == ["info", "warning", "info", "warning"]


def test_a_page_that_is_tried_leaves_the_logging_of_the_users_program_alone(tmp_path: Path) -> None:
    """The spider runs in the program itself: Python's own handler shows warnings."""
    assert logged(TRYING, tmp_path) == ["no price", "slow"]
