"""The outputs of a job that a command follows. A sink worker of the fleet makes them after the job's end.

FleetState ─┬─► JobOutputs.hear ─► the job goes on ─► those that fail now: `tell_failed`
            └─► JobOutputs.look ─► are they awaited? ─► made, or failed: `check`
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import TYPE_CHECKING

from crawlog.schemas.job_orders import PIPELINES_ALONE
from crawlog.streams.errors import EngineError

if TYPE_CHECKING:
    from crawlog.streams.fleet import OutputView

NOTICE_AFTER_S = 10.0  # Wait after the job's end after which the user is told what is waited for, seconds


class JobOutputs:
    """The outputs of a job, and what its end makes of them.

    Args:
        say: Takes lines for the user.
    """

    def __init__(self, job: str, say: Callable[[str], None]) -> None:
        self._job = job
        self._say = say
        self._views: tuple[OutputView, ...] = ()
        self._has_sink = False
        self._tell_at = inf
        self._heard: tuple[OutputView, ...] = ()
        self._told: dict[str, str] = {}

    def hear(self, views: "Iterable[OutputView]") -> None:
        """Takes the outputs as they are while the job goes on."""
        self._heard = tuple(views)

    def tell_failed(self) -> None:
        """Says once which output fails while the job goes on, and that it is written again: a worker tries until then.

        One that the job needs keeps it from its end, so `check` would never come.
        """
        for one in self._heard:
            called = "the pipelines' output" if one.name == PIPELINES_ALONE.name else f"output {one.name}"
            told = self._told.get(one.name, "")
            if one.state == "failed" and one.error != told:
                self._told[one.name] = one.error
                waits = ", and the job may wait for it" if one.required else ""
                self._say(f"{called} failed: {one.error}; it is tried again{waits}")
            elif told and not one.error:
                del self._told[one.name]
                self._say(f"{called} is written again")

    def look(self, views: "Iterable[OutputView]", *, has_sink: bool) -> None:
        """Takes the outputs as they are.

        Args:
            views: Empty while the job goes on, and at an end that leaves the rows in FILE.partial.
            has_sink: Whether a sink worker of the fleet runs.
        """
        self._views, self._has_sink = tuple(views), has_sink

    @property
    def are_awaited(self) -> bool:
        """Whether some are to be made yet. Without a sink worker only those that the job's end waits for, too."""
        return any(one.required or self._has_sink for one in self._in("writing"))

    def tell_wait(self, now: float) -> None:
        """Says once what is waited for, if that takes long; `now` is of a monotonic clock."""
        if not self.are_awaited:
            self._tell_at = now + NOTICE_AFTER_S
        elif now > self._tell_at:
            self._tell_at = inf
            self.tell_unmade()

    def tell_unmade(self) -> None:
        """Says what is not made yet, if anything."""
        unmade = self._in("writing")
        names = ", ".join("the pipelines" if one.name == PIPELINES_ALONE.name else one.name for one in unmade)
        if names and self._has_sink:
            self._say(f"the sink worker is not through with {names} yet; the command ends when it is")
        elif names:
            self._say(f"no sink worker runs: {names} must wait for one")

    def check(self) -> None:
        """Raises: EngineError: an output could not be made, as of a FILE that a `run` cannot make."""
        if failed := [f"output {one.name} of job {self._job}: {one.error}" for one in self._in("failed")]:
            again = "All rows are in the log: once the cause is mended, the same command has them written."
            raise EngineError("\n".join((*failed, again)))

    def _in(self, state: str) -> "list[OutputView]":
        return [one for one in self._views if one.state == state]
