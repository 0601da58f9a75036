"""Logs of a worker: one line per event on standard error, `time level event key=value …`.

Ours (structlog) and the libraries' (logging) come out alike. Faust, mode and aiokafka tell their whole life at level
info, with tables; below debug only their warnings are shown.
"""

import logging
import sys

import structlog

LIBRARIES = ("faust", "mode", "aiokafka", "asyncio", "aiohttp")

QUIET = ("aiokafka.consumer.group_coordinator", "aiokafka.conn", "aiokafka.cluster", "aiokafka", "mode.crawlog.worker")
"""They tell as errors each rebalance, each lost connection, a crash: we tell what follows from those, once."""


def configure(level: str) -> None:
    """Send everything at `level` and above to standard error."""
    severity = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%f", utc=False, key="time"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(severity),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, one_line],
        )
    )
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(severity)
    quiet = severity if severity <= logging.DEBUG else max(severity, logging.WARNING)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(quiet)
    for name in QUIET:
        logging.getLogger(name).setLevel(severity if severity <= logging.DEBUG else logging.CRITICAL)


def one_line(_: object, __: str, event: structlog.typing.EventDict) -> str:
    """`time level event key=value …`; a value with blanks, quotes or line ends is quoted and escaped."""
    words = [str(event.pop("time", "")), str(event.pop("level", "")), _word(str(event.pop("event", "")))]
    return " ".join(words + [f"{key}={_value(value)}" for key, value in event.items()])


def _word(event: str) -> str:
    return event.replace("\n", " ⏎ ")


def _value(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    if text and not any(c in text for c in ' "=\n\r\t\\'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
