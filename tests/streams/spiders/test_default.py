"""Rows of the default spider."""

import json

import pytest

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html.links import Links
from crawlog.streams.spiders.default import parse_page
from crawlog.streams.url.canonical import Canonicaliser
from crawlog.streams.url.place import Places


@pytest.mark.parametrize(
    ("at", "iso"),
    [(1_700_000_000.25, "2023-11-14T22:13:20.250Z"), (0.0, "1970-01-01T00:00:00.000Z"), (1e300, "9999-12-28T")],
)
def test_a_row_has_its_time_in_the_form_that_the_job_asks_for(at: float, iso: str) -> None:
    """Any writer of the log may have written the time."""
    meta = PageMeta("http://a.test/", "j", http=200, fetched_at=at)
    for spec, expected in ((JobSpec(), at), (JobSpec(times="iso"), iso)):
        links = Links(Canonicaliser(spec.canonical), Places(1))
        (row,) = parse_page(meta, b"", links, spec).items
        found = json.loads(bytes(row))["fetched_at"]
        assert found == expected if spec.times == "epoch" else found.startswith(iso)
