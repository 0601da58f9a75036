"""What users are told of the pages of their spiders."""

from typing import Any

import msgspec
import pytest

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.progress import JobRemarks
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec, RequestRules
from crawlog.streams.parse.job import Job
from crawlog.streams.parse.outputs import remarked
from crawlog.streams.spiders import NOTHING
from crawlog.streams.url import Names, Places

A, B = "http://a.com/", "http://a.com/b"
ROW = NOTHING._replace(items=[msgspec.Raw(b"{}")])
POST = RequestRecord("POST")
SETS: dict[str, Any] = {"http": 302, "location": "/", "headers": (("set-cookie", "sid=1"),)}


def job(*, cookies: bool = False) -> Job:
    """A job with a spider."""
    spec = JobSpec(spider="/s.py:S", requests=RequestRules(cookies=cookies))
    return Job("j", spec, Places(1), Names())


def page(url: str = A, **fields: Any) -> PageMeta:
    """A page that was answered."""
    return msgspec.structs.replace(PageMeta(url, "j", http=200), **fields)


def test_rows_and_pages_without_one_are_counted_and_the_first_is_named() -> None:
    """A page with a row, an error page and a redirect are none of them; a new epoch begins anew."""
    remarks = None
    for meta, parsed in (
        (page("http://a.com/row"), ROW),
        (page(http=404), NOTHING),
        (page(http=301, location="/b"), NOTHING),
    ):
        remarks = remarked(remarks, job(), meta, parsed)
    assert remarks == JobRemarks(rows=1)
    for url in (A, B):
        remarks = remarked(remarks, job(), page(url), NOTHING)
    assert remarks == JobRemarks(0, 2, A, rows=1)
    assert remarked(remarks, job(), page(B, epoch=1), NOTHING) == JobRemarks(1, 1, B)


@pytest.mark.parametrize(
    ("request_", "cookies", "fields", "is_told"),
    [
        (POST, False, SETS, True),
        (POST, True, SETS, False),
        (POST, False, {**SETS, "headers": ()}, False),
        (RequestRecord("POST", keeps_cookies=False), False, SETS, False),
        (RequestRecord(callback="c"), False, SETS, False),
        (None, False, SETS, False),
    ],
)
def test_a_cookie_that_answers_a_form_and_is_dropped_is_told(
    request_: RequestRecord | None,
    cookies: bool,  # a parameter
    fields: dict[str, Any],
    is_told: bool,  # a parameter
) -> None:
    """Else a login seems to succeed, and each page after it is that of a stranger."""
    remarks = remarked(None, job(cookies=cookies), page(request=request_, **fields), NOTHING)
    assert remarks == (JobRemarks(lost_cookie=A) if is_told else None)
