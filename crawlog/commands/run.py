"""`crawlog run`: seeds a job, keeps engine and workers alive until it is finished, and says how it ended.

Overlapped on purpose, so that the first fetch comes soon: workers load while the engine starts, and join their groups
while the job and its seeds are written. Whatever is killed, the same command goes on: all that counts is in the log.
"""

import json
import shlex
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import xxhash

from crawlog import outcome
from crawlog.agents.browser import find_browser, wants_browser
from crawlog.processes.supervisor import Stop, Supervisor, names
from crawlog.progress.live import Frame, View, view
from crawlog.progress.picture import Finish, by_rule, ended
from crawlog.schemas.control import Finished, JobCopy
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.streams.errors import AccessDenied, EngineError, Misconfigured, Unusable
from crawlog.streams.log import Commonest
from crawlog.terminal import answer, rows

from .up import down, status, up
from .whole import Whole

if TYPE_CHECKING:
    from crawlog.agents.seed import Source
    from crawlog.progress.watch import Losses, Watch
    from crawlog.schemas.urls import RequestRules
    from crawlog.streams.log import SinkSpec
    from crawlog.streams.settings import Settings

__all__ = ["down", "run", "status", "up"]

REPARSE = (
    "the spider has changed since its pages were parsed:"
    " `crawlog replay --group parse --job {} --to-earliest --execute`, then this command again"
)

TOLD = 3
"""Seeds that are named one by one."""

LOOK_S = 0.1
"""Between two looks at workers and engine."""

HURRY_S = 1.5
"""How long an interrupted run asks for the group's members, and reads crawl.dead: Ctrl-C ends within 5 s."""

DENIED_S = 30.0
"""How long the cluster may deny access to this command; its workers, which give up sooner, tell of what."""

CATCH_UP_S = 60.0
"""How long a run that ends by itself does."""

FILL_TRIES = 5
"""How often FILE is made: each try begins from the log where the state was damaged."""

UNFINISHED = frozenset({"interrupted", "stopped", "blocked", "cancelled"})
"""Ends that leave rows out: FILE is not made of them."""


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
        spider_hash: Of the spider's file; empty for the default one.
    """

    seeds: Sequence[str] = ()
    seeds_file: Path | None = None
    spider: str = ""
    job: str | None = None
    output: str | None = None
    fresh: bool = False
    spider_hash: str = ""

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
        from crawlog.agents.seed import Source

        arguments = [*self.seeds, *([str(self.seeds_file)] if self.seeds_file else [])]
        return Source(arguments) if arguments else None


@dataclass
class Summary:
    """How a run ended; `--json` prints it.

    Attributes:
        seed: One of the URLs that it was given, for an example; empty where it was given none.
        counts: Of the job since it began, whichever commands worked on it.
        is_clean: Whether no earlier run of the job can have left dead letters.
        pages, parsed, dead, commonest: Of this run; `commonest` is the commonest error among `dead`.
        partial: The file with the rows so far, where `output` is not made of them.
        missing: What the log has lost and cannot be made again, and what to do about it, line by line.
        blocked: The host that a command blocks; HOST where there are several.
        has_others: Whether other commands on the cluster have fetch workers too; known of an interrupted run.
    """

    job: str
    seed: str = ""
    blocked: str = "HOST"
    reason: str = "interrupted"
    epoch: int = 0
    resumed: bool = False
    counts: JobCounts | None = None
    pages: int = 0
    parsed: int = 0
    dead: int = 0
    commonest: Commonest | None = None
    is_clean: bool = True
    took_s: float = 0.0
    output: str | None = None
    rows: int | None = None
    partial: str | None = None
    has_others: bool = False
    missing: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """How a run that was not interrupted ends."""
        if self.reason == "cancelled":
            return outcome.CANCELLED
        if self.missing:
            return outcome.DIFFERENT
        if self.reason in ("finished", "already_finished") and self.counts and not self.counts.fetched:
            return outcome.NOTHING_FETCHED
        return outcome.DEAD_LETTERS if self.dead else outcome.FINISHED

    def as_json(self) -> str:
        """One object on one line."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("job", "reason", "epoch", "resumed")}
        for name in JobCounts.__struct_fields__:
            if name not in ("folded", "in_flight", "paused", "page_end", "page_back"):
                values[name] = getattr(self.counts or JobCounts(), name)
        values |= {name: getattr(self, name) for name in ("pages", "parsed", "dead", "output", "rows", "partial")}
        values["commonest_error"], values["commonest_count"] = self.commonest or (None, 0)
        return json.dumps(values | {"took_s": round(self.took_s, 3)})

    def lines(self) -> list[str]:
        """The same for people."""
        counts = self.counts or JobCounts()
        how = {
            "finished": f"finished{self._finish(counts)}",
            "max_pages": "ended: the number of pages asked for is reached",
            "already_finished": "was finished already; --fresh crawls it again",
            "interrupted": "interrupted; the same command goes on from here" + self._elsewhere(),
            "cancelled": "is cancelled: nothing more of it is fetched; --fresh crawls it again from its seeds",
            "blocked": f"ended: {outcome.counted(counts.held, 'URL')} held, as commands block their hosts; "
            f"after `crawlog control unblock --host {self.blocked}` the same command goes on",
            "stopped": f"was stopped; after `crawlog control resume --job {self.job}` the same command goes on",
        }[self.reason]
        gone = [f"  {line}" for line in self.missing]
        return [f"{self.job} {how}", *self._counted(counts), *self._made(), *self._lost(), *gone]

    def _elsewhere(self) -> str:
        """Who else works on the job, and how to hold it."""
        if not self.has_others:
            return ""
        return (
            "; workers of other commands on this cluster go on with it, which"
            f" `crawlog control stop --job {self.job}` ends"
        )

    def _finish(self, counts: JobCounts) -> str:
        """What a finished job has not done, where there is something; that all is well only where it is so."""
        if self.missing:
            return ", but the log is damaged, and some of it could not be made again"
        if not counts.fetched:
            return ", and nothing could be fetched"
        lacks = [f"{outcome.counted(counts.failed, 'URL')} could not be fetched"] if counts.failed else []
        lacks += [f"{outcome.counted(self.dead, 'record')} could not be handled"] if self.dead else []
        if lacks:
            return f", but {', '.join(lacks)}"
        return (
            ": every URL that was found and allowed has been answered"
            if self.is_clean
            else ": nothing is left to fetch"
        )

    def _counted(self, counts: JobCounts) -> list[str]:
        """What the job has come to, and what this run did."""
        rate = f", {self.pages / self.took_s:.1f} a second" if self.pages and self.took_s else ""
        told = []
        if counts.folded or self.pages:
            told.append(f"  {counts.fetched} fetched, {counts.redirected} redirected, {counts.failed} failed")
            held = f", {counts.held} held" if counts.held else ""
            told.append(f"  {counts.refused} refused, {counts.queued} queued{held}")
            if counts.dropped:
                lost = outcome.counted(sum(counts.dropped.values()), "link")
                told.append(f"  {lost} dropped: {by_rule(counts.dropped)}")
            told.append(f"  this run: {outcome.counted(self.pages, 'page')} in {self.took_s:.1f} s{rate}")
        ended = counts.failed + counts.refused + counts.redirected + sum(counts.dropped.values())
        if ended and not counts.fetched + counts.queued + counts.held:
            asked = f"`crawlog why {shlex.quote(self.seed)}`" if self.seed else "`crawlog why` of one of its URLs"
            told.append(f"  nothing could be fetched: {asked} tells the reason")
        if self.parsed > self.pages:
            told.append(f"  parsed again, or stored before: {outcome.counted(self.parsed - self.pages, 'page')}")
        return told

    def _made(self) -> list[str]:
        """Where the rows are."""
        told = []
        if self.output and self.rows is not None:
            told.append(f"  {outcome.counted(self.rows, 'row')}" + f" in {self.output}" * (self.output != "-"))
        if self.partial:
            told.append(f"  rows so far: {self.partial}")
        return told

    def _lost(self) -> list[str]:
        """What could not be handled, and mostly why."""
        if not self.dead:
            return []
        mostly = f", {self.commonest.records:,} of them: {self.commonest.error}" if self.commonest else ""
        return [
            f"  {outcome.counted(self.dead, 'record')} could not be handled{mostly}",
            f"  see `crawlog dead list --job {self.job}`",
        ]


def run(  # noqa: PLR0913  # the command's own options
    settings: "Settings",
    seeds: Sequence[str] = (),
    *,
    seeds_file: Path | None = None,
    output: str | None = None,
    spider: str = "",
    spider_hash: str = "",
    job: str | None = None,
    fresh: bool = False,
    as_json: bool = False,
    verbose: bool = False,  # noqa: ARG001  # the level of the logs is a setting
) -> int:
    """Crawls until the job is finished; returns the exit code."""
    if wants_browser(settings):
        find_browser(settings)  # said before anything is started
    order = Order(seeds, seeds_file, spider, job, output, fresh, spider_hash)
    summary = Summary(order.name(), order.example(), output=output)
    started = time.monotonic()
    shown = view()
    shown.say(f"job {summary.job}")
    for line in refused(order.seeds, allow_private=settings.network.allow_private):
        shown.say(line)
    code = outcome.FINISHED
    try:
        own = for_job(settings, summary.job)
        with Supervisor(own, "run", names(own, with_sink=output is not None), shown.say) as supervisor:
            code = _crawl(order, summary, supervisor, shown, started)
    except Stop as stop:
        code = stop.exit_code
    for line in summary.lines():
        shown.say(line)
    if as_json:
        answer(summary.as_json())
    return code or summary.exit_code


def for_job(settings: "Settings", job: str) -> "Settings":
    """What the workers of a run are told: they fetch for its job alone, but for all jobs on a cluster.

    The runs on a cluster share the partitions. So a URL of one job may lie in a partition of another run's worker.
    """
    if settings.kafka.bootstrap:
        return settings
    return settings.model_copy(update={"run": settings.run.model_copy(update={"job": job})})


def _crawl(order: Order, summary: Summary, supervisor: Supervisor, shown: View, started: float) -> int:
    """Crawls until the job is finished or a signal comes; returns the signal's exit code, or 0."""
    crawl, code = None, outcome.FINISHED
    try:
        supervisor.launch()
        supervisor.connect()
        crawl = Run(order, summary, supervisor, shown, started)
        crawl.until_finished()
    except Stop as stop:
        code = stop.exit_code
    finally:
        shown.close()
        summary.took_s = time.monotonic() - started
    if crawl is not None:
        crawl.sum_up()
    return code


def refused(seeds: Sequence[str], *, allow_private: bool) -> list[str]:
    """What to tell of seeds that their spelling alone keeps from being asked: how to have them, or that none does."""
    from crawlog.streams.http import literal_refusal
    from crawlog.streams.url import serialise

    told: dict[str, str] = {}
    for seed in seeds:
        host = urlsplit(serialise(seed)).hostname or ""
        reason = literal_refusal(host, allow_private)
        if reason is not None:
            is_open = literal_refusal(host, allow_private=True) is None
            told[host] = f"{seed} is not asked: {reason}" + ("; -s network.allow_private=true has it asked" * is_open)
    return list(told.values())[:TOLD]


class Run:
    """One job on its way to the end."""

    def __init__(self, order: Order, summary: Summary, supervisor: Supervisor, shown: View, started: float) -> None:
        from crawlog.streams.log import Producer, Topics

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
        self._sink: SinkSpec | None = None
        self._losses: Losses | None = None
        self._seeded: tuple[int, ...] = ()
        self._early: int | None = None
        self._trouble = ""
        self._pace_s = self.settings.politeness.delay_s / self.settings.politeness.per_host
        self._notes: set[str] = set()
        self._whole = Whole(supervisor, summary.job, shown.say)
        self._lost_founds = len(supervisor.lost_founds)
        self._denied_at: float | None = None
        self._said = ""

    @property
    def watch(self) -> "Watch":
        """The supervisor's; another one after the broker moved."""
        assert self.supervisor.watch is not None
        return self.supervisor.watch

    def until_finished(self) -> None:
        """Seeds, follows, records the end, makes the file."""
        self._allow_spider()
        self._recall()
        if self._has_nothing_to_do():
            self.summary.reason = "cancelled" if self._is_cancelled else "already_finished"
            self.summary.counts = self._end.counts if self._end else None  # no fold is open that would report them
            self._count_rows()
            if self._has_new_spider(self._end):
                self._note_spider()
            return
        self._check_spider()
        self._follow_losses()
        self._begin_counting()
        self.supervisor.go(("fetch", "parse"))
        copy = self._plant()
        if self._sink:
            self.supervisor.go(("sink",), self._sink.environ())
        self._seeded = self.watch.ends("fetch")
        finish = self._follow(copy, self._seeded)
        while not self._whole.holds(finish):
            finish = self._follow(copy, self.watch.ends("fetch"))
        self.summary.missing = self._whole.missing + self._lost_seeds()
        self._count_losses(CATCH_UP_S)
        self._record(finish)
        self._write_file(finish)

    def _follow(self, copy: JobCopy, seeded: tuple[int, ...]) -> Finish:
        """Shows the crawl until nothing is left to do."""
        finish = Finish(self.summary.job, seeded, with_sink=self._sink is not None)
        while not self._is_finished(finish):
            self.supervisor.look(LOOK_S)
            if self._seed_again():
                finish = Finish(self.summary.job, self.watch.ends("fetch"), with_sink=self._sink is not None)
            copy = self._within_limit(copy)
            self._look_at_numbers()
            self._tell_trouble()
            if self._shown.is_due(time.monotonic()):
                self._show()
        return finish

    def _allow_spider(self) -> None:
        """Lets workers of this data folder run the file that this command names, from now on."""
        from crawlog.streams.spiders import allow, file_of

        if self.order.spider:
            allow(self.settings.run.data, file_of(self.order.spider))

    def _check_spider(self) -> None:
        """Refuses a job whose spider the workers would not run: each of its pages would become a dead letter.

        Raises: Misconfigured: the job's record names a file that no command named here.
        """
        from crawlog.streams.spiders import file_of, trust_of

        named = self._known.spec.spider if self._known else self.order.spider
        if named and (refusal := trust_of(self.settings).refusal(file_of(named))):
            raise Misconfigured(f"the spider of job {self.summary.job} is {named}, and {refusal}")

    def _recall(self) -> None:
        """What the log says of the job, and what this command makes of it."""
        from crawlog.streams.log import counting, ended, settled
        from crawlog.streams.sink import sink_of

        job, source = self.summary.job, self.order.source
        said = settled(self.settings, self._producer, self.topics)
        known = said.get(f"job/{job}".encode())
        if not isinstance(known, JobCopy):
            known = None
        if known is None and source is None:
            raise Misconfigured(f"there is no job {job} in the log; give the URLs that it starts with.")
        self._known = known
        if (before := ended(said, job)) is not None and before.counts is not None:
            self._whole = Whole(self.supervisor, job, self._shown.say, before.counts.page_back)
        since, voids = counting(said, job)
        if known is not None:
            self.summary.resumed = True
            self._is_cancelled = known.spec.state == "cancelled" and not self.order.fresh
            self._end = None if self.supervisor.has_lost_founds else ended(said, job)
            self._known = known if self._is_cancelled else self._changed(known, source)
            self._is_changed = self._known != known
            self._is_anew = self._known.epoch > known.epoch
            if self._is_anew or (self._is_changed and not _is_finished(self._end)):
                self._end = None
            self.summary.epoch = self._known.epoch
            if self._is_anew:
                since, voids = self._known.epoch, ()
        if self.order.output:
            self._sink = sink_of(job, self.order.output, since, voids, formulas=self.settings.results.csv_formulas)
            self.supervisor.picture.sink = self._sink.id

    def _has_nothing_to_do(self) -> bool:
        """Whether the job is finished, all its pages are parsed, and the file is there as it was made."""
        from crawlog.streams.sink import is_complete

        if self._is_cancelled and self._sink is None:
            return True
        if self.supervisor.is_unchecked:
            return False
        may_have_more_seeds = self.order.job and not self._is_cancelled
        if self._end is None or may_have_more_seeds:
            return False
        if self.watch.lag("parse") or (self._sink and self.watch.lag("sink", self._sink.id)):
            return False
        ends = dict(enumerate(self.watch.ends("sink")))
        return self._sink is None or is_complete(self.settings.run.data, self._sink, ends)

    def _plant(self) -> JobCopy:
        """The job's record, new or changed, then its seeds; all acknowledged."""
        from crawlog.agents.seed import Source, kept_seeds
        from crawlog.streams.http import manner_of
        from crawlog.streams.log import known_job, limits_of, own_manner, rewind_job, write_control, write_job

        job, source, known = self.summary.job, self.order.source, self._known
        if known is not None and self._is_changed:
            write = rewind_job if self._is_anew else write_job
            known = write(self.settings, self._producer, self.topics, job, known.spec, known.epoch)
        elif known is not None and 0 in self.watch.ends("fetch"):  # its record goes to every partition
            self._shown.say(f"{self.topics.urls} was made anew and has lost the job: it begins again")
            known = write_job(self.settings, self._producer, self.topics, job, known.spec, known.epoch)
        elif known is not None:
            write_control(self._producer, self.topics, [known])  # workers report the counts of an old job again
        with ExitStack() as kept:
            if source is None and self._is_anew:
                source = Source([str(kept.enter_context(kept_seeds(self.settings, self.topics, job)))])
            if source is not None and not self._is_cancelled and (self._end is None or self.order.job):
                self._seed(source)
        copy = known or known_job(self.settings, self.topics, job)
        assert copy is not None
        rules = manner_of(copy.spec, own_manner(self.settings), limits_of(self.settings)).rules
        self._pace_s = rules.delay_s / rules.per_host
        return copy

    @property
    def _requests(self) -> "RequestRules | None":
        """What the job's record says of requests: what was given, where others' workers fetch; else all settings."""
        from crawlog.streams.log import said_rules

        return None if self.settings.run.fetch_workers else said_rules(self.settings)

    def _seed(self, source: "Source") -> None:
        """Sends the seeds; those that the log has are known."""
        from crawlog.agents.seed import plant

        self._lost_founds = len(self.supervisor.lost_founds)
        plant(
            self.settings,
            self._producer,
            self.summary.job,
            source,
            spider=self.order.spider,
            requests=self._requests,
            report=self._shown.say,
            look=self._folds,
        )

    def _lost_seeds(self) -> tuple[str, ...]:
        """What may be missing where this command was given no seeds: nobody else knows those of `crawlog seed`."""
        if self.order.source is not None:
            return ()
        then = "seeds that `crawlog seed` gave may be among what is gone: give them again, it does no harm"
        return tuple(f"{one}; {then}" for one in self.supervisor.lost_founds)

    def _seed_again(self) -> bool:
        """Whether seeds may have been lost while the crawl went on; this command's own are sent again."""
        if self._lost_founds == len(self.supervisor.lost_founds):
            return False
        self._lost_founds = len(self.supervisor.lost_founds)
        if self.order.source is not None and not self._is_cancelled:
            self._seed(self.order.source)
        return True

    def _folds(self, wait_s: float) -> Iterable[Progress]:
        """How far the workers are, which are seen after while seeds are sent."""
        self.supervisor.look(wait_s)
        return self.supervisor.picture.of("fetch")

    def _changed(self, copy: JobCopy, source: "Source | None") -> JobCopy:
        """The job's record as this command wants it; the same when nothing is different."""
        from crawlog.agents.seed import MAX_NAMES, scope_names
        from crawlog.streams.log import kept, resolve_spec

        spec = copy.spec
        if source is None:  # the job goes on as it was given
            if line := kept(copy.job, spec, self.settings, self._requests):
                self._shown.say(line)
        else:
            kind = self.settings.scope.kind
            listed = spec.scope.names if kind == spec.scope.kind else sorted(scope_names(source, kind))[:MAX_NAMES]
            wanted = resolve_spec(self.settings, self.order.spider, listed, self._requests)
            spec = msgspec.structs.replace(wanted, rev=spec.rev, state=spec.state)
        is_other = msgspec.structs.replace(spec, requests=copy.spec.requests) != copy.spec
        is_done = _is_finished(self._end)
        if not is_other and not self.order.fresh and (spec == copy.spec or (is_done and not self.order.job)):
            return copy  # how its URLs would be asked for makes no page of a finished job another one
        spec = msgspec.structs.replace(
            spec, rev=copy.spec.rev + 1, state="running"
        )  # a stopped job still has its queue
        is_anew = self.order.fresh or (is_done and is_other)
        if is_anew and not self.order.fresh:
            self._shown.say("the job was finished under other settings: it is crawled again")
        return JobCopy(copy.job, spec, copy.epoch + is_anew)

    def _is_finished(self, finish: Finish) -> bool:
        try:
            is_finished = finish.step(self.supervisor.picture, self.watch.ends)
        except EngineError as error:  # it may be restarting; who asks again gets an answer, or the engine's own error
            now = time.monotonic()
            self._denied_at = (self._denied_at or now) if isinstance(error, AccessDenied) else None
            if self._denied_at is not None and now - self._denied_at > DENIED_S:
                raise
            self._say_changed(str(error).splitlines()[0])
            return False
        self._denied_at, self._said = None, ""
        return is_finished

    def _say_changed(self, line: str) -> None:
        """Says what is wrong, not again what was said last."""
        if line != self._said:
            self._shown.say(line)
        self._said = line

    def _within_limit(self, copy: JobCopy) -> JobCopy:
        """The job's record; the job is stopped once it has as many pages as asked for."""
        from crawlog.streams.log import write_job

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
        from crawlog.streams.log import known_job

        return known_job(self.settings, self.topics, copy.job) or copy

    def _record(self, finish: Finish) -> None:
        """Puts the end on record, unless it stands there; a job that was stopped, or that blocks hold, has none yet."""
        from crawlog.streams.log import commands, known_job, write_finished

        copy = known_job(self.settings, self.topics, self.summary.job)
        assert copy is not None
        reason = {"running": "finished", "stopped": "max_pages"}.get(copy.spec.state, copy.spec.state)
        counts, orders = self.supervisor.picture.counts(copy.job), commands(self.settings, self.topics)
        if orders.of_job(copy.job).stopped:
            reason = "stopped"
        elif reason == "finished" and counts.held:
            reason = "blocked"
            hosts = [one.host for one in orders.in_force if one.action == "block"]
            self.summary.blocked = hosts[0] if len(hosts) == 1 else "HOST"
        is_open = reason in ("stopped", "blocked") or bool(self.summary.missing)
        is_known = self._end is not None and not self._pages()
        self.summary.reason = "already_finished" if is_known and not is_open and reason != "cancelled" else reason
        if is_known and self._has_new_spider(self._end):
            self._note_spider()
        if is_known or is_open:
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
            counts=counts,
            spider=self.order.spider_hash,
        )
        write_finished(self._producer, self.topics, record)

    def _note_spider(self) -> None:
        """Says how to parse the pages again, for the spider has changed; after a replay, puts the new one on record."""
        from crawlog.streams.log import write_finished

        if self._end is not None and self.supervisor.picture.parsed(self.summary.job):
            end = msgspec.structs.replace(self._end, spider=self.order.spider_hash)
            write_finished(self._producer, self.topics, end)
        else:
            self._shown.say(REPARSE.format(self.summary.job))

    def _has_new_spider(self, end: Finished | None) -> bool:
        """Whether the spider's file has changed since the run that wrote this end; no where one of them is unknown."""
        return end is not None and bool(end.spider and self.order.spider_hash) and end.spider != self.order.spider_hash

    def _write_file(self, finish: Finish) -> None:
        """Makes the file whole; the sink's worker must have let go of it. Rows of a job that goes no further stay."""
        from crawlog.streams.errors import SinkBehind
        from crawlog.streams.sink import finalise

        if self._sink is None or self.summary.reason in UNFINISHED:
            return
        self._shown.close()  # rows may go to the same terminal
        ends = dict(enumerate(finish.passed["sink"]))
        if self._whole.was_damaged:
            self._refill(finish)
        for _ in range(FILL_TRIES):
            self.supervisor.stop_stage("sink")
            try:
                self.summary.rows = finalise(self.settings.run.data, self._sink, ends, rows())
            except SinkBehind:
                why = "its rows do not reach the end of the log"
            except Unusable as error:
                why = f"the sink's state is {error}"
                self._shown.say(f"{self._sink.output} is not made yet: {why}")
            else:
                return
            self._fill(finish)
        raise EngineError(
            f"{self._sink.output} could not be made, in {FILL_TRIES} tries: {why}.\n"
            f"What is written to {self._sink.folder(self.settings.run.data)} is not what is read there later: look at"
            " that disk (`dmesg`, `smartctl`), or move the data folder to another one.\n"
            "All rows are in the log: the same command makes the file from it."
        )

    def _refill(self, finish: Finish) -> None:
        """Has the sink read crawl.items from its start once more; it keeps the rows that it has."""
        from crawlog.streams.sink import Results

        assert self._sink is not None
        self.supervisor.stop_stage("sink")
        with suppress(Unusable), Results(self.settings.run.data, self._sink, None) as results:  # else it is made anew
            results.move(dict.fromkeys(results.meta.offsets, 0))
        self._fill(finish)

    def _fill(self, finish: Finish) -> None:
        """Has the sink's worker go on until it has read the log again."""
        assert self._sink is not None
        picture = self.supervisor.picture
        picture.forget("sink")
        self.supervisor.go(("sink",), self._sink.environ())
        while not picture.has_passed("sink", finish.passed["sink"]):
            self.supervisor.look(LOOK_S)
            self._tell_trouble()

    def _count_rows(self) -> None:
        """Says what FILE has, which stays as it was made."""
        from crawlog.streams.sink import final_of

        final = final_of(self._sink.folder(self.settings.run.data)) if self._sink else None
        self.summary.rows = final.rows if final else None

    def _tell_trouble(self) -> None:
        """Says once why no row is written, and why a state begins again: FILE may be on another disk than the log."""
        trouble = self.supervisor.picture.trouble("sink")
        if trouble != self._trouble:
            self._shown.say(f"{trouble}; rows wait, and go on by themselves" if trouble else "rows are written again")
            self._trouble = trouble
        for note in sorted(self.supervisor.picture.notes() - self._notes):
            self._shown.say(note)
            self._notes.add(note)

    def _show(self) -> None:
        picture, now = self.supervisor.picture, time.monotonic()
        try:
            ends = self.watch.all_ends()
        except EngineError:
            return
        stages = ("fetch", "parse", "sink") if self._sink else ("fetch", "parse")
        naming, unanswered = picture.strangers()
        count, passed = len(self._seeded), picture.passed("fetch", self._seeded)
        self._shown.show(
            Frame(
                job=self.summary.job,
                took_s=now - self._started,
                counts=picture.counts(self.summary.job),
                rate=picture.rate(),
                lag={stage: picture.lag(stage, ends[stage]) for stage in stages},
                hosts=picture.hosts(),
                paused=picture.paused(self.summary.job),
                dead=self._losses.tally.count if self._losses else 0,
                reading=f"{passed} of {count} partitions so far" if passed < count else "",
                left_s=picture.left_s(self.summary.job, now, self._pace_s),
                commonest=self._losses.tally.commonest if self._losses else None,
                naming=naming,
                unanswered=unanswered,
            )
        )

    def _follow_losses(self) -> None:
        """From now on it is counted what crawl.dead gains of this job."""
        from crawlog.progress.watch import Losses

        end = self.watch.dead_end()
        self.summary.is_clean = not end or not self.summary.resumed
        self._losses = Losses(self.supervisor.settings, self.summary.job, end)

    def _begin_counting(self) -> None:
        """From now on it is counted what the job gains; a new one, or one that begins again, gains all that it has."""
        if self.summary.resumed and not self._is_anew:
            self.supervisor.picture.begin(self.summary.job, self.watch.ends("fetch"))

    def _look_at_numbers(self) -> None:
        """Notes what the picture, the log and crawl.dead say now."""
        picture = self.supervisor.picture
        if self._losses is not None:
            self._losses.poll()
        if picture.has_passed("fetch", self._seeded):
            picture.look(self.summary.job, time.monotonic())
        if picture.is_begun and self._early is None:
            self._early = self._read_early()

    def _read_early(self) -> int:
        """Pages of this run that the first reports had counted already; 0 where the broker is away."""
        from crawlog.streams.log import pages_done, read_partitions

        with suppress(EngineError):
            early = read_partitions(self.settings, self.topics.urls, self.supervisor.picture.unread)
            return sum(pages_done(record.value(), self.summary.job) for record in early)
        return 0

    def _pages(self) -> int:
        """Pages that the job has gained in this run, by the log."""
        picture = self.supervisor.picture
        if not self.summary.resumed or self._is_anew:
            return ended(picture.counts(self.summary.job))
        return (picture.gained or 0) + (self._early or 0)

    def _count_losses(self, within_s: float) -> None:
        """Puts into the summary what crawl.dead has gained.

        Raises: EngineError: not all of it could be read in time; the summary has the rest.
        """
        assert self._losses is not None
        try:
            self._losses.catch_up(self.watch.dead_end(), within_s)
        finally:
            self.summary.dead, self.summary.commonest = self._losses.tally.count, self._losses.tally.commonest

    def sum_up(self) -> None:
        """Puts into the summary what is known by now, however the run ended."""
        picture, summary = self.supervisor.picture, self.summary
        summary.counts = summary.counts or picture.counts(summary.job)
        summary.pages, summary.parsed = self._pages(), picture.parsed(summary.job)
        is_interrupted = summary.reason == "interrupted"
        if is_interrupted and not self.supervisor.engine:
            with suppress(EngineError):
                summary.has_others = self.watch.has_others(self.supervisor.names, HURRY_S)
        if self._losses is not None:
            if is_interrupted:
                with suppress(EngineError):
                    self._count_losses(HURRY_S)
            self._losses.close()
        partial = self._sink.partial(self.settings.run.data) if self._sink else None
        if partial is not None and summary.reason in UNFINISHED and partial.exists():
            summary.partial = str(partial)


def _is_finished(end: Finished | None) -> bool:
    """Whether a job has ended by itself, with nothing left to fetch."""
    return end is not None and end.reason == "finished"
