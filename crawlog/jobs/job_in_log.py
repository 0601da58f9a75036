"""A run's job in the log: its record, and the run's own records about it (limit, end, new spider)."""

import time
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.control import Finished, JobCopy, Rewound, StartEnded
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import traits
from crawlog.streams.log import Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from crawlog.agents.seed import Source
    from crawlog.processes.supervisor import Supervisor
    from crawlog.schemas.urls import JobSpec, RequestRules
    from crawlog.streams.sink_groups import RewoundRange

    from .run_request import RunRequest

REPARSE = (
    "the spider has changed since its pages were parsed:"
    " `crawlog replay --group parse --job {} --to-earliest --execute`, then this command again"
)


class JobInLog:
    """A job's record in the log, and this run's changes to it.

    Attributes:
        copy: The job's record with this run's changes; None if the log has none.
        end: How the job ended; None while it goes on, or if this run begins it again.
        since, voids: Which item records are rows of the job.
        start: The note that the spider's `start` has ended; None if it has not.
        closed: Reason with which the spider closed the job; empty if it did not.
        was_back: Its `JobCounts.page_back` when it ended.
        is_known: Whether the log had the job before this run.
        is_changed: Whether `copy` differs from the record in the log.
        is_anew: Whether this run begins a new epoch of the job.
        is_cancelled: Whether the job was cancelled, and this run does not begin it again.
    """

    def __init__(
        self, request: "RunRequest", name: str, supervisor: "Supervisor", say: "Callable[[str], None]"
    ) -> None:
        self.request = request
        self.name = name
        self.topics = Topics(supervisor.settings.kafka.prefix)
        self.copy: JobCopy | None = None
        self.end: Finished | None = None
        self.since = 0
        self.voids: tuple[RewoundRange, ...] = ()
        self.start: StartEnded | None = None
        self.closed = ""
        self.was_back = 0
        self.is_known = self.is_changed = self.is_anew = self.is_cancelled = False
        self._supervisor = supervisor
        self._say = say

    def allow_spider(self) -> None:
        """Allows workers of this data folder to run the code of this command's spider, now and later."""
        from crawlog.streams.spiders import allow, code_of

        code = code_of(self.request.spider)
        if code is not None:
            allow(self._supervisor.settings.run.data, code)

    def check_spider(self) -> None:
        """Refuses a job whose spider the workers would not run: each of its pages would become a dead letter.

        Raises: Misconfigured: the job's record names a spider file that is not allowed here.
        """
        from crawlog.streams.spiders import code_of, trust_of

        named = self.copy.spec.spider if self.copy else self.request.spider
        code = code_of(named)
        if code is not None and (refusal := trust_of(self._supervisor.settings).refusal(code)):
            raise Misconfigured(f"the spider of job {self.name} is {named}, and {refusal}")

    def check_outputs(self) -> None:
        """Refuses a job that would never finish: it waits for outputs that no sink worker of a fleet writes.

        Raises: Misconfigured: the job goes on, and the log has no such worker. A run on a local engine has none.
        """
        from crawlog.streams.control import has_workers

        spec = self.copy.spec if self.copy is not None and self.end is None else None
        if spec is None or not traits(spec.state).outputs:
            return
        outputs = [output.name for output in spec.outputs if output.required]
        is_local = self._supervisor.engine is not None
        if outputs and (is_local or not has_workers(self._supervisor.settings, "sink")):
            raise Misconfigured(
                f"job {self.name} has outputs that a fleet's sink worker writes, and none runs: {', '.join(outputs)}.\n"
                "`crawlog up` goes on with the job. A run with another --job has its own rows."
            )

    def recall(self) -> None:
        """Reads the job from the log, and decides how this run continues it.

        Raises: Misconfigured: the log has no such job, and no seeds were given.
        """
        from crawlog.streams.control import counting_epochs, settled_control

        control = settled_control(self._supervisor.settings, self._supervisor.producer, self.topics)
        known = control.job(self.name)
        is_there = known is not None and known.spec.state != "deleted"
        if not is_there and self.request.source is None and not self.request.starts:
            raise Misconfigured(f"there is no job {self.name} in the log; give the URLs that it starts with.")
        if (before := control.end(self.name)) is not None and before.counts is not None:
            self.was_back = before.counts.page_back
        self.since, self.voids = counting_epochs(control.of(Rewound), self.name, known)
        closing = control.command(self.name)
        self.closed = closing.reason if closing is not None else ""
        if known is not None:
            self._go_on(known, None if self._supervisor.has_lost_founds else before)
            assert self.copy is not None
            if not self._supervisor.has_lost_founds:  # else those of `start` may be among them
                self.start = control.start_ended(self.copy, self.request.spider_hash)
            self._start_again()

    def _start_again(self) -> None:
        """Lets a finished job run whose `start` begins again: the coordinator then waits for the end of `start`."""
        copy = self.copy
        if self.starts and copy is not None and copy.spec.state == "finished":
            reason = "its `start` begins again"
            spec = msgspec.structs.replace(copy.spec, rev=copy.spec.rev + 1, state="running", reason=reason)
            self.copy, self.is_changed, self.end = msgspec.structs.replace(copy, spec=spec), True, None

    def _go_on(self, known: JobCopy, end: Finished | None) -> None:
        """Decides whether the job goes on as it is, goes on changed, or begins again; a deleted one begins again."""
        self.is_known = known.spec.state != "deleted"
        self.is_cancelled = known.spec.state == "cancelled" and not self.request.fresh
        self.end = end
        self.copy = known if self.is_cancelled else self._changed(known, self.request.source)
        self.is_changed = self.copy != known
        self.is_anew = self.copy.epoch > known.epoch
        if self.is_anew or (self.is_changed and not _is_finished(end)):
            self.end = None
        if self.is_anew:
            self.since, self.voids = self.copy.epoch, ()

    @property
    def requests(self) -> "RequestRules | None":
        """The job's request rules: None with own fetch workers, whose settings apply; else the settings given."""
        from crawlog.streams.job_spec import said_rules

        return None if self._supervisor.settings.run.fetch_workers else said_rules(self._supervisor.settings)

    def _changed(self, copy: JobCopy, source: "Source | None") -> JobCopy:
        """The job's record with this command's changes; `copy` itself if there are none."""
        spec = self._wanted(copy, source)
        compared = msgspec.structs.replace(spec, requests=copy.spec.requests, pipelines=copy.spec.pipelines)
        is_other = compared != copy.spec
        is_done = _is_finished(self.end)
        is_fresh = self.request.fresh or not self.is_known
        if not is_other and not is_fresh and (spec == copy.spec or (is_done and not self.request.job)):
            return copy  # other request rules alone change no page of a finished job
        is_anew = is_fresh or (is_done and is_other)
        at = time.time() if is_anew else spec.at
        # a stopped job still has its queue
        spec = msgspec.structs.replace(spec, rev=copy.spec.rev + 1, state="running", reason="", at=at)
        if is_anew and not is_fresh:
            self._say("the job was finished under other settings: it is crawled again")
        return JobCopy(copy.job, spec, copy.epoch + is_anew, after=copy.after if self.is_known else copy.epoch)

    def _wanted(self, copy: JobCopy, source: "Source | None") -> "JobSpec":
        """The job's spec by this command's settings; without seeds the spec stays as it is."""
        from crawlog.agents.seed import MAX_NAMES, scope_names
        from crawlog.streams.job_spec import kept_settings, resolve_spec, unresolved_fields

        spec = copy.spec
        if source is None and not self.request.starts:
            if line := kept_settings(copy.job, spec, self._supervisor.settings, self.requests):
                self._say(line)
            return spec
        kind = self._supervisor.settings.scope.kind
        listed: Iterable[str] = spec.scope.names if kind == spec.scope.kind else ()
        if source is not None and (kind != spec.scope.kind or not self.is_known):
            listed = sorted(scope_names(source, kind))[:MAX_NAMES]
        wanted = resolve_spec(self._supervisor.settings, self.request.of_spider(), listed, self.requests)
        kept = unresolved_fields() if self.is_known else ("rev",)
        return msgspec.structs.replace(wanted, **{name: getattr(spec, name) for name in kept})

    @property
    def starts(self) -> bool:
        """Whether the spider's `start` is to give requests in this run."""
        copy = self.copy
        return copy is not None and copy.spec.starts and traits(copy.spec.state).starts and self.start is None

    def amend_end(self, end: Finished, dead: int) -> None:
        """Adds to the end of the job what this run alone knows: the hash of its spider's file, and its dead letters."""
        from crawlog.streams.control import write_finished

        amended = msgspec.structs.replace(end, dead=dead, spider=self.request.spider_hash)
        if amended != end:
            write_finished(self._supervisor.producer, self.topics, amended)

    def note_new_spider(self) -> None:
        """Tells how to parse the pages again if the spider's file has changed since the job ended.

        After a replay it records the new file instead. If one of the two files is unknown, it does nothing.
        """
        from crawlog.streams.control import write_finished

        end, own = self.end, self.request.spider_hash
        if end is None or not end.spider or not own or end.spider == own:
            return
        if self._supervisor.picture.parsed(self.name):
            write_finished(self._supervisor.producer, self.topics, msgspec.structs.replace(end, spider=own))
        else:
            self._say(REPARSE.format(self.name))


def _is_finished(end: Finished | None) -> bool:
    """Whether a job has ended by itself, with nothing left to fetch."""
    return end is not None and end.reason == "finished"
