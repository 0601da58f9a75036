"""`crawlog submit`: writes a job and its seeds to a running log, whose workers crawl it, and returns.

    JobRequest ─► its spider's facts ─► the job's settings: -s > spider > base ─► Wanted ─► JobWriter ─► JobView

The HTTP service calls `submit` too, so nothing of a user's code runs here: a child process tells about the spider.
"""

import io
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.commands.control import whoever
from crawlog.schemas import log_lines
from crawlog.schemas.control import JobCopy, key
from crawlog.schemas.log_lines import MAX_LINE, LogLine, LogLines
from crawlog.streams.cluster import log_end
from crawlog.streams.control import create_job, known_job
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fleet import FleetState, JobView
from crawlog.streams.job_spec import NO_SPIDER, JobSpider
from crawlog.streams.log import CommandProducer, Producer, Topics, ensure_topics
from crawlog.streams.printable import without_secrets
from crawlog.streams.settings import NO_FILE, Settings, Sources, resolve, to_environ
from crawlog.streams.sink import sink_class
from crawlog.streams.sink_groups import ARCHIVE

from .record import BROKEN, Wanted, plan, taken
from .request import NO_PARTS, JobRequest, LocalParts, checked, job_name, of_workers, refused, text_of
from .writer import JobWriter

if TYPE_CHECKING:
    from crawlog.schemas.job_orders import CodeRef, FeedOutput
    from crawlog.streams.spiders import SpiderFacts


def submit(
    settings: "Settings",
    request: JobRequest,
    by: str = "",
    *,
    parts: LocalParts = NO_PARTS,
    say: Callable[[str], None] = lambda _: None,
    keeps_broken: bool = False,
) -> "JobView":
    """Submits a job to the fleet of a log.

    Args:
        settings: With the log's address. The request's own settings and those of its spider are stronger.
        by: Who submits it, for people.
        parts: Only a command of this machine can read its files, and only if the job's workers may run its spider.
        say: Takes lines for the user.
        keeps_broken: Whether a deployed spider that cannot be made is a job that failed, with the error in its log.

    Raises: Misconfigured: the request is invalid, or does not fit the job of that name.
    """
    checked(request)
    ensure_topics(settings, say)
    by = by or whoever()
    code = code_of(settings, request) if parts.facts is None else None
    try:
        facts = parts.facts or deployed_facts(settings, request, code)
    except Misconfigured as error:
        if not keeps_broken or code is None:
            raise
        spider = JobSpider(request.spider, tuple(sorted(request.args.items())), request.scrapy)
        return _view(_fail(settings, Wanted(request, request.job, spider, code=code, by=by), str(error)))
    settings = job_settings(settings, request, facts)
    for line in _notes(facts) if facts is not None else ():
        say(line)
    with ExitStack() as opened:
        wanted = wanted_of(settings, request, parts._replace(facts=facts), say, opened, code=code, by=by)
        given = (*wanted.urls, *(one.url for one in request.requests))
        for line in refused(given, allow_private=settings.network.allow_private):
            say(line)
        if not wanted.has_requests and not request.job:
            raise Misconfigured("nothing to crawl: give a URL\nSee `crawlog submit --help`.")
        writer = JobWriter(_Log(settings, CommandProducer(settings, "crawlog-submit", say=say)), wanted, say)
        writer.recall()
        return _view(writer.write())


class _Log(NamedTuple):
    settings: "Settings"
    producer: "Producer"


def wanted_of(  # noqa: PLR0913  # what is asked for, and what decides about it
    settings: "Settings",
    request: JobRequest,
    parts: LocalParts,
    say: Callable[[str], None],
    opened: ExitStack,
    *,
    code: "CodeRef | None" = None,
    by: str = "",
    may_change: bool = False,
) -> Wanted:
    """The requested job with its seeds and its name.

    Args:
        say: Called from another thread about a pipe that stays open.
        opened: Closes the files of the seeds.
        code, by, may_change: As in `Wanted`.
    """
    from crawlog.agents.seed import Seed, Source, collect

    seeds, facts = parts
    has_urls = bool(request.urls or request.requests or seeds or request.feed)
    starts = facts is not None and facts.starts and not has_urls
    urls = facts.start_urls if facts is not None and not has_urls and not starts else request.urls
    lines = [msgspec.json.encode(one) for one in (*map(Seed, urls), *request.requests)]
    source = None
    if seeds:
        source = Source(seeds, collect=lambda url: collect(settings, url, say), say=say)
    elif lines:  # as JSON: an argument might name a file of this machine
        source = Source(["-"], io.BytesIO(b"\n".join(lines)))
    if source is not None:
        opened.enter_context(source)
    args, spider = tuple(sorted(request.args.items())), NO_SPIDER
    if facts is not None:
        of_start = (facts.is_fed, facts.every) if starts else ()
        spider = JobSpider(facts.path, args, request.scrapy, starts, facts.has_pipelines, *of_start)
    name = request.job
    if not name:
        called = f"{request.project}:{request.spider}" if request.project else Path(spider.path).name
        named: Iterable[str] = seeds or (*urls, *(line.decode() for line in lines[len(urls) :]))
        if source is not None and not all("://" in one for one in named):  # there is a file among them
            texts = (line.decode(errors="replace").strip() for _, part in source.parts() for line in part)
            named = filter(None, texts)
        name = job_name((*named, *request.feed), called, args)
    digest = facts.digest if facts is not None else ""
    wanted = Wanted(request, name, spider, urls, source, code, digest, by, may_change)
    if facts is not None:
        wanted.feeds = tuple(_usable(facts, request, say, of_fleet=not may_change))
        wanted.layout = facts.layout
    return wanted


def _usable(
    facts: "SpiderFacts", request: JobRequest, say: Callable[[str], None], *, of_fleet: bool
) -> "Iterator[FeedOutput]":
    """The feeds that can be outputs; `say` takes lines about the others. A fleet has names of files alone."""
    names = set[str]()
    for feed in facts.feeds:
        name = Path(feed.output).name if of_fleet else feed.output
        try:
            if request.outputs:
                raise Misconfigured("the command has -o")
            if of_fleet and ("://" in feed.output or Path(feed.output).is_absolute() or name in names):
                raise Misconfigured(
                    "files of a fleet lie in its own folder, each under its own name; declare it in [sink] outputs, and"
                    " name it with -o"
                )
            names.add(name)
            sink_class(name, feed.layout.format)
        except Misconfigured as error:
            say(f"FEEDS: {without_secrets(feed.output)} is not written: {error}")
        else:
            yield msgspec.structs.replace(feed, output=name)


def _fail(settings: "Settings", wanted: Wanted, why: str) -> JobCopy:
    """Writes the record of a new job that has failed already, and why into its log.

    Raises: InvalidState: there is a job of that name.
    """
    topics, producer = Topics(settings.kafka.prefix), CommandProducer(settings, "crawlog-submit")
    since = log_end(settings, topics.control)
    known = known_job(settings, topics, wanted.name)
    step, copy = plan(wanted, wanted.spec(settings, known, lambda _: None), known, is_done=False)
    if step != "create":
        raise taken(wanted.name)
    spec = msgspec.structs.replace(copy.spec, state="failed", reason=BROKEN)
    line = LogLine(time.time(), why[:MAX_LINE], "error", BROKEN)
    lines = log_lines.encode(LogLines(wanted.name, platform.node(), "submit", (line,), copy.epoch))
    producer.send(topics.logs, lines, key=wanted.name.encode(), partition=0)
    made = create_job(settings, producer, topics, wanted.name, spec, copy.epoch, since)
    if made.spec != spec:
        raise taken(wanted.name)
    return made


def _notes(facts: "SpiderFacts") -> Iterator[str]:
    """Lines about a spider, shown before its job is written."""
    yield from facts.notes
    if others := of_workers(facts.settings):
        yield f"the spider sets {', '.join(others)}: of workers, which run already, so it has no effect here"


def code_of(settings: "Settings", wanted: JobRequest) -> "CodeRef | None":
    """The deployed code of the request's spider; None for the default spider."""
    from crawlog.commands.projects import list_spiders, resolve

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


def deployed_facts(settings: "Settings", wanted: JobRequest, code: "CodeRef | None") -> "SpiderFacts | None":
    """The facts of a deployed spider, which a child process loads; None for the default spider.

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


def job_settings(settings: "Settings", wanted: JobRequest, facts: "SpiderFacts | None") -> "Settings":
    """The settings that the job's record is made of.

    Those that no job has are the submitter's: a spider that named another cluster would be sent its password.

    Raises: Misconfigured: a setting is unknown or has a wrong value.
    """
    flags = {"run.depth": wanted.depth, "run.max_pages": wanted.max_pages}
    of_spider = facts.settings if facts is not None else {}
    others = of_workers(of_spider)
    own = [f"{key}={text_of(value)}" for key, value in wanted.own.items()]
    if any(settings.sink.outputs.get(name, "").startswith(ARCHIVE) for name in wanted.outputs):
        own.append("pages.headers=full")
    return resolve(
        Sources(
            flags={key: value for key, value in flags.items() if value is not None},
            pairs=own,
            spider={key: value for key, value in of_spider.items() if key not in others},
            config=NO_FILE,
            environ=to_environ(settings),
        )
    ).settings


def _view(copy: JobCopy) -> "JobView":
    state = FleetState()
    state.hear(key(copy), copy)
    found = state.job(copy.job)
    assert found is not None
    return found
