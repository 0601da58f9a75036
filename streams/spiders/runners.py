"""From the name of a spider to its runner: one table, by the spider's base class."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crawlog.streams.errors import Misconfigured

from .deployed import check_settings, deployed_class, explained, is_scrapy_project
from .exchange import CallResult, PageCall, Runner, SpiderFacts, SpiderRef
from .loading import FoundClass, found_class, is_kind_of, no_crawls, project_of
from .own_loading import log_lines, own_runner
from .own_outputs import Bounds
from .trust import Trust

# Makes the runner of a class. Raises: Misconfigured: the class cannot be used.
MakeRunner = Callable[[FoundClass, SpiderRef, Bounds], Runner]


def _own_runner(found: FoundClass, ref: SpiderRef, bounds: Bounds) -> Runner:
    log_lines(found, ref.spec.log)  # before the spider is made: its `__init__` may log
    return own_runner(found, ref, bounds)


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
            f"--spider {folder}:{name}: Scrapy is not installed: pip install 'crawlog[scrapy]', or in a clone"
            " .venv/bin/pip install --no-build-isolation -e '.[scrapy]'"
        ) from error
    return of_project(folder, name, ref)


# By the import path of the base class.
RUNNERS: dict[str, MakeRunner] = {
    "crawlog.streams.spiders.spider.Spider": _own_runner,
    "scrapy.spiders.Spider": _scrapy_runner,
}


def load_runner(ref: SpiderRef, bounds: Bounds | None = None, trust: Trust | None = None) -> Runner:
    """The spider of a job, ready to run, in a process of its own: its lines of `logging` go to standard error.

    Args:
        bounds: Limits of one page's outputs.
        trust: Says which files may be run; None if the operator's own command names this one.

    Raises: Misconfigured: there is no such spider, it may not be run, or it is broken.
    """
    with no_crawls(ref.path):
        if ref.folder:
            return _deployed(ref, bounds or Bounds())
        project = project_of(ref.path)
        if project is not None:
            return _of_project(*project, ref, trust)
        return _of_class(found_class(ref.path, trust), ref, bounds or Bounds())


def _of_class(found: FoundClass, ref: SpiderRef, bounds: Bounds) -> Runner:
    make = next(make for base, make in RUNNERS.items() if is_kind_of(found.kind, base))
    return make(found, ref, bounds)


def _deployed(ref: SpiderRef, bounds: Bounds) -> Runner:
    """The runner of a spider of deployed code. Raises: Misconfigured: as `load_runner`."""
    check_settings(ref)
    folder = Path(ref.folder)
    try:
        if is_scrapy_project(folder):
            return _of_project(folder, ref.path, ref, None)
        return _of_class(deployed_class(folder, ref.path), ref, bounds)
    except Misconfigured as error:
        raise explained(error) from error


class TriedRunner:
    """A runner that also says whether its spider has a method that may be a callback.

    Args:
        runner: Of crawlog's own spider, or of Scrapy's.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.facts: SpiderFacts = runner.facts

    async def page(self, call: PageCall) -> CallResult:
        """What the spider makes of a page."""
        result: CallResult = await self._runner.page(call)
        return result

    async def call(self, _name: str, argument: bytes) -> bytes:
        """The name of a method, if the spider has it; else nothing."""
        return argument if self._runner.has_callback(argument.decode()) else b""


def load_tried(*given: Any, **named: Any) -> TriedRunner:
    """The runner of a spider. Raises: Misconfigured: as `load_runner`."""
    return TriedRunner(load_runner(*given, **named))
