"""The overview: the stages, what needs a look, and the button that pauses a stage, in a real Chromium."""

from typing import Any

import pytest

from crawlog.schemas.progress import JobCounts
from crawlog.service.dashboard.overview_page import link, overview, river
from crawlog.service.watch import Alert
from crawlog.streams.fleet import FleetStatus, JobPace, JobView, StageView
from tests.support.dashboard import ShownFleet, Viewer
from tests.support.processes import until

STAGES = (StageView("fetch", 2, 9, 4.5), StageView("parse", 1, 7, 3.0, is_paused=True), StageView("sink", 1, 2))


def job(name: str, state: str = "running", pages: float = 0.0, **counts: Any) -> JobView:
    """A job."""
    return JobView(name, state, counts=JobCounts(**counts), pace=JobPace(pages, 6.0 * bool(pages)))


def test_the_river_has_the_sums_of_all_jobs() -> None:
    """Its stages without a worker too, as a job may wait for them."""
    jobs = (job("a", queued=5, held=1, in_flight=2), job("b", pages=9.0, queued=3))
    stages = river(FleetStatus(jobs, (), STAGES))
    assert [(one.title, one.view.workers, one.view.is_paused) for one in stages] == [
        ("Frontier", 0, False),
        ("Fetch", 2, False),
        ("Parse", 1, True),
        ("Items", 1, False),
    ]
    assert [[value for _, value, _ in one.figures] for one in stages] == [[8, 1, 9], [4.5, 2], [3.0, 7], [6.0, 2]]
    assert [one.view.workers for one in river(FleetStatus((), (), ()))] == [0, 0, 0, 0]


def test_jobs_under_way_are_shown_the_quickest_first() -> None:
    """A job that ended is none of them; there may be very many."""
    jobs = [job("slow", pages=1.0), job("done", "finished"), job("quick", pages=9.0), job("held", "paused")]
    jobs += [job(f"more{number}", "waiting") for number in range(30)]
    fleet: Any = type("Fleet", (), {"status": lambda _: FleetStatus(tuple(jobs), (), STAGES)})()
    found = overview(fleet)
    assert [one.name for one in found["jobs"]][:3] == ["quick", "slow", "held"]
    assert (len(found["jobs"]), found["more"]) == (20, 13)


@pytest.mark.parametrize(
    ("rule", "kind", "subject", "path"),
    [
        ("refused", "job", 'a"<b>/..', "/ui/jobs/a%22%3Cb%3E%2F.."),
        ("dead_letters", "job", "shop", "/ui/dead?job=shop"),
        ("lost", "worker", "fetch-0", "/ui/workers?q=fetch-0"),
        ("lag", "stage", "parse", "/ui/workers"),
        ("disk", "machine", "", ""),
    ],
)
def test_an_alert_leads_to_what_it_is_about(rule: str, kind: Any, subject: str, path: str) -> None:
    """Whatever a name holds."""
    assert link(Alert("i", rule, "warning", kind, subject, "text")) == path


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_a_stage_is_paused_and_goes_on_and_what_is_wrong_stands_first(fleet: ShownFleet, ann: Viewer) -> None:
    """The dead letters of the fleet are alerts, so nothing on the page says that all is well."""
    until(lambda: any(one["rule"] == "dead_letters" for one in fleet.api("/alerts")), "an alert")
    await ann.goto("/ui/")
    first = ann.page.locator("main section").first
    assert "open dead letter" in await first.inner_text()
    assert "all is well" not in await first.inner_text()
    for action, is_paused in (("pause", True), ("resume", False)):
        await ann.page.click(f"#{action}-parse")
        await ann.page.wait_for_load_state()
        commands = [(one["action"], one["stage"]) for one in fleet.api("/control")]
        assert (("pause", "parse") in commands) is is_paused
        until(lambda is_paused=is_paused: fleet.api("/stages")[1]["is_paused"] is is_paused, "reports")  # type: ignore[misc]  # bound now
        await ann.goto("/ui/")
    assert ann.faults == []
