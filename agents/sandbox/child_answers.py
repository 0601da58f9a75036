"""Reads what the process of a user's spider answers. The spider's own code may write there whatever it likes."""

from typing import TypeVar

import msgspec

from crawlog.streams.spiders import CallResult, SpiderFacts

from .frames import SpiderFrame
from .spider_process import Fault

T = TypeVar("T")

_result = msgspec.json.Decoder(CallResult)
_facts = msgspec.json.Decoder(SpiderFacts)
_fault = msgspec.json.Decoder(Fault)


def result_of(answer: SpiderFrame) -> CallResult:
    """The result in an answer to a page, or of a part of `start`; an error where it is none."""
    found = _read(_result, answer)
    return CallResult(error=found.error, is_final=True) if isinstance(found, Fault) else found


def facts_of(answer: SpiderFrame) -> tuple[SpiderFacts | None, Fault | None]:
    """The facts in an answer to LOAD, or why there are none."""
    found = _read(_facts, answer)
    return (None, found) if isinstance(found, Fault) else (found, None)


def fault_of(answer: SpiderFrame) -> Fault:
    """The error in an answer of the kind FAILED, or that it is none."""
    return _read(_fault, answer)


def _read(decoder: "msgspec.json.Decoder[T]", answer: SpiderFrame) -> T | Fault:
    try:
        return decoder.decode(answer.text)
    except (ValueError, RecursionError) as error:
        return Fault(f"spider_answer: {error}")
