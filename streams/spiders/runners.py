"""From the name of a spider to its runner: one table, by the spider's base class."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crawlog.streams.errors import Misconfigured

from .exchange import Runner, SpiderRef
from .loading import FoundClass, found_class, is_kind_of, project_of
from .own_loading import facts_of, own_runner, own_spider
from .own_outputs import Bounds
from .page import Parse
from .spider import Spider
from .trust import Trust
from .yielded import parser_of

MakeRunner = Callable[[FoundClass, SpiderRef, Bounds], Runner]
"""Makes the runner of a class. Raises: Misconfigured: the class cannot be used."""


def _scrapy_runner(found: FoundClass, ref: SpiderRef, bounds: Bounds) -> Runner:  # noqa: ARG001  # Scrapy has no limits
    from .scrapy import of_class

    return of_class(found, ref)


def _of_project(folder: Path, name: str, ref: SpiderRef, trust: Trust | None) -> Runner:
    """The runner of a spider in a Scrapy project. Raises: Misconfigured: as `load_runner`."""
    if refusal := trust.refusal(folder) if trust else "":
        raise Misconfigured(f"--spider {folder}:{name}: {refusal}")
    try:
        from .scrapy import of_project
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"--spider {folder}:{name}: Scrapy is not installed: pip install 'crawlog[scrapy]'"
        ) from error
    return of_project(folder, name, ref)


RUNNERS: dict[str, MakeRunner] = {
    "crawlog.streams.spiders.spider.Spider": own_runner,
    "scrapy.spiders.Spider": _scrapy_runner,
}
"""By the import path of the base class."""


def load_runner(ref: SpiderRef, bounds: Bounds | None = None, trust: Trust | None = None) -> Runner:
    """The spider of a job, ready to run.

    Args:
        bounds: Limits of one page's outputs.
        trust: Says which files may be run; None if the operator's own command names this one.

    Raises: Misconfigured: there is no such spider, it may not be run, or it is broken.
    """
    project = project_of(ref.path)
    if project is not None:
        return _of_project(*project, ref, trust)
    found = found_class(ref.path, trust)
    make = next(make for base, make in RUNNERS.items() if is_kind_of(found.kind, base))
    return make(found, ref, bounds or Bounds())


class Loaded(NamedTuple):
    """A spider of crawlog's own class, ready for use in this process.

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
    """The spider in a file, as `load_runner` finds it. Raises: Misconfigured: as there."""
    found = found_class(named, trust)
    if not is_kind_of(found.kind, "crawlog.streams.spiders.spider.Spider"):
        raise Misconfigured(
            f"--spider {found.file}: {found.kind.__name__} is Scrapy's: it runs in a child process alone"
        )
    spider = own_spider(found)
    return Loaded(found.path, facts_of(spider, found).label, spider, found.digest[:16])
