"""Keeps the remarks that reports have of a job's pages."""

from typing import TYPE_CHECKING

import structlog

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import MAX_PARSED
from crawlog.streams.parse import Job, remarked
from crawlog.streams.spiders import Parsed

if TYPE_CHECKING:
    from crawlog.schemas.progress import JobRemarks

log = structlog.get_logger()


class Remarks:
    """What is told of the pages of jobs with spiders.

    Attributes:
        by_job: The remarks of each job that has some.
    """

    def __init__(self) -> None:
        self.by_job: dict[str, JobRemarks] = {}

    def take(self, job: Job, meta: PageMeta, parsed: Parsed) -> None:
        """Take one more page."""
        before = self.by_job.get(job.name)
        remarks = remarked(before, job, meta, parsed)
        if remarks is None:
            return
        if remarks.lost_cookie and (before is None or before.lost_cookie != remarks.lost_cookie):
            log.warning("cookie_dropped", job=job.name, url=meta.url, why="fetch.cookies is off")
        self.by_job[job.name] = remarks


def count(parsed: dict[str, int], job: str) -> None:
    """Count a page of a job, which is then at the end."""
    if job in parsed or len(parsed) < MAX_PARSED:
        parsed[job] = parsed.pop(job, 0) + 1
