"""`crawlog run` and `seed`: the commands that take URLs to crawl."""

import json
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from crawlog import outcome
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, tell

from .options import ON_FINISH, accept_skipped, settings_of, settings_options
from .reach import login_of, reachable_log, while_up

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


@click.command()
@click.argument("urls", nargs=-1, metavar="URL|sitemap:URL…")
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    multiple=True,
    help="Results: .jsonl, .json, .csv, each .gz or .zst; .xlsx, .parquet; or -. Repeatable.",
)
@click.option("--depth", metavar="N", type=click.IntRange(0), help="Deepest link taken, counted from the seeds.")
@click.option("--max-pages", metavar="N", type=click.IntRange(1), help="End after about this many pages.")
@click.option("--workers", metavar="auto|fetch=F,parse=P", help="Worker processes per stage (auto: by the cores).")
@click.option(
    "--seeds",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="More URLs: one a line, JSON lines or a sitemap; - is stdin.",
)
@click.option(
    "--spider",
    metavar="SPIDER",
    help="FILE.py[:Class], pkg.module:Class, or NAME in a Scrapy project; without one every link in scope is followed.",
)
@click.option("-a", "args", metavar="NAME=VALUE", multiple=True, help="Argument of the spider. Repeatable.")
@click.option("--job", metavar="NAME", help="Name of the job; without it a hash of seeds and spider.")
@click.option("--fresh", is_flag=True, help="Begin the job again from its seeds, in a new epoch.")
@click.option("--on-finish", metavar="URL|NAME", multiple=True, help=ON_FINISH)
@accept_skipped
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@settings_options
def run(
    urls: tuple[str, ...],
    outputs: tuple[str, ...],
    depth: int | None,
    max_pages: int | None,
    workers: str | None,
    seeds: Path | None,
    spider: str | None,
    args: tuple[str, ...],
    job: str | None,
    fresh: bool,
    on_finish: tuple[str, ...],
    accepts_skipped: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Crawl until finished. The same command again goes on where the crawl was.

    Example: crawlog run https://example.com --depth 2 -o pages.jsonl
    """
    from crawlog.processes.folder import prepare

    from . import arguments
    from .options import scrapy_apart

    flags: dict[str, object] = {"run.depth": depth, "run.max_pages": max_pages}
    if workers is None and _is_for_fleet(given):
        if accepts_skipped:
            raise Misconfigured("--accept-skipped: workers run. Stop them, then `crawlog up --accept-skipped`.")
        of_job: dict[str, Any] = {
            "on_finish": on_finish,
            "urls": urls,
            "seeds": seeds,
            "spider": spider,
            "args": args,
            "job": job,
            "fresh": fresh,
        }
        return _joined(given | of_job | {"depth": depth, "max_pages": max_pages}, outputs, as_json=as_json)
    given, scrapy = scrapy_apart(given)
    flags |= arguments.worker_counts(workers) if workers else {}
    named = arguments.spider(spider, args, scrapy, lambda: settings_of(given, flags))
    settings = settings_of(given, flags, named.facts.settings if named else None)
    settings, request, parts = arguments.requested(
        settings, urls, seeds_file=seeds, outputs=outputs, spider=named, job=job, fresh=fresh, on_finish=on_finish
    )
    prepare(settings.run.data)
    from crawlog.jobs import run as command
    from crawlog.jobs.live import view

    from . import summary_text

    shown = view()
    summary = command.run(settings, request, parts, shown, accepts_skipped=accepts_skipped)
    for line in summary_text.lines(summary):
        shown.say(line)
    if as_json:
        answer(summary_text.as_json(summary))
    return summary_text.exit_code(summary)


def _is_for_fleet(given: dict[str, Any]) -> bool:
    """Whether workers run already that take the job."""
    from crawlog.jobs.joined import has_fleet

    from .options import scrapy_apart

    return has_fleet(settings_of(scrapy_apart(given)[0]))


def _joined(given: dict[str, Any], outputs: tuple[str, ...], *, as_json: bool) -> int:
    """Gives the job to the fleet that runs already, and follows it.

    Args:
        given: The values of the options of `run`.
    """
    from crawlog.streams.sink_groups import ARCHIVE

    from . import arguments
    from .jobs import followed, submitted

    began = time.time()
    for output in outputs:
        arguments.result_output(output)
    if any(output.startswith(ARCHIVE) for output in outputs):
        given["pairs"] = (*given["pairs"], "pages.headers=full")
    of_submit = {"project": "", "version": "", "outputs": (), "priority": None, "paused": False}
    of_submit |= {"after": (), "after_any": False, "group": "", "feed": (), "on_finish": ()}
    settings, view, before = submitted(given | of_submit, is_followed=True, is_run=True, has_outputs=bool(outputs))
    return followed(settings, view, before, as_json=as_json, outputs=outputs, began=began, on_finish=given["on_finish"])


@click.command()
@click.argument("sources", nargs=-1, metavar="FILE|-|URL|sitemap:URL…")
@click.option("--from-log", metavar="PREFIX", help="Give the job all seeds that it has in the log of this prefix.")
@click.option("--job", metavar="NAME", required=True, help="Job that the URLs belong to, new or known.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@settings_options
def seed(sources: tuple[str, ...], from_log: str | None, job: str, as_json: bool, **given: Any) -> int:
    """Produce URLs to crawl.urls: from text, JSON lines or a sitemap (gzipped too), standard input, or named here."""
    from . import arguments

    settings = settings_of(given)
    arguments.job_name(job)
    arguments.seeds(sources, from_log)
    arguments.seed_settings(given["pairs"], sources)
    from crawlog.agents.seed import Source, collect, old_seeds, plant
    from crawlog.streams.control import known_job
    from crawlog.streams.fleet import ProgressReader
    from crawlog.streams.job_spec import said_rules
    from crawlog.streams.jobs import FleetReports
    from crawlog.streams.log import CommandProducer, Topics, ensure_topics

    with ExitStack() as stack:
        source = stack.enter_context(Source(sources, collect=lambda url: collect(settings, url, tell), say=tell))
        reached = stack.enter_context(reachable_log(settings))
        if from_log:
            source = Source([str(stack.enter_context(old_seeds(reached, from_log, job)).path)])
        ensure_topics(reached, tell)
        began = time.monotonic()
        login = login_of(settings, reached)
        with closing(ProgressReader(reached, FleetReports(), login)) as watch:
            producer = CommandProducer(reached, "crawlog-seed", login=login, say=tell)
            said, look = said_rules(reached), while_up(settings, reached, watch.folds)
            known = known_job(reached, Topics(reached.kafka.prefix), job)
            seeded = plant(reached, producer, job, source, requests=said, report=tell, look=look)
            _tell_refused(reached, job, [source for source in sources if source.startswith(("http:", "https:"))])
        took_s = time.monotonic() - began
    if as_json:
        answer(json.dumps({"job": job, "urls": seeded.count, "bad": seeded.bad, "took_s": round(took_s, 3)}))
    else:
        bad = f", {outcome.counted(seeded.bad, 'line')} without a URL" if seeded.bad else ""
        answer(f"{outcome.counted(seeded.count, 'URL')} in job {job}, acknowledged in {took_s:.1f} s{bad}")
        if known is not None and known.spec.state != "deleted":
            tell(f"those that the job knew are not asked for again; `crawlog recrawl --job {job}` does that")
    return outcome.FINISHED


def _tell_refused(settings: "Settings", job: str, seeds: list[str]) -> None:
    """Names the seeds that the job's record refuses by their host names alone."""
    from crawlog.jobs.request import refused
    from crawlog.streams.control import known_job
    from crawlog.streams.log import Topics

    if lines := refused(seeds, allow_private=False):
        copy = known_job(settings, Topics(settings.kafka.prefix), job)
        if copy is not None and copy.spec.requests is not None and copy.spec.requests.allow_private is False:
            tell(*lines)
