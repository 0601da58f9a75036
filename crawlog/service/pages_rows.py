"""The rows of Scrapyd's pages: jobs by state, and folders of logs and items, which are made of the jobs. Pure."""

import re
from typing import Literal, NamedTuple

from crawlog.schemas.log_lines import GOES_ON, LogLine
from crawlog.streams.printable import escaped

from .scrapyd_calls import by_stand, file_path
from .scrapyd_fleet import ScrapydJob, Stand, local_time

HEADINGS = ("Project", "Spider", "Job", "PID", "Start", "Runtime", "Finish", "Log", "Items", "Cancel")
"""Columns of the page of jobs; ScrapydWeb reads them by their order."""

_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b")
"""How a line begins that Python's `logging` has made."""


class PageJob(NamedTuple):
    """A job on the page.

    Attributes:
        log, items: Paths of its files; empty for a pending job, which has none.
        can_cancel: Whether it has a button.
    """

    project: str
    spider: str
    job: str
    start: str = ""
    runtime: str = ""
    finish: str = ""
    log: str = ""
    items: str = ""
    can_cancel: bool = False


class FolderEntry(NamedTuple):
    """A folder's or file's line in a listing.

    Attributes:
        modified: Time of its last known change.
    """

    name: str
    modified: str
    kind: str
    is_folder: bool = False


def job_rows(jobs: list[ScrapydJob], now: float) -> list[tuple[str, list[PageJob]]]:
    """The rows by state, as Scrapyd orders them.

    Args:
        now: UTC epoch seconds.
    """
    stands: tuple[Stand, ...] = ("pending", "running", "finished")
    return [(stand.capitalize(), [_row(job, now) for job in by_stand(jobs, stand)]) for stand in stands]


def _row(job: ScrapydJob, now: float) -> PageJob:
    if job.stand == "pending":
        return PageJob(job.project, job.spider, job.id, can_cancel=True)
    is_finished = job.stand == "finished"
    return PageJob(
        job.project,
        job.spider,
        job.id,
        start=_seconds(job.started),
        runtime=runtime((job.ended if is_finished else now) - job.started),
        finish=_seconds(job.ended) if is_finished else "",
        log=file_path(job, "logs"),
        items=file_path(job, "items"),
        can_cancel=not is_finished,
    )


def runtime(seconds: float) -> str:
    """A duration as Scrapyd writes it: `0:01:05`, `1 day, 2:00:00`."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    before = f"{days} day{'s' if days > 1 else ''}, " if days else ""
    return f"{before}{hours}:{minutes:02}:{rest:02}"


def children(jobs: list[ScrapydJob], kind: Literal["logs", "items"], folder: list[str]) -> list[FolderEntry]:
    """What a folder holds: projects, spiders of a project, or files of a spider's jobs.

    Args:
        folder: Names of project and spider, as far as they are given.
    """
    newest: dict[str, float] = {}
    for job in jobs:
        place = [job.project, job.spider]
        if job.stand == "pending" or place[: len(folder)] != folder:
            continue
        name = f"{job.id}.{'log' if kind == 'logs' else 'jl'}" if len(folder) == len(place) else place[len(folder)]
        newest[name] = max(newest.get(name, 0.0), job.ended or job.started)
    is_folder = len(folder) < len(("project", "spider"))
    kind_of = "[Directory]" if is_folder else "[text/plain]"
    return [FolderEntry(name, local_time(at)[:16], kind_of, is_folder) for name, at in sorted(newest.items())]


def _seconds(at: float) -> str:
    return local_time(at)[:19]


def log_text(line: LogLine) -> str:
    """A line of a log as Scrapy writes it, which ScrapydWeb's parser reads; control characters are escaped.

    What a spider logs comes as it was logged, with its own time; a line that goes on with the one before has none.
    """
    if line.level == GOES_ON or (not line.source and _LOGGED.match(line.text)):
        return escaped(line.text)
    url = f" ({line.url})" if line.url and line.url not in line.text else ""
    return f"{_seconds(line.at)} [{escaped(line.source) or 'crawlog'}] {line.level.upper()}: {escaped(line.text + url)}"
