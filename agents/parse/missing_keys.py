"""Says which deployed code a parse worker may not run, as it lacks the key: pages of such jobs become dead letters."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from crawlog.streams.code import CodeLog, trusted_keys, unrunnable
from crawlog.streams.errors import CrawlError

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

EVERY_S = 60.0  # Time between two looks at crawl.code, seconds: code may be deployed at any time

MOST_NAMED = 3  # Versions that are named


class MissingKeys:
    """Looks at crawl.code from the worker's start on.

    Attributes:
        trouble: For the worker's reports; empty if it may run all that is deployed.
    """

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._code: CodeLog | None = None
        self.trouble = ""

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
