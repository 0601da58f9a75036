"""Logs of a worker: one line per event on standard error, `time level event key=value …`.

With `log.format=json` each line is a JSON object instead, with the worker and its stage. Lines of crawlog (structlog)
and of libraries (logging) have the same form. Faust, mode and aiokafka log much at level
info, with tables. So unless the level is debug, only their warnings are shown, each at most every `AGAIN_S`: while a
broker is away, some come ten times a second.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from crawlog.streams.printable import escaped


@contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """No import finds these packages, unless they are loaded already."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the import fails
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]  # a spider may import it


with _hidden("rich", "twisted"):  # structlog would load both, unused: two thirds of its time
    import structlog

LIBRARIES = ("faust", "mode", "aiokafka", "asyncio", "aiohttp")

# Least levels of two loggers: one warns about each rebalance, the other repeats a crash that crawlog logs.
LEAST = {"aiokafka.consumer.group_coordinator": logging.ERROR, "mode.crawlog.worker": logging.CRITICAL}

# At level debug this logger prints every request, the login's password included. At each login it warns that the
# password goes in the clear: the user chose that, or the broker is on loopback.
TELLS_SECRETS = "aiokafka.conn"

AGAIN_S = 10.0  # Least time between two lines of a library that differ in their arguments only


# Least level of what listeners hear, however little is shown: the lines of jobs go to the topic through them.
HEARD = logging.INFO

_listeners: list[Callable[[Mapping[str, Any]], None]] = []


def listen(heard: Callable[[Mapping[str, Any]], None]) -> None:
    """Call this with each event of crawlog that is logged, from whatever thread; what it raises is dropped."""
    _listeners.append(heard)


class Seldom(logging.Filter):
    """Lets a library's message pass once per `AGAIN_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a message that did not pass within `AGAIN_S`."""
        if record.levelno <= logging.INFO or not record.name.startswith(LIBRARIES):
            return True
        message, now = (record.name, str(record.msg)[:80]), time.monotonic()
        if now - self._told.get(message, -AGAIN_S) < AGAIN_S:
            return False
        self._told[message] = now
        return True


def configure(level: str, form: str = "text", **worker: str) -> None:
    """Send everything at `level` and above to standard error. Listeners hear what is at HEARD and above, too.

    Args:
        form: `text` or `json`.
        worker: Fields of every JSON line.
    """
    severity = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%f", utc=False, key="time"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, _tell_listeners, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(min(severity, HEARD)),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                one_line if form == "text" else JsonLine(worker),
            ],
        )
    )
    handler.addFilter(Seldom())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(severity)
    for name in LIBRARIES:
        _least(name, severity, logging.WARNING)
    for name, least in LEAST.items():
        _least(name, severity, least)
    logging.getLogger(TELLS_SECRETS).setLevel(logging.ERROR)


def _least(name: str, severity: int, least: int) -> None:
    logging.getLogger(name).setLevel(severity if severity <= logging.DEBUG else max(severity, least))


def _tell_listeners(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    for heard in _listeners:
        try:
            heard(event)
        except Exception:  # noqa: BLE001, S112  # logging it would begin again here
            continue
    return event


class JsonLine:
    """Renders an event as a JSON object: time, level, event, the worker's fields, then the event's."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        self._worker = dict(worker)

    def __call__(self, _: object, __: str, event: structlog.typing.EventDict) -> str:
        """The line; what JSON does not have is written as Python shows it."""
        first = {key: event.pop(key, "") for key in ("time", "level", "event")}
        return json.dumps(first | self._worker | dict(event), default=repr, ensure_ascii=False)


def one_line(_: object, __: str, event: structlog.typing.EventDict) -> str:
    """`time level event key=value …`; a value with blanks, quotes or control characters is quoted and escaped."""
    words = [str(event.pop("time", "")), str(event.pop("level", "")), _word(str(event.pop("event", "")))]
    return " ".join(words + [f"{key}={_value(value)}" for key, value in event.items()])


def _word(event: str) -> str:
    return escaped(event.replace("\n", " ⏎ "))


def _value(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    if text.isprintable() and text and not any(c in text for c in ' "=\\'):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped(quoted)}"'
