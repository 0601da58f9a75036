"""Decides what a request changes in the record of a job.

    known job        its request            by the command's own workers (`run`)   on a fleet (`submit`)
    ─────────────────────────────────────────────────────────────────────────────────────────────────
    none, deleted    –                      create                                 create
    any              --fresh                begin again                            begin again
    cancelled        –                      keep                                   refused
    any              the same               keep                                   keep
    any              a larger --max-pages   change                                 change
    finished         other settings         begin again                            refused
    not finished     other settings         change                                 refused

A fleet has a job for several people, so a request cannot change what another one has asked for. The same table holds
where another command has created the job meanwhile.
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from crawlog.schemas.control import NO_EPOCH, JobCopy
from crawlog.schemas.job_orders import (
    NO_LAYOUT,
    PIPELINES_ALONE,
    CodeRef,
    FeedLayout,
    FeedOutput,
    JobStateName,
    OutputSpec,
)
from crawlog.schemas.urls import JobSpec, RequestRules
from crawlog.streams.errors import InvalidState, Misconfigured
from crawlog.streams.job_spec import JobSpider, job_values, kept_settings, resolve_spec, said_rules, unresolved_fields
from crawlog.streams.jobs import traits
from crawlog.streams.printable import shown_time
from crawlog.streams.sink import is_file

from .request import FLOW, JobRequest

if TYPE_CHECKING:
    from crawlog.agents.seed import Source
    from crawlog.streams.settings import Settings


BROKEN = "spider_broken"  # Reason of a job that failed before its first request: its spider cannot be made

_NOT_PLAIN = re.compile(r"^[^A-Za-z0-9_]|[^A-Za-z0-9_.-]")  # Characters of a feed that the name of an output lacks

Step = Literal["create", "begin_again", "change", "keep"]

# Fields of a job's record in which two requests of one job may differ; its scope's names are those of its seeds.
_OWN = ("rev", "state", "reason", "by", "at", "changed_at", "items", "parse_again")

# Options that fields of a job's record are made of; most others are made of settings.
_OPTIONS = {
    "spider": "--spider",
    "args": "-a",
    "outputs": "-o",
    "code": "--version",
    "scrapy": "-s of Scrapy",
    "priority": "--priority",
    "flow": FLOW,
}


class RecordPlan(NamedTuple):
    """How the record of a job changes.

    Attributes:
        copy: The record afterwards.
    """

    step: Step
    copy: JobCopy


@dataclass
class Wanted:
    """A requested job, with what this machine knows about it.

    Attributes:
        name: Of the job.
        urls: Its seeds that are not in files.
        source: Its seeds; None without any.
        digest: Hash of the spider's code; empty for the default spider.
        by: Who asks for it, for people.
        may_change: Whether workers of this command's own do the job.
        feeds: Outputs that the spider's project names, for a request without any.
        layout: How an output of the request writes rows.
    """

    request: JobRequest
    name: str
    spider: "JobSpider"
    urls: tuple[str, ...] = ()
    source: "Source | None" = None
    code: "CodeRef | None" = None
    digest: str = ""
    by: str = ""
    may_change: bool = False
    feeds: tuple[FeedOutput, ...] = ()
    layout: FeedLayout = NO_LAYOUT

    def outputs(self, at: float) -> dict[str, FeedOutput]:
        """The outputs of the job, by name.

        Args:
            at: When the job began: an output with the time in its name has the same one after a kill.
        """
        if self.request.outputs:
            return {one: FeedOutput(one, self.layout, overwrite=True) for one in self.request.outputs}
        moment = shown_time(at).replace(microsecond=0).isoformat().replace(":", "-")
        return {feed.output.replace("%(time)s", moment): feed for feed in self.feeds}

    @property
    def has_requests(self) -> bool:
        """Whether it has seeds, also those of other jobs' rows, or a spider whose `start` gives requests."""
        return self.source is not None or self.spider.starts or bool(self.request.feed)

    @property
    def example(self) -> str:
        """One of its URLs, for a hint; empty without any."""
        return next(iter(self.urls), "") or (self.source.first() if self.source is not None else "")

    def rules(self, settings: "Settings") -> "RequestRules | None":
        """The job's request rules; None for those of the settings, which workers of this command's own have, too."""
        return said_rules(settings) if self.may_change and not settings.run.fetch_workers else None

    def spec(self, settings: "Settings", known: JobCopy | None, say: Callable[[str], None]) -> JobSpec:
        """The record that is asked for.

        Args:
            known: The record in the log. Without requests, and for what a `run` cannot ask for, it stays as it is.
            say: Called with the settings that have no effect for that reason.
        """
        from crawlog.agents.seed import MAX_NAMES, scope_names

        request, rules, now = self.request, self.rules(settings), time.time()
        state: JobStateName = "paused" if request.paused else "waiting" if request.after else "running"
        begun = partial(msgspec.structs.replace, state=state, reason="", by=self.by, at=now, changed_at=now)
        own = known.spec if known is not None and known.spec.state != "deleted" and self.may_change else None
        if own is not None and not self.has_requests:
            if line := kept_settings(self.name, own, settings, rules):
                say(line)
            return begun(own)
        kind, names = settings.scope.kind, list[str]()
        if own is not None and own.scope.kind == kind:
            names = list(own.scope.names)
        elif self.source is not None:
            names = sorted(scope_names(self.source, kind))[:MAX_NAMES]
        spec = begun(resolve_spec(settings, self.spider, names, rules))
        if own is not None:
            return msgspec.structs.replace(
                spec, outputs=own.outputs, code=own.code, priority=own.priority, flow=own.flow
            )
        if self.may_change:  # its outputs are those of the command
            return spec
        usual = known.spec.priority if known is not None else spec.priority
        return msgspec.structs.replace(
            spec,
            outputs=self._of_fleet(settings, known.spec.at if known is not None else now),
            code=self.code,
            flow=request.flow,
            priority=usual if request.priority is None else request.priority,
        )

    def _of_fleet(self, settings: "Settings", at: float) -> tuple[OutputSpec, ...]:
        if self.feeds and not self.request.outputs:
            given = self.outputs(at).items()
            return tuple(OutputSpec(_NOT_PLAIN.sub("-", name), layout=feed.layout) for name, feed in given)
        outputs = outputs_of(settings, self.request.outputs, pipelines=self.spider.pipelines)
        named = self.request.outputs
        return tuple(msgspec.structs.replace(one, layout=self.layout) if one.name in named else one for one in outputs)


def plan(wanted: Wanted, spec: JobSpec, known: JobCopy | None, *, is_done: bool) -> RecordPlan:
    """How a request changes the record in the log.

    Args:
        spec: The requested record.
        known: The record in the log; None if there is none.
        is_done: Whether the job has finished, with nothing left to fetch.

    Raises: InvalidState: it cannot have the job.
    """
    request, job = wanted.request, wanted.name
    if known is None or known.spec.state == "deleted":
        after = known.epoch if known is not None else NO_EPOCH
        return RecordPlan("create", JobCopy(job, spec, after + 1, after=after))
    if request.is_new:
        raise taken(job)
    if request.fresh:
        return _again(known, spec)
    if wanted.may_change:
        return _changed(wanted, spec, known, is_done=is_done)
    if known.spec.state == "cancelled":
        raise InvalidState(f"job {job} is cancelled for good; --fresh begins it again, --job gives another name")
    larger = _grown(known.spec, spec)
    _check_same(wanted, spec, larger)
    if larger == known.spec:
        return RecordPlan("keep", known)
    if is_full(known.spec) and larger.max_pages != known.spec.max_pages:
        larger = msgspec.structs.replace(larger, state="running", reason="")
    return RecordPlan("change", msgspec.structs.replace(known, spec=larger))


def _again(known: JobCopy, spec: JobSpec) -> RecordPlan:
    fresh = msgspec.structs.replace(spec, rev=known.spec.rev + 1)
    return RecordPlan("begin_again", JobCopy(known.job, fresh, known.epoch + 1, after=known.after))


def _changed(wanted: Wanted, asked: JobSpec, known: JobCopy, *, is_done: bool) -> RecordPlan:
    """The plan of a `run`. It keeps a cancelled job; one that was stopped goes on if anything else changes."""
    was = known.spec
    spec = msgspec.structs.replace(asked, **{name: getattr(was, name) for name in unresolved_fields()})
    # other request rules alone change no page of a finished job
    is_other = msgspec.structs.replace(spec, requests=was.requests, pipelines=was.pipelines) != was
    if was.state == "cancelled" or spec == was or (is_done and not is_other and not wanted.request.job):
        return RecordPlan("keep", known)
    if is_done and is_other:
        return _again(known, asked)
    spec = msgspec.structs.replace(spec, rev=was.rev + 1, state="running", reason="")
    return RecordPlan("change", msgspec.structs.replace(known, spec=spec))


def _grown(known: JobSpec, wanted: JobSpec) -> JobSpec:
    """The record of a known job, with what a request adds to it: a larger limit of pages, the pipelines' output."""
    if not known.outputs and wanted.outputs == (PIPELINES_ALONE,):  # `run` made it, whose sink is its own
        known = msgspec.structs.replace(known, outputs=wanted.outputs)
    if known.max_pages is not None and (wanted.max_pages or 0) > known.max_pages:
        known = msgspec.structs.replace(known, max_pages=wanted.max_pages)
    return known


def _check_same(wanted: Wanted, spec: JobSpec, known: JobSpec) -> None:
    """Raises: InvalidState: it is not the same job, or is to wait and does not."""
    job = wanted.name
    if others := _differences(wanted, spec, known):
        raise InvalidState(
            f"job {job} is there already, with other {', '.join(others)}: --job gives another name,"
            " --fresh begins it again with these"
        )
    if wanted.request.paused and not traits(known.state).waits:
        raise InvalidState(
            f"job {job} is there already, and {known.state}: --paused does not hold it, so no URL waits."
            f" `crawlog jobs pause {job}` holds one that runs, --fresh begins it again"
        )


def _differences(wanted: Wanted, spec: JobSpec, known: JobSpec) -> list[str]:
    """In what two requests differ that one job cannot have: options, and settings by their dotted names.

    Of one without requests only what it gives counts, for the job keeps the rest.
    """
    known = msgspec.structs.replace(known, scope=msgspec.structs.replace(known.scope, names=spec.scope.names))
    fields = [one for one in spec.__struct_fields__ if one not in _OWN and getattr(known, one) != getattr(spec, one)]
    before, after = job_values(known), job_values(spec)
    keys = [key for key in after if (fields or not wanted.has_requests) and before.get(key) != after[key]]
    found = [_OPTIONS[one] for one in fields if one in _OPTIONS] + keys or fields
    return found if wanted.has_requests else [one for one in found if one in wanted.request.given]


def is_full(spec: JobSpec) -> bool:
    """Whether a job was stopped at its limit of pages: with that limit it would stop again."""
    return (spec.state, spec.reason) == ("stopped", "max_pages") and spec.max_pages is not None


def way_on(copy: JobCopy) -> str:
    """The command that lets a paused, stopped or failed job go on, or begin again if its spider could not be made."""
    spec = copy.spec
    if spec.reason == BROKEN and spec.code is not None:
        spider = f"--project {spec.code.project} --spider {spec.spider}"
        return f"`crawlog submit {spider} --job {copy.job} --fresh` with other code or arguments"
    if is_full(copy.spec):
        submitted = f"`crawlog submit --job {copy.job} --max-pages N`"
        return f"{submitted} (without `up`: the same `crawlog run`) with more than {copy.spec.max_pages}"
    return f"`crawlog jobs resume {copy.job}`"


def taken(job: str) -> InvalidState:
    """The error of a request whose name must be new."""
    return InvalidState(f"job {job} is there already: `crawlog jobs show {job}`; --job gives another name")


def outputs_of(settings: "Settings", names: Iterable[str], *, pipelines: bool = False) -> tuple[OutputSpec, ...]:
    """The outputs of these names, without doubles; without names the built-in one of a job with pipelines.

    Raises: Misconfigured: a name is a path or an address, or has a suffix that no format has.
    """
    outputs = tuple(_output(settings, name) for name in dict.fromkeys(names))
    return outputs or ((PIPELINES_ALONE,) if pipelines else ())


def _output(settings: "Settings", name: str) -> OutputSpec:
    sink = settings.sink
    try:
        if name in sink.outputs:
            return OutputSpec(name, declared=True, required=name not in sink.optional).check()
        spec = OutputSpec(name).check()
    except ValueError as error:
        raise Misconfigured(
            f"-o {name!r:.200}: outputs of a fleet are plain names or declared in [sink] outputs: {error}.\n"
            "`crawlog export --job NAME -o FILE` writes a job's rows to any file of this machine."
        ) from None
    try:
        is_file(name)
    except Misconfigured as error:
        if "." in name:  # meant as a file: an output that nobody declares would hold up the job for ever
            raise Misconfigured(f"{error}\nOutputs that only the workers declare have names without a dot.") from None
        return OutputSpec(name, declared=True, required=name not in sink.optional)
    return spec
