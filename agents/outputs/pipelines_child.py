"""The child process with the pipelines of one job, for the event loop of a sink's worker."""

import asyncio
from typing import TYPE_CHECKING

from crawlog.agents.sandbox import CALL, FAILED, BackgroundChild, ChildRules, Died, SpiderFrame, fault_of, misconfigured
from crawlog.streams.control import known_job
from crawlog.streams.errors import Misconfigured, SpiderDied
from crawlog.streams.log import Topics
from crawlog.streams.spiders import ref_of, trust_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings
    from crawlog.streams.spiders import SpiderRef

LOADER = "crawlog.streams.spiders.pipelines:load_pipelines"  # Loads what answers the calls


class PipelinesChild:
    """See `PipelinesProcess` in row_maker.py.

    Args:
        patience_s: Longest time of one call, by the clock.
    """

    def __init__(self, ref: "SpiderRef", rules: ChildRules, patience_s: float) -> None:
        self._patience_s = patience_s
        self._child = BackgroundChild(ref, rules, LOADER, asyncio.get_running_loop())

    async def call(self, name: str, argument: bytes = b"") -> bytes:
        """The answer of a call. Raises: SpiderDied: the child ended. Misconfigured: the user's code failed."""
        asked: asyncio.Future[SpiderFrame | Died] = asyncio.get_running_loop().create_future()

        def then(answer: SpiderFrame | Died) -> None:
            if not asked.done():
                asked.set_result(answer)

        self._child.submit(SpiderFrame(CALL, name.encode(), argument), then)
        try:
            async with asyncio.timeout(self._patience_s):
                answer = await asked
        except TimeoutError:
            self.kill()
            raise SpiderDied(f"the pipelines took more than pipelines.timeout_s = {self._patience_s:g}") from None
        if isinstance(answer, Died):
            raise SpiderDied(answer.reason)
        if answer.kind == FAILED:
            raise misconfigured(fault_of(answer))
        return answer.body

    def close(self) -> None:
        """Let the child end by itself, without waiting for it."""
        self._child.close()

    async def end(self) -> None:
        """Let it end by itself, and wait until it has, which takes a second or two at most."""
        self._child.close()
        await asyncio.to_thread(self._child.wait_ended)

    def kill(self) -> None:
        """End the child at once."""
        self._child.kill("it is not needed any more")
        self._child.close()


async def pipelines_of(settings: "Settings", job: str) -> PipelinesChild:
    """A fresh child with a job's pipelines. Raises: Misconfigured: the log does not know the job's spider."""
    copy = await asyncio.to_thread(known_job, settings, Topics(settings.kafka.prefix), job)
    if copy is None or not copy.spec.spider:
        raise Misconfigured(f"job {job} has items for pipelines, and the log does not name its spider")
    rules = ChildRules.of(settings, trust_of(settings))
    return PipelinesChild(ref_of(job, copy.epoch, copy.spec), rules, settings.pipelines.timeout_s)
