"""Loads a spider's class, named `FILE.py`, `FILE.py:Class` or `pkg.module:Class` by the operator's `--spider`.

Only this module runs user code. The file's name comes from the command line or, in a worker, from the job's record;
never from a page. Anyone who can write to Kafka can write a job's record. So a worker runs only files that its `Trust`
allows, and no process runs a file that other users may change.
"""

import hashlib
import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

from . import scrapy_names
from .trust import Trust, code_of

PROJECT = "scrapy.cfg"  # The file that marks the folder of a Scrapy project

# `pkg.module:Class`, of an installed package or of one in a folder: `/FOLDER:pkg.module:Class`.
_MODULE = re.compile(r"(?:(/.*):)?([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")

_INSTALLED = frozenset({"site-packages", "dist-packages"})  # Folders of installed packages

# Longest file name, characters, as in the kernel. Without it, a job's record could put megabytes into the logs.
MAX_PATH = 4096


class FoundClass(NamedTuple):
    """A spider's class, in its file that was run.

    Attributes:
        path: `/FILE.py:Class`, absolute; the job's record has it, so that each worker loads the same spider.
        digest: Of the file, in hex.
    """

    kind: type[Any]
    path: str
    file: Path
    module: ModuleType
    digest: str


def found_class(named: str, trust: Trust | None = None) -> FoundClass:
    """The class of the spider in a file or a module.

    Args:
        named: `FILE.py`, which has one spider, `FILE.py:Class` or `pkg.module:Class`.
        trust: Says which files may be run; None if the operator's own command names this file.

    Raises: Misconfigured: no such file or class, or the file may not be run or is broken; the message has the line.
    """
    found = _MODULE.fullmatch(named[:MAX_PATH])
    if found is not None:
        return _in_module(named, found, trust)
    given, wanted = _parts(named)
    path, source = _read(given, trust)
    digest = hashlib.sha256(source).hexdigest()
    module = _run(path, source, f"crawlog_spider_{digest[:16]}")
    kind = _class_in(module, path, wanted)
    return FoundClass(kind, f"{path}:{kind.__name__}", path, module, digest)


def _read(given: Path, trust: Trust | None) -> tuple[Path, bytes]:
    """The absolute path of a file that may be run, and its bytes. Raises: Misconfigured: as `found_class`."""
    try:
        path = given.expanduser().absolute()
        if refusal := trust.refusal(path) if trust else "":
            raise Misconfigured(f"--spider {path}: {refusal}")
        return path, files.read_trusted(path)
    except OSError as error:
        raise Misconfigured(f"--spider {given}: {error.strerror or error}") from None
    except (ValueError, RuntimeError) as error:  # a NUL; `~nobody`
        raise Misconfigured(f"--spider {given}: {error}") from None


def _in_module(named: str, found: re.Match[str], trust: Trust | None) -> FoundClass:
    """The class in a module that can be imported, from a folder or as installed."""
    folder, name, wanted = found.groups()
    code = code_of(named)
    if code is None:
        raise Misconfigured(f"--spider {named}: there is no module {name.partition('.')[0]}")
    if refusal := trust.refusal(code) if trust else "":
        raise Misconfigured(f"--spider {named}: {refusal}")
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)  # the callbacks of this process may import more of it
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise Misconfigured(f"--spider {named} cannot be imported: {type(error).__name__}: {error}") from error
    path, source = _read(Path(module.__file__ or name), None)
    return FoundClass(_class_in(module, path, wanted), named, path, module, hashlib.sha256(source).hexdigest())


def project_around(path: Path) -> Path | None:
    """The folder with scrapy.cfg that a path is in; None if there is none."""
    return next((folder for folder in (path, *path.parents) if (folder / PROJECT).is_file()), None)


def file_of(named: str) -> Path:
    """The file in a spider's name. Raises: Misconfigured: it is none."""
    return _parts(named)[0]


def project_of(named: str) -> tuple[Path, str] | None:
    """The folder of a Scrapy project and the spider's name in it, of `FOLDER:NAME`; None for other names."""
    folder, _, name = named[:MAX_PATH].rpartition(":")
    if not folder.startswith("/") or not name or folder.endswith(".py") or _MODULE.fullmatch(named[:MAX_PATH]):
        return None
    return Path(folder), name


def _parts(named: str) -> tuple[Path, str]:
    if len(named) > MAX_PATH:
        raise Misconfigured(f"--spider {named[:100]}…: {len(named):,} characters are no path")
    file, colon, wanted = named.rpartition(".py:")
    path, wanted = (Path(f"{file}.py"), wanted) if colon else (Path(named), "")
    if path.suffix != ".py":
        raise Misconfigured(f"--spider {named}: the name is FILE.py, FILE.py:Class, pkg.module:Class or FOLDER:NAME")
    return path, wanted


def _run(path: Path, source: bytes, name: str) -> ModuleType:
    """Run a file's bytes as a module; it may import files beside it, like a script, and its Scrapy project's.

    An import by name could run a stale compiled version instead of these bytes.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.path[:]
    project = project_around(path.parent) or path.parent
    finder = _Neighbours(project, before)
    roots = dict.fromkeys((path.parent, project))
    shared = [folder for folder in roots if files.is_shared(folder)]
    sys.meta_path.insert(0, finder)
    sys.path[:] = [*(str(folder) for folder in roots if folder not in shared), *before]
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102  # the operator named this file
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = f" ({shared[0]} is open to others: nothing is imported from it)" if shared else ""
        hint = hint if isinstance(error, ModuleNotFoundError) else ""
        raise Misconfigured(f"--spider {path} cannot be loaded{where(error, path)}{hint}") from error
    finally:
        sys.path[:] = before
        sys.meta_path[:] = [one for one in sys.meta_path if one is not finder]
    return module


class _Neighbours:
    """Checks each file that a spider imports from its folder or project: no other user may be able to change it.

    The standard library goes first: a `queue.py` beside a spider does not replace Python's own. Beside a script it
    would. Here it would also replace it for every import of the worker while a spider is loaded.
    """

    def __init__(self, folder: Path, path: list[str]) -> None:
        self._folder = folder
        self._path = path

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002  # Python's own signature
        """The spec of a module of the standard library; None leaves the module to the next finders.

        Raises: PermissionError: other users may change the file.
        """
        if path is None and name in sys.stdlib_module_names:
            return PathFinder.find_spec(name, self._path)
        found = PathFinder.find_spec(name, path)
        if found and found.origin and Path(found.origin).is_relative_to(self._folder):
            files.check(Path(found.origin))
        return None


# Frameworks whose files are given as spiders, each with the way from it.
_WAYS = {
    "scrapy": scrapy_names.IMPORT,
    "pyspider": (
        "a handler of pyspider does not run here; `crawlog genspider -t pyspider NAME HOST` writes a spider that shows"
        " what takes the place of each line, and docs/from-pyspider.md lists all of them"
    ),
    "celery": "tasks of Celery do not run here; docs/from-celery.md lists what takes the place of each part",
}


def _way_from(module: ModuleType) -> str:
    """The way from another framework whose classes or objects a module has; empty if it has none."""
    kinds = [value if isinstance(value, type) else type(value) for value in vars(module).values()]
    roots = {one.__module__.partition(".")[0] for kind in kinds for one in kind.__mro__}
    return next((way for root, way in _WAYS.items() if root in roots), "")


def where(error: BaseException, path: Path) -> str:
    """The line of the file and the error, on one line."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    framework = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if way := _WAYS.get(framework):
        said = f"{said}; {way}" if framework == "scrapy" else way
    if isinstance(error, ImportError) and "no known parent package" in said:
        said += "; a file of an installed package is named pkg.module:Class"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f": line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f": line {lines[-1]}: {said}" if lines else f": {said}"


def told(error: BaseException, folder: Path) -> str:
    """An error on one line, with the last line of a folder's code that it came through, if there is one."""
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:  # no frame: that file has not run
        frames.append((Path(error.filename), error.lineno or 0))
        said = f"{type(error).__name__}: {error.msg}"
    said = said.splitlines()[0].removesuffix(": ")
    own = [(file, line) for file, line in frames if file.is_relative_to(folder) and not is_librarys(file)]
    return f"{said} ({own[-1][0].relative_to(folder)}, line {own[-1][1]})" if own else said


def is_installed(file: Path) -> bool:
    """Whether code is of an installed package: a project's folder may hold a virtual environment."""
    return not _INSTALLED.isdisjoint(file.parts)


def is_librarys(file: Path) -> bool:
    """Whether it is that, or Python's own: a home may hold Python."""
    return is_installed(file) or file.is_relative_to(sysconfig.get_path("stdlib"))


# Base classes of spiders, by their import path: a class is known by them without an import of Scrapy.
BASES: Final = ("crawlog.streams.spiders.spider.Spider", "scrapy.spiders.Spider")


def is_kind_of(kind: object, base: str) -> bool:
    """Whether this is a subclass of a base class with this import path."""
    return isinstance(kind, type) and base in [f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__[1:]]


def _is_spider(kind: object) -> bool:
    return any(is_kind_of(kind, base) for base in BASES)


def _is_base(kind: type[Any]) -> bool:
    """Whether this is a base class of spiders: Scrapy's loader takes classes with a name only."""
    return is_kind_of(kind, BASES[1]) and not getattr(kind, "name", None)


def _class_in(module: ModuleType, path: Path, wanted: str) -> type[Any]:
    own = {name: kind for name, kind in vars(module).items() if _is_spider(kind) and kind.__module__ == module.__name__}
    own = {name: kind for name, kind in own.items() if not _is_base(kind)} or own
    found = vars(module).get(wanted) if wanted else None
    if not own and not _is_spider(found) and (way := _way_from(module)):
        raise Misconfigured(f"--spider {path}: {way}")
    if wanted and not _is_spider(found):
        has = f"it has {', '.join(own)}" if own else "it has none: write `class Books(crawlog.Spider)` with a parse"
        raise Misconfigured(f"--spider {path}: there is no spider {wanted} in it; {has}")
    if not wanted and len(own) != 1:
        several = f"it has several spiders; name one: --spider {path.name}:{next(iter(own), '')}"
        raise Misconfigured(f"--spider {path}: {several if own else 'it has no subclass of crawlog.Spider'}")
    kind: type[Any] = found if wanted else next(iter(own.values()))  # type: ignore[assignment]  # just checked
    return kind


# Code that runs a crawl of Scrapy's, or `crawlog.crawl`, by itself when it is loaded, as scripts do, is refused: each
# process that loads it would crawl the site, beside the log and without its rules.

CRAWLER: Final = "scrapy.crawler"  # The module whose `Crawler` begins each crawl of Scrapy's

HARM: Final = (
    'would crawl by Scrapy in each process that loads it: write it below `if __name__ == "__main__":`, and give '
    "settings of the process as custom_settings of the spider"
)

_loading: list[str] = []  # The spider that is being loaded, or none

_refused: list[str] = []  # Names of the spiders whose crawls were refused during this load


def check_crawl() -> None:
    """Called by `crawlog.crawl`. Raises: Misconfigured: this process is loading a spider's file."""
    if _loading:
        raise Misconfigured(
            "crawl() is called while the file is loaded, which each process of its crawl does: write the call below "
            '`if __name__ == "__main__":`'
        )


@contextmanager
def no_crawls(named: str) -> Iterator[None]:
    """Load code of a user. No crawl of Scrapy begins in this process from now on, none of crawlog during the load.

    Args:
        named: The spider, for the message.

    Raises: Misconfigured: the code tried to begin one, whatever it made of the refusal.
    """
    if CRAWLER in sys.modules:
        _refuse_crawls_of(sys.modules[CRAWLER])
    elif not any(isinstance(one, CrawlerFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, CrawlerFinder())
    _refused.clear()
    _loading.append(named)
    cause: BaseException | None = None
    try:
        yield
    except BaseException as error:
        if not _refused:
            raise
        cause = error  # often another one: `react` and Scrapy's processes take errors as their own
    finally:
        _loading.clear()
    if _refused:
        raise Misconfigured(f"--spider {named} cannot be loaded: a crawl of {_refused[0]} {HARM}") from cause


class CrawlerFinder(MetaPathFinder):
    """Finds Scrapy's module of crawlers, if somebody imports it, and has its crawls refused once it has run."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's spec; None leaves other modules to the next finders."""
        spec = PathFinder.find_spec(name, path, target) if name == CRAWLER else None
        if spec is not None and spec.loader is not None:
            runs = spec.loader.exec_module

            def run(module: ModuleType) -> None:
                runs(module)
                _refuse_crawls_of(module)

            spec.loader.exec_module = run  # type: ignore[method-assign]  # of this one loader
        return spec


def _refuse_crawls_of(module: Any) -> None:
    module.Crawler.crawl = module.Crawler.crawl_async = _refuse


def _refuse(crawler: Any, *_: object, **__: object) -> NoReturn:
    kind = crawler.spidercls.__name__
    _refused.append(kind)
    raise Misconfigured(f"a crawl of {kind} {HARM}")
