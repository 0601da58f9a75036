"""`crawlog shell`, `fetch`, `parse`, `init` and `genspider`: trying things, and beginning."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from crawlog import outcome
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, tell

from .options import settings_of, settings_options
from .reach import existing_log

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings
    from crawlog.streams.spiders import StoredPage

stored_option = click.option("--stored", is_flag=True, help="The newest page of the URL in the log; asks nobody.")
job_option = click.option("--job", metavar="NAME", help="With --stored: only pages of this job.")


def _page(settings: "Settings", url: str, stored: bool, job: str | None, **how: Any) -> "StoredPage":
    """The page of a URL: from the web, from the log, or from a file of `fetch --save`."""
    from crawlog.commands import one_page
    from crawlog.streams.spiders import read_page

    from . import arguments

    if not stored and Path(url).is_file():
        try:
            return read_page(Path(url))
        except ValueError as error:
            raise Misconfigured(str(error)) from None
    (plain,), logins = arguments.logins_apart(arguments.checked_urls([url]))
    if stored:
        with existing_log(settings) as reached:
            return one_page.stored_page(reached, plain, job or "", tell)
    return one_page.fetched_page(settings.with_logins(logins) if logins else settings, plain, **how)


@click.command()
@click.argument("url")
@stored_option
@job_option
@click.option("--headers", is_flag=True, help="Print the response's headers instead of its body.")
@click.option("--no-redirect", is_flag=True, help="Stay at the first answer.")
@click.option("--save", metavar="FILE", type=click.Path(path_type=Path), help="Write the page for tests (try_page).")
@settings_options
def fetch(
    url: str, stored: bool, job: str | None, headers: bool, no_redirect: bool, save: Path | None, **given: Any
) -> int:
    """Ask for one page, as a crawl would, and print its body; nothing is written to the log."""
    page = _page(settings_of(given), url, stored, job, redirects=not no_redirect)
    meta = page.meta
    status = meta.http if meta.http is not None else "no answer"
    tell(f"{status} {meta.url}" + (f"  {meta.error}" if meta.error else "") + f"  {len(page.body):,} bytes")
    if save is not None:
        save.write_bytes(page.as_file())
        tell(f"saved as {save}")
    elif headers:
        answer(*(f"{name}: {value}" for name, value in meta.headers))
    elif sys.stdout.isatty():
        answer(*page.body.decode("utf-8", "replace").splitlines())
    else:
        sys.stdout.buffer.write(page.body)
        sys.stdout.buffer.flush()
    return outcome.FINISHED if meta.http is not None and meta.http < 400 else outcome.NOTHING_FETCHED


@click.command()
@click.argument("url", metavar="URL|FILE")
@click.option("--spider", metavar="SPIDER", required=True, help="FILE.py[:Class], or what `crawlog run` takes.")
@click.option("-c", "--callback", metavar="METHOD", default="", help="The method that gets the page (parse).")
@click.option("--cb-kwargs", metavar="JSON", default="", help="Its further arguments: a JSON object.")
@click.option("-a", "args", metavar="NAME=VALUE", multiple=True, help="Argument of the spider; may be repeated.")
@stored_option
@job_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options
def parse(
    url: str,
    spider: str,
    callback: str,
    cb_kwargs: str,
    args: tuple[str, ...],
    stored: bool,
    job: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Show the items and requests that a spider makes of one page; nothing is written.

    Example: crawlog parse --spider shop.py -c parse_item https://shop.example/item/1
    """
    import msgspec

    from crawlog.commands.one_page import parsed_page, unlike_a_crawl

    from . import arguments, questions_text
    from .options import scrapy_apart

    given, scrapy = scrapy_apart(given)
    named = arguments.spider(spider, args, scrapy, lambda: settings_of(given))
    if named is None:
        raise Misconfigured("--spider: name a spider")
    settings = settings_of(given, spider=named.facts.settings)
    page = _page(settings, url, stored, job)
    result = parsed_page(settings, named, page, callback, cb_kwargs)
    answer(*([msgspec.json.encode(result).decode()] if as_json else questions_text.tried_lines(result)))
    tell(*unlike_a_crawl(settings, named, page), *questions_text.faults(result))
    return outcome.DEAD_LETTERS if result.error else outcome.FINISHED


@click.command()
@click.argument("url", metavar="[URL|FILE]", required=False)
@stored_option
@job_option
@click.option("-c", "line", metavar="CODE", help="Print the value of this, and end: -c 'response.css(\"h1\")'.")
@settings_options
def shell(url: str | None, stored: bool, job: str | None, line: str | None, **given: Any) -> int:
    """Open a Python prompt with the response of a page: selectors, follow, fetch; IPython where it is installed."""
    from functools import partial

    from crawlog.commands.one_page import Shell, fetched_page

    settings = settings_of(given)
    page = _page(settings, url, stored, job) if url else None
    opened = Shell(page, partial(fetched_page, settings))
    if line is None:
        opened.prompt()
    else:
        answer(*opened.run(line).splitlines())
    return outcome.FINISHED


@click.command()
@click.argument("name")
def init(name: str) -> int:
    """Make a folder for spiders: settings, a place for tests, and how to go on."""
    from crawlog.commands.new_spider import new_project

    for path in new_project(Path(name)):
        answer(str(path))
    tell(f"next: `cd {name}`, then `crawlog genspider NAME DOMAIN`")
    return outcome.FINISHED


@click.command()
@click.argument("name")
@click.argument("domain")
@click.option("-t", "--template", metavar="NAME", default="basic", help="basic, rules, sitemap, login, api, pyspider.")
def genspider(name: str, domain: str, template: str) -> int:
    """Write a spider to begin with, and a test that runs it on a stored page."""
    from crawlog.commands.new_spider import new_spider

    spider, test = new_spider(Path.cwd(), name, domain, template)
    answer(str(spider), str(test))
    tell(f"next: `crawlog run --spider {spider} -o {spider.stem}.jsonl --max-pages 20`")
    return outcome.FINISHED
