"""Exit codes and last words of a worker: the code says whether a restart helps, the last line holds the user's message.

The supervisor restarts a worker, unless its exit code is in `FOR_GOOD` or it keeps failing in the same way.
"""

import json
import os
import sys
from typing import NoReturn

import structlog

from .errors import AccessDenied, CrawlError, DamagedLog, EngineError, Misconfigured, OffsetFell

log = structlog.get_logger()

EX_TEMPFAIL = 75  # Exit code of a worker that asks for a restart (sysexits.h)

# Exit code after an error of the code itself (sysexits.h); the supervisor gives up if the same error repeats.
EX_SOFTWARE = 70

EX_DATAERR = 65  # Exit code after a damaged log (sysexits.h)

EX_NOPERM = 77  # Exit code when the cluster denies access (sysexits.h); the supervisor gives up if that persists

DRAINED = 79  # Exit code of a supervised worker that an operator drained: its supervisor starts no other one

# The first class that matches gives the code.
CODES: tuple[tuple[type[Exception], int], ...] = (
    (Misconfigured, 2),
    (OffsetFell, EX_SOFTWARE),
    (DamagedLog, EX_DATAERR),
    (AccessDenied, EX_NOPERM),
    (EngineError, 3),
)

FOR_GOOD = frozenset({2, EX_DATAERR})  # Exit codes after which a new worker would end in the same way

# Prefix of a log's last line. The message follows as a JSON string, since it may have several lines.
LAST_WORDS = "last words: "


def code_of(error: BaseException | None, other: int = 1) -> int:
    """The exit code for the error that ended a worker; `other` if the error is not in `CODES`."""
    return next((code for kind, code in CODES if isinstance(error, kind)), other)


def is_for_good(error: BaseException | None) -> bool:
    """Whether a retry in this process is useless."""
    return code_of(error) in FOR_GOOD | {EX_NOPERM}


def say(error: BaseException) -> None:
    """Write the last line of a worker's log, if the error is a `CrawlError`; call it directly before the exit."""
    if isinstance(error, CrawlError):
        sys.stderr.write(f"{LAST_WORDS}{json.dumps(str(error))}\n")
        sys.stderr.flush()


def end(error: BaseException, **fields: object) -> NoReturn:
    """Log the error, write the last words, and exit at once."""
    log.critical("worker_ended", error=repr(error), **fields)
    say(error)
    os._exit(code_of(error, EX_TEMPFAIL))


def heard(line: str) -> str:
    """The user's message in a log's last line; the line itself if it holds no last words."""
    try:
        return str(json.loads(line.removeprefix(LAST_WORDS))) if line.startswith(LAST_WORDS) else line
    except ValueError:
        return line
