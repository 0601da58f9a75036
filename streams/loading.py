"""A spider's file becomes a class: `FILE.py` or `FILE.py:Class`, as the operator named it with `--spider`.

Code is run from here, and from nowhere else: the name comes from the command line or, in a worker, from the job's
record, and never from a page. Whoever may write to crawl.control and crawl.urls decides which files workers run.
"""

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from .errors import Misconfigured
from .spider import Bounds, Parse, Spider, parser_of

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""A spider's name and version stand as NAME@VERSION in records, and are typed by people."""


class Loaded(NamedTuple):
    """A spider ready for use.

    Attributes:
        path: `/FILE.py:Class`, absolute: what a job's record says, so that each worker loads the same.
        label: `NAME@VERSION`, for the records of crawl.items.
    """

    path: str
    label: str
    spider: Spider

    def parser(self, bounds: Bounds) -> Parse:
        """The spider at work."""
        return parser_of(self.spider, bounds)


def load_spider(named: str) -> Loaded:
    """The spider in a file.

    Args:
        named: `FILE.py`, which has one spider, or `FILE.py:Class`.

    Raises: Misconfigured: no such file or class, or the file is broken; the message says in which line.
    """
    given, wanted = _parts(named)
    path = given.expanduser().absolute()
    try:
        source = path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"--spider {given}: {error.strerror or error}") from None
    digest = hashlib.sha256(source).hexdigest()
    module = _run(path, source, f"crawlog_spider_{digest[:16]}")
    kind = _class_in(module, path, wanted)
    try:
        spider = kind()
    except Exception as error:
        raise Misconfigured(f"--spider {path}: {kind.__name__}() fails{_where(error, path)}") from error
    _check(spider, path)
    return Loaded(f"{path}:{kind.__name__}", _label(spider, path, digest[:8]), spider)


def _parts(named: str) -> tuple[Path, str]:
    file, colon, wanted = named.rpartition(".py:")
    path, wanted = (Path(f"{file}.py"), wanted) if colon else (Path(named), "")
    if path.suffix != ".py":
        raise Misconfigured(f"--spider {named}: the name is FILE.py or FILE.py:Class")
    return path, wanted


def _run(path: Path, source: bytes, name: str) -> ModuleType:
    """The module that the bytes are; its neighbours may be imported, as by a script.

    The bytes at hand are run, not what Python would find by the name: a stale cached compilation has another version.
    """
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.path[:]
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102  # what the operator asked for
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Misconfigured(f"--spider {path} cannot be loaded{_where(error, path)}") from error
    finally:
        sys.path[:] = before
    return module


def _where(error: BaseException, path: Path) -> str:
    """The line of the file and the error, on one line."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
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
        raise Misconfigured(f"--spider {path}: " + (several if own else "it has no subclass of crawlog.Spider"))
    kind: type[Spider] = found if wanted else next(iter(own.values()))  # type: ignore[assignment]  # just checked
    if inspect.iscoroutinefunction(kind.parse) or inspect.isasyncgenfunction(kind.parse):
        raise Misconfigured(f"--spider {path}: {kind.__name__}.parse is async; write it as a plain function")
    if kind.parse is Spider.parse:
        raise Misconfigured(f"--spider {path}: {kind.__name__} has no parse(self, response)")
    return kind


def _is_spider(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Spider) and kind is not Spider


def _check(spider: Spider, path: Path) -> None:
    """What is wrong with it for every page is told before the first."""
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


def _label(spider: Spider, path: Path, digest: str) -> str:
    name, version = spider.name or type(spider).__name__, str(spider.version) or digest
    for text, what in ((name, "name"), (version, "version")):
        if not _NAME.fullmatch(str(text)):
            raise Misconfigured(f"--spider {path}: {what} = {text!r}: letters, digits, and . _ + - only, at most 100")
    return f"{name}@{version}"
