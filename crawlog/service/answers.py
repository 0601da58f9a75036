"""JSON answers, and the one place where an error becomes a status: `{"error": …, "hint": …}`."""

import asyncio
from typing import Any

import msgspec
import structlog
from aiohttp import web

from crawlog.streams.errors import EngineError, InvalidState, Misconfigured, OrderRefused, UnknownName

from .routing import BEGUN, Handler, TooMuchWork

log = structlog.get_logger()


class ErrorBody(msgspec.Struct, frozen=True):
    """An error.

    Attributes:
        error: What is wrong.
        hint: What to do about it; empty if there is nothing to say.
    """

    error: str
    hint: str = ""


class AnswerError(Exception):
    """A request that is answered with a status and an error.

    Args:
        message: The error; its further lines are the hint.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def as_json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", status=status, content_type="application/json")


def error_answer(status: int, message: str) -> web.Response:
    """An error: the first line of the message, and the rest as its hint."""
    error, _, hint = message.partition("\n")
    return as_json(ErrorBody(error, hint), status)


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers every error as JSON; details of an unexpected one stay in the log."""
    request[BEGUN] = begun = asyncio.Event()
    try:
        return await handler(request)
    except web.HTTPException as end:
        if end.status < 400:
            raise
        answer = error_answer(end.status, end.reason)
        answer.headers.update({name: end.headers[name] for name in ("Allow",) if name in end.headers})
        return answer
    except Exception as error:
        if begun.is_set():  # a second answer within it would look like a part of it
            if not isinstance(error, ConnectionResetError):  # the client went
                log.exception("stream_broken", path=request.path)
            if request.transport is not None:
                request.transport.abort()
            return web.Response()  # goes nowhere
        status, message = verdict(error)
        if status == 500:
            log.exception("request_failed", method=request.method, path=request.path)
        return error_answer(status, message)


# The first class that fits gives the status.
STATUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (UnknownName, 404),
    ((InvalidState, OrderRefused), 409),
    ((Misconfigured, msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError), 400),
    (EngineError, 503),
)

UNREADABLE = "the body cannot be read\nIt is not as its Transfer-Encoding says."


def verdict(error: Exception) -> tuple[int, str]:
    """The status and the message of an error."""
    if isinstance(error, AnswerError):
        return error.status, str(error)
    if isinstance(error, TooMuchWork):
        return 503, "too many commands wait\nTry again in a second."
    if isinstance(error, web.RequestPayloadError):
        return 400, UNREADABLE
    for kinds, status in STATUSES:
        if isinstance(error, kinds):
            return status, str(error)
    return 500, "internal error\nIt stands in the service's log, logs/service.log in the data folder."
