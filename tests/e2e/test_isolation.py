"""The folder that a command is started in holds data, never code: neither for it nor for processes that it starts."""

import ast
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from crawlog.streams.settings.settings import Settings
from tests.support.sites import Answer, Threaded

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "streams", "agents", "crawlog")
SCRIPT = Path(sys.executable).with_name("crawlog")
TIMEOUT_S = 180.0

TELLS = "from pathlib import Path\nPath({mark!r}).open('a').write(__name__ + ' ')\nraise RuntimeError(__name__)\n"

SPIDER = """
import calendar  # nothing has loaded it before
from beside import KEY
from crawlog import Spider

class Own(Spider):
    def parse(self, response):
        yield {KEY: calendar.TUESDAY}
"""


class Here:
    """A folder full of files that tell when they are run.

    Attributes:
        folder: Has a module of each name that Python, crawlog or another package may import.
    """

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "here"
        self.folder.mkdir()
        self._mark = tmp_path / "ran"
        told = TELLS.format(mark=str(self._mark))
        own = {"schemas", "streams", "agents"}
        for name in {*sys.stdlib_module_names, *packages_distributions(), *own} - {"crawlog", "__main__"}:
            (self.folder / f"{name}.py").write_text(told)
        (self.folder / "crawlog").mkdir()
        (self.folder / "crawlog" / "__init__.py").write_text(told)

    def ran(self) -> list[str]:
        """The modules of the folder that were run."""
        return self._mark.read_text().split() if self._mark.exists() else []


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """Where commands are started."""
    return Here(tmp_path)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A folder with crawlog as a wheel installs it, to be found before the editable one."""
    folder = tmp_path / "site"
    (folder / "crawlog").mkdir(parents=True)
    for source in FOLDERS:
        target = folder / "crawlog" / ("" if source == "crawlog" else source)
        target.mkdir(exist_ok=True)
        for file in (ROOT / source).iterdir():
            if file.is_file():
                (target / file.name).symlink_to(file)
    return folder


def page(path: str) -> Answer:
    """One page, which needs a trial."""
    return (200, "text/html", b"<i a=b>" * 2000) if path == "/" else (404, "text/html", b"")


def crawlog(here: Here, *arguments: object, install: Path | None = None) -> str:
    """The console script, run in the folder; what it said on standard error."""
    environ = os.environ | ({"PYTHONPATH": str(install)} if install else {})
    command = [str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=here.folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("editable", marks=pytest.mark.long), "wheel"])
def test_a_crawl_runs_nothing_of_the_folder_it_is_started_in(
    here: Here, wheel: Path, tmp_path: Path, cluster: Settings, kind: str
) -> None:
    """Command, forkserver, workers and trials; a spider takes its neighbours, and Python's modules from Python."""
    (here.folder / "beside.py").write_text("KEY = 'day'\n")
    (here.folder / "own.py").write_text(SPIDER)
    site = Threaded(page)
    where = ["--data", tmp_path / "data", "--bootstrap", cluster.kafka.bootstrap]
    settings = ["-s", f"kafka.prefix={cluster.kafka.prefix}", "-s", "network.allow_private=true"]
    rows = tmp_path / "rows.jsonl"
    options = ["--spider", "own.py", "-o", rows, *where, *settings]
    try:
        crawlog(here, "run", f"{site.origin}/", *options, install=wheel if kind == "wheel" else None)
    finally:
        site.close()
    assert rows.read_text() == '{"day":1}\n'
    assert here.ran() == []


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long  # a second way; every Python that is started is looked at below
def test_what_up_starts_runs_nothing_of_the_folder(here: Here, tmp_path: Path, cluster: Settings) -> None:
    """The supervisor in the background comes up."""
    where = ["--data", tmp_path / "data", "--bootstrap", cluster.kafka.bootstrap]
    try:
        crawlog(here, "up", *where, "-s", f"kafka.prefix={cluster.kafka.prefix}")
    finally:
        crawlog(here, "down", *where)
    assert here.ran() == []


@pytest.mark.parametrize("name", ["crawlog/cli.py", "signal.py", "typing.py", "queue.py", "click.py"])
def test_python_m_crawlog_takes_nothing_of_the_folder(tmp_path: Path, name: str) -> None:
    """But the package of its name itself, which Python looks for there before crawlog can say anything."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise RuntimeError")
    if "/" in name:
        for file in ("__init__.py", "__main__.py"):  # a clone's folder, where a wheel is installed
            (tmp_path / "crawlog" / file).symlink_to(ROOT / "crawlog" / file)
    command = [sys.executable, "-m", "crawlog", "settings"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_python_that_is_started_is_isolated() -> None:
    """With -P behind the interpreter's path: else the current folder is the first place to look for a module."""
    sources = [path for folder in (*FOLDERS, "examples") for path in (ROOT / folder).rglob("*.py")]
    lists = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.List)]
    started = [node.elts[1] for node in lists if node.elts and ast.unparse(node.elts[0]) == "sys.executable"]
    assert {ast.unparse(option) for option in started} == {"'-P'"}
