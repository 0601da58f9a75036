"""`crawlog run`: seeds a job, keeps engine and workers alive until it is finished, and says how it ended.

Overlapped on purpose, so that the first fetch comes soon: workers load while the engine starts, and join their groups
while the job and its seeds are written. Whatever is killed, the same command goes on: all that counts is in the log.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from . import outcome
from .live import Frame, View, view
from .picture import Finish
from .schemas.control import Finished, JobCopy
from .schemas.progress import JobCounts
from .streams.errors import EngineError, Misconfigured
from .supervisor import Stop, Supervisor, names

if TYPE_CHECKING:
    from .agents.seed import Source
    from .streams.settings import Settings

LOOK_S = 0.1
"""Between two looks at workers and engine."""


@dataclass
class Order:
    """What the user asked for.

    Attributes:
        job: The name as given; None to make one from seeds and spider.
        output: File of the results, `-` for standard output, None for none.
        fresh: Crawl again in a new epoch.
    """

    seeds: Sequence[str] = ()
    seeds_file: Path | None = None
    spider: str = ""
    job: str | None = None
    output: Path | None = None
    fresh: bool = False

    def name(self) -> str:
        """The job's name."""
        from .streams.jobs import job_name

        if self.job:
            return self.job
        lines = self.seeds_file.read_text(errors="replace").splitlines() if self.seeds_file else []
        return job_name([*self.seeds, *filter(None, lines)], self.spider)

    def source(self) -> "Source | None":
        """The seeds; None when the job has all of its own."""
        from .agents.seed import Source

        arguments = [*self.seeds, *([str(self.seeds_file)] if self.seeds_file else [])]
        return Source(arguments) if arguments else None


@dataclass
class Summary:
    """How a run ended; `--json` prints it."""

    job: str
    reason: str = "interrupted"
    epoch: int = 0
    resumed: bool = False
    counts: JobCounts = field(default_factory=lambda: JobCounts(dropped={}))
    pages: int = 0
    dead: int = 0
    took_s: float = 0.0
    output: str | None = None
    rows: int | None = None

    def as_json(self) -> str:
        """One object on one line."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("job", "reason", "epoch", "resumed")}
        for name in JobCounts.__struct_fields__:
            if name not in ("folded", "in_flight"):
                values[name] = getattr(self.counts, name)
        values |= {name: getattr(self, name) for name in ("pages", "dead", "output", "rows")}
        return json.dumps(values | {"took_s": round(self.took_s, 3)})

    def lines(self) -> list[str]:
        """The same for people."""
        counts = self.counts
        how = {
            "finished": "finished: every URL that was found and allowed has been answered",
            "max_pages": "ended: the number of pages asked for is reached",
            "already_finished": "was finished already; --fresh crawls it again",
            "interrupted": "interrupted; the same command goes on from here",
        }[self.reason]
        rate = f", {self.pages / self.took_s:.1f} a second" if self.pages and self.took_s else ""
        told = [
            f"{self.job} {how}",
            f"  {counts.fetched} fetched, {counts.redirected} redirected, {counts.failed} failed",
            f"  {counts.refused} refused, {counts.queued} queued",
            f"  this run: {self.pages} pages in {self.took_s:.1f} s{rate}",
        ]
        if self.output and self.rows is not None:
            told.append(f"  {self.rows} rows in {self.output}")
        if self.dead:
            told.append(f"  {self.dead} records could not be handled: see `crawlog dead list`")
        return told


def run(  # noqa: PLR0913  # the command's own options
    settings: "Settings",
    seeds: Sequence[str] = (),
    *,
    seeds_file: Path | None = None,
    output: Path | None = None,
    spider: str = "",
    job: str | None = None,
    fresh: bool = False,
    as_json: bool = False,
    verbose: bool = False,  # noqa: ARG001  # the level of the logs is a setting
) -> int:
    """Crawls until the job is finished; returns the exit code."""
    order = Order(seeds, seeds_file, spider, job, output, fresh)
    summary = Summary(order.name(), output=str(output) if output else None)
    started = time.monotonic()
    shown = view()
    shown.say(f"job {summary.job}")
    code = outcome.FINISHED
    try:
        with Supervisor(settings, "run", names(settings, with_sink=output is not None), shown.say) as supervisor:
            try:
                supervisor.launch()
                supervisor.connect()
                Run(order, summary, supervisor, shown, started).until_finished()
            finally:
                shown.close()
                summary.counts, summary.pages = supervisor.picture.counts(summary.job), supervisor.picture.pages()
                summary.took_s = time.monotonic() - started
    except Stop as stop:
        code = stop.exit_code
    for line in summary.lines():
        shown.say(line)
    if as_json:
        sys.stdout.write(summary.as_json() + "\n")
        sys.stdout.flush()
    return code or (outcome.DEAD_LETTERS if summary.dead else outcome.FINISHED)


class Run:
    """One job on its way to the end."""

    def __init__(self, order: Order, summary: Summary, supervisor: Supervisor, shown: View, started: float) -> None:
        from .streams.producer import Producer
        from .streams.topics import Topics

        self.order = order
        self.summary = summary
        self.supervisor = supervisor
        self.settings = supervisor.settings
        self.topics = Topics(self.settings.kafka.prefix)
        self._shown = shown
        self._started = started
        self._producer: Producer = Producer(self.settings, "crawlog-run")
        self._copy: JobCopy
        self._was_finished: Finished | None = None

    def until_finished(self) -> None:
        """Seeds, follows, records the end."""
        watch = self.supervisor.watch
        assert watch is not None
        dead_before = self._dead_end()
        self._plant()
        finish = Finish(self.summary.job, watch.ends("fetch"), with_sink=self.order.output is not None)
        while not self._is_finished(finish):
            self.supervisor.look(LOOK_S)
            if self._shown.is_due(time.monotonic()):
                self._show()
            self._obey_limit()
        self.summary.dead = self._dead_since(dead_before)
        self._record(finish)

    def _plant(self) -> None:
        """The job's record, new or changed, then its seeds; all acknowledged."""
        from .agents.seed import plant
        from .streams.jobs import finished, known_job, write_job

        job, source = self.summary.job, self.order.source()
        copy = known_job(self.settings, self.topics, job)
        if copy is None and source is None:
            raise Misconfigured(f"there is no job {job} in the log; give the URLs that it starts with.")
        if copy is not None:
            self.summary.resumed = True
            self._was_finished = finished(self.settings, self.topics, job)
            changed = self._changed(copy, source)
            if changed != copy:
                copy = write_job(self.settings, self._producer, self.topics, job, changed.spec, changed.epoch)
                self._was_finished = None
        if source is not None and not (self._was_finished and not self.order.job):
            plant(
                self.settings,
                self._producer,
                self.topics,
                job,
                source,
                spider=self.order.spider,
                report=self._shown.say,
            )
        copy = copy or known_job(self.settings, self.topics, job)
        assert copy is not None
        self._copy = copy
        self.summary.epoch = copy.epoch

    def _changed(self, copy: JobCopy, source: "Source | None") -> JobCopy:
        """The job's record as this command wants it; the same when nothing is different."""
        from .agents.seed import scope_names
        from .streams.jobs import resolve_spec

        spec = copy.spec
        if source is not None:  # without seeds the job goes on as it was given
            kind = self.settings.scope.kind
            listed = spec.scope.names if kind == spec.scope.kind else sorted(scope_names(source, kind))
            wanted = resolve_spec(self.settings, self.order.spider, listed)
            spec = msgspec.structs.replace(wanted, rev=spec.rev, state=spec.state)
        if self.order.fresh or (self._was_finished and spec != copy.spec):
            if not self.order.fresh:
                self._shown.say("the job was finished under other settings: it is crawled again")
            spec = msgspec.structs.replace(spec, rev=copy.spec.rev + 1, state="running")
            return JobCopy(copy.job, spec, copy.epoch + 1)
        if spec != copy.spec:
            return JobCopy(copy.job, msgspec.structs.replace(spec, rev=copy.spec.rev + 1), copy.epoch)
        return copy

    def _is_finished(self, finish: Finish) -> bool:
        watch = self.supervisor.watch
        assert watch is not None
        try:
            return finish.step(self.supervisor.picture, watch.ends)
        except EngineError as error:  # it may be restarting; who asks again gets an answer, or the engine's own error
            self._shown.say(str(error).splitlines()[0])
            return False

    def _obey_limit(self) -> None:
        """Stops the job once it has as many pages as asked for."""
        from .streams.jobs import write_job

        spec = self._copy.spec
        fetched = self.supervisor.picture.counts(self.summary.job).fetched
        if spec.max_pages is not None and spec.state == "running" and fetched >= spec.max_pages:
            spec = msgspec.structs.replace(spec, rev=spec.rev + 1, state="stopped")
            self._copy = write_job(self.settings, self._producer, self.topics, self.summary.job, spec, self._copy.epoch)

    def _record(self, finish: Finish) -> None:
        """Puts the end on record, unless it stands there."""
        from .streams.jobs import write_finished

        picture = self.supervisor.picture
        reason = "max_pages" if self._copy.spec.state == "stopped" else "finished"
        again = self._was_finished and not picture.pages()
        self.summary.reason = "already_finished" if again else reason
        record = Finished(
            job=self.summary.job,
            at=time.time(),
            epoch=self._copy.epoch,
            reason=reason,
            urls=finish.passed["fetch"],
            pages=finish.passed["parse"],
            items=finish.passed["sink"],
            dead=self.summary.dead,
        )
        if not again:
            write_finished(self._producer, self.topics, record)

    def _show(self) -> None:
        picture, watch, now = self.supervisor.picture, self.supervisor.watch, time.monotonic()
        assert watch is not None
        try:
            ends = watch.all_ends()
        except EngineError:
            return
        stages = ("fetch", "parse", "sink") if self.order.output else ("fetch", "parse")
        self._shown.show(
            Frame(
                job=self.summary.job,
                took_s=now - self._started,
                counts=picture.counts(self.summary.job),
                rate=picture.rate(now),
                lag={stage: picture.lag(stage, ends[stage]) for stage in stages},
                hosts=picture.hosts(),
            )
        )

    def _dead_end(self) -> int:
        from .streams.kafka import bounds

        return bounds(self.settings, self.topics.dead, [0])[0][1]

    def _dead_since(self, start: int) -> int:
        """Records of this job that crawl.dead gained."""
        from .streams.kafka import read

        wanted = ("job", self.summary.job.encode())
        records = read(self.settings, self.topics.dead, 0, start, self._dead_end())
        return sum(wanted in (record.headers() or ()) for record in records)
