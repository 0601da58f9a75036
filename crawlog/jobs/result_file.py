"""The file of `-o`: made from the sink's state once the job is finished. A damaged state is filled again first."""

import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from crawlog import outcome
from crawlog.streams.errors import EngineError, RetryLater, SinkBehind, Unusable
from crawlog.terminal import rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crawlog.processes.supervisor import Supervisor
    from crawlog.streams.jobs import Finish
    from crawlog.streams.log import SinkSpec

    from .trouble import Trouble

FILL_TRIES = 5
"""Attempts to make FILE; after an attempt with a damaged state, the sink reads the log again."""

NOTICE_AFTER_S = 5.0
"""Wait for pipelines after which the user is told of it, seconds."""

SHOWN = 5
"""URLs without rows that are named at most."""

LOOK_S = 0.1
"""Between two looks at the sink's worker, seconds."""


class ResultFile:
    """One FILE and the sink that fills it.

    Attributes:
        missing: Lines about rows that could not be made again; empty if there are none.
    """

    def __init__(
        self, sink: "SinkSpec", supervisor: "Supervisor", trouble: "Trouble", say: "Callable[[str], None]"
    ) -> None:
        self.sink = sink
        self._supervisor = supervisor
        self._data = supervisor.settings.run.data
        self._say = say
        self._trouble = trouble
        self.missing: tuple[str, ...] = ()
        self._lacked: float = inf

    def has_all_rows(self) -> bool:
        """Whether the run may end; False if rows are made again whose records crawl.items lost.

        This repeats as long as fewer rows lack each time.

        Raises: EngineError: the log does not answer.
        """
        if self.missing or not any(report.lost for report in self._supervisor.picture.of("sink")):
            return True
        from crawlog.streams.recovery import sorted_out
        from crawlog.streams.sink import SinkState, lacking

        self._supervisor.stop_stage("sink")
        try:
            with SinkState(self._data, self.sink, None) as results:
                lacks = lacking(self._supervisor.settings, results)
                if not lacks:
                    results.move({}, [])
            if lacks and len(lacks) < self._lacked:
                self._supervisor.parse_again(*sorted_out(self._supervisor.settings, lacks))
            elif lacks:
                urls = ", ".join(one.result.url for one, _ in lacks[:SHOWN])
                lost = f"crawl.items lost the rows of {outcome.counted(len(lacks), 'page')}"
                then = "which could not be fetched or parsed again"
                self.missing = (f"{lost}, {then}: {urls}; --fresh crawls the job again from its seeds",)
            self._lacked = len(lacks)
        finally:
            self._supervisor.picture.forget("sink")
            self.go()
        return not lacks or bool(self.missing)

    def is_complete(self, ends: tuple[int, ...]) -> bool:
        """Whether the file is unchanged since it was made, with all rows up to these ends of crawl.items."""
        from crawlog.streams.sink import NOWHERE, is_closed, is_complete

        if self.sink.output == NOWHERE:
            return is_closed(self._data, self.sink, dict(enumerate(ends)))
        return is_complete(self._data, self.sink, dict(enumerate(ends)))

    def rows(self) -> int | None:
        """The number of rows in the file that was made before; None if there is none."""
        from crawlog.streams.sink import final_of

        final = final_of(self.sink.folder(self._data))
        return final.rows if final else None

    def stats(self) -> dict[str, float]:
        """Stats that the job's pipelines counted, by name, once the file is made."""
        from crawlog.streams.sink import closed_stats

        return closed_stats(self._data, self.sink)

    def partial(self) -> "Path | None":
        """The file with the rows so far, if there is one."""
        partial = self.sink.partial(self._data)
        return partial if partial.exists() else None

    def go(self) -> None:
        """Starts the sink's worker."""
        from crawlog.streams.sink import forget_close

        forget_close(self._data, self.sink)
        self._supervisor.go(("sink",), self.sink.environ())

    def make(self, finish: "Finish", reason: str = "finished", *, was_damaged: bool) -> int:
        """Stops the sink's worker, makes the file from its state, and returns the number of rows.

        Args:
            reason: Why the job ended, for the spider's `closed`.
            was_damaged: Whether the log was damaged; if so, the sink first reads crawl.items again from its start.

        Raises: EngineError: in every attempt the state cannot be read, or is behind.
        """
        from crawlog.streams.sink import finalise

        ends = dict(enumerate(finish.passed["sink"]))
        if was_damaged:
            self._refill(finish)
        for _ in range(FILL_TRIES):
            self._close_pipelines(ends, reason)
            self._supervisor.stop_stage("sink")
            try:
                return finalise(self._data, self.sink, ends, rows())
            except SinkBehind:
                why = "its rows do not reach the end of the log"
            except Unusable as error:
                why = f"the sink's state is {error}"
                self._say(f"{self.sink.output} is not made yet: {why}")
            except RetryLater as error:  # a job of another data folder took FILE.partial: the worker waits for it
                why = str(error)
                self._say(f"{self.sink.output} is not made yet: {why}; this run waits for it")
            self._fill(finish)
        raise EngineError(
            f"{self.sink.output} could not be made, in {FILL_TRIES} tries: {why}.\n"
            f"What is written to {self.sink.folder(self._data)} is not what is read there later: look at"
            " that disk (`dmesg`, `smartctl`), or move the data folder to another one.\n"
            "All rows are in the log: the same command makes the file from it."
        )

    def _close_pipelines(self, ends: dict[int, int], reason: str) -> None:
        """Waits until the job's pipelines have made all rows and were closed; at once if it has none."""
        from crawlog.streams.sink import has_pipelines, is_closed, order_close

        if not has_pipelines(self._data, self.sink):
            return
        order_close(self._data, self.sink, ends, reason)
        told_at = time.monotonic() + NOTICE_AFTER_S
        while not is_closed(self._data, self.sink, ends):
            if time.monotonic() > told_at:
                told_at = float("inf")
                self._say("the pipelines are not through with the items yet; the job ends when they were closed")
            self._supervisor.look(LOOK_S)
            self._trouble.tell()

    def _refill(self, finish: "Finish") -> None:
        """Makes the sink read crawl.items again from its start; it keeps its rows."""
        from crawlog.streams.sink import SinkState

        self._supervisor.stop_stage("sink")
        with suppress(Unusable), SinkState(self._data, self.sink, None) as results:  # an unusable state is made anew
            results.move(dict.fromkeys(results.meta.offsets, 0))
        self._fill(finish)

    def _fill(self, finish: "Finish") -> None:
        """Starts the sink's worker, and waits until it has read the log."""
        picture = self._supervisor.picture
        picture.forget("sink")
        self.go()
        while not picture.has_passed("sink", finish.passed["sink"]):
            self._supervisor.look(LOOK_S)
            self._trouble.tell()
