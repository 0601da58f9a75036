"""The files of `run -o`, and the pipelines of its job: written by a sink worker of the run's own.

    start ─► FILE.partial ─► the job has ended, the log has lost nothing ─► release ─► views ─► FILE

The worker is that of a fleet. Only the environment of its process names the files (`streams/sink/private.py`).
"""

import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from crawlog import outcome
from crawlog.schemas.job_orders import NO_LAYOUT, PIPELINES_ALONE, FeedOutput
from crawlog.streams.errors import EngineError, Misconfigured, Unusable
from crawlog.streams.fleet import OutputView
from crawlog.streams.printable import without_secrets
from crawlog.streams.sink import NOWHERE, PrivateOutputs, SinkState, final_of, is_complete, private_sink_of, sink_for
from crawlog.streams.sink_groups import STDOUT, RewoundRange, SinkSpec, known_sinks
from crawlog.streams.stores import Store
from crawlog.terminal import rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from crawlog.processes.supervisor import Supervisor
    from crawlog.schemas.control import Finished

SHOWN = 5  # URLs without rows that are named at most

# How long rows cannot be written, behind the job's end, until the run gives up, seconds: three tries of the worker.
GIVE_UP_S = 15.0

STORE_GIVE_UP_S = 90.0  # The same of a store: servers are restarted


class RunOutputs:
    """The outputs of one run.

    Args:
        given: By output, as `-o` takes it.
        since, voids: Which item records are rows of the job.
        pipelines: Whether the job's items pass pipelines.

    Attributes:
        missing: Lines about rows that could not be made again; empty if there are none.
    """

    def __init__(
        self,
        supervisor: "Supervisor",
        job: str,
        given: "Mapping[str, FeedOutput]",
        since: int,
        voids: "tuple[RewoundRange, ...]",
        *,
        pipelines: bool,
    ) -> None:
        self.missing: tuple[str, ...] = ()
        self._supervisor = supervisor
        self._data = supervisor.settings.run.data
        self._sinks: dict[str, SinkSpec] = {}
        for output, feed in given.items() or ((NOWHERE, FeedOutput(NOWHERE, NO_LAYOUT)),):
            about = supervisor.settings, job, output, since, voids
            sink = private_sink_of(*about, pipelines=pipelines, layout=feed.layout)
            if isinstance(store := sink_for(sink), Store):
                store.check()
            self._sinks[output if output == STDOUT else sink.output] = sink
        begun = {one.output for one in known_sinks(self._data) if one.job == job}
        for sink, feed in zip(self._sinks.values(), given.values(), strict=False):
            is_copy = pipelines and begun & self._sinks.keys()  # only the output that leads has a state
            if not (feed.overwrite or sink.output in begun or is_copy):
                _refuse_foreign(sink)
        self._own = PrivateOutputs(job, tuple(self._sinks), {name: one.layout for name, one in self._sinks.items()})
        self._looks: dict[str, tuple[int, ...]] = {}
        self._lacked: float = inf
        self._fails_since: dict[str, float] = {}
        supervisor.picture.sink = self._own.id

    def start(self) -> None:
        """Starts the sink's worker."""
        self._own.forget(self._data)
        self._supervisor.go(("sink",), self._own.environ())

    def read_again(self) -> None:
        """Has the worker read crawl.items again from its start, where the log was damaged; the rows stay."""
        self._supervisor.stop_stage("sink")
        for sink in (one for one in self._sinks.values() if not one.is_archive):
            with suppress(Unusable), SinkState(self._data, sink, None) as results:  # an unusable state is made anew
                results.move(dict.fromkeys(results.meta.offsets, 0))
        self._supervisor.picture.forget("sink")
        self._supervisor.go(("sink",), self._own.environ())

    def has_rows(self, ends: tuple[int, ...]) -> bool:
        """Whether the worker has read crawl.items up to these ends."""
        return self._supervisor.picture.has_passed("sink", ends)

    def are_complete(self, ends: tuple[int, ...]) -> bool:
        """Whether all files are unchanged since they were made, with all rows up to these ends of crawl.items."""
        offsets = dict(enumerate(ends))
        return all(sink.is_file and is_complete(self._data, sink, offsets) for sink in self._sinks.values())

    def release(self, end: "Finished") -> None:
        """Has the worker make the files behind this end of the job."""
        self._own.release(self._data, end)

    def views(self, end: "Finished") -> "Iterator[OutputView]":
        """The outputs as they are behind this end of the job."""
        notes = self._own.notes(self._data)
        for output in self._sinks:
            name = PIPELINES_ALONE.name if output == NOWHERE else without_secrets(output)
            note = notes.get(output)
            is_told = note is not None and (note.epoch, note.rev) == (end.epoch, end.rev)
            if note is None or not is_told or self._may_pass(output, is_failing=bool(note.error and not note.place)):
                yield OutputView(name, "writing", required=True)
                continue
            yield OutputView(name, note.became, note.rows, note.place, note.error, required=True, stats=note.stats)

    def _may_pass(self, output: str, *, is_failing: bool) -> bool:
        """Whether rows cannot be written now, and not for long: the worker tries again."""
        if not is_failing:
            self._fails_since.pop(output, None)
            return False
        now = time.monotonic()
        patience_s = STORE_GIVE_UP_S if self._sinks[output].is_store else GIVE_UP_S
        return now < self._fails_since.setdefault(output, now) + patience_s

    def rows(self, end: "Finished | None" = None) -> int | None:
        """The number of rows in the files, made now or before; rows for standard output are written to it."""
        if STDOUT in self._sinks:
            self._own.pour(self._data, rows())
        if end is not None:
            return next((view.rows for view in self.views(end)), None)
        final = next((final_of(sink.folder(self._data)) for sink in self._sinks.values()), None)
        return final.rows if final is not None else None

    def lacks_more(self) -> bool:
        """Whether the worker has found rows that lack since the last call; then parse goes back to their pages.

        Those that are gone were fetched again before. If no fewer lack than before, `missing` tells that instead.
        """
        found = {name: one for name, one in self._own.lacking(self._data).items() if one.urls}
        if not found or all(one.looks in self._looks.get(name, ()) for name, one in found.items()):
            return False
        urls = sorted({url for one in found.values() for url in one.urls})
        if len(urls) >= self._lacked:
            lost = f"crawl.items lost the rows of {outcome.counted(len(urls), 'page')}"
            then = "which could not be fetched or parsed again"
            named = ", ".join(urls[:SHOWN])
            self.missing = (f"{lost}, {then}: {named}; --fresh crawls the job again from its seeds",)
        self._lacked = len(urls)
        unmade = [place for one in found.values() for place in one.unmade.items()]
        if unmade and not self.missing:
            try:
                self._supervisor.parse_again(dict(sorted(unmade, reverse=True)))
            except EngineError as error:
                self._supervisor.report(str(error))
        return True

    def made_again(self) -> None:
        """Notes that rows were made again: looks of the worker before now do not count, nor one that it is at."""
        looks = {name: one.looks for name, one in self._own.lacking(self._data).items()}
        self._looks = {name: (count, count + 1) for name, count in looks.items()}

    def partial(self) -> str | None:
        """The files with the rows so far, if there are any."""
        partials = (sink.partial(self._data) for sink in self._sinks.values() if not sink.is_store)
        return ", ".join(str(one) for one in partials if Path(one).exists()) or None


def _refuse_foreign(sink: SinkSpec) -> None:
    """Refuses to replace a file that Scrapy would append to. Raises: Misconfigured: there is one."""
    if sink.is_file and Path(sink.output).exists():
        raise Misconfigured(
            f"FEEDS: {sink.output} is there, and would be replaced: crawlog appends to no file. Move it away, or set"
            ' "overwrite": True for this feed, or name another file with -o'
        )
