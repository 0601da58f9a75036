"""How a worker ends by itself: its exit code says whether a restart helps, its last line what to tell the user.

The supervisor starts a worker again, whatever ended it, unless its exit code is one of `FOR_GOOD`.
"""

import json
import os
import sys
from typing import NoReturn

import structlog

from .errors import AccessDenied, CrawlError, DamagedLog, EngineError, Misconfigured

log = structlog.get_logger()

EX_TEMPFAIL = 75
"""Exit code of a worker that wants to be started again (sysexits.h)."""

EX_SOFTWARE = 70
"""Exit code of a worker that something in it broke: given up where the same breaks it again and again (sysexits.h)."""

EX_DATAERR = 65
"""Exit code of a worker that met a damaged log (sysexits.h)."""

EX_NOPERM = 77
"""Exit code of a worker that the cluster denies access; given up where it lasts (sysexits.h)."""

CODES: tuple[tuple[type[Exception], int], ...] = (
    (Misconfigured, 2),
    (DamagedLog, EX_DATAERR),
    (AccessDenied, EX_NOPERM),
    (EngineError, 3),
)
"""The first kind that fits counts."""

FOR_GOOD = frozenset({2, EX_DATAERR})
"""Exit codes after which the next worker would end in the same way."""

LAST_WORDS = "last words: "
"""What the last line of a log begins with, before the message as a JSON string: it may have several lines."""


def code_of(error: BaseException | None, other: int = 1) -> int:
    """The exit code of a worker that an error ended; `other` where it is none of ours."""
    return next((code for kind, code in CODES if isinstance(error, kind)), other)


def is_for_good(error: BaseException | None) -> bool:
    """Whether no other try in this process helps."""
    return code_of(error) in FOR_GOOD | {EX_NOPERM}


def say(error: BaseException) -> None:
    """The last line of a worker's log, where the error is one for users; call it directly before the end."""
    if isinstance(error, CrawlError):
        sys.stderr.write(f"{LAST_WORDS}{json.dumps(str(error))}\n")
        sys.stderr.flush()


def end(error: BaseException, **fields: object) -> NoReturn:
    """One line for the log, one for the user, and the end of the process at once."""
    log.critical("worker_ended", error=repr(error), **fields)
    say(error)
    os._exit(code_of(error, EX_TEMPFAIL))


def heard(line: str) -> str:
    """What a log's last line says to the user; the line itself where it holds no last words."""
    try:
        return str(json.loads(line.removeprefix(LAST_WORDS))) if line.startswith(LAST_WORDS) else line
    except ValueError:
        return line
