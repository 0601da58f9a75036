"""The pages of topics, groups and records: what an address shows."""

from typing import Any

import pytest
from aiohttp import encode_basic_auth

from crawlog.commands.shown_records import ShownRecord, TopicRecords
from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.service.dashboard import topics_page
from crawlog.streams.fleet import PlaceView
from tests.support.serving import served, service_settings

PLACES = [
    PlaceView("fetch", 0, "fetch-0", 5, 4, 9, 4, 1.0),
    PlaceView("fetch", 1, "fetch-1", 2, 2, 9, 7, 1.0),
    PlaceView("parse", 0, "", 0, 0, 3, 3, 0.0),
]

ANN = {"Authorization": encode_basic_auth("ann", "a")}

BAD = "<script>window.hit=1</script>"


def found(start: int, following: int, *records: ShownRecord, first: int = 2, end: int = 100) -> TopicRecords:
    """Records of crawl.pages."""
    return TopicRecords("pages", 0, 1, first, end, start, following, list(records))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, [0, 1, 0]), ({"stage": "parse"}, [0]), ({"sort": "-lag"}, [1, 0, 0]), ({"q": "fetch-1"}, [1])],
)
def test_places_are_chosen_by_group_worker_and_lag(given: dict[str, str], wanted: list[int]) -> None:
    """By the partition of each."""
    assert [one.partition for one in topics_page.groups_page(PLACES, given).rows] == wanted


def test_a_group_shows_its_lag_and_the_partition_that_is_furthest_behind() -> None:
    """A partition that nobody has reported counts whole."""
    lags = topics_page.lags_of(PLACES)
    assert [(one.stage, one.lag, one.worst.partition) for one in lags] == [("fetch", 11, 1), ("parse", 3, 0)]


@pytest.mark.parametrize(
    ("records", "wanted"),
    [(found(50, 70), (30, 70)), (found(2, 22), (None, 22)), (found(10, 30), (2, 30)), (found(90, 100), (70, None))],
)
def test_links_lead_to_earlier_and_later_records(records: TopicRecords, wanted: tuple[int | None, int | None]) -> None:
    """None where there is nothing further."""
    assert topics_page.links_of(records) == wanted


async def test_records_show_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, headers and value may hold anything; the URL of a page is named, whatever else its header has."""
    meta = pages.encode(PageMeta(f"http://a.com/{BAD}", "j")).decode()
    record = ShownRecord(7, 1.0, BAD, {pages.HEADER: meta, BAD: BAD}, BAD, 30)
    odd = ShownRecord(8, 1e300, BAD, {pages.HEADER: "{"}, "", None)
    calls: list[Any] = []

    def records_of(call: Any) -> TopicRecords:
        calls.append(call)
        return found(7, 9, record, odd)

    monkeypatch.setattr(topics_page, "records_of", records_of)
    async with served(service_settings(users={"ann": "a"})) as client:
        got = await client.get("/ui/topics/records?topic=pages&partition=0&offset=7&at=", headers=ANN)
        text = await got.text()
        assert (got.status, "<script>w" in text, "&lt;script&gt;w" in text) == (200, False, True)
        assert f"<dd>http://a.com/{BAD.replace('<', '&lt;').replace('>', '&gt;')}</dd>" in text
        assert (calls[0].path["topic"], calls[0].query.offset, calls[0].query.at) == ("pages", 7, "")
        assert (await client.get("/ui/topics/records?offset=-1", headers=ANN)).status == 400
