"""`crawlog submit`: writes a job and its seeds to a running log, whose workers crawl it, and returns.

    Submission ─► the job's settings: -s > spider > base ─► the job's record ─► its seeds ─► JobView
                                                              │ a known job: it goes on, or begins again (`fresh`)

The HTTP service calls `submit` too, so nothing of a user's code runs here: a child process tells about the spider.
"""

import io
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.commands.control import whoever
from crawlog.schemas import log_lines
from crawlog.schemas.control import JobCopy, OutputNote
from crawlog.schemas.log_lines import MAX_LINE, LogLine, LogLines
from crawlog.streams.errors import InvalidState, Misconfigured
from crawlog.streams.jobs import traits

from .request import Submission, checked, differences, grown, is_full, of_workers, outputs_of, text_of
from .run_request import job_name, refused

if TYPE_CHECKING:
    from crawlog.agents.seed import Source
    from crawlog.commands.named_spider import NamedSpider
    from crawlog.schemas.job_orders import CodeRef
    from crawlog.schemas.urls import JobSpec
    from crawlog.streams.fleet import JobView
    from crawlog.streams.job_spec import JobSpider
    from crawlog.streams.jobs import ControlState
    from crawlog.streams.settings import Settings
    from crawlog.streams.spiders import SpiderFacts

BROKEN = "spider_broken"  # Reason of a job that failed before its first request: its spider cannot be made


def submit(
    settings: "Settings",
    wanted: Submission,
    by: str = "",
    *,
    named: "NamedSpider | None" = None,
    source: "Source | None" = None,
    say: Callable[[str], None] = lambda _: None,
    keeps_broken: bool = False,
) -> "JobView":
    """Submits a job to the fleet of a log.

    Args:
        settings: With the log's address. The submission's own settings and those of its spider are stronger.
        by: Who submits it, for people.
        named: A spider of this machine's files, if its workers may run it; it replaces `wanted.spider`.
        source: All seeds, in place of `wanted.urls`; only a command of this machine can read files.
        say: Takes lines for the user.
        keeps_broken: Whether a deployed spider that cannot be made is a job that failed, with the error in its log.

    Raises: Misconfigured: the submission is invalid, or does not fit the job of that name.
    """
    from crawlog.streams.log import ensure_topics

    checked(wanted)
    ensure_topics(settings, say)
    code = _code(settings, wanted, named)
    try:
        facts = named.facts if named is not None else _deployed(settings, wanted, code)
    except Misconfigured as error:
        if not keeps_broken or code is None:
            raise
        broken = _Sowing(settings, wanted, _spider_of(wanted, wanted.spider), None, say)
        return _view(broken.fail(wanted.job, code, by or whoever(), str(error)))
    settings = job_settings(settings, wanted, facts)
    for line in _notes(facts) if facts is not None else ():
        say(line)
    for line in refused(wanted.urls, allow_private=settings.network.allow_private):
        say(line)
    starts = facts is not None and facts.starts and not wanted.urls and source is None
    urls = wanted.urls or (facts.start_urls if facts is not None and source is None and not starts else ())
    name = wanted.job or _default_name(wanted, facts, source, urls)
    if not urls and source is None and not starts and not wanted.job:
        raise Misconfigured("nothing to crawl: give a URL\nSee `crawlog submit --help`.")
    with ExitStack() as stack:
        if urls and source is None:
            source = stack.enter_context(_source(urls, wanted.priority))
        sowing = _Sowing(settings, wanted, _job_spider(wanted, facts, starts=starts), source, say)
        return _view(sowing.sow(name, code, by or whoever()))


def _notes(facts: "SpiderFacts") -> Iterator[str]:
    """What is said of a spider before its job is written."""
    yield from facts.notes
    if others := of_workers(facts.settings):
        yield f"the spider sets {', '.join(others)}: of workers, which run already, so it has no effect here"


def _default_name(
    wanted: Submission, facts: "SpiderFacts | None", source: "Source | None", urls: tuple[str, ...]
) -> str:
    """The name of the job that `run` gives it, too."""
    spider = Path(facts.path).name if facts is not None else ""
    if wanted.project:
        spider = f"{wanted.project}:{wanted.spider}"
    if source is None:
        return job_name(urls, spider, wanted.args.items())
    lines = (line.decode(errors="replace").strip() for _, part in source.parts() for line in part)
    return job_name(filter(None, lines), spider, wanted.args.items())


def _job_spider(wanted: Submission, facts: "SpiderFacts | None", *, starts: bool) -> "JobSpider":
    from crawlog.streams.job_spec import JobSpider

    if facts is None:
        return JobSpider()
    return _spider_of(wanted, facts.path)._replace(starts=starts, pipelines=facts.has_pipelines)


def _spider_of(wanted: Submission, path: str) -> "JobSpider":
    from crawlog.streams.job_spec import JobSpider

    return JobSpider(path, tuple(sorted(wanted.args.items())), wanted.scrapy)


def _code(settings: "Settings", wanted: Submission, named: "NamedSpider | None") -> "CodeRef | None":
    """The deployed code of the submission's spider; None for the default spider, and for this machine's files."""
    from crawlog.commands.projects import list_spiders, resolve

    if named is not None:
        return None
    if wanted.project:
        code = resolve(settings, wanted.project, wanted.version or None)
        known = list_spiders(settings, wanted.project, code.version)
        if wanted.spider not in known:
            has = ", ".join(known[:20]) or "none"
            raise Misconfigured(f"the project {wanted.project} has no spider {wanted.spider!r:.120}; it has {has}")
        return code
    if wanted.spider:
        raise Misconfigured(
            f"--spider {wanted.spider!r:.200}: the workers of a fleet run deployed code only: `crawlog deploy` puts a"
            " project into the log, then `crawlog submit --project P --spider NAME`"
        )
    return None


def _deployed(settings: "Settings", wanted: Submission, code: "CodeRef | None") -> "SpiderFacts | None":
    """What a deployed spider says of itself in a child process; None for the default spider.

    Raises: Misconfigured: it cannot be loaded, or has settings that no job has.
    """
    from crawlog.commands.named_spider import facts_of
    from crawlog.schemas.urls import JobSpec
    from crawlog.streams.spiders import SpiderRef

    if code is None:
        return None
    spec = JobSpec(spider=wanted.spider, code=code)
    ref = SpiderRef(wanted.spider, tuple(sorted(wanted.args.items())), wanted.scrapy, spec=spec)
    facts = facts_of(ref, settings)
    if others := of_workers(facts.settings):
        raise Misconfigured(
            f"the spider {wanted.spider} sets {', '.join(others)}: of workers, not of a job, and deployed code may set"
            " what a job has. Take it out of the spider's settings; if it is wanted, give it to `crawlog up` or"
            " `crawlog worker`"
        )
    return msgspec.structs.replace(facts, path=wanted.spider)


def job_settings(settings: "Settings", wanted: Submission, facts: "SpiderFacts | None") -> "Settings":
    """The settings that the job's record is made of.

    Those that no job has are the submitter's: a spider that named another cluster would be sent its password.

    Raises: Misconfigured: a setting is unknown or has a wrong value.
    """
    from crawlog.streams.settings import NO_FILE, Sources, resolve, to_environ

    flags = {"run.depth": wanted.depth, "run.max_pages": wanted.max_pages}
    of_spider = facts.settings if facts is not None else {}
    others = of_workers(of_spider)
    return resolve(
        Sources(
            flags={key: value for key, value in flags.items() if value is not None},
            pairs=[f"{key}={text_of(value)}" for key, value in wanted.own.items()],
            spider={key: value for key, value in of_spider.items() if key not in others},
            config=NO_FILE,
            environ=to_environ(settings),
        )
    ).settings


class _Sowing:
    """The job's record and its seeds."""

    def __init__(
        self,
        settings: "Settings",
        wanted: Submission,
        spider: "JobSpider",
        source: "Source | None",
        say: Callable[[str], None],
    ) -> None:
        from crawlog.streams.cluster import log_end
        from crawlog.streams.log import CommandProducer, Topics

        self._settings = settings
        self._wanted = wanted
        self._spider = spider
        self._source = source
        self._say = say
        self._producer = CommandProducer(settings, "crawlog-submit", say=say)
        self._topics = Topics(settings.kafka.prefix)
        self._since = log_end(settings, self._topics.control)

    @property
    def _has_requests(self) -> bool:
        return self._source is not None or self._spider.starts

    def sow(self, name: str, code: "CodeRef | None", by: str) -> JobCopy:
        """Writes the record, then the seeds; returns the record as it is then."""
        from crawlog.agents.seed import plant
        from crawlog.streams.control import settled_control

        control = settled_control(self._settings, self._producer, self._topics)
        copy = control.job(name)
        spec = self._spec(code, by)
        is_known = copy is not None and copy.spec.state != "deleted"
        if copy is None or not is_known:
            copy = self._create(name, spec, control, _next_epoch(copy))
        if is_known or copy.spec != spec:
            copy = self._go_on(copy, spec, control)
        if self._source is not None and copy.spec.state != "cancelled":
            plant(
                self._settings,
                self._producer,
                name,
                self._source,
                spider=self._spider,
                report=self._say,
                priority=self._wanted.priority,
                begun=copy,
            )
        return copy

    def fail(self, name: str, code: "CodeRef", by: str, why: str) -> JobCopy:
        """Writes the record of a job that has failed already, and why into its log.

        Raises: Misconfigured: there is a job of that name.
        """
        from crawlog.streams.control import create_job, known_job

        known = known_job(self._settings, self._topics, name)
        if known is not None and known.spec.state != "deleted":
            raise _taken(name)
        spec = msgspec.structs.replace(self._spec(code, by), state="failed", reason=BROKEN)
        epoch = _next_epoch(known)
        line = LogLine(time.time(), why[:MAX_LINE], "error", BROKEN)
        told = log_lines.encode(LogLines(name, platform.node(), "submit", (line,), epoch))
        self._producer.send(self._topics.logs, told, key=name.encode(), partition=0)
        copy = create_job(self._settings, self._producer, self._topics, name, spec, epoch, self._since)
        if copy.spec != spec:
            raise _taken(name)
        return copy

    def _spec(self, code: "CodeRef | None", by: str) -> "JobSpec":
        from crawlog.agents.seed import MAX_NAMES, scope_names
        from crawlog.streams.job_spec import resolve_spec

        kind, now = self._settings.scope.kind, time.time()
        names = sorted(scope_names(self._source, kind))[:MAX_NAMES] if self._source is not None else ()
        return msgspec.structs.replace(
            resolve_spec(self._settings, self._spider, names),
            outputs=outputs_of(self._settings, self._wanted.outputs, pipelines=self._spider.pipelines),
            items=self._items(),
            state="paused" if self._wanted.paused else "running",
            code=code,
            priority=self._wanted.priority if self._source is None else 0,
            by=by,
            at=now,
            changed_at=now,
        )

    def _items(self) -> tuple[int, ...]:
        """The ends of crawl.items: the job's rows come behind them."""
        from crawlog.streams.cluster import log_bounds
        from crawlog.streams.log import partition_count

        numbers = list(range(partition_count(self._settings)))
        bounds = log_bounds(self._settings, self._topics.items, numbers)
        return tuple(bounds[number][1] for number in numbers)

    def _create(self, name: str, spec: "JobSpec", control: "ControlState", epoch: int) -> JobCopy:
        """The record of the job; another one than `spec` if another command created it first."""
        from crawlog.streams.control import create_job, end_closing

        if not self._has_requests:
            raise Misconfigured(f"there is no job {name} in the log; give the URLs that it starts with.")
        end_closing(self._producer, self._topics, control, name)
        return create_job(self._settings, self._producer, self._topics, name, spec, epoch, self._since)

    def _go_on(self, known: JobCopy, spec: "JobSpec", control: "ControlState") -> JobCopy:
        """Lets a known job begin again (`fresh`), or go on as it is or with a larger limit of pages.

        Raises:
            InvalidState: it is not the same job, or it is cancelled, or is to wait and does not.
            Misconfigured: `fresh` without URLs.
            OrderRefused, NotAnswered: the limit could not be changed.
        """
        name = known.job
        if self._wanted.is_new:
            raise _taken(name)
        if self._wanted.fresh:
            return self._begin_again(known, spec, control)
        if known.spec.state == "cancelled":
            raise InvalidState(f"job {name} is cancelled for good; --fresh begins it again, --job gives another name")
        larger = grown(known.spec, spec)
        self._check_same(name, larger, spec)
        if larger != known.spec:
            known = self._change(known, larger, spec.by)
        known = self._want_again(known, control)
        if traits(known.spec.state).waits:
            self._say(f"job {name} is {known.spec.state}: its URLs wait; {way_on(known)} lets it go on")
        return known

    def _check_same(self, name: str, known: "JobSpec", spec: "JobSpec") -> None:
        """Raises: InvalidState: it is not the same job, or is to wait and does not."""
        if others := differences(known, spec, self._wanted if not self._has_requests else None):
            raise InvalidState(
                f"job {name} is there already, with other {', '.join(others)}: --job gives another name,"
                " --fresh begins it again with these"
            )
        if self._wanted.paused and not traits(known.state).waits:
            raise InvalidState(
                f"job {name} is there already, and {known.state}: --paused does not hold it, so no URL waits."
                f" `crawlog jobs pause {name}` holds one that runs, --fresh begins it again"
            )

    def _want_again(self, known: JobCopy, control: "ControlState") -> JobCopy:
        """Has the outputs of an ended job looked at, which may be lost, and a `start` that failed begin again."""
        from crawlog.streams.control import apply_change, forget_failed_start, write_control

        if traits(known.spec.state).ended:
            notes = [OutputNote(known.job, one.name, time.time(), known.epoch) for one in known.spec.outputs]
            write_control(self._producer, self._topics, notes)
        if forget_failed_start(self._producer, self._topics, control, known):
            self._say(f"the `start` of job {known.job} ended with an error: it begins again")
            if known.spec.state == "finished":
                parts = self._settings, self._producer, self._topics
                known = apply_change(*parts, known, state="running", reason="its `start` begins again")
        return known

    def _begin_again(self, known: JobCopy, spec: "JobSpec", control: "ControlState") -> JobCopy:
        from crawlog.streams.control import end_closing, read_control, rewind_job

        name = known.job
        if not self._has_requests:
            raise Misconfigured(f"--fresh: give the URLs that job {name} begins with")
        fresh = msgspec.structs.replace(spec, rev=known.spec.rev + 1)
        was_closed = end_closing(self._producer, self._topics, control, name)
        copy = rewind_job(self._settings, self._producer, self._topics, name, fresh, known.epoch + 1)
        if was_closed:  # a page of the former epoch may have closed the job before its worker heard of the new one
            end_closing(self._producer, self._topics, read_control(self._settings, self._topics), name)
        return copy

    def _change(self, known: JobCopy, spec: "JobSpec", by: str) -> JobCopy:
        """Gives a job what `grown` adds; one that was stopped at a lower limit of pages runs."""
        from crawlog.streams.control import apply_change

        was_full = is_full(known.spec) and spec.max_pages != known.spec.max_pages
        return apply_change(
            self._settings,
            self._producer,
            self._topics,
            known,
            state="running" if was_full else None,
            spec=spec,
            reason="" if was_full else spec.reason,
            by=by,
        )


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


def _next_epoch(known: JobCopy | None) -> int:
    """A new job with the name of a deleted one has a later epoch."""
    return known.epoch + 1 if known is not None else 0


def _taken(name: str) -> InvalidState:
    return InvalidState(f"job {name} is there already: `crawlog jobs show {name}`; --job gives another name")


def _source(urls: tuple[str, ...], priority: int) -> "Source":
    """Seeds of these URLs, as JSON lines: an argument might name a file of this machine."""
    from crawlog.agents.seed import Source

    lines = "".join(json.dumps({"url": url, "priority": priority}) + "\n" for url in urls)
    return Source(["-"], io.BytesIO(lines.encode()))


def _view(copy: JobCopy) -> "JobView":
    from crawlog.schemas.control import key
    from crawlog.streams.fleet import FleetState

    state = FleetState()
    state.hear(key(copy), copy)
    found = state.job(copy.job)
    assert found is not None
    return found
