"""Spiders of deployed code, by their names in its unpacked folder; in a child process alone.

FOLDER with scrapy.cfg ─► the project's spider of this name     else: *.py at its top ─► the class of this name

The name comes from a job's record, which any writer of crawl.urls may have written: it is compared with the names that
there are, and is never a path.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

from .exchange import SpiderFacts, SpiderRef
from .loading import PROJECT, FoundClass, found_class, told
from .remote_settings import wire_refusal
from .self_running import no_crawls
from .trust import Trust

MAX_SHOWN = 20
"""Names of spiders in a message."""


def check_settings(ref: SpiderRef) -> None:
    """Raises: Misconfigured: the job's record has a setting of Scrapy that only the project may set."""
    for name, value in ref.scrapy:
        if why := wire_refusal(name, value):
            raise Misconfigured(f"code_refused: {why}")


def is_scrapy_project(folder: Path) -> bool:
    """Whether a folder is a Scrapy project; else it has spider files at its top."""
    return (folder / PROJECT).is_file()


def deployed_class(folder: Path, name: str) -> FoundClass:
    """The class of a spider in a folder of spider files. Raises: Misconfigured: there is none, or it is broken."""
    every = list(_classes(folder))
    for file, kind in sorted(every, key=lambda one: name not in (one[1].name, _name_of(one[1]))):
        found = _found(folder, file, kind.name)
        if found is not None and name in (_spider_name(found.kind), found.kind.__name__):
            return found
    names = _names(folder)
    has = f"it has {', '.join(names[:MAX_SHOWN])}" if names else "it has none"
    raise Misconfigured(f"the deployed code has no spider {name!r:.100}; {has}")


def spider_names(folder: Path) -> list[str]:
    """Names of all spiders of a folder. Runs its code. Raises: Misconfigured: it cannot be loaded."""
    if not is_scrapy_project(folder):
        return _names(folder)
    from scrapy.spiderloader import get_spider_loader

    from .scrapy.project import settings_of

    settings = settings_of(folder, {})
    try:
        return list(get_spider_loader(settings).list())
    except Exception as error:
        raise Misconfigured(f"the project cannot be loaded: {told(error, folder)}") from error


def _names(folder: Path) -> list[str]:
    found = (_found(folder, file, kind.name) for file, kind in _classes(folder))
    return sorted({_spider_name(one.kind) for one in found if one is not None})


def _spider_name(kind: type[Any]) -> str:
    return str(getattr(kind, "name", "") or kind.__name__)


def _classes(folder: Path) -> Iterator[tuple[Path, ast.ClassDef]]:
    """The classes with bases in the files at a folder's top, found without running them."""
    for file in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(files.read_trusted(file))
        except (OSError, SyntaxError, ValueError) as error:
            raise Misconfigured(f"{file.name} cannot be read: {error}") from None
        yield from ((file, node) for node in tree.body if isinstance(node, ast.ClassDef) and node.bases)


def _name_of(kind: ast.ClassDef) -> str:
    """The `name = "…"` of a class; empty if it has none."""
    for node in kind.body:
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == "name" for one in node.targets):
            return str(node.value.value) if isinstance(node.value, ast.Constant) else ""
    return ""


def _found(folder: Path, file: Path, kind: str) -> FoundClass | None:
    """A class, if it is a spider."""
    try:
        return found_class(f"{file}:{kind}", Trust((folder,)))
    except Misconfigured as error:
        if error.__cause__ is None:
            return None  # no spider: an item, a helper
        raise


def explained(error: Misconfigured) -> Misconfigured:
    """An error of loading, with what to do about a module that is not installed."""
    cause: BaseException | None = error.__cause__
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    if cause is None or not cause.name:
        return error
    missing = cause.name.partition(".")[0]
    return Misconfigured(
        f"{error}. The module {missing} is not installed beside this worker, and crawlog installs nothing: install it "
        f"into {sys.prefix} on the workers' machines, or deploy an egg that holds it"
    )


class ListingService:
    """Answers the one call for the names of the spiders."""

    def __init__(self, folder: Path) -> None:
        self.facts = SpiderFacts(path=str(folder), label="listing@0")
        self._folder = folder

    async def call(self, _name: str, _argument: bytes) -> bytes:
        """The names, as JSON."""
        try:
            with no_crawls(str(self._folder)):
                return msgspec.json.encode(spider_names(self._folder))
        except Misconfigured as error:
            raise explained(error) from error


def load_listing(ref: SpiderRef, **_: object) -> ListingService:
    """What lists the spiders of `ref.folder`: a loader of a child process."""
    return ListingService(Path(ref.folder))
