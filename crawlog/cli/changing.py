"""`crawlog changes`: what changed on the pages of a job, by field."""

import time
from typing import TYPE_CHECKING, Any

import rich_click as click

from crawlog import outcome
from crawlog.outcome import counted
from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import utc_text
from crawlog.terminal import answer, tell

from .options import settings_of, settings_options
from .reach import existing_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawlog.commands.page_changes import PageChanges

LIMIT = 1_000  # Changes that are shown, the newest ones, if the user does not say how many

MOST_CHARS = 120  # Longest value that is shown; --json has it whole


@click.command()
@click.option("--job", metavar="NAME", required=True, help="Job whose pages changed.")
@click.option("--since", metavar="1d", default="", help="Only those of the last 45s, 30m, 6h, 7d.")
@click.option("--limit", type=click.IntRange(1), default=LIMIT, help="Changes at most, the newest ones.", metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a change.")
@settings_options
def changes(job: str, since: str, limit: int, as_json: bool, **given: Any) -> int:
    """Show what changed on pages that were fetched again: new and gone pages, and fields by old and new value.

    The newest change is the last one. A job has changes if its URLs are due again (recrawl.age).

    Example: crawlog changes --job shop --since 1d
    """
    import msgspec

    from crawlog.commands.page_changes import changes_of
    from crawlog.streams.spans import span_s

    from . import arguments

    arguments.job_name(job)
    try:
        after = time.time() - span_s(since) if since else 0.0
    except ValueError as error:
        raise Misconfigured(f"--since: {error}") from None
    with existing_log(settings_of(given)) as reached:
        found = changes_of(reached, job, after, limit)
    if as_json:
        answer(*(msgspec.json.encode(one).decode() for one in found))
        return outcome.FINISHED
    answer(*(line for one in found for line in change_lines(one)))
    if not found:
        tell(f"no change{' since then' if since else ''}; a job notes changes if it has recrawl.age")
    elif len(found) == limit:
        tell(f"the newest {counted(limit, 'change')}; --limit shows more")
    return outcome.FINISHED


def change_lines(change: "PageChanges") -> "Iterator[str]":
    """A change as text: its page, then a line for each field."""
    yield f"{utc_text(change.at)}  {change.change:7}  {change.url}"
    if change.is_lost:
        yield "    the record before it is no longer in the log"
    for item in change.items:
        for name, (was, now) in item.items():
            if was is None or now is None:
                yield f"  {'+' if was is None else '-'} {name}: {_short(now if was is None else was)}"
            else:
                yield f"    {name}: {_short(was)} → {_short(now)}"


def _short(value: Any) -> str:
    """A value on one line, in JSON but for a text."""
    import msgspec

    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"
