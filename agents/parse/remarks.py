"""Remarks of a parse worker's reports: on a job's pages, and on deployed code that it may not run."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import MAX_PARSED
from crawlog.streams.code import CodeLog, trusted_keys, unrunnable
from crawlog.streams.errors import CrawlError
from crawlog.streams.parse import Job, remarked
from crawlog.streams.spiders import Parsed

if TYPE_CHECKING:
    from crawlog.schemas.progress import JobRemarks
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

EVERY_S = 60.0  # Time between two looks at crawl.code, seconds: code may be deployed at any time

MOST_NAMED = 3  # Versions that are named


class Remarks:
    """What is told of the pages of jobs.

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


def counted(parsed: dict[str, int], meta: PageMeta) -> int:
    """Count a page of a job, which is then at the end; 0 for a robots.txt, or a refused URL, which is not fetched."""
    if meta.kind == "robots" or meta.is_refused:
        return 0
    if meta.job in parsed or len(parsed) < MAX_PARSED:
        parsed[meta.job] = parsed.pop(meta.job, 0) + 1
    return 1


class MissingKeys:
    """Finds the deployed code that the worker may not run, as it lacks the key: pages of such jobs become dead letters.

    It looks at crawl.code from the worker's start on.

    Attributes:
        trouble: For the worker's reports; empty if it may run all that is deployed, None before the first look.
    """

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._code: CodeLog | None = None
        self.trouble: str | None = None

    async def run(self) -> None:
        """Look, sleep; a log that does not answer is asked again."""
        while True:
            with suppress(CrawlError, OSError):
                await asyncio.to_thread(self.look)
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Look once, and log what has changed.

        Raises: CrawlError: the log does not answer, or a key is none.
        """
        if self._code is None:
            self._code = CodeLog(self._settings)
        self._code.look()
        names = unrunnable(self._code.entries, trusted_keys(self._settings))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        named = f"{', '.join(names[:MOST_NAMED])}{more}"
        trouble = (
            f"it may not run the deployed code of {named}: its key is not in security.trusted_keys;"
            " pages of such jobs become dead letters"
        )
        trouble = trouble if names else ""
        if trouble and trouble != self.trouble:
            log.warning("code_without_key", code=named, then="add its key to security.trusted_keys, and start again")
        self.trouble = trouble
