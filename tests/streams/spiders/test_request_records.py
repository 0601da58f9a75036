"""Requests to records and back: nothing is lost on the way, and nothing is added."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog import Request, Response, Spider
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.spiders import Untravelled, Values
from crawlog.streams.spiders.request_records import record_of, request_carrier, request_of


class Shop(Spider):
    """Some callbacks, one of them private."""

    def parse(self, response: Response) -> Any:
        """The usual one."""

    def item(self, response: Response, **kwargs: Any) -> Any:
        """Another."""

    def failed(self, failure: Any) -> Any:
        """An errback."""

    def __hidden(self, response: Response) -> Any:
        """A private one."""

    def hidden(self) -> Request:
        """A request for the private one."""
        return Request("/x", self.__hidden)


SPIDER = Shop()
VALUES = Values(carriers=[request_carrier(SPIDER)])
URL = "http://a.test/"

_NAMES = st.text("abcXYZ-_", min_size=1, max_size=5).map("X-{}".format)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.binary(max_size=5), st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(st.text(max_size=3), inner)),
    max_leaves=5,
)
_META = st.fixed_dictionaries(
    {},
    optional={
        "a": _VALUES,
        "cookiejar": st.one_of(st.integers(), st.text(max_size=3)),
        "dont_merge_cookies": st.booleans(),
        "dont_redirect": st.booleans(),
        "handle_httpstatus_list": st.lists(st.integers(100, 599), max_size=3),
        "handle_httpstatus_all": st.booleans(),
        "download_timeout": st.integers(1, 100),
        "max_retry_times": st.integers(0, 5),
        "dont_retry": st.booleans(),
        "depth": st.integers(0, 5),
    },
)
_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "callback": st.sampled_from([SPIDER.parse, SPIDER.item, "parse", "item", None]),
        "errback": st.sampled_from([SPIDER.failed, "failed", None]),
        "method": st.sampled_from(["get", "POST", "Put", "HEAD", ""]),
        "headers": st.dictionaries(_NAMES, st.one_of(st.text("abc é", max_size=4), st.lists(st.text("ab")))),
        "body": st.one_of(st.binary(max_size=9), st.text(max_size=9)),
        "cookies": st.dictionaries(st.text("abc", min_size=1, max_size=3), st.text("abc", max_size=3), max_size=2),
        "meta": _META,
        "cb_kwargs": st.dictionaries(st.text("abc", min_size=1, max_size=3), _VALUES, max_size=3),
        "dont_filter": st.booleans(),
        "flags": st.lists(st.text(max_size=3), max_size=2),
        "once": st.booleans(),
        "attempts": st.integers(0, 9),
        "timeout": st.floats(0, 100),
        "render": st.sampled_from([True, False, None]),
    },
)


@given(_REQUESTS)
def test_a_request_comes_back_as_it_was(options: dict[str, Any]) -> None:
    """Its record is that of the request which its page has; a copy and a nested one have the same."""
    request = Request(URL, **options)
    record = record_of(request, SPIDER, VALUES)
    assert record_of(request.copy(), SPIDER, VALUES) == record
    nested = VALUES.unpacked(VALUES.packed([request]))[0]
    assert record_of(nested, SPIDER, VALUES) == record
    if record is not None:
        again = request_of(URL, record, SPIDER, VALUES)
        assert record_of(again, SPIDER, VALUES) == record
        assert (again.method, again.body, again.cb_kwargs) == (request.method, request.body, request.cb_kwargs)
        assert again.meta == {key: value for key, value in request.meta.items() if key != "depth"}


def test_a_private_method_is_a_callback() -> None:
    """By the name that Python gives it."""
    record = record_of(SPIDER.hidden(), SPIDER, VALUES)
    assert record == RequestRecord(callback="_Shop__hidden")
    assert request_of(URL, record, SPIDER, VALUES).callback == SPIDER._Shop__hidden  # type: ignore[attr-defined]  # its name


@pytest.mark.parametrize("callback", [Shop().item, Spider().parse, "start_urls", "nowhere", "__class__"])
def test_a_method_of_something_else_is_refused(callback: Any) -> None:
    """Another object's, or an attribute that is no method."""
    with pytest.raises(Untravelled, match="has no such method"):
        record_of(Request("/x", callback), SPIDER, VALUES)


@pytest.mark.parametrize("name", ["nowhere", "name", "start_urls", "__init__", "logger"])
def test_a_record_calls_nothing_but_methods_of_the_spider(name: str) -> None:
    """Whoever writes to Kafka chooses the name."""
    with pytest.raises(ValueError, match="has no method"):
        request_of(URL, RequestRecord(callback=name), SPIDER, VALUES)
