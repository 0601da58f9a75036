"""`crawlog run`: seeds a job, keeps engine and workers alive until it is finished, and says how it ended.

Overlapped on purpose, so that the first fetch comes soon: workers load while the engine starts, and join their groups
while the job and its seeds are written. Whatever is killed, the same command goes on: all that counts is in the log.
"""

import json
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import xxhash

from . import outcome
from .background import down, status, up
from .live import Frame, View, view
from .picture import Finish
from .schemas.control import Finished, JobCopy
from .schemas.progress import JobCounts
from .streams.browsers import find_browser, wants_browser
from .streams.errors import EngineError, Misconfigured
from .supervisor import Stop, Supervisor, names

if TYPE_CHECKING:
    from .agents.seed import Source
    from .streams.settings import Settings
    from .streams.sinks import Sink
    from .watch import Watch

__all__ = ["down", "run", "status", "up"]

REPARSE = "if the spider has changed: `crawlog replay --group parse --to-earliest --execute`, then this command again"

TOLD = 3
"""Seeds that are named one by one."""

LOOK_S = 0.1
"""Between two looks at workers and engine."""


def job_name(seeds: Iterable[str], spider: str = "") -> str:
    """The name of a job that was given none: the same seeds, in any order, and the same spider are the same job."""
    parts = [*sorted({seed.strip() for seed in seeds}), spider]
    return "job-" + xxhash.xxh3_64_hexdigest("\n".join(parts).encode())[:10]


@dataclass
class Order:
    """What the user asked for.

    Attributes:
        job: The name as given; None to make one from seeds and spider.
        spider: `/FILE.py:Class`, empty for the default one; the job's name does not depend on its folder.
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
        if self.job:
            return self.job
        spider = Path(self.spider).name
        if not self.seeds_file or self.source is None:
            return job_name(self.seeds, spider)
        lines = (line.decode(errors="replace").strip() for _, part in self.source.parts() for line in part)
        return job_name(filter(None, lines), spider)

    def example(self) -> str:
        """One of the URLs that it is given, for a hint; empty where the job has all of its own."""
        return next(iter(self.seeds), "") or (self.source.first() if self.source is not None else "")

    @cached_property
    def source(self) -> "Source | None":
        """The seeds, read once where they come from a pipe; None when the job has all of its own."""
        from .agents.seed import Source

        arguments = [*self.seeds, *([str(self.seeds_file)] if self.seeds_file else [])]
        return Source(arguments) if arguments else None


@dataclass
class Summary:
    """How a run ended; `--json` prints it.

    Attributes:
        seed: One of the URLs that it was given, for an example; empty where it was given none.
        counts: Of the job since it began, whichever commands worked on it.
        pages, parsed: Of this run.
    """

    job: str
    seed: str = ""
    reason: str = "interrupted"
    epoch: int = 0
    resumed: bool = False
    counts: JobCounts | None = None
    pages: int = 0
    parsed: int = 0
    dead: int = 0
    took_s: float = 0.0
    output: str | None = None
    rows: int | None = None

    def as_json(self) -> str:
        """One object on one line."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("job", "reason", "epoch", "resumed")}
        for name in JobCounts.__struct_fields__:
            if name not in ("folded", "in_flight", "paused"):
                values[name] = getattr(self.counts or JobCounts(), name)
        values |= {name: getattr(self, name) for name in ("pages", "parsed", "dead", "output", "rows")}
        return json.dumps(values | {"took_s": round(self.took_s, 3)})

    def lines(self) -> list[str]:
        """The same for people."""
        counts = self.counts or JobCounts()
        how = {
            "finished": "finished: every URL that was found and allowed has been answered",
            "max_pages": "ended: the number of pages asked for is reached",
            "already_finished": "was finished already; --fresh crawls it again",
            "interrupted": "interrupted; the same command goes on from here",
            "cancelled": "is cancelled: nothing more of it is fetched; --fresh crawls it again from its seeds",
            "stopped": f"was stopped; after `crawlog control resume --job {self.job}` the same command goes on",
        }[self.reason]
        rate = f", {self.pages / self.took_s:.1f} a second" if self.pages and self.took_s else ""
        told = [f"{self.job} {how}"]
        if counts.folded or self.pages:
            told.append(f"  {counts.fetched} fetched, {counts.redirected} redirected, {counts.failed} failed")
            told.append(f"  {counts.refused} refused, {counts.queued} queued")
            told.append(f"  this run: {outcome.counted(self.pages, 'page')} in {self.took_s:.1f} s{rate}")
        ended = counts.failed + counts.refused + sum(counts.dropped.values())
        if ended and not counts.fetched + counts.redirected + counts.queued:
            asked = f"`crawlog why {shlex.quote(self.seed)}`" if self.seed else "`crawlog why` of one of its URLs"
            told.append(f"  nothing could be fetched: {asked} tells the reason")
        if self.parsed > self.pages:
            told.append(f"  parsed again, or stored before: {outcome.counted(self.parsed - self.pages, 'page')}")
        if self.output and self.rows is not None:
            told.append(f"  {outcome.counted(self.rows, 'row')}" + f" in {self.output}" * (self.output != "-"))
        if self.dead:
            told.append(f"  {outcome.counted(self.dead, 'record')} could not be handled: see `crawlog dead list`")
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
    if wants_browser(settings):
        find_browser(settings)  # said before anything is started
    order = Order(seeds, seeds_file, spider, job, output, fresh)
    summary = Summary(order.name(), order.example(), output=str(output) if output else None)
    started = time.monotonic()
    shown = view()
    shown.say(f"job {summary.job}")
    for line in refused(order.seeds, settings):
        shown.say(line)
    code = outcome.FINISHED
    try:
        own = settings.model_copy(update={"run": settings.run.model_copy(update={"job": summary.job})})
        with Supervisor(own, "run", names(own, with_sink=output is not None), shown.say) as supervisor:
            try:
                supervisor.launch()
                supervisor.connect()
                Run(order, summary, supervisor, shown, started).until_finished()
            finally:
                shown.close()
                picture = supervisor.picture
                summary.counts = summary.counts or picture.counts(summary.job)
                summary.pages, summary.parsed = picture.pages(), picture.pages("parse")
                summary.took_s = time.monotonic() - started
    except Stop as stop:
        code = stop.exit_code
    for line in summary.lines():
        shown.say(line)
    if as_json:
        sys.stdout.write(summary.as_json() + "\n")
        sys.stdout.flush()
    return code or (outcome.DEAD_LETTERS if summary.dead else outcome.FINISHED)


def refused(seeds: Sequence[str], settings: "Settings") -> list[str]:
    """What to tell of seeds that their spelling alone keeps from being asked: how to have them, or that none does."""
    from .streams.canonical import serialise
    from .streams.egress import literal_refusal

    told: dict[str, str] = {}
    for seed in seeds:
        host = urlsplit(serialise(seed)).hostname or ""
        reason = literal_refusal(host, settings.network.allow_private)
        if reason is not None:
            is_open = literal_refusal(host, allow_private=True) is None
            told[host] = f"{seed} is not asked: {reason}" + ("; -s network.allow_private=true has it asked" * is_open)
    return list(told.values())[:TOLD]


class Run:
    """One job on its way to the end."""

    def __init__(self, order: Order, summary: Summary, supervisor: Supervisor, shown: View, started: float) -> None:
        from .streams.producer import Producer
        from .streams.topics import Topics

        assert supervisor.watch is not None
        self.order = order
        self.summary = summary
        self.supervisor = supervisor
        self.settings = supervisor.settings
        self.topics = Topics(self.settings.kafka.prefix)
        self._shown = shown
        self._started = started
        self._producer: Producer = Producer(self.settings, "crawlog-run")
        self._known: JobCopy | None = None
        self._is_changed = False
        self._is_cancelled = False
        self._is_anew = False
        self._end: Finished | None = None
        self._sink: Sink | None = None
        self._trouble = ""

    @property
    def watch(self) -> "Watch":
        """The supervisor's; another one after the broker moved."""
        assert self.supervisor.watch is not None
        return self.supervisor.watch

    def until_finished(self) -> None:
        """Seeds, follows, records the end, makes the file."""
        self._recall()
        if self._has_nothing_to_do():
            self.summary.reason = "cancelled" if self._is_cancelled else "already_finished"
            self.summary.counts = self._end.counts if self._end else None  # no fold is open that would report them
            self._count_rows()
            if self.order.spider:
                self._shown.say(REPARSE)
            return
        dead_before = self.watch.dead_end()
        self.supervisor.go(("fetch", "parse"))
        copy = self._plant()
        if self._sink:
            self.supervisor.go(("sink",), self._sink.environ())
        finish = Finish(self.summary.job, self.watch.ends("fetch"), with_sink=self._sink is not None)
        while not self._is_finished(finish):
            self.supervisor.look(LOOK_S)
            copy = self._within_limit(copy)
            self._tell_trouble()
            if self._shown.is_due(time.monotonic()):
                self._show()
        self.summary.dead = self._dead_since(dead_before)
        self._record(finish)
        self._write_file(finish)

    def _recall(self) -> None:
        """What the log says of the job, and what this command makes of it."""
        from .streams.jobs import ended
        from .streams.results import sink_of
        from .streams.rewind import counting, settled

        job, source = self.summary.job, self.order.source
        said = settled(self.settings, self._producer, self.topics)
        known = said.get(f"job/{job}".encode())
        if not isinstance(known, JobCopy):
            known = None
        if known is None and source is None:
            raise Misconfigured(f"there is no job {job} in the log; give the URLs that it starts with.")
        self._known = known
        since, voids = counting(said, job)
        if known is not None:
            self.summary.resumed = True
            self._is_cancelled = known.spec.state == "cancelled" and not self.order.fresh
            self._end = ended(said, job)
            self._known = known if self._is_cancelled else self._changed(known, source)
            self._is_changed = self._known != known
            self._end = None if self._is_changed else self._end
            self.summary.epoch = self._known.epoch
            self._is_anew = self._known.epoch > known.epoch
            if self._is_anew:
                since, voids = self._known.epoch, ()
        if self.order.output:
            self._sink = sink_of(job, str(self.order.output), since, voids)

    def _has_nothing_to_do(self) -> bool:
        """Whether the job is finished, all its pages are parsed, and the file is there as it was made."""
        from .streams.results import is_complete

        if self._is_cancelled and self._sink is None:
            return True
        may_have_more_seeds = self.order.job and not self._is_cancelled
        if self._end is None or may_have_more_seeds:
            return False
        if self.watch.lag("parse") or (self._sink and self.watch.lag("sink", self._sink.id)):
            return False
        ends = dict(enumerate(self.watch.ends("sink")))
        return self._sink is None or is_complete(self.settings.run.data, self._sink, ends)

    def _plant(self) -> JobCopy:
        """The job's record, new or changed, then its seeds; all acknowledged."""
        from .agents.seed import Source, kept_seeds, plant
        from .streams.jobs import known_job, write_job
        from .streams.rewind import rewind_job

        job, source, known = self.summary.job, self.order.source, self._known
        if known is not None and self._is_changed:
            write = rewind_job if self._is_anew else write_job
            known = write(self.settings, self._producer, self.topics, job, known.spec, known.epoch)
        elif known is not None and 0 in self.watch.ends("fetch"):  # its record goes to every partition
            self._shown.say(f"{self.topics.urls} was made anew and has lost the job: it begins again")
            known = write_job(self.settings, self._producer, self.topics, job, known.spec, known.epoch)
        with ExitStack() as kept:
            if source is None and self._is_anew:
                source = Source([str(kept.enter_context(kept_seeds(self.settings, self.topics, job)))])
            if source is not None and not self._is_cancelled and (self._end is None or self.order.job):
                plant(
                    self.settings,
                    self._producer,
                    self.topics,
                    job,
                    source,
                    spider=self.order.spider,
                    report=self._shown.say,
                )
        copy = known or known_job(self.settings, self.topics, job)
        assert copy is not None
        return copy

    def _changed(self, copy: JobCopy, source: "Source | None") -> JobCopy:
        """The job's record as this command wants it; the same when nothing is different."""
        from .agents.seed import scope_names
        from .streams.jobs import kept, resolve_spec

        spec = copy.spec
        if source is None:  # the job goes on as it was given
            if line := kept(copy.job, spec, self.settings):
                self._shown.say(line)
        else:
            kind = self.settings.scope.kind
            listed = spec.scope.names if kind == spec.scope.kind else sorted(scope_names(source, kind))
            wanted = resolve_spec(self.settings, self.order.spider, listed)
            spec = msgspec.structs.replace(wanted, rev=spec.rev, state=spec.state)
        if spec == copy.spec and not self.order.fresh:
            return copy
        spec = msgspec.structs.replace(
            spec, rev=copy.spec.rev + 1, state="running"
        )  # a stopped job still has its queue
        is_done = self._end is not None and self._end.reason == "finished"
        if is_done and not self.order.fresh:
            self._shown.say("the job was finished under other settings: it is crawled again")
        return JobCopy(copy.job, spec, copy.epoch + (is_done or self.order.fresh))

    def _is_finished(self, finish: Finish) -> bool:
        try:
            return finish.step(self.supervisor.picture, self.watch.ends)
        except EngineError as error:  # it may be restarting; who asks again gets an answer, or the engine's own error
            self._shown.say(str(error).splitlines()[0])
            return False

    def _within_limit(self, copy: JobCopy) -> JobCopy:
        """The job's record; the job is stopped once it has as many pages as asked for."""
        from .streams.jobs import write_job

        limit, fetched = copy.spec.max_pages, self.supervisor.picture.counts(copy.job).fetched
        if limit is None or copy.spec.state != "running" or fetched < limit:
            return copy
        copy = self._newest(copy)
        if copy.spec.state != "running":
            return copy
        spec = msgspec.structs.replace(copy.spec, rev=copy.spec.rev + 1, state="stopped")
        return write_job(self.settings, self._producer, self.topics, copy.job, spec, copy.epoch)

    def _newest(self, copy: JobCopy) -> JobCopy:
        """The job's record as it is by now: another command may have cancelled the job."""
        from .streams.jobs import known_job

        return known_job(self.settings, self.topics, copy.job) or copy

    def _record(self, finish: Finish) -> None:
        """Puts the end on record, unless it stands there; a job that was only stopped is not at its end."""
        from .streams.jobs import commands, known_job, write_finished

        copy = known_job(self.settings, self.topics, self.summary.job)
        assert copy is not None
        reason = {"running": "finished", "stopped": "max_pages"}.get(copy.spec.state, copy.spec.state)
        if commands(self.settings, self.topics).of_job(copy.job).stopped:
            reason = "stopped"
        is_known = self._end is not None and not self.supervisor.picture.pages()
        self.summary.reason = "already_finished" if is_known and reason not in ("stopped", "cancelled") else reason
        if is_known or reason == "stopped":
            return
        record = Finished(
            job=copy.job,
            at=time.time(),
            epoch=copy.epoch,
            reason=reason,
            urls=finish.passed["fetch"],
            pages=finish.passed["parse"],
            items=finish.passed["sink"],
            dead=self.summary.dead,
            counts=self.supervisor.picture.counts(copy.job),
        )
        write_finished(self._producer, self.topics, record)

    def _write_file(self, finish: Finish) -> None:
        """Makes the file whole; the sink's worker must have let go of it."""
        from .streams.results import finalise

        if self._sink is None:
            return
        self._shown.close()  # rows may go to the same terminal
        self.supervisor.stop_stage("sink")
        ends = dict(enumerate(finish.passed["sink"]))
        self.summary.rows = finalise(self.settings.run.data, self._sink, ends, sys.stdout.buffer)

    def _count_rows(self) -> None:
        """Says what FILE has, which stays as it was made."""
        from .streams.results import final_of

        final = final_of(self._sink.folder(self.settings.run.data)) if self._sink else None
        self.summary.rows = final.rows if final else None

    def _tell_trouble(self) -> None:
        """Says once why no row is written: the disk of FILE may be another one than that of the log."""
        trouble = self.supervisor.picture.trouble("sink")
        if trouble != self._trouble:
            self._shown.say(f"{trouble}; rows wait, and go on by themselves" if trouble else "rows are written again")
            self._trouble = trouble

    def _show(self) -> None:
        picture, now = self.supervisor.picture, time.monotonic()
        try:
            ends = self.watch.all_ends()
        except EngineError:
            return
        stages = ("fetch", "parse", "sink") if self._sink else ("fetch", "parse")
        self._shown.show(
            Frame(
                job=self.summary.job,
                took_s=now - self._started,
                counts=picture.counts(self.summary.job),
                rate=picture.rate(now),
                lag={stage: picture.lag(stage, ends[stage]) for stage in stages},
                hosts=picture.hosts(),
                paused=picture.paused(self.summary.job),
            )
        )

    def _dead_since(self, start: int) -> int:
        """Records of this job that crawl.dead gained."""
        from .streams.kafka import read

        wanted = ("job", self.summary.job.encode())
        records = read(self.settings, self.topics.dead, 0, start, self.watch.dead_end())
        return sum(wanted in (record.headers() or ()) for record in records)
