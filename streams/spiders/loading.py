"""Loads a spider from a file, named `FILE.py` or `FILE.py:Class` by the operator's `--spider`.

Only this module runs user code. The file's name comes from the command line or, in a worker, from the job's record;
never from a page. Anyone who can write to Kafka can write a job's record. So a worker runs only files that its `Trust`
allows, and no process runs a file that other users may change.
"""

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

from . import scrapy_names
from .page import Parse
from .response import Request
from .spider import Spider
from .trust import Trust
from .yielded import Bounds, parser_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""A spider's name and version: records have them as NAME@VERSION, and users type them."""

MAX_PATH = 4096
"""Longest file name, characters, as in the kernel. Without it, a job's record could put megabytes into the logs."""


class Loaded(NamedTuple):
    """A spider ready for use.

    Attributes:
        path: `/FILE.py:Class`, absolute; the job's record has it, so that each worker loads the same spider.
        label: `NAME@VERSION`, for the records of crawl.items.
        digest: Of the file, in hex.
    """

    path: str
    label: str
    spider: Spider
    digest: str

    def parser(self, bounds: Bounds) -> Parse:
        """The spider's parser."""
        return parser_of(self.spider, bounds)


def load_spider(named: str, trust: Trust | None = None) -> Loaded:
    """The spider in a file.

    Args:
        named: `FILE.py`, which has one spider, or `FILE.py:Class`.
        trust: Says which files may be run; None if the operator's own command names this file.

    Raises: Misconfigured: no such file or class, or the file may not be run or is broken; the message has the line.
    """
    given, wanted = _parts(named)
    try:
        path = given.expanduser().absolute()
        if refusal := trust.refusal(path) if trust else "":
            raise Misconfigured(f"--spider {path}: {refusal}")
        source = files.read_trusted(path)
    except OSError as error:
        raise Misconfigured(f"--spider {given}: {error.strerror or error}") from None
    except (ValueError, RuntimeError) as error:  # a NUL; `~nobody`
        raise Misconfigured(f"--spider {given}: {error}") from None
    digest = hashlib.sha256(source).hexdigest()
    module = _run(path, source, f"crawlog_spider_{digest[:16]}")
    kind = _class_in(module, path, wanted)
    try:
        spider = kind()
    except Exception as error:
        raise Misconfigured(f"--spider {path}: {kind.__name__}() fails{_where(error, path)}") from error
    _check(spider, path)
    _refuse_names_of_scrapy(spider, path, source, module)
    return Loaded(f"{path}:{kind.__name__}", _label(spider, path, digest[:8]), spider, digest[:16])


def file_of(named: str) -> Path:
    """The file in a spider's name. Raises: Misconfigured: it is none."""
    return _parts(named)[0]


def _parts(named: str) -> tuple[Path, str]:
    if len(named) > MAX_PATH:
        raise Misconfigured(f"--spider {named[:100]}…: {len(named):,} characters are no path")
    file, colon, wanted = named.rpartition(".py:")
    path, wanted = (Path(f"{file}.py"), wanted) if colon else (Path(named), "")
    if path.suffix != ".py":
        raise Misconfigured(f"--spider {named}: the name is FILE.py or FILE.py:Class")
    return path, wanted


def _run(path: Path, source: bytes, name: str) -> ModuleType:
    """Run a file's bytes as a module; it may import files beside it, like a script.

    An import by name could run a stale compiled version instead of these bytes.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.path[:]
    finder = _Neighbours(path.parent, before)
    alone = files.is_shared(path.parent)
    sys.meta_path.insert(0, finder)
    sys.path[:] = before if alone else [str(path.parent), *before]
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102  # the operator named this file
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = f" ({path.parent} is open to others: nothing is imported from it)" if alone else ""
        hint = hint if isinstance(error, ModuleNotFoundError) else ""
        raise Misconfigured(f"--spider {path} cannot be loaded{_where(error, path)}{hint}") from error
    finally:
        sys.path[:] = before
        sys.meta_path[:] = [one for one in sys.meta_path if one is not finder]
    return module


class _Neighbours:
    """Checks each file that a spider imports from its folder: no other user may be able to change it.

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


def _where(error: BaseException, path: Path) -> str:
    """The line of the file and the error, on one line."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, ModuleNotFoundError) and error.name == "scrapy":
        said += f"; {scrapy_names.IMPORT}"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f": line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f": line {lines[-1]}: {said}" if lines else f": {said}"


def _class_in(module: ModuleType, path: Path, wanted: str) -> type[Spider]:
    own = {name: kind for name, kind in vars(module).items() if _is_spider(kind) and kind.__module__ == module.__name__}
    found = vars(module).get(wanted) if wanted else None
    if wanted and not _is_spider(found):
        has = f"it has {', '.join(own)}" if own else "it has none: write `class Books(crawlog.Spider)` with a parse"
        raise Misconfigured(f"--spider {path}: there is no spider {wanted} in it; {has}")
    if not wanted and len(own) != 1:
        several = f"it has several spiders; name one: --spider {path.name}:{next(iter(own), '')}"
        none = f"it has no subclass of crawlog.Spider{_of_scrapy(module)}"
        raise Misconfigured(f"--spider {path}: {several if own else none}")
    kind: type[Spider] = found if wanted else next(iter(own.values()))  # type: ignore[assignment]  # just checked
    if inspect.iscoroutinefunction(kind.parse) or inspect.isasyncgenfunction(kind.parse):
        raise Misconfigured(f"--spider {path}: {kind.__name__}.parse is async; write it as a plain function")
    if kind.parse is Spider.parse:
        raise Misconfigured(f"--spider {path}: {kind.__name__} has no parse(self, response)")
    return kind


def _of_scrapy(module: ModuleType) -> str:
    """A hint for a module that has a spider of Scrapy's instead; else empty."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]
    found = any(base.__module__.partition(".")[0] == "scrapy" for kind in kinds for base in kind.__mro__)
    return f"; {scrapy_names.IMPORT}" if found else ""


def _is_spider(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Spider) and kind is not Spider


def _check(spider: Spider, path: Path) -> None:
    """Refuse a spider that would fail for every page, before the first page."""
    urls, statuses, settings = spider.start_urls, spider.handle_httpstatus_list, spider.settings
    if isinstance(urls, str) or not isinstance(urls, Collection) or not all(isinstance(url, str) for url in urls):
        raise Misconfigured(f"--spider {path}: start_urls = {urls!r:.80}: it is a list of URLs")
    if not isinstance(statuses, Collection) or not all(isinstance(status, int) for status in statuses):
        raise Misconfigured(f"--spider {path}: handle_httpstatus_list = {statuses!r:.80}: it is a list of numbers")
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise Misconfigured(f"--spider {path}: settings = {settings!r:.80}: it is a dict by dotted names")
    try:
        inspect.signature(spider.parse).bind(None)
    except TypeError as error:
        raise Misconfigured(
            f"--spider {path}: {type(spider).__name__}.parse cannot be called with a page ({error});"
            " write it as parse(self, response)"
        ) from None


def _refuse_names_of_scrapy(spider: Spider, path: Path, source: bytes, module: ModuleType) -> None:
    told = [*scrapy_names.of_spider(spider), *scrapy_names.of_requests(source, module, spider, Request)]
    if told:
        several = " names of Scrapy\n  " if len(told) > 1 else " "
        raise Misconfigured(f"--spider {path}:{several}" + "\n  ".join(told))


def _label(spider: Spider, path: Path, digest: str) -> str:
    name, version = spider.name or type(spider).__name__, str(spider.version) or digest
    for text, what in ((name, "name"), (version, "version")):
        if not _NAME.fullmatch(str(text)):
            raise Misconfigured(f"--spider {path}: {what} = {text!r}: letters, digits, and . _ + - only, at most 100")
    return f"{name}@{version}"
