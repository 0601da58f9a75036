"""Finds a spider of Scrapy: in a project, in a file, or in a module; with the settings that Scrapy would give it.

FOLDER:NAME ─► scrapy.cfg ─► settings module ─► SpiderLoader ─┐
FILE.py:Class ─► its project, if it is in one ────────────────┼─► FoundSpider: class, settings, modules, digest
pkg.module:Class ─► its project, if it is in one ─────────────┘
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from configparser import ConfigParser, Error
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from scrapy import Spider
from scrapy.addons import AddonManager
from scrapy.settings import Settings
from scrapy.spiderloader import get_spider_loader

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

from ..loading import PROJECT, FoundClass, is_installed, project_around, told

# The settings module that the environment names: as in Scrapy, it counts more than scrapy.cfg.
GIVEN = os.environ.get("SCRAPY_SETTINGS_MODULE", "")


class FoundSpider(NamedTuple):
    """A class of a spider, and all that belongs to it.

    Attributes:
        path: Absolute and complete, for the job's record.
        folder: Of its code: messages name files relative to it.
        settings: Of the project and of the command line; those of the spider are not in them yet.
        modules: Of the project, each with its name in the log.
        digest: Of the project's code, in hex.
    """

    kind: type[Spider]
    path: str
    folder: Path
    settings: Settings
    modules: tuple[tuple[str, ModuleType], ...]
    digest: str


def in_project(folder: Path, name: str, given: dict[str, str]) -> FoundSpider:
    """The spider of a project, by its name.

    Args:
        folder: With scrapy.cfg.
        given: Settings from the command line.

    Raises: Misconfigured: there is no such project or spider, or it cannot be loaded.
    """
    folder = folder.expanduser().absolute()
    digest = digest_of(folder)
    settings = settings_of(folder, given)
    try:
        loader = get_spider_loader(settings)
        names = loader.list()
        if name not in names:
            has = f"it has {', '.join(sorted(names)[:20])}" if names else "it has none: see SPIDER_MODULES"
            raise Misconfigured(f"--spider {name}: no spider of this name in {folder}; {has}")
        kind = loader.load(name)
    except Misconfigured:
        raise
    except Exception as error:
        raise Misconfigured(f"--spider {name}: the project {folder} cannot be loaded: {told(error, folder)}") from error
    return FoundSpider(kind, f"{folder}:{name}", folder, settings, tuple(modules_below(folder)), digest)


def of_found(found: FoundClass, given: dict[str, str]) -> FoundSpider:
    """A spider whose class was found already, in a file or a module.

    Raises: Misconfigured: its project cannot be loaded.
    """
    module = found.module
    if found.file.stem not in sys.stdlib_module_names:
        sys.modules.setdefault(found.file.stem, module)  # settings name components of the file so, as in Scrapy
    project = project_around(found.file.parent)
    settings = settings_of(project, given) if project else _complete(Settings(), given)
    digest = digest_of(project) if project else found.digest
    folder = project or found.file.parent
    name = module.__name__ if "." in module.__name__ else found.file.stem
    beside = [(named, one) for named, one in modules_below(folder) if one is not module]
    return FoundSpider(found.kind, found.path, folder, settings, ((name, module), *beside), digest[:16])


def settings_of(folder: Path, given: dict[str, str]) -> Settings:
    """The settings of a project. From now on its modules can be imported.

    Raises: Misconfigured: scrapy.cfg names no settings, or they cannot be loaded.
    """
    config = ConfigParser()
    try:
        config.read_string(files.read_trusted(folder / PROJECT).decode())
        named = GIVEN or config.get("settings", os.environ.get("SCRAPY_PROJECT", "default"))
    except (OSError, Error, UnicodeDecodeError) as error:
        raise Misconfigured(f"{folder / PROJECT}: {told(error, folder)}") from None
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    os.environ["SCRAPY_SETTINGS_MODULE"] = named
    settings = Settings()
    try:
        settings.setmodule(named, priority="project")
        return _complete(settings, given)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{named}.".startswith(f"{error.name}."):
            by = "SCRAPY_SETTINGS_MODULE" if GIVEN else f"{PROJECT}, or the entry point [scrapy] of an egg,"
            raise Misconfigured(f"{by} names the settings {named}, and {folder} has no such module") from None
        raise Misconfigured(f"the settings {named} of {folder} cannot be loaded: {told(error, folder)}") from error


def _complete(settings: Settings, given: dict[str, str]) -> Settings:
    settings.setdict(given, priority="cmdline")
    AddonManager.load_pre_crawler_settings(settings)
    return settings


def digest_of(folder: Path) -> str:
    """The digest of all Python files of a project; each is checked before it is imported.

    Raises: Misconfigured: other users may change a file.
    """
    state = hashlib.sha256()
    for path in [folder / PROJECT, *sorted(_code(folder))]:
        try:
            source = files.read_trusted(path)
        except OSError as error:
            raise Misconfigured(f"--spider {path}: {error.strerror or error}") from None
        state.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(source).digest())
    return state.hexdigest()[:16]


def _code(folder: Path) -> Iterator[Path]:
    """The Python files below a folder, without hidden folders and virtual environments."""
    for here, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        yield from (Path(here, name) for name in names if name.endswith(".py"))


def modules_below(folder: Path) -> Iterator[tuple[str, ModuleType]]:
    """The loaded modules whose files are below a folder, without installed packages."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder) and not is_installed(Path(file)):
            yield name, module
