"""Loads a spider of Scrapy: of a project by its name, or a class that was found already."""

import logging
from pathlib import Path

from scrapy.utils.reactor import is_asyncio_reactor_installed, is_reactor_installed

from crawlog.streams.errors import Misconfigured

from ..exchange import SpiderRef
from ..loading import FoundClass
from .facts import is_set
from .loop_reactor import install_on_demand
from .project import in_project, of_found
from .scrapy_runner import ScrapyRunner


def of_project(folder: Path, name: str, ref: SpiderRef) -> ScrapyRunner:
    """The runner of a project's spider. Raises: Misconfigured: there is none, or it cannot run here."""
    install_on_demand()
    return _logging(ScrapyRunner(in_project(folder, name, dict(ref.scrapy)), ref))


def of_class(found: FoundClass, ref: SpiderRef) -> ScrapyRunner:
    """The runner of a class in a file or a module. Raises: Misconfigured: it cannot run here."""
    if is_reactor_installed() and not is_asyncio_reactor_installed():
        raise Misconfigured(
            f"--spider {found.path}: the file imports twisted.internet.reactor at its top; that installs one which "
            "nothing runs here: import it in the function that needs it"
        )
    install_on_demand()
    return _logging(ScrapyRunner(of_found(found, dict(ref.scrapy)), ref))


def _logging(runner: ScrapyRunner) -> ScrapyRunner:
    """Write the spider's lines to standard error, which is the log of this process."""
    settings = runner.crawler.settings
    given = settings["LOG_LEVEL"] if is_set(settings, "LOG_LEVEL") else "INFO"
    level = int(given) if str(given).isdigit() else str(given)
    logging.basicConfig(format=settings["LOG_FORMAT"], datefmt=settings["LOG_DATEFORMAT"])
    logging.getLogger().setLevel(level if settings.getbool("LOG_ENABLED") else logging.CRITICAL + 1)
    if not is_set(settings, "LOG_LEVEL"):
        logging.getLogger("scrapy").setLevel("WARNING")  # Scrapy says much of itself, and each process would again
    return runner
