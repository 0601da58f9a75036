"""`crawlog why`, `pages`, `doctor`, `settings` and `probe`: commands that change nothing."""

import json
import sys
import time
from typing import Any

import rich_click as click

from crawlog import outcome
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, hinted, table, tell

from .options import CommandGroup, scrapy_apart, settings_of, settings_options, sources_of
from .reach import existing_log


@click.command()
@click.argument("url")
@click.option("--at", metavar="TIME", help="As of then: 2026-11-21T10:30:00 (UTC), or epoch seconds.")
@click.option("--job", metavar="NAME", help="Only what happened in this job.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options
def why(url: str, at: str | None, job: str | None, as_json: bool, **given: Any) -> int:
    """Tell the life of one URL from the log: where found, why dropped or refused, each attempt, page and row."""
    from . import arguments

    settings = settings_of(given)
    (url,), _ = arguments.logins_apart(arguments.checked_urls([url]))
    if job is not None:
        arguments.job_name(job)
    import msgspec

    from crawlog.commands.why import moment
    from crawlog.commands.why import why as told

    from . import questions_text

    until = moment(at, time.time()) if at else None
    with existing_log(settings) as reached:
        story = told(reached, url, until, job or "", tell)
    answer(*(questions_text.story_lines(story) if not as_json else [msgspec.json.encode(story).decode()]))
    return outcome.FINISHED


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a finding.")
@settings_options
def doctor(as_json: bool, **given: Any) -> int:
    """Check this machine and the cluster; each finding has its advice."""
    from crawlog.commands.doctor import examine

    findings = examine(settings_of(given))
    for finding in findings:
        if as_json:
            answer(json.dumps(finding._asdict()))
            continue
        answer(hinted(f"{finding.status:4}  {finding.check:13}  {finding.found}"))
        if finding.advice:
            answer(hinted(f"      {'':13}  → {finding.advice}"))
    return outcome.ENGINE if any(finding.status == "fail" for finding in findings) else outcome.FINISHED


@click.command()
@click.option("--origins", "with_origins", is_flag=True, help="Show who set each value.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a setting.")
@click.option("--markdown", is_flag=True, help="Print the reference of all settings.")
@click.option("--spider", metavar="SPIDER", help="With those of a spider; of Scrapy's, what became of each is told.")
@click.option("-a", "args", metavar="NAME=VALUE", multiple=True, help="Argument of the spider; may be repeated.")
@settings_options
def settings(
    with_origins: bool, as_json: bool, markdown: bool, spider: str | None, args: tuple[str, ...], **given: Any
) -> int:
    """Show every setting as it is in force."""
    import msgspec

    from crawlog.commands.named_spider import scrapy_origins
    from crawlog.streams.settings import as_markdown, origins, shown

    from . import arguments

    if markdown:
        answer(*as_markdown().splitlines())
        return outcome.FINISHED
    given, scrapy = scrapy_apart(given)
    named = arguments.spider(spider, args, scrapy, lambda: settings_of(given))
    found = origins(sources_of(given, spider=named.facts.settings if named else None))
    of_scrapy = scrapy_origins(named, settings_of(given)) if named and with_origins else []
    if as_json:
        told = ({"key": one.key, "value": one.value, "origin": one.origin} for one in found)
        answer(*(json.dumps(one, default=str) for one in told))
        answer(*(msgspec.json.encode(one).decode() for one in of_scrapy))
        return outcome.FINISHED
    answer(*table([(one.key, shown(one.value), one.origin if with_origins else "") for one in found]))
    if of_scrapy:
        answer("", *table([(one.name, one.value, one.origin, f"{one.effect}: {one.what}") for one in of_scrapy]))
    return outcome.FINISHED


@click.command()
@click.argument("kind")
def probe(kind: str) -> int:
    """Ask the pure core: JSON lines in, JSON lines out, one answer a line, in order; no broker."""
    from crawlog.commands.probe import KINDS
    from crawlog.commands.probe import run as ask

    if kind not in KINDS:
        raise Misconfigured(f"no probe kind {kind!r}; there are: {', '.join(KINDS)}")
    return ask(kind, sys.stdin.buffer, sys.stdout.buffer)


@click.group(cls=CommandGroup)
def pages() -> None:
    """Stored pages."""


@pages.command("cat")
@click.argument("place", metavar="PARTITION:OFFSET")
@click.option("--headers", is_flag=True, help="What the log knows of the page, as JSON, without the body.")
@click.option("--text", is_flag=True, help="The body as text, decoded by its encoding.")
@settings_options
def pages_cat(place: str, headers: bool, text: bool, **given: Any) -> int:
    """Write a stored page to standard output: its body, as it was after decompression.

    `crawlog why URL` names the place of a page.
    """
    import msgspec

    from crawlog.commands.one_page import body_of, place_of, stored_at, text_of
    from crawlog.streams.redaction import shown_page

    if headers and text:
        raise Misconfigured("crawlog pages cat: --headers or --text, not both")
    partition, offset = place_of(place)
    with existing_log(settings_of(given)) as reached:
        page = stored_at(reached, partition, offset)
    if headers:
        answer(msgspec.json.encode(shown_page(page.meta)).decode())
    elif text or sys.stdout.isatty():
        answer(*text_of(page).splitlines())
    else:
        sys.stdout.buffer.write(body_of(page))
    return outcome.FINISHED
