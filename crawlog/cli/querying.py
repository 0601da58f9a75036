"""`crawlog query`: SQL over the log."""

from typing import Any

import rich_click as click

from crawlog import outcome
from crawlog.terminal import answer, tell

from .options import one_file, settings_of, settings_options
from .reach import existing_log

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
    with existing_log(settings) as reached:
        from crawlog.query import ask, shown, write_answer

        found = ask(reached, sql, job, say=tell)
        tell(*found.notes)
        if output or kind not in (None, "table"):
            rows = write_answer(found, kind or "", output or "", formulas=settings.results.csv_formulas)
        else:
            made = shown(found)
            answer(*made.lines)
            rows = made.rows
            if made.is_cut:
                tell(f"these are the first {rows:,} rows: add LIMIT to the SQL, or take --format csv for all")
    if output:
        tell(f"{outcome.counted(rows, 'row')} in {output}")
    return outcome.FINISHED
