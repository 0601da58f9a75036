"""The spider of `crawlog parse`, in its process: pages as for a worker, and whether it has a method."""

from typing import Any

from .exchange import CallResult, PageCall, SpiderFacts
from .runners import load_runner


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
