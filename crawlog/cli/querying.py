"""`crawlog query`: SQL over the log."""

from typing import TYPE_CHECKING, Any

import rich_click as click

from crawlog import outcome
from crawlog.terminal import answer, tell

from .options import one_file, settings_of, settings_options
from .reach import existing_log

if TYPE_CHECKING:
    from crawlog.query import QueryAnswer
    from crawlog.streams.settings import Settings

FORMATS = ("table", "csv", "json", "jsonl", "parquet")


@click.command()
@click.argument("sql", metavar="SQL")
@click.option("--job", metavar="NAME", default="", help="Only this job (all jobs).")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="On standard output a table; else as FILE's suffix.")
@click.option("-o", "output", metavar="FILE", multiple=True, callback=one_file,
              help="Write to FILE: .csv, .json, .jsonl, .parquet, or another format of `run -o`.")  # fmt: skip
@settings_options
def query(sql: str, job: str, kind: str | None, output: str | None, **given: Any) -> int:
    """Ask the log in SQL: the tables rows, pages, urls, dead and jobs. It needs no worker.

    A table is kept below the data folder; the next query reads only what the log has got since. The SQL is DuckDB's; it
    reaches no files and no network.

    Example: crawlog query "SELECT status, count(*) FROM pages GROUP BY 1" --job news
    """
    from . import arguments

    if job:
        arguments.job_name(job)
    if output and kind == "table":
        raise click.UsageError("-o FILE: a table is for people; take --format csv, json, jsonl or parquet")
    if output == "-":
        output, kind = None, kind or "jsonl"
    settings = settings_of(given)
    from crawlog.processes.hold import same_log
    from crawlog.query import answered, ask, named_tables, unchanged

    known = unchanged(same_log(settings), named_tables(sql))
    if known is not None:
        _write(answered(settings, known, sql, job), settings, kind, output)
        return outcome.FINISHED
    with existing_log(settings) as reached:
        _write(ask(reached, sql, job, say=tell), settings, kind, output)
    return outcome.FINISHED


def _write(found: "QueryAnswer", settings: "Settings", kind: str | None, output: str | None) -> None:
    from crawlog.query import shown, write_answer

    if found.raw:
        some = ", ".join(found.raw[:5]) + (" …" if len(found.raw) > 5 else "")
        tell(f"rows of {some}: the items as they were scraped, before the job's pipelines")
    if output or kind not in (None, "table"):
        rows = write_answer(found, kind or "", output or "", formulas=settings.results.csv_formulas)
        if output:
            tell(f"{outcome.counted(rows, 'row')} in {output}")
        return
    made = shown(found)
    answer(*made.lines)
    if made.is_cut:
        tell(f"these are the first {made.rows:,} rows: add LIMIT to the SQL, or take --format csv for all")
