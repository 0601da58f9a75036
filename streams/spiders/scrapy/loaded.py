"""Loads a spider of Scrapy: of a project by its name, or a class that was found already."""

import logging
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scrapy.settings import BaseSettings
from scrapy.utils.reactor import is_asyncio_reactor_installed, is_reactor_installed

from crawlog.streams.errors import Misconfigured

from ..exchange import SpiderRef
from ..loading import FoundClass, told
from .crawler import install_on_demand
from .facts import is_set
from .project import FoundSpider, in_project, of_found
from .scrapy_runner import ScrapyRunner

MAX_SHOWN = 24  # Longest value of a setting that an error shows, characters


def of_project(folder: Path, name: str, ref: SpiderRef) -> ScrapyRunner:
    """The runner of a project's spider. Raises: Misconfigured: there is none, or it cannot run here."""
    install_on_demand()
    return made(in_project(folder, name, dict(ref.scrapy)), ref, partial(_log_lines, level=ref.spec.log))


def of_class(found: FoundClass, ref: SpiderRef) -> ScrapyRunner:
    """The runner of a class in a file or a module. Raises: Misconfigured: it cannot run here."""
    if is_reactor_installed() and not is_asyncio_reactor_installed():
        raise Misconfigured(
            f"--spider {found.path}: the file imports twisted.internet.reactor at its top; that installs one which "
            "nothing runs here: import it in the function that needs it"
        )
    install_on_demand()
    return made(of_found(found, dict(ref.scrapy)), ref, partial(_log_lines, level=ref.spec.log))


def made(
    found: FoundSpider, ref: SpiderRef, log_lines: Callable[[BaseSettings], None] = lambda _: None
) -> ScrapyRunner:
    """The runner of a spider.

    Args:
        log_lines: Sets up what the spider logs, by its settings: before it is made, and as its settings are in the end.

    Raises: Misconfigured: it cannot be made, or needs what crawlog does not have.
    """
    try:
        runner = ScrapyRunner(found, ref, log_lines)
        log_lines(runner.crawler.settings)
    except Misconfigured:
        raise
    except Exception as error:
        named = ref.path if ref.folder else found.path  # the folder of deployed code is gone soon
        said = _setting_read(error) + told(error, found.folder)
        raise Misconfigured(f"--spider {named}: {found.kind.__name__} cannot be made: {said}") from error
    return runner


def _setting_read(error: Exception) -> str:
    """The setting whose value raised an error, `NAME = VALUE: `; empty for other errors.

    A long value, which may hold a login, is left out, and so is one that is being set.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        settings, name = frame.f_locals.get("self"), frame.f_locals.get("name")
        if isinstance(settings, BaseSettings) and isinstance(name, str) and name in settings:
            value = repr(settings[name])
            is_shown = len(value) <= MAX_SHOWN and frame.f_code.co_name != "set"
            return f"{name} = {value}: " if is_shown else f"{name}: "
    return ""


def _log_lines(settings: BaseSettings, level: str) -> None:
    """Write the spider's lines to standard error, which is the log of this process.

    Args:
        level: The least one, if the project sets none.

    Raises: Misconfigured: LOG_LEVEL is no level.
    """
    logging.basicConfig(format=settings["LOG_FORMAT"], datefmt=settings["LOG_DATEFORMAT"])
    logging.getLogger().setLevel(_level(settings, level) if settings.getbool("LOG_ENABLED") else logging.CRITICAL + 1)
    is_quiet = not is_set(settings, "LOG_LEVEL")  # Scrapy says much of itself, and each process would again
    logging.getLogger("scrapy").setLevel("WARNING" if is_quiet else "NOTSET")


def _level(settings: BaseSettings, usual: str) -> int:
    given = settings["LOG_LEVEL"] if is_set(settings, "LOG_LEVEL") else usual.upper()
    known = logging.getLevelNamesMapping()
    level = int(given) if str(given).isdigit() else known.get(str(given))
    if level is None:
        raise Misconfigured(f"LOG_LEVEL = {given!r} is wrong; it must be a number or one of {', '.join(known)}")
    return level
