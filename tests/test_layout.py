"""The house: what is packaged, who imports whom, and what may be written into files that are shipped."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import crawlog
from tests.support.transcripts import blocks

ROOT = Path(__file__).parent.parent
FOLDERS = ("schemas", "streams", "agents", "crawlog")
"""Each may import itself and those before it."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("requirements.lock", "requirements-dev.lock")
NOT_IMPORTED = {
    "aiodns": "aiohttp's AsyncResolver needs it",
    "setuptools": "Faust's venusian imports pkg_resources",
}
"""Dependencies that no module of ours imports, and why they are declared."""


def _modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _package(folder: Path) -> str:
    name = ".".join(folder.relative_to(ROOT).parts)
    return name if name.split(".")[0] == "crawlog" else f"crawlog.{name}"


def _rooms() -> list[Path]:
    """Every folder with code, the four tops among them."""
    return sorted({path.parent for folder in FOLDERS for path in _modules(folder)})


def _imported(path: Path) -> Iterator[str]:
    """Modules of other rooms that a file imports from, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("crawlog."):
            yield node.module or ""


def test_packages_are_the_folders() -> None:
    """An unlisted folder would be missing from the wheel, so the list is exact."""
    setuptools = PROJECT["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(map(_package, _rooms()))
    assert setuptools["package-dir"] == {_package(ROOT / folder): folder for folder in FOLDERS}


def test_data_files_are_packaged() -> None:
    """Whatever is not Python in a folder, or in one below it without Python, is listed; `py.typed` in each."""
    listed = PROJECT["tool"]["setuptools"]["package-data"]
    rooms = set(_rooms())
    for room in rooms:
        folders = [room, *(path for path in room.iterdir() if path.is_dir() and path not in rooms)]
        files = {
            path
            for folder in folders
            for path in folder.iterdir()
            if path.is_file() and path.suffix not in {".py", ".pyc"}
        }
        assert files == {path for pattern in listed.get(_package(room), ()) for path in room.glob(pattern)}, room
    assert all("py.typed" in listed[_package(ROOT / folder)] for folder in FOLDERS)


def test_nobody_reaches_past_the_front_of_a_room() -> None:
    """Another room of streams/ or agents/ is imported from by its `__init__`, which says what others may use."""
    rooms = {_package(room) for room in _rooms() if room.parent.name in {"streams", "agents"}}
    past = [
        f"{path.relative_to(ROOT)} imports {module}"
        for folder in FOLDERS
        for path in _modules(folder)
        for module in _imported(path)
        if module.rpartition(".")[0] in rooms
    ]
    assert past == []


MOST_NAMES = 30
WIDE = {"streams/sink": 44, "streams/spiders": 63}
"""Fronts that are still wider; the number only falls, and a room that has been cut leaves the list."""


def test_no_front_has_more_than_thirty_names() -> None:
    """A room that more names are needed from is two rooms, or lends what one of its functions should hide."""
    wide = {}
    for front in (room / "__init__.py" for room in _rooms() if room.parent.name in {"streams", "agents", "crawlog"}):
        body = ast.parse(front.read_text()).body
        lent = [one for node in body if isinstance(node, ast.ImportFrom) for one in node.names]
        own = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        if len(lent) + len(own) > MOST_NAMES:
            wide[str(front.parent.relative_to(ROOT))] = len(lent) + len(own)
    assert {room: count for room, count in wide.items() if count > WIDE.get(room, 0)} == {}
    assert set(WIDE) <= set(wide), "a room that has been cut leaves WIDE"


SAME_MODULES = {
    "partition": "a partition of the frontier's hosts, a partition's database: each is all there is of one here",
}
"""Modules of one name within one of the four folders, and what they are."""


def _twice(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that stand in several places."""
    places: dict[str, list[str]] = {}
    for name, place in named:
        places.setdefault(name, []).append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_modules_have_one_name() -> None:
    """But a decision and its edge: one in each of schemas, streams, agents and crawlog at most."""
    named = (
        (f"{folder}/{path.stem}", str(path.relative_to(ROOT)))
        for folder in FOLDERS
        for path in _modules(folder)
        if not path.stem.startswith("__")
    )
    twice = {name.partition("/")[2]: found for name, found in _twice(named).items()}
    assert {name: found for name, found in twice.items() if name not in SAME_MODULES} == {}


def test_no_two_public_classes_have_one_name() -> None:
    """But the sections of the settings, each named after what it sets."""
    named = (
        (node.name, str(path.relative_to(ROOT)))
        for folder in FOLDERS
        for path in _modules(folder)
        if path.parent != ROOT / "streams" / "settings"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert _twice(named) == {}


def test_no_test_imports_the_benchmarks_but_theirs() -> None:
    """What both need is in tests/support; `python -m bench` may change without a test of the crawler."""
    tests = [path for path in _modules("tests") if path.parent != ROOT / "tests" / "bench"]
    wrong = re.compile(r"^\s*(from|import) bench\b", re.MULTILINE)
    assert [str(path.relative_to(ROOT)) for path in tests if wrong.search(path.read_text())] == []


LONG_FILE, LARGE_CLASS = 450, 25
EXPLAINED = re.compile(r"# long: \w.{15,}")
"""The comment of a file that is longer, at its top, or of a class that is larger, on its line: why it reads best so."""


def test_no_file_is_long_and_no_class_large_without_a_reason() -> None:
    """At most 450 lines and 25 methods, or a comment `# long: …` that says why."""
    unexplained = []
    for path in (path for folder in FOLDERS for path in _modules(folder)):
        lines = path.read_text().splitlines()
        if len(lines) > LONG_FILE and not any(map(EXPLAINED.match, lines)):
            unexplained.append(f"{path.relative_to(ROOT)}: {len(lines)} lines")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
                if methods > LARGE_CLASS and not EXPLAINED.search(lines[node.lineno - 1]):
                    unexplained.append(f"{path.relative_to(ROOT)}: {node.name} has {methods} methods")
    assert unexplained == []


def test_every_module_says_what_it_is() -> None:
    """A docstring at its top."""
    modules = [path for folder in FOLDERS for path in _modules(folder)]
    assert [path for path in modules if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_the_errors_that_cross_rooms_are_one_tree() -> None:
    """Every subclass of CrawlError stands in errors.py, and its docstring draws each of them."""
    source = (ROOT / "streams" / "errors.py").read_text()
    tree = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    drawn = ast.get_docstring(ast.parse(source)) or ""
    assert [name for name in tree if not re.search(rf"^\W*{name}\b", drawn, re.MULTILINE)] == []
    elsewhere = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for folder in FOLDERS
        for path in _modules(folder)
        if path != ROOT / "streams" / "errors.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and tree & {base.id for base in node.bases if isinstance(base, ast.Name)}
    ]
    assert elsewhere == []


def test_every_request_to_a_host_leaves_by_the_one_client() -> None:
    """Pages, robots.txt, sitemaps, forms and what a browser asks for: whose connector looks at lease and address.

    The service answers requests and makes none: it imports aiohttp's server. An error of http.client makes none either.
    """
    sources = {f"{path.parent.name}/{path.name}": path.read_text() for folder in FOLDERS for path in _modules(folder)}
    silent = r"aiohttp import (?:BodyPartReader, )?web$|http\.client import HTTPException$"
    speaks = re.compile(rf"^\s*(?:import|from) (?!{silent})(?:aiohttp|http\.client|httpx|requests)\b", re.MULTILINE)
    assert {name.split("/")[0] for name, text in sources.items() if speaks.search(text)} == {"client"}
    assert [name for name, text in sources.items() if "ClientSession(" in text] == ["client/client.py"]


def test_every_suppressed_lint_has_its_reason() -> None:
    """Behind the code, on the same line."""
    files = [path for folder in (*FOLDERS, "tests", "bench", "examples") for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in files if ".work" not in path.parts]  # what benchmarks install
    bare = re.compile(r"#\s*(?:noqa(?!: [A-Z]+\d+(?:, [A-Z]+\d+)*\s+(?:#|-) \w)|type: ignore(?!\[[a-z-]+\]\s+# \w))")
    lines = [f"{path}: {line}" for path in files for line in path.read_text().splitlines()]
    assert [line for line in lines if bare.search(line) and "re.compile" not in line] == []


def test_no_test_imports_from_another() -> None:
    """What tests share is in tests/support, so that a test can be moved or read alone; a child of its own may."""
    shared = re.compile(r"^(?:from|import) tests\.(?!support\b)", re.MULTILINE)
    tests = [path for path in (ROOT / "tests").rglob("*.py") if shared.search(path.read_text().split('= """')[0])]
    assert [str(path.relative_to(ROOT)) for path in tests] == []


def _prose() -> Iterator[tuple[Path, str]]:
    """Every page, and every docstring."""
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "bench/README.md",
        ROOT / "examples/README.md",
    ]:
        yield path, path.read_text()
    for folder in (*FOLDERS, "tests", "bench", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            if ".work" not in path.parts:
                documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
                nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, documented)]
                yield path, "\n".join(ast.get_docstring(node) or "" for node in nodes)


def test_every_path_in_prose_exists() -> None:
    """A file that was moved takes its name in README, docs and docstrings along; tests may be named from tests/ on."""
    tops = (*FOLDERS, "tests", "bench", "docs", "docker", "examples")
    name = re.compile(rf"(?<![\w./-])(?:{'|'.join(tops)})/(?:[\w/-]+(?:\.\w+)+|[\w/-]*/)")
    gone = [
        f"{path.relative_to(ROOT)} names {match[0]}"
        for path, text in _prose()
        for match in name.finditer(text)
        if not any((folder / match[0]).exists() for folder in (ROOT, ROOT / "tests"))
    ]
    assert gone == []


def test_the_design_is_read_in_a_quarter_of_an_hour() -> None:
    """What a newcomer does not need first stands on a page of its subject."""
    assert len((ROOT / "docs/design.md").read_text().splitlines()) <= 250


def test_every_link_between_pages_leads_somewhere() -> None:
    """Relative ones, from the folder of the page that has them."""
    links = [(path, link) for path, text in _prose() for link in re.findall(r"\]\(([\w./-]+\.md)\)", text)]
    assert [(path, link) for path, link in links if not (path.parent / link).exists()] == []


def test_every_block_of_a_page_is_a_transcript_or_another_kind_that_is_named() -> None:
    """The words of CONTRIBUTING.md; a block with `$ ` is a transcript, which is run, and so is no other block."""
    kind = re.compile(r"console|sh|text|(?:python|ini|json|diff)(?: [\w./-]+\.\w+)?")
    wrong = [
        f"{page.name}: {' '.join(block.words)}, {block.lines[0]}"
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
        for block in blocks(page.read_text())
        if not kind.fullmatch(" ".join(block.words))
        or (block.words == ("console",)) != any(line.startswith("$ ") for line in block.lines)
    ]
    assert wrong == []


def test_no_block_of_a_page_is_only_indented() -> None:
    """Such a block has no word that says what it is; within a list it belongs to the list."""
    indented = re.compile(r"(?:^|\n)(?![-*] | )[^\n]*\n\n {4,}\S[^\n]*")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    prose = {page.name: re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE) for page in pages}
    assert {name: found for name, text in prose.items() if (found := indented.findall(text))} == {}


def test_no_page_has_a_heading_twice() -> None:
    """A reader takes the first for all there is."""
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        headings = re.findall(r"^#+ .*$", prose, re.MULTILINE)
        assert len(headings) == len(set(headings)), page


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


def _distribution(requirement: str) -> str:
    """A requirement's name as package indexes compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~ ;]", requirement)[0]).lower()


def _third_party() -> dict[str, str]:
    """Modules that the product imports and that are neither Python's nor its own, each with a file that does."""
    found: dict[str, str] = {}
    for path in (path for folder in FOLDERS for path in _modules(folder)):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            found |= {name.split(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {name: file for name, file in found.items() if name not in {*sys.stdlib_module_names, "crawlog"}}


def test_dependencies_are_the_imports() -> None:
    """A package that another one brings may be gone with its next version; one that nobody imports is dead."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    declared = {_distribution(one) for one in [*project["dependencies"], *(one for extra in extras for one in extra)]}
    by_module = packages_distributions()
    undeclared, imported = {}, set()
    for module, file in _third_party().items():
        owners = {_distribution(name) for name in by_module.get(module, [module])} & declared
        imported |= owners
        if not owners:
            undeclared[module] = file
    assert undeclared == {}, "declare them in pyproject.toml, then `make lock`"
    assert declared - imported == set(NOT_IMPORTED), "remove them from pyproject.toml, then `make lock`"


def test_faust_finds_the_classes_that_it_looks_up_by_name() -> None:
    """A rename that misses one of these strings would end every worker at its start."""
    for path in _modules("streams"):
        for module, name in re.findall(r'"(crawlog\.[a-z_.]+):(\w+)"', path.read_text()):
            assert hasattr(import_module(module), name), f"{path.relative_to(ROOT)} names {module}:{name}"


def test_no_import_needs_a_cluster(tmp_path: Path) -> None:
    """What a module needs of settings, log or loop it takes when it is attached or run, so that tests can load it."""
    names = [_package(path.with_suffix("")) for path in _modules("agents") if path.stem != "__init__"]
    code = f"from importlib import import_module\nfor name in {names}: import_module(name)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={}, check=True, timeout=180)
