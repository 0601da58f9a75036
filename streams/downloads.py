"""What the code of a spider or a pipeline asks its worker for while it runs: `crawler.engine.download(request)`.

    child: WORKER.download ─► DownloadAsk ─► worker: agents/downloads.py ─► Downloaded, with the body ─► child

A child has one worker. Its process fills `WORKER` in before it loads a user's code.
"""

from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MOST_ASKED = 100  # Downloads that one child waits for at a time; further ones wait in the child


class DownloadAsk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request that the worker is to make now.

    Attributes:
        number: Of the download in its child; the answer has it, too.
        max_bytes: Longest body, within the worker's own limit; 0 for that.
    """

    number: int
    url: str
    request: RequestRecord = RequestRecord()
    max_bytes: int = 0


class Downloaded(msgspec.Struct, frozen=True):
    """The answer to a `DownloadAsk`: a page as the log has it, or an error in its metadata."""

    number: int
    meta: PageMeta


async def _nowhere(url: str, request: RequestRecord, max_bytes: int) -> tuple[PageMeta, bytes]:
    raise NotImplementedError(f"{url} cannot be downloaded: this process has no worker")


class WorkerServices:
    """What the worker of this process does for the code in it.

    Attributes:
        download: Makes a request: its URL, the rest of it, the longest body. Never raises for a failure of the site.
        files: Folder or address in which deployed code keeps files, empty where there is none; None for other code.
        trouble: Why files of items could not be written; the rows of these items do not count.
    """

    def __init__(self) -> None:
        self.download: Callable[[str, RequestRecord, int], Awaitable[tuple[PageMeta, bytes]]] = _nowhere
        self.files: str | None = None
        self.trouble = ""


WORKER = WorkerServices()
