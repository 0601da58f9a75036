"""`crawlog export`: the rows of a job so far, in a file."""

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from crawlog import outcome
from crawlog.terminal import answer, tell

from .options import one_file, settings_of, settings_options
from .reach import existing_log

if TYPE_CHECKING:
    from crawlog.commands.export import Exported


@click.command()
@click.option("--job", metavar="NAME", required=True, help="The job.")
@click.option("-o", "output", metavar="FILE", required=True, multiple=True, callback=one_file,
              help="As for `run`: .jsonl, .json, .csv, of a plug-in, or - for standard output.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Wait for the job's end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@settings_options
def export(job: str, output: str, follow: bool, as_json: bool, **given: Any) -> int:
    """Write the rows of a job so far; while it goes on, to FILE.partial.

    Exit code 0: the job has ended and FILE is complete. 8: the rows are in FILE.partial, and the job goes on or was
    stopped. It needs no worker. Of a job with pipelines that has ended these are the rows that they made in this data
    folder; else its items as they were scraped, and a line says so.

    Example: crawlog export --job news -o news.csv --follow
    """
    from . import arguments

    arguments.job_name(job)
    with existing_log(settings_of(given)) as reached:
        from crawlog.commands.export import export_job

        told = partial(_tell, as_json=as_json and output != "-")
        made = export_job(reached, job, output, follow=follow, say=tell, left=told)
    told(made)
    return outcome.FINISHED if made.is_complete else outcome.PARTIAL


def _tell(made: "Exported", *, as_json: bool) -> None:
    line = f"{outcome.counted(made.rows, outcome.written_to(made.output))} in {made.output}"
    why = f" ({made.reason})" if made.reason else ""
    then = "complete" if made.is_complete else f"not complete: the job {made.job} is {made.state}{why}"
    if made.dead:
        lost = outcome.counted(made.dead, "record")
        then = f"complete; {lost} of the job could not be handled, see `crawlog dead list --job {made.job}`"
    if made.as_scraped:
        from crawlog.commands.export import as_scraped

        tell(as_scraped(made))
    if as_json:
        answer(msgspec.json.encode(made).decode())
    else:
        tell(f"{line}, {then}")
