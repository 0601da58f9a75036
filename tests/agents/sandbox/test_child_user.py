"""The user of a child that runs deployed code, where its worker runs as root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crawlog.agents.sandbox import ChildRules, SpiderChild
from crawlog.agents.sandbox.child_code import ChildCode
from crawlog.agents.sandbox.child_user import FIRST_UID
from crawlog.agents.sandbox.limits import ChildLimits
from crawlog.agents.sandbox.zygote_process import ZygoteProcess
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.urls import JobSpec
from crawlog.streams.code import CodeFolder
from crawlog.streams.errors import EngineError
from crawlog.streams.spiders import SpiderRef
from tests.support.processes import until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a child another user")

SETTLED = """
import json, os, sys, tempfile, contextlib
from crawlog.agents.sandbox import child_user

def can(path, flags):
    try:
        os.close(os.open(path, flags, 0o600))
    except PermissionError:
        return False
    return True

if sys.argv[3] == "readable":
    child_user._unreadable = lambda: ""
child_user.settle(sys.argv[1], is_own_user=True)
home, data = sys.argv[1:3]
print(json.dumps({
    "pid": os.getpid(), "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "cwd": os.getcwd(),
    "temp": tempfile.gettempdir(), "reads code": can(home + "/code/a.py", os.O_RDONLY),
    "writes code": can(home + "/code/a.py", os.O_WRONLY),
    "adds code": can(home + "/code/b.py", os.O_CREAT | os.O_WRONLY),
    "reads data": can(data, os.O_RDONLY), "writes work": can("x", os.O_CREAT | os.O_WRONLY),
    "becomes root": can("/etc/shadow", os.O_RDONLY),
    "no new privileges": "NoNewPrivs:\\t1" in open("/proc/self/status").read(),
}))
"""


def settled(tmp_path: Path, readable: str) -> tuple[dict[str, object], str]:
    """What a process can do once it has settled."""
    home = Path(subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip())
    (home / "code").mkdir()
    (home / "work").mkdir(mode=0o700)
    (home / "code" / "a.py").write_text("")
    data = tmp_path / "code.key"
    data.write_text("secret")
    data.chmod(0o600)
    command = [sys.executable, "-c", SETTLED, str(home), str(data), readable]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout), done.stderr


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr("crawlog.agents.sandbox.child_code.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@needs_root
def test_the_child_is_a_user_that_nobody_else_is(tmp_path: Path) -> None:
    """It reads its code and writes its working folder; keys, data and root are out of its reach."""
    found, told = settled(tmp_path, "readable")
    uid = found["uids"][0]  # type: ignore[index]  # a list
    assert uid in {FIRST_UID + int(str(found["pid"])), 65_534}
    assert found["uids"] == found["gids"] == [uid] * 3
    assert found["groups"] == []
    assert str(found["cwd"]).endswith("/work")
    assert found["temp"] == found["cwd"]
    may = {name: found[name] for name in found if " " in name}
    assert may == {
        "reads code": True,
        "writes code": False,
        "adds code": False,
        "reads data": False,
        "writes work": True,
        "becomes root": False,
        "no new privileges": True,
    }
    assert told == ""


@needs_root
def test_a_child_whose_user_could_not_read_python_keeps_root_and_says_so(tmp_path: Path) -> None:
    """As with a virtual environment below a home that is closed."""
    found, told = settled(tmp_path, "as it is")
    if found["uids"] == [0, 0, 0]:
        assert "deployed code keeps the user root: another user cannot read" in told
    else:
        assert told == ""
    assert found["writes work"]


def test_the_folder_of_a_child_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is a copy as root, the cache else; folders of processes that were killed go with the next child."""
    monkeypatch.setattr("crawlog.agents.sandbox.child_code.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old = tmp_path / "crawlog-spider-999999999-x"
    old.mkdir()
    code = tmp_path / "spiders"
    code.mkdir()
    (code / "one.py").write_text(
        "import crawlog, os\n\nclass One(crawlog.Spider):\n    name = os.getcwd().rpartition('/')[2]\n"
        "    def parse(self, response): ...\n"
    )
    with SpiderChild(SpiderRef("One", folder=str(code)), ChildRules()) as child:
        facts = child.facts()
        assert facts.label.startswith("work@"), "its working folder"
        assert facts.path == "One"
        homes = list(tmp_path.glob("crawlog-spider-*"))
        assert len(homes) == 1
        assert homes[0] != old
        assert (homes[0] / "code").exists() == (os.geteuid() == 0)
    until(lambda: not list(tmp_path.glob("crawlog-spider-*")), "the end of the folders")


def test_the_folder_of_a_child_goes_also_where_its_worker_does_nothing_more(tmp_path: Path) -> None:
    """Such as one that was killed, or ended at once: the zygote outlives it."""
    home = tmp_path / "crawlog-spider-1-x"
    (home / "work").mkdir(parents=True)
    zygote = ZygoteProcess("shop", ())
    zygote.fork(ChildLimits(home=str(home))).close()
    zygote.close()
    zygote.wait()
    assert not home.exists()


def test_the_folder_of_a_killed_worker_goes_where_its_pid_is_another_process(temp: Path) -> None:
    """In a container a worker that is started again has the pid of the one before: 1."""
    old = temp / f"crawlog-spider-{os.getpid()}-x"
    old.mkdir()
    ChildCode(SpiderRef("shop", folder=str(temp)), None, is_own_user=False).close()
    until(lambda: not old.exists(), "the end of the folder")


def test_the_folder_of_a_living_worker_stays_where_its_pid_is_unknown(
    temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a worker in another pid namespace, with the same folder for temporary files."""
    with monkeypatch.context() as there:
        there.setattr("os.getpid", lambda: 999_999_999)
        living = ChildCode(SpiderRef("shop", folder=str(temp)), None, is_own_user=False)
    (home,) = temp.iterdir()
    removed: list[Path] = []
    monkeypatch.setattr("crawlog.agents.sandbox.child_code._remove", lambda *folders: removed.extend(folders))
    ChildCode(SpiderRef("shop", folder=str(temp)), None, is_own_user=False).close()
    assert home not in removed
    living.close()
    assert home in removed


def test_a_child_without_an_event_loop_does_not_wait_for_a_log_that_is_away(tmp_path: Path) -> None:
    """Its caller may be the thread that starts the broker again; the next attempt finds the code."""
    (tmp_path / "one.py").write_text(
        "import crawlog\n\nclass One(crawlog.Spider):\n    def parse(self, response): ...\n"
    )
    log = AwayOnce(tmp_path)
    ref = SpiderRef("One", spec=JobSpec(spider="One", code=CodeRef("shop", "1", "00" * 32)))
    with SpiderChild(ref, ChildRules(code=log)) as child:
        with pytest.raises(EngineError, match="away"):
            child.facts()
        assert child.facts().path == "One"


class AwayOnce:
    """A log that does not answer the first time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_there = False

    def folder(self, ref: CodeRef) -> CodeFolder:
        """The folder of any version."""
        if not self._is_there:
            self._is_there = True
            raise EngineError("the log is away")
        return CodeFolder(self._folder, f"{ref.project} {ref.version}")


def test_a_folder_of_any_depth_goes_with_its_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that a killed process left: no recursion may follow the folders of a spider."""
    monkeypatch.setattr("crawlog.agents.sandbox.child_code.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old = tmp_path / "crawlog-spider-999999999-x"
    old.mkdir()
    try:
        deepen(old)
        code = ChildCode(SpiderRef("shop", folder=str(tmp_path)), None, is_own_user=False)
        (home,) = set(tmp_path.glob("crawlog-spider-*")) - {old}
        deepen(home / "work")
        code.close()
        until(lambda: not list(tmp_path.glob("crawlog-spider-*")), "the end of the folders")
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path)], check=True)  # pytest removes folders by recursion


def deepen(folder: Path) -> None:
    """Makes folders in each other, more than Python's stack has levels."""
    within = os.open(folder, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=within)
        below = os.open("d", os.O_RDONLY, dir_fd=within)
        os.close(within)
        within = below
    os.close(within)


@needs_root
def test_another_user_reads_the_copy_of_a_cache_that_is_its_owners_alone(tmp_path: Path) -> None:
    """A worker's umask is 077, and the top folder of a cache has mode 700."""
    cache = tmp_path / "cache"
    for folder in (cache, cache / "shop"):
        folder.mkdir(mode=0o700)
    (cache / "shop" / "spider.py").write_text("SPIDER = 1")
    (cache / "shop" / "spider.py").chmod(0o600)
    code = ChildCode(SpiderRef("shop", folder=str(cache)), None, is_own_user=True)
    try:
        folder = Path(code.ready().folder)
        folder.parent.chmod(0o711)  # as `settle` opens it to the child's user
        command = ["cat", str(folder / "shop" / "spider.py")]
        read = subprocess.run(
            command, check=False, user=FIRST_UID, group=FIRST_UID, extra_groups=[], capture_output=True, text=True
        )
        assert (read.stdout, read.stderr) == ("SPIDER = 1", "")
    finally:
        code.close()
