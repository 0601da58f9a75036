"""Which files workers run as spiders: what the operator named, and what nobody else may change."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from crawlog.schemas.control import JobCopy
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.sources import Sources, resolve
from crawlog.streams.spiders import SpiderRef, load_runner
from crawlog.streams.spiders.trust import Trust, allow, code_of, trust_of
from tests.support.parsing import Stage, buried, spider_job
from tests.support.spiders import load_spider

SPIDER = """
from crawlog import Spider
from tests.support.spiders import load_spider

class Own(Spider):
    version = "1"

    def parse(self, response):
        yield {}
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
STRANGER = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A spider's file in a folder of its own."""
    folder = tmp_path / "spiders"
    folder.mkdir()
    path = folder / "own.py"
    path.write_text(SPIDER)
    return path


def refusal(file: Path, trust: Trust | None = None) -> str:
    """Why a file is not run; empty where it is."""
    try:
        load_spider(str(file), trust)
    except Misconfigured as error:
        return str(error)
    return ""


# By whom a file was named.


def test_a_job_record_from_a_stranger_runs_nothing(tmp_path: Path) -> None:
    """Its pages are dead letters that say why, and how to allow the file; other jobs go on."""
    spec = spider_job(tmp_path, "yield {}")
    mark = tmp_path / "ran"
    file = tmp_path / "s.py"
    file.write_text(f"open({str(mark)!r}, 'w')\n" + file.read_text())
    stage = Stage(trust=Trust())
    stage.stage.learn(JobCopy("k", spec))
    stage.take(b"", job="k")
    stage.take(b"")
    ((offset, error),) = buried(stage)
    assert (offset, mark.exists()) == (0, False)
    assert "security.spider_folders" in error
    assert "crawlog run --spider" in error
    assert "crawlog dead redrive" in error


@pytest.mark.parametrize("name", ["/a\0.py", "~nobody-of-this-name/x.py", "{}/loop.py", "x" * 300 + ".py:S"])
def test_no_name_of_a_file_ends_a_worker(name: str, tmp_path: Path) -> None:
    """A job's record may hold any text; why its pages are dead letters is told in a line of bounded length."""
    (tmp_path / "loop.py").symlink_to("loop.py")
    for trust in (Trust(), Trust((Path("/"),))):
        stage = Stage(trust=trust)
        stage.stage.learn(JobCopy("k", JobSpec(spider=name.format(tmp_path))))
        stage.take(b"", job="k")
        assert len(buried(stage)) == 1
    assert Trust().refusal(Path(name.format(tmp_path)))


def test_a_reason_is_short_however_long_the_name_is() -> None:
    """It stands in the header of each page's letter."""
    stage = Stage(trust=Trust())
    stage.stage.learn(JobCopy("k", JobSpec(spider="/" + "x" * 1_000_000 + ".py")))
    stage.take(b"", job="k")
    assert len(buried(stage)[0][1]) <= 1000


def test_a_file_that_a_command_named_may_be_run(tmp_path: Path, file: Path) -> None:
    """That one alone, however often; the list is the data folder's, and for its owner."""
    data = tmp_path / "data"
    (data / "run").mkdir(parents=True)
    trust = trust_of(resolve(Sources(flags={"run.data": str(data)})).settings)
    other = file.with_name("other.py")
    other.write_text(SPIDER)
    assert "security.spider_folders" in refusal(file, trust)
    for _ in range(2):
        allow(data, file)
    assert (refusal(file, trust), "security.spider_folders" in refusal(other, trust)) == ("", True)
    allow(data, other)
    assert (refusal(file, trust), refusal(other, trust)) == ("", "")
    assert (data / "run" / "spiders.json").stat().st_mode & 0o077 == 0


def test_files_that_commands_name_at_once_may_all_be_run(tmp_path: Path, file: Path) -> None:
    """Several `submit --spider` on one folder: each reads the list, and writes it anew."""
    data = tmp_path / "data"
    (data / "run").mkdir(parents=True)
    others = [file.with_name(f"other{number}.py") for number in range(30)]
    for other in others:
        other.write_text(SPIDER)
    with ThreadPoolExecutor(len(others)) as pool:
        list(pool.map(lambda other: allow(data, other), others))
    trust = Trust(named=data / "run" / "spiders.json")
    assert [refusal(other, trust) for other in others] == [""] * len(others)


def test_a_link_counts_by_where_it_leads(tmp_path: Path, file: Path) -> None:
    """A link in a folder of spiders allows nothing elsewhere; a link elsewhere to such a file is one to that file."""
    other = tmp_path / "other.py"
    other.write_text(SPIDER)
    link = file.with_name("link.py")
    link.symlink_to(other)
    trust = Trust((file.parent,))
    assert "security.spider_folders" in refusal(link, trust)
    assert "security.spider_folders" in refusal(file.parent / ".." / "other.py", trust)
    link.unlink()
    link.symlink_to(file)
    assert refusal(link, trust) == ""


def test_a_list_that_others_may_change_allows_nothing(tmp_path: Path, file: Path) -> None:
    """And says so; the next command makes it anew."""
    data = tmp_path / "data"
    (data / "run").mkdir(parents=True)
    trust = Trust(named=data / "run" / "spiders.json")
    allow(data, file)
    (data / "run" / "spiders.json").chmod(0o666)
    assert "spiders.json can be changed by everybody" in refusal(file, trust)
    other = file.with_name("other.py")
    allow(data, other)
    assert "security.spider_folders" in refusal(file, trust)
    allow(data, file)
    assert refusal(file, trust) == ""
    (data / "run" / "spiders.json").write_text("{}")
    assert "is not used" in refusal(file, trust)


@pytest.mark.parametrize("folder", ["spiders", "./x", "../x"])
def test_folders_of_spiders_are_absolute(folder: str) -> None:
    """A relative one is another folder in each place where a worker starts."""
    with pytest.raises(Misconfigured, match="no absolute path"):
        resolve(Sources(pairs=[f"security.spider_folders={folder}"]))


# By whom it may be changed.


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o622])
def test_a_file_that_others_may_write_is_not_run(file: Path, mode: int) -> None:
    """Named or not; the message says how to mend it."""
    file.chmod(mode)
    assert f"chmod go-w {file}" in refusal(file)
    file.chmod(0o644)
    assert refusal(file) == ""


def test_nor_is_one_in_a_folder_that_others_may_write(file: Path) -> None:
    """They could replace it, or put a module beside it."""
    file.parent.chmod(0o777)
    assert f"chmod go-w {file.parent}" in refusal(file)


def test_a_file_in_a_folder_like_tmp_is_run_without_neighbours(file: Path) -> None:
    """Nobody may replace it there, but anyone may put a module beside it."""
    file.parent.chmod(0o1777)
    assert refusal(file) == ""
    file.with_name("beside_it.py").write_text("1 / 0")
    file.write_text("import beside_it\n" + SPIDER)
    assert "nothing is imported from it" in refusal(file)


@as_root
@pytest.mark.parametrize("place", ["own.py", "."])
def test_a_strangers_file_is_not_run(file: Path, place: str) -> None:
    """Nor one in a folder of his; root's may be run by all."""
    os.chown(file.parent / place, STRANGER, STRANGER)
    assert "belongs to" in refusal(file)


@as_root
def test_a_group_of_others_may_not_write(file: Path) -> None:
    """A group of the user's own may, as many systems make one for each user, with a umask of 002."""
    file.chmod(0o664)
    assert refusal(file) == ""
    os.chown(file, 0, STRANGER)
    assert f"group {STRANGER}" in refusal(file)


@pytest.mark.parametrize("name", ["beside_them.py", "beside_them/__init__.py"])
def test_what_others_may_change_is_not_imported_by_a_spider(file: Path, name: str) -> None:
    """A module or package beside it that has a mode of its own."""
    neighbour = file.parent / name
    neighbour.parent.mkdir(exist_ok=True)
    neighbour.write_text("1 / 0")
    neighbour.chmod(0o666)
    file.write_text("import beside_them\n" + SPIDER)
    assert f"PermissionError: {neighbour} can be changed by everybody" in refusal(file)


def test_a_pipe_is_no_spider(file: Path) -> None:
    """It would keep a worker waiting for ever."""
    file.unlink()
    os.mkfifo(file)
    assert "is no regular file" in refusal(file)


@pytest.mark.parametrize("named", ["antigravity:Own", "this:Own", "crawlog.no.such:Own"])
def test_no_record_has_a_worker_import_an_installed_module(named: str) -> None:
    """An import runs code: of a module that no operator named, nothing is imported, not even its package."""
    before = set(sys.modules)
    with pytest.raises(Misconfigured, match=r"workers may not run it|there is no module"):
        load_runner(SpiderRef(named), trust=Trust())
    assert not {"antigravity", "this"} & (set(sys.modules) - before)


class Editable:
    """The finder that `pip install -e` makes for a package whose folder is on no path."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # Python's own signature
        """The package."""
        if name != self._package.name:
            return None
        return spec_from_file_location(name, self._package / "__init__.py")


def test_an_editable_install_is_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finder of its own knows its folder; it is found without an import."""
    package = tmp_path / "edited_spiders"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable(package)])
    assert code_of("edited_spiders.books:Own") == package / "__init__.py"


def test_an_installed_module_that_a_command_named_may_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the file of its package."""
    package = tmp_path / "own_spiders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "books.py").write_text(SPIDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = code_of("own_spiders.books:Own")
    assert code == package / "__init__.py"
    data = tmp_path / "data"
    (data / "run").mkdir(parents=True)
    trust = Trust(named=data / "run" / "spiders.json")
    with pytest.raises(Misconfigured, match="workers may not run it"):
        load_runner(SpiderRef("own_spiders.books:Own"), trust=trust)
    allow(data, code)
    assert load_runner(SpiderRef("own_spiders.books:Own"), trust=trust).facts.label == "Own@1"
