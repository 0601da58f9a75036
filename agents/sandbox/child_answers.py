"""Reads what the process of a user's spider answers. The spider's own code may write there whatever it likes."""

from typing import TypeVar

import msgspec

from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import CallResult, SpiderFacts

from .frames import SpiderFrame
from .spider_process import Fault

T = TypeVar("T")

MAX_TEXT = 2_000
"""Characters kept of an error, a reason or a name: each goes into records, which have a limit."""

_result = msgspec.json.Decoder(CallResult)
_facts = msgspec.json.Decoder(SpiderFacts)
_urls = msgspec.json.Decoder(tuple[str, ...])
_fault = msgspec.json.Decoder(Fault)


def result_of(answer: SpiderFrame) -> CallResult:
    """The result in an answer to a page, or of a part of `start`; an error where it is none."""
    found = _read(_result, answer)
    if isinstance(found, Fault):
        return CallResult(error=found.error, is_final=True)
    if answer.outputs is not None:
        found.items, found.requests = answer.outputs.items, answer.outputs.requests
    found.error, found.closes = found.error[:MAX_TEXT], found.closes[:MAX_TEXT]
    return found


def facts_of(answer: SpiderFrame, *, with_urls: bool = False) -> tuple[SpiderFacts | None, Fault | None]:
    """The facts in an answer to LOAD, or why there are none.

    Args:
        with_urls: Whether the start URLs are read too, which may be millions.
    """
    found = _read(_facts, answer)
    if isinstance(found, Fault):
        return None, found
    urls = _read(_urls, SpiderFrame(answer.kind, answer.body if with_urls else b"[]"))
    if isinstance(urls, Fault):
        return None, urls
    short = msgspec.structs.replace(found, label=found.label[:MAX_TEXT], digest=found.digest[:MAX_TEXT])
    return msgspec.structs.replace(short, start_urls=urls), None


def fault_of(answer: SpiderFrame) -> Fault:
    """The error in an answer of the kind FAILED, or that it is none."""
    found = _read(_fault, answer)
    return msgspec.structs.replace(found, error=found.error[:MAX_TEXT])


def misconfigured(fault: Fault) -> Misconfigured:
    """The error of a caller whose spider cannot be loaded."""
    return Misconfigured(fault.error.removeprefix("Misconfigured: "))


def _read(decoder: "msgspec.json.Decoder[T]", answer: SpiderFrame) -> T | Fault:
    try:
        return decoder.decode(answer.text)
    except (ValueError, RecursionError) as error:
        return Fault(f"spider_answer: {error}")
