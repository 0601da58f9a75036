"""The user of a child that runs deployed code, where its worker runs as root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crawlog.agents.sandbox import ChildRules, SpiderChild, why_root, zygote_process
from crawlog.agents.sandbox.child_code import ChildCode
from crawlog.agents.sandbox.child_user import FIRST_UID
from crawlog.agents.sandbox.limits import ChildLimits
from crawlog.agents.sandbox.zygote_process import ZygoteProcess
from crawlog.schemas.job_orders import CodeRef
from crawlog.schemas.urls import JobSpec
from crawlog.streams.code import CodeFolder
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.spiders import SpiderRef
from tests.support.deployed import OWN_USER, RULES
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

reason = sys.argv[3]
child_user._unreadable = lambda: reason
refused = child_user.settle(sys.argv[1], is_own_user=True)
home, data = sys.argv[1:3]
print(json.dumps({
    "refused": refused, "pid": os.getpid(),
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(), "cwd": os.getcwd(),
    "temp": tempfile.gettempdir(), "reads code": can(home + "/code/a.py", os.O_RDONLY),
    "writes code": can(home + "/code/a.py", os.O_WRONLY),
    "adds code": can(home + "/code/b.py", os.O_CREAT | os.O_WRONLY),
    "reads data": can(data, os.O_RDONLY), "writes work": can("x", os.O_CREAT | os.O_WRONLY),
    "becomes root": can("/etc/shadow", os.O_RDONLY),
    "no new privileges": "NoNewPrivs:\\t1" in open("/proc/self/status").read(),
}))
"""


def settled(tmp_path: Path, reason: str) -> dict[str, object]:
    """What a process can do once it has settled, where another user cannot read Python for this reason."""
    home = Path(subprocess.run(["mktemp", "-d"], check=True, capture_output=True, text=True).stdout.strip())
    (home / "code").mkdir()
    (home / "work").mkdir(mode=0o700)
    (home / "code" / "a.py").write_text("")
    data = tmp_path / "code.key"
    data.write_text("secret")
    data.chmod(0o600)
    command = [sys.executable, "-c", SETTLED, str(home), str(data), reason]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr("crawlog.agents.sandbox.child_code.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@needs_root
def test_the_child_is_a_user_that_nobody_else_is(tmp_path: Path) -> None:
    """It reads its code and writes its working folder; keys, data and root are out of its reach."""
    found = settled(tmp_path, "")
    uid = found["uids"][0]  # type: ignore[index]  # a list
    assert uid in {FIRST_UID + int(str(found["pid"])), 65_534}
    assert found["uids"] == found["gids"] == [uid] * 3
    assert found["groups"] == []
    assert str(found["cwd"]).endswith("/work")
    assert found["temp"] == found["cwd"]
    assert found["refused"] == ""
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


@needs_root
def test_a_child_whose_user_could_not_read_python_may_run_no_code(tmp_path: Path) -> None:
    """As with a virtual environment below a home that is closed."""
    found = settled(tmp_path, "another user cannot read /root/venv")
    assert found["uids"] == [0, 0, 0]
    assert str(found["refused"]).startswith(
        "code_refused: deployed code would run as root: another user cannot read /root/venv. Install Python"
    )
    assert str(found["refused"]).endswith("spider.own_user=false lets such code run as root")


@needs_root
def test_code_that_would_run_as_root_is_not_loaded_unless_it_was_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it runs, not even its import; the error names the setting that lets it run."""
    closed, ran = tmp_path / "closed", tmp_path / "ran"
    (closed / "lib").mkdir(parents=True)
    closed.chmod(0o700)
    monkeypatch.setenv("PYTHONPATH", f"{closed / 'lib'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"))
    code = tmp_path / "spiders"
    code.mkdir()
    (code / "one.py").write_text(
        f"import crawlog, pathlib\npathlib.Path({str(ran)!r}).touch()\n\n"
        "class One(crawlog.Spider):\n    def parse(self, response): ...\n"
    )
    ref = SpiderRef("One", folder=str(code))
    assert "would run as root: another user cannot read" in why_root(is_own_user=True)
    with (
        SpiderChild(ref, ChildRules()) as child,
        pytest.raises(Misconfigured, match=r"as root.*spider\.own_user=false"),
    ):
        child.facts()
    assert not ran.exists()
    assert why_root(is_own_user=False) == ""
    with SpiderChild(ref, ChildRules(is_own_user=False)) as child:
        assert child.facts().path == "One"
    assert ran.exists()


def test_deployed_code_cannot_fill_the_disk_with_one_file(tmp_path: Path) -> None:
    """Its folder is on the disk of others. A write beyond the limit is an error of the code."""
    code = tmp_path / "spiders"
    code.mkdir()
    (code / "one.py").write_text(
        "import crawlog, resource\n\nclass One(crawlog.Spider):\n"
        "    name = f'{resource.getrlimit(resource.RLIMIT_FSIZE)[0]}'\n"
        "    def __init__(self):\n"
        "        with open('large', 'wb') as file:\n            file.truncate(2 << 30)\n"
        "    def parse(self, response): ...\n"
    )
    with (
        SpiderChild(SpiderRef("One", folder=str(code)), RULES) as child,
        pytest.raises(Misconfigured, match="File too large"),
    ):
        child.facts()


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
    with SpiderChild(SpiderRef("One", folder=str(code)), RULES) as child:
        facts = child.facts()
        assert facts.label.startswith("work@"), "its working folder"
        assert facts.path == "One"
        homes = list(tmp_path.glob("crawlog-spider-*"))
        assert len(homes) == 1
        assert homes[0] != old
        assert (homes[0] / "code").exists() == (os.geteuid() == 0 and OWN_USER)
    until(lambda: not list(tmp_path.glob("crawlog-spider-*")), "the end of the folders")


def test_the_folder_of_a_child_goes_also_where_its_worker_does_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was killed, or ended at once: the zygote outlives it."""
    monkeypatch.setattr(zygote_process, "CLOSE_S", 180.0)  # it may still be loading
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
    with SpiderChild(ref, RULES._replace(code=log)) as child:
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
