"""Loads a spider of Scrapy: of a project by its name, or a class that was found already."""

from pathlib import Path

from ..exchange import SpiderRef
from ..loading import FoundClass
from .project import in_project, of_found
from .scrapy_runner import ScrapyRunner


def of_project(folder: Path, name: str, ref: SpiderRef) -> ScrapyRunner:
    """The runner of a project's spider. Raises: Misconfigured: there is none, or it cannot run here."""
    return ScrapyRunner(in_project(folder, name, dict(ref.scrapy)), ref)


def of_class(found: FoundClass, ref: SpiderRef) -> ScrapyRunner:
    """The runner of a class in a file or a module. Raises: Misconfigured: it cannot run here."""
    return ScrapyRunner(of_found(found, dict(ref.scrapy)), ref)
