"""The traceback of an error in a user's code: its place first, the frames of crawlog and Scrapy that called it last."""

import sys
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from crawlog.schemas.dead import MAX_TRACEBACK

from .loading import is_librarys

CALLERS = "called by (most recent call last):\n"

_PACKAGES = frozenset({"__main__", "crawlog", "scrapy", "twisted"}) | sys.stdlib_module_names  # Those of the callers


def users_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame on that is not of a caller; None if all are."""
    part = error.__traceback__
    while part is not None and _is_callers(part.tb_frame):
        part = part.tb_next
    return part


def user_trace(error: BaseException) -> str:
    """The traceback as text; it begins with `FILE, line N, in NAME` if the error comes from the user's code."""
    part = users_traceback(error)
    if part is None:
        return _text(error, error.__traceback__)[-MAX_TRACEBACK:]
    head = place_of(part) + "\n"
    main = _text(error, part)[len(head) - MAX_TRACEBACK :]
    return (head + main + CALLERS + _callers(error.__traceback__, part))[:MAX_TRACEBACK]


def place_of(part: TracebackType) -> str:
    """The last frame that is not of a library; the first one if all are."""
    frames = list(traceback.walk_tb(part))
    own = [found for found in frames if not is_librarys(Path(found[0].f_code.co_filename))]
    frame, line = own[-1] if own else frames[0]
    return f"{frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"


def _is_callers(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _PACKAGES


def _callers(whole: TracebackType | None, part: TracebackType) -> str:
    """The frames before a part."""
    count = sum(1 for _ in traceback.walk_tb(whole)) - sum(1 for _ in traceback.walk_tb(part))
    return "".join(traceback.format_tb(whole, count))


def _text(error: BaseException, part: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, part))
    except BaseException:  # noqa: BLE001  # its text or its source cannot be read
        return "".join(traceback.format_tb(part))
