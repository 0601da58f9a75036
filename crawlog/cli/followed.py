"""`submit --wait`, and `run` where a fleet runs: follows a job, and tells how it ended."""

from typing import TYPE_CHECKING

from crawlog.terminal import answer, tell

if TYPE_CHECKING:
    from crawlog.jobs.follow import Before
    from crawlog.streams.fleet import JobView
    from crawlog.streams.settings import Settings


def followed(
    settings: "Settings", view: "JobView", before: "Before", *, as_json: bool, began: float, output: str | None = None
) -> int:
    """Follows a job that was submitted; returns the exit code of a `run`."""
    from crawlog.jobs.follow import follow
    from crawlog.jobs.live import view as terminal_view

    from . import summary_text

    summary = follow(settings, view, before, terminal_view(), began=began, output=output)
    tell(*summary_text.lines(summary))
    if as_json:
        answer(summary_text.as_json(summary))
    return summary_text.exit_code(summary)
