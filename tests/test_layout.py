"""The house: what is packaged, who imports whom, and what may be written into files that are shipped."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import crawlog

ROOT = Path(__file__).parent.parent
FOLDERS = ("schemas", "streams", "agents", "crawlog")
"""Each may import itself and those before it."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("requirements.lock", "requirements-dev.lock")


def _modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("*.py"))


def _package(folder: str) -> str:
    return "crawlog" if folder == "crawlog" else f"crawlog.{folder}"


def _imported(path: Path, package: str) -> Iterator[str]:
    """Full names of what a file imports from the project, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "crawlog")
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*parents, *filter(None, [node.module])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            if module.split(".")[0] == "crawlog":
                yield from names - {"crawlog.__version__"}  # a fact about the distribution, not a module


def _folder_of(name: str) -> str:
    part = name.split(".")[1] if "." in name else ""
    return part if part in FOLDERS else "crawlog"


def test_packages_are_the_folders() -> None:
    """An unlisted folder would be missing from the wheel, so the list is exact and the folders are flat."""
    setuptools = PROJECT["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(_package(folder) for folder in FOLDERS)
    assert setuptools["package-dir"] == {_package(folder): folder for folder in FOLDERS}
    for folder in FOLDERS:
        assert not [path for path in (ROOT / folder).iterdir() if path.is_dir() and any(path.glob("*.py"))]


def test_data_files_are_packaged() -> None:
    """Whatever is not Python in a folder is listed, `py.typed` in each."""
    listed = PROJECT["tool"]["setuptools"]["package-data"]
    for folder in FOLDERS:
        files = {path.name for path in (ROOT / folder).iterdir() if path.is_file() and path.suffix != ".py"}
        assert files == set(listed[_package(folder)])
        assert "py.typed" in files


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_go_one_way(folder: str) -> None:
    """The order of FOLDERS is the law, imports inside functions included."""
    allowed = FOLDERS[: FOLDERS.index(folder) + 1]
    upward = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(folder)
        for name in _imported(path, _package(folder))
        if _folder_of(name) not in allowed
    ]
    assert upward == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_says_what_it_is(folder: str) -> None:
    """A docstring at its top, and a `py.typed` beside it."""
    assert [path.name for path in _modules(folder) if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_every_request_to_a_host_leaves_by_the_one_client() -> None:
    """Pages, robots.txt, sitemaps, forms and what a browser asks for: whose connector looks at lease and address."""
    sources = {path.name: path.read_text() for folder in FOLDERS for path in _modules(folder)}
    speaks = re.compile(r"^\s*(?:import|from) (?:aiohttp|http\.client|httpx|requests)\b", re.MULTILINE)
    client = {"connections.py", "failures.py", "http.py", "outfit.py", "protocol.py", "reading.py"}
    assert {name for name, text in sources.items() if speaks.search(text)} == client
    assert [name for name, text in sources.items() if "ClientSession(" in text] == ["http.py"]


def test_every_suppressed_lint_has_its_reason() -> None:
    """Behind the code, on the same line."""
    files = [path for folder in (*FOLDERS, "tests", "bench", "examples") for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in files if ".work" not in path.parts]  # what benchmarks install
    bare = re.compile(r"#\s*(?:noqa(?!: [A-Z]+\d+(?:, [A-Z]+\d+)*\s+(?:#|-) \w)|type: ignore(?!\[[a-z-]+\]\s+# \w))")
    lines = [f"{path}: {line}" for path in files for line in path.read_text().splitlines()]
    assert [line for line in lines if bare.search(line) and "re.compile" not in line] == []


def test_the_front_door_exports_what_it_names() -> None:
    """`from crawlog import …` works for each name in `__all__`, which is sorted."""
    names = list(crawlog.__all__)
    assert names == sorted(names)
    assert all(hasattr(crawlog, name) for name in names)
    assert crawlog.__version__ == PROJECT["project"]["version"]


@pytest.mark.parametrize(("folder", "module"), [("streams", "app"), ("agents", "fetch"), ("schemas", "urls")])
def test_a_second_name_is_refused(folder: str, module: str) -> None:
    """`faust -A streams.app` from the repository would start an app without agents: an error says the right name."""
    command = [sys.executable, "-c", f"import {folder}.{module}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"import crawlog.{folder}, not {folder} " in done.stderr


def test_it_imports_from_the_repository_too(tmp_path: Path) -> None:
    """The folder `crawlog/` in the working folder does not hide the installed package's other parts."""
    code = (
        "import crawlog.cli.main, crawlog.schemas.urls, crawlog.streams.settings.settings; print(crawlog.__version__)"
    )
    for folder in (ROOT, tmp_path):
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == crawlog.__version__


@pytest.mark.parametrize("name", LOCKS)
def test_locks_name_no_index_and_hash_everything(name: str) -> None:
    """Each requirement has a version and a hash; no address is written."""
    text = (ROOT / name).read_text()
    blocks = [block for block in text.replace("\\\n", " ").splitlines() if block and not block.lstrip().startswith("#")]
    assert "://" not in text
    assert all(re.match(r"[a-z0-9.-]+(\[[a-z,-]+\])?==\S+", block) and "--hash=sha256:" in block for block in blocks)


def test_the_locks_agree() -> None:
    """What is tested is what is shipped."""
    shipped, tested = (
        set(re.findall(r"^([a-z0-9.-]+==\S+)", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS
    )
    assert shipped <= tested


def test_every_dependency_is_locked() -> None:
    """A requirement that was added without `make lock` is found here, not on a user's machine."""
    project, locked = PROJECT["project"], (ROOT / LOCKS[0]).read_text()
    wanted = [*project["dependencies"], *project["optional-dependencies"]["local"]]
    names = [re.split(r"[\[<>=!~ ;]", requirement)[0].lower().replace("_", "-") for requirement in wanted]
    assert [name for name in names if not re.search(rf"^{re.escape(name)}==", locked, re.MULTILINE)] == []


def test_no_import_needs_a_cluster(tmp_path: Path) -> None:
    """What a module needs of settings, log or loop it takes when it is attached or run, so that tests can load it."""
    names = [f"crawlog.agents.{path.stem}" for path in _modules("agents") if path.stem != "__init__"]
    code = f"from importlib import import_module\nfor name in {names}: import_module(name)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={}, check=True, timeout=180)
