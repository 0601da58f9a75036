"""The wheel, built from what the image copies, installed into an empty environment, used from an empty folder.

The dependencies come from the environment of the tests, by a `.pth` file; nothing of crawlog does.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("schemas", "streams", "agents", "crawlog")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as the image builds it: from a folder with what the Dockerfile copies, and nothing else."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE):
        for one in map(ROOT.joinpath, name.split()):
            if one.is_dir():
                shutil.copytree(one, source / one.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(one, source)
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), "."]
    subprocess.run([sys.executable, *command], cwd=source, check=True, timeout=300)
    (built,) = target.glob("crawlog-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which crawlog is installed from the wheel."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    there = home / "bin" / "python"
    command = ["-m", "pip", "--python", str(there), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *command], check=True, timeout=120)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # .pth files in there are not read
    return there


def said(python: Path, folder: Path, *command: str, **settings: str) -> str:
    """What a program of the environment prints, run from an empty folder, with no settings but those given."""
    environ = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "TMPDIR"}}
    done = subprocess.run(
        [str(python.parent / command[0]), *command[1:]],
        cwd=folder,
        env=environ | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_four_folders(wheel: Path) -> None:
    """Modules, `py.typed` and the files of the engine; nothing else but what describes the wheel."""
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {name if name.startswith("crawlog/") else f"crawlog/{name}" for name in tracked.stdout.split()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_every_module_of_the_wheel_can_be_imported(python: Path, wheel: Path, tmp_path: Path) -> None:
    """From the environment, not from the working tree."""
    files = [name for name in zipfile.ZipFile(wheel).namelist() if re.fullmatch(r"crawlog/.+\.py", name)]
    names = sorted({name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files})
    code = f"from importlib import import_module as load\nfor name in {names}: print(load(name).__file__)"
    found = said(python, tmp_path, "python", "-c", code).split()
    assert len(found) == len(names)
    assert [path for path in found if python.parents[1] not in Path(path).parents] == []


def test_the_command_works(python: Path, tmp_path: Path) -> None:
    """`crawlog` is installed as a script; its help and its settings need nothing of the repository."""
    assert "Usage: crawlog" in re.sub(r"\s+", " ", said(python, tmp_path, "crawlog", "--help"))
    assert "politeness.delay_s" in said(python, tmp_path, "crawlog", "settings")


@pytest.mark.parametrize("stage", ["fetch", "parse"])
def test_faust_finds_the_app_of_a_stage(python: Path, tmp_path: Path, stage: str) -> None:
    """`faust -A crawlog.streams.app:fetch worker --help`, with the address of a cluster that nothing connects to."""
    command = ["-m", "faust", "-A", f"crawlog.streams.app:{stage}", "worker", "--help"]
    help_text = said(python, tmp_path, "python", *command, CRAWLOG_KAFKA__BOOTSTRAP="127.0.0.1:9")
    assert "Start worker instance" in help_text


def test_the_image_can_compile_the_packages(python: Path, tmp_path: Path) -> None:
    """The Dockerfile's last step over what was installed: no file has a syntax that this Python does not read."""
    (package,) = python.parents[1].glob("lib/python*/site-packages/crawlog")
    said(python, tmp_path, "python", "-m", "compileall", "-q", str(package))
