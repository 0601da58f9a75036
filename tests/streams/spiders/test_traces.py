"""Tracebacks of users' code: where it raised comes first, what called it last."""

import asyncio
from pathlib import Path

import pytest

from crawlog.schemas.dead import MAX_TRACEBACK, place_of
from crawlog.schemas.pages import PageMeta
from crawlog.streams.spiders import PageCall, SpiderRef, load_runner, user_trace

SPIDER = """
import json
from crawlog import Spider

class Shop(Spider):
    start_urls = ["http://a.test/"]

    def parse(self, response):
        yield self.price(response.text)

    def price(self, text):
        if text == "deep":
            return self.price(text)
        return json.loads(text)
"""


def trace_of(folder: Path, body: bytes) -> tuple[str, str]:
    """The spider's file, and the traceback of a page with this body."""
    file = folder / "shop.py"
    file.write_text(SPIDER)
    runner = load_runner(SpiderRef(str(file)))
    meta = PageMeta("http://a.test/", "j", http=200, content_type="text/html")
    return str(file), asyncio.run(runner.page(PageCall(meta, body))).trace


def test_the_users_line_comes_first_and_our_frames_last(tmp_path: Path) -> None:
    """The library that the user's code called is not the place."""
    file, trace = trace_of(tmp_path, b"{")
    told = trace.splitlines()
    assert told[0] == place_of(trace) == f"{file}, line 14, in price"
    assert told[1:3] == ["Traceback (most recent call last):", f'  File "{file}", line 9, in parse']
    main, _, callers = trace.partition("called by (most recent call last):\n")
    assert main.splitlines()[-1].startswith("json.decoder.JSONDecodeError: ")
    assert "own.py" not in main
    assert "own.py" in callers


def test_a_traceback_that_is_too_long_keeps_its_place_and_its_error(tmp_path: Path) -> None:
    """It loses frames of callers first."""
    file, trace = trace_of(tmp_path, b"deep")
    assert place_of(trace).startswith(f"{file}, line ")
    assert "\nRecursionError: " in trace
    assert len(trace) <= MAX_TRACEBACK


def test_an_error_without_code_of_a_user_has_its_traceback_as_it_is() -> None:
    """Such as one of crawlog's own, or one that was never raised."""
    assert user_trace(KeyError("a")) == "KeyError: 'a'\n"
    assert place_of(user_trace(KeyError("a"))) == ""


def test_an_error_whose_text_cannot_be_made_has_a_traceback() -> None:
    """The class is the user's."""

    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    with pytest.raises(Odd) as raised:
        raise Odd
    assert __file__ in place_of(user_trace(raised.value))
