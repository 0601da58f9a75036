"""A project that imports a reactor of Twisted gets one on the child's own loop; without an import there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNING = """
import asyncio, os, sys
from crawlog.schemas.pages import PageMeta
from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import SpiderRef, load_runner
from crawlog.streams.spiders.exchange import PageCall

loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
try:
    runner = load_runner(SpiderRef(sys.argv[1]))
except Misconfigured as error:
    sys.exit(str(error))
result = loop.run_until_complete(runner.page(PageCall(PageMeta("http://shop.test/", "job", http=200), b"<p>")))
print(result.trace or b"".join(map(bytes, result.items)).decode())
print(type(sys.modules.get("twisted.internet.reactor")).__name__, flush=True)
os._exit(0)  # as the child does: the reactor's threads would keep the process
"""

SPIDER = """
import scrapy
from scrapy.utils.defer import maybe_deferred_to_future
{top}

class Threads(scrapy.Spider):
    name = "threads"

    async def parse(self, response):
        {inside}
"""

WAITING = """from twisted.internet import reactor, threads, task
        threaded = await maybe_deferred_to_future(threads.deferToThread(lambda: 7))
        await maybe_deferred_to_future(task.deferLater(reactor, 0.01, lambda: None))
        yield {"threaded": threaded}"""


def said(folder: Path, top: str, inside: str) -> str:
    """What a process says that runs the spider as the child does."""
    file = folder / "threads.py"
    file.write_text(SPIDER.format(top=top, inside=inside))
    command = [sys.executable, "-c", RUNNING, str(file)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout or done.stderr


def test_a_reactor_that_a_callback_imports_runs_on_the_loop(tmp_path: Path) -> None:
    """Threads and timers of Twisted can be awaited."""
    assert said(tmp_path, "", WAITING).split("\n")[:2] == ['{"threaded": 7}', "AsyncioSelectorReactor"]


def test_without_an_import_there_is_no_reactor(tmp_path: Path) -> None:
    """Scrapy itself needs none."""
    inside = "import asyncio\n        await asyncio.sleep(0)\n        yield {'slept': 1}"
    assert said(tmp_path, "", inside).split("\n")[:2] == ['{"slept": 1}', "NoneType"]


@pytest.mark.parametrize("top", ["from twisted.internet import reactor", "import twisted.internet.reactor"])
def test_a_file_that_installs_a_reactor_by_itself_is_told_so(top: str, tmp_path: Path) -> None:
    """Its callbacks would wait for a reactor that nothing runs."""
    assert "import it in the function that needs it" in said(tmp_path, top, "yield {}")
