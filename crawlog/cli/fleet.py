"""`crawlog workers` and `pages`: the processes of a fleet, and what it has stored."""

import sys
from typing import Any

import rich_click as click

from crawlog import outcome
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, tell

from .options import CommandGroup, settings_of, settings_options
from .reach import existing_log, fleet_log


@click.command()
@click.argument("action", type=click.Choice(("list", "drain", "stop")), default="list", metavar="[ACTION]")
@click.argument("name", default="", metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a worker.")
@settings_options
def workers(action: str, name: str, as_json: bool, **given: Any) -> int:
    """List the workers of all machines; drain or stop one, which hands its partitions over first.

    ACTION is one of list (the default), drain, stop. After `stop` a supervisor starts another process, after `drain`
    that of `crawlog up` does not.
    """
    import msgspec

    from crawlog.commands.control import list_workers, order_worker

    from . import fleet_text

    reached = fleet_log(settings_of(given))
    if action == "list":
        found = list_workers(reached)
        answer(*([msgspec.json.encode(one).decode() for one in found] if as_json else fleet_text.worker_lines(found)))
        return outcome.FINISHED
    if not name:
        raise Misconfigured(f"crawlog workers {action}: name the worker; `crawlog workers` lists them")
    worker = order_worker(reached, name, "drain" if action == "drain" else "stop")
    tell(fleet_text.ordered_line(worker, action))
    return outcome.FINISHED


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
