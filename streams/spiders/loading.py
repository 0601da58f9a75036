"""Loads a spider from a file, named `FILE.py` or `FILE.py:Class` by the operator's `--spider`.

Only this module runs user code. The file's name comes from the command line or, in a worker, from the job's record;
never from a page. Anyone who can write to Kafka can write a job's record. So a worker runs only files that its `Trust`
allows, and no process runs a file that other users may change.
"""

import hashlib
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

from . import scrapy_names
from .trust import Trust

MAX_PATH = 4096
"""Longest file name, characters, as in the kernel. Without it, a job's record could put megabytes into the logs."""


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
    """The class of the spider in a file.

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
    return FoundClass(kind, f"{path}:{kind.__name__}", path, module, digest)


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
        raise Misconfigured(f"--spider {path} cannot be loaded{where(error, path)}{hint}") from error
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


def where(error: BaseException, path: Path) -> str:
    """The line of the file and the error, on one line."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, ModuleNotFoundError) and error.name == "scrapy":
        said += f"; {scrapy_names.IMPORT}"
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f": line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f": line {lines[-1]}: {said}" if lines else f": {said}"


BASES: Final = ("crawlog.streams.spiders.spider.Spider", "scrapy.spiders.Spider")
"""Base classes of spiders, by their import path: a class is known by them without an import of Scrapy."""


def is_kind_of(kind: object, base: str) -> bool:
    """Whether this is a subclass of a base class with this import path."""
    return isinstance(kind, type) and base in [f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__[1:]]


def _is_spider(kind: object) -> bool:
    return any(is_kind_of(kind, base) for base in BASES)


def _class_in(module: ModuleType, path: Path, wanted: str) -> type[Any]:
    own = {name: kind for name, kind in vars(module).items() if _is_spider(kind) and kind.__module__ == module.__name__}
    found = vars(module).get(wanted) if wanted else None
    if wanted and not _is_spider(found):
        has = f"it has {', '.join(own)}" if own else "it has none: write `class Books(crawlog.Spider)` with a parse"
        raise Misconfigured(f"--spider {path}: there is no spider {wanted} in it; {has}")
    if not wanted and len(own) != 1:
        several = f"it has several spiders; name one: --spider {path.name}:{next(iter(own), '')}"
        raise Misconfigured(f"--spider {path}: {several if own else 'it has no subclass of crawlog.Spider'}")
    kind: type[Any] = found if wanted else next(iter(own.values()))  # type: ignore[assignment]  # just checked
    return kind
