"""Which feeds of a Scrapy project become outputs of a job, and what is told of the others."""

import msgspec

from crawlog.jobs.record import Wanted
from crawlog.jobs.request import JobRequest
from crawlog.jobs.submit import _usable
from crawlog.schemas.job_orders import FeedLayout, FeedOutput
from crawlog.streams.job_spec import NO_SPIDER
from crawlog.streams.settings import Settings
from crawlog.streams.spiders import SpiderFacts

JSON, XML = FeedLayout(format=".json"), FeedLayout(format=".xml", fields=(("a", "b"),))
FACTS = SpiderFacts(
    "/shop.py:Shop",
    "shop",
    feeds=tuple(
        FeedOutput(output, layout)
        for output, layout in (
            ("out/%(time)s.txt", JSON),
            ("s3://me:geheim@bucket/x.json", JSON),
            ("/srv/x.json", JSON),
            ("x.xml", XML),
            ("other/%(time)s.txt", JSON),
        )
    ),
)


def test_a_run_writes_its_feeds_where_they_are() -> None:
    """A format that no sink has is named."""
    told: list[str] = []
    found = [feed.output for feed in _usable(FACTS, JobRequest(), told.append, of_fleet=False)]
    assert found == [feed.output for feed in FACTS.feeds if feed.layout is JSON]
    assert [line.partition(" is ")[0] for line in told] == ["FEEDS: x.xml"]


def test_a_fleet_writes_feeds_by_their_last_name() -> None:
    """No record holds a path or an address; what has none of its own is named, without its password."""
    told: list[str] = []
    found = [feed.output for feed in _usable(FACTS, JobRequest(), told.append, of_fleet=True)]
    assert found == ["%(time)s.txt"]
    left = ["s3://********@bucket/x.json", "/srv/x.json", "x.xml", "other/%(time)s.txt"]
    assert [line.split()[1] for line in told] == left
    wanted = Wanted(JobRequest(), "j", NO_SPIDER, feeds=(msgspec.structs.replace(FACTS.feeds[0], output=found[0]),))
    (output,) = wanted.spec(Settings(), None, told.append).outputs
    assert (output.name[19:], output.declared, output.layout) == ("-00-00.txt", False, JSON)


def test_outputs_of_the_command_go_before() -> None:
    """Each feed that is left out is named."""
    told: list[str] = []
    assert not [*_usable(FACTS, JobRequest(outputs=("a.csv",)), told.append, of_fleet=False)]
    assert len(told) == len(FACTS.feeds)
    wanted = Wanted(JobRequest(outputs=("a.csv",)), "j", NO_SPIDER, layout=XML)
    assert wanted.outputs(0.0) == {"a.csv": FeedOutput("a.csv", XML, overwrite=True)}


def test_the_time_in_a_feed_is_when_the_job_began() -> None:
    """As Scrapy writes it; the same after a kill."""
    wanted = Wanted(JobRequest(), "j", NO_SPIDER, feeds=FACTS.feeds[:1])
    assert [*wanted.outputs(1_700_000_000.9)] == ["out/2023-11-14T22-13-20+00-00.txt"]
