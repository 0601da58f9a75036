"""Alerts: what each rule finds, and when an alert is raised and cleared."""

from typing import Any

import msgspec
import pytest

from crawlog.schemas.progress import JobCounts, JobRemarks
from crawlog.service.watch.alerts import CLEAR_S, MOST, STALLED_S, WARM_S, AlertFinding, AlertLook, Alerts, findings
from crawlog.service.watch.recent import LAG_S, WINDOW_S, Recent
from crawlog.streams.fleet import JobView, LostWorker, OutputView, StageView, WorkerView

NO_REMARKS = JobRemarks()
ALL = tuple(StageView(name, 1, 0) for name in ("fetch", "parse", "sink"))


def job(state: str = "running", *, remarks: JobRemarks = NO_REMARKS, **counts: Any) -> JobView:
    """The job `j`; its answers are `statuses`, each of them a fetched URL."""
    given = {"fetched": sum(counts.get("statuses", {}).values()), "queued": 50} | counts
    return JobView("j", state, counts=JobCounts(**given), remarks=remarks, ended_at=90.0)


def ended(**counts: Any) -> JobView:
    """The same, finished."""
    return job("finished", queued=0, **counts)


def found(*looks: tuple[float, AlertLook]) -> dict[str, AlertFinding]:
    """What the rules find at the last look, by rule and subject."""
    recent, last = Recent(), list[AlertFinding]()
    for at, one in looks:
        recent.take(at, one.jobs, one.workers, one.stages)
        last = list(findings(one._replace(now=at), recent))
    return {f"{one.rule}:{one.subject}": one for one in last}


def look(
    *jobs: JobView,
    workers: tuple[WorkerView, ...] = (),
    stages: tuple[StageView, ...] = ALL,
    letters: dict[str, int] | None = None,
    disk: tuple[int, int] | None = None,
    lost: tuple[LostWorker, ...] = (),
) -> AlertLook:
    """A look at a fleet."""
    return AlertLook(0.0, jobs, workers, stages, letters or {}, disk, lost)


def gone(reason: str, *, is_replaced: bool = False) -> LostWorker:
    """A process of the worker `w` that ended."""
    return LostWorker("w", "fetch", "m1", 7, "1", 1.0, 2.0, reason, is_replaced)


def worker(started_at: float = 1.0, **fields: Any) -> WorkerView:
    """The worker `w`."""
    return WorkerView("w", "fetch", "m1", 7, started_at=started_at, **fields)


GOOD = job(statuses={"200": 100})
MANY = JobRemarks(rowless=30, rows=0, first_rowless="http://a/1")
REFUSED = job(statuses={"200": 100, "403": 11, "404": 2})


@pytest.mark.parametrize(
    ("looks", "wanted"),
    [
        ([(100, look(GOOD))], {}),
        ([(0, look(GOOD)), (100, look(REFUSED))], {"refused:j": "11 of its last 13 answers have status 403"}),
        ([(0, look(GOOD)), (100, look(job(statuses={"200": 100, "404": 50})))], {}),
        ([(0, look(GOOD)), (100, look(job(statuses={"200": 120, "403": 11})))], {}),
        (
            [(0, look(GOOD)), (10, look(REFUSED)), (WINDOW_S + 9, look(REFUSED)), (WINDOW_S + 20, look(REFUSED))],
            {"stalled:j": ""},
        ),
        ([(0, look(job(statuses={"403": 3})))], {"refused:j": "no answer was a page: 3 × status 403"}),
        ([(0, look(job(statuses={"403": 2})))], {}),
        ([(0, look(job(statuses={"403": 1}, queued=0)))], {"refused:j": "no answer was a page: 1 × status 403"}),
        ([(0, look(job(statuses={"301": 5}, queued=0)))], {}),
        ([(0, look(job(refused=5)))], {"refused:j": "5 refused by robots.txt or a rule"}),
        ([(0, look(job(statuses={"200": 5}, refused=500)))], {}),
        (
            [(100, look(ended(statuses={"403": 2})))],
            {"refused:j": "it ended, and no answer was a page: 2 × status 403"},
        ),
        ([(100, look(ended(statuses={"200": 1, "403": 9})))], {}),
        ([(100, look(ended(failed=2)))], {"fails:j": "2 failed"}),
        ([(200_000, look(ended(statuses={"403": 2})))], {}),
        ([(100, look(job("failed", statuses={"200": 1})))], {"failed:j": "it failed"}),
        ([(0, look(GOOD)), (9, look(job(statuses={"200": 101}, failed=12)))], {"fails:j": "12 of its last 13 URLs"}),
        ([(100, look(job(statuses={"200": 99}, remarks=MANY)))], {"no_rows:j": "none of 30 pages gave a row"}),
        ([(100, look(job(statuses={"200": 99}, remarks=JobRemarks(rowless=30, rows=1))))], {}),
        (
            [
                (0, look(job(statuses={"200": 9}, remarks=JobRemarks(rowless=30, rows=9)))),
                (9, look(job(statuses={"200": 40}, remarks=JobRemarks(rowless=55, rows=9)))),
            ],
            {"no_rows:j": "none of its last 25 pages gave a row"},
        ),
        ([(100, look(ended(statuses={"200": 2}, remarks=JobRemarks(rowless=2))))], {"no_rows:j": "none of 2 pages"}),
        ([(0, look(GOOD)), (STALLED_S, look(GOOD))], {"stalled:j": "50 URLs wait, and none has ended for 10 min"}),
        ([(0, look(GOOD)), (STALLED_S, look(job(statuses={"200": 101})))], {}),
        ([(0, look(job(paused=50))), (STALLED_S, look(job(paused=50)))], {}),
        ([(0, look(job("paused"))), (STALLED_S, look(job("paused")))], {}),
        ([(0, look(job(queued=0))), (STALLED_S, look(job(queued=0)))], {}),
        (
            [(0, look(job(statuses={"200": 1}, needs={"network.allow_private": 4})))],
            {"waits:j": "4 wait for a worker with network.allow_private"},
        ),
        ([(0, look(letters={"j": 2, "": 1}))], {"dead_letters:j": "2 open", "dead_letters:": "1 open dead letter"}),
        (
            [(0, look(msgspec.structs.replace(GOOD, outputs=(OutputView("rows", "failed", error="no space"),))))],
            {"output:j": "its output rows cannot be written: no space"},
        ),
        ([(0, look(workers=(worker(trouble="no key"),)))], {"trouble:w": "no key"}),
        ([(0, look(GOOD, workers=(worker(is_held=True),)))], {"paused:w": "it was paused"}),
        ([(0, look(workers=(worker(is_held=True),)))], {}),
        (
            [(at, look(workers=(worker(1.0 + at),))) for at in range(5)],
            {"restarts:w": "it started again 4 times"},
        ),
        ([(at, look(workers=(worker(1.0 + at),))) for at in range(4)], {}),
        ([(at, look(workers=(worker(1.0 + at),))) for at in (0, 1, 2, 3, 4, 1_000)], {}),
        ([(0, look(GOOD, stages=(StageView("fetch", 0, 9), *ALL[1:])))], {"no_worker:fetch": "no fetch worker"}),
        ([(0, look(stages=(StageView("fetch", 0, 9), *ALL[1:])))], {}),
        (
            [(0, look(stages=(StageView("parse", 1, 900),))), (LAG_S, look(stages=(StageView("parse", 1, 2_000),)))],
            {"lag:parse": "2,000 records behind"},
        ),
        ([(0, look(stages=(StageView("parse", 1, 900),))), (99, look(stages=(StageView("parse", 1, 2_000),)))], {}),
        (
            [(0, look(stages=(StageView("parse", 1, 5_000),))), (LAG_S, look(stages=(StageView("parse", 1, 2_000),)))],
            {},
        ),
        ([(0, look(lost=(gone("silent"),)))], {"lost:w": "its process 7 on m1 is lost, and no other one came: silent"}),
        ([(0, look(lost=(gone("silent", is_replaced=True), gone("drained by eve"))))], {}),
        ([(0, look(disk=(2 << 30, 1 << 40)))], {"disk:": "2.1 of 1100 GB are free"}),
        ([(0, look(disk=(1 << 38, 1 << 40)))], {}),
    ],
)
def test_what_the_rules_find(looks: list[tuple[float, AlertLook]], wanted: dict[str, str]) -> None:
    """And what they leave alone: a page that is not found, a part of a site that robots.txt closes, a pause."""
    seen = found(*looks)
    assert seen.keys() == wanted.keys()
    for name, words in wanted.items():
        assert words in seen[name].text


def one(text: str = "x", for_s: float = 0.0, subject: str = "j") -> AlertFinding:
    """Something found."""
    return AlertFinding("rule", "job", subject, text, for_s=for_s)


def test_an_alert_is_raised_once_and_cleared_once() -> None:
    """It is not cleared by one look that does not find it; its text follows."""
    alerts = Alerts({}, 0.0)
    first = alerts.take([one("a")], 10.0)
    assert [(change.is_raised, change.alert.text, change.alert.since) for change in first] == [(True, "a", 10.0)]
    assert alerts.take([one("b")], 20.0) == []
    assert alerts.raised["rule:j"].text == "b"
    assert alerts.take([], 20.0 + CLEAR_S - 1) == []
    [cleared] = alerts.take([], 20.0 + CLEAR_S)
    assert (cleared.is_raised, cleared.alert.id, alerts.raised) == (False, "rule:j", {})
    assert alerts.take([], 99.0) == []


def test_what_must_last_is_raised_when_it_has_lasted() -> None:
    """A look without it begins anew."""
    alerts = Alerts({}, 0.0)
    assert alerts.take([one(for_s=30.0)], 0.0) == []
    assert alerts.take([], 10.0) == []
    assert alerts.take([one(for_s=30.0)], 20.0) == []
    [raised] = alerts.take([one(for_s=30.0)], 50.0)
    assert (raised.alert.since, raised.is_raised) == (20.0, True)


def test_an_alert_of_before_a_restart_is_neither_raised_again_nor_cleared_at_once() -> None:
    """Rules that compare looks know nothing yet."""
    alerts = Alerts({}, 0.0)
    alerts.take([one()], 0.0)
    again = Alerts(alerts.raised, 100.0)
    assert again.take([], 100.0 + CLEAR_S) == []
    assert again.take([one()], 200.0) == []
    [cleared] = again.take([], 100.0 + WARM_S)
    assert not cleared.is_raised


def test_the_number_of_alerts_is_bounded_and_the_severest_stay() -> None:
    """A thousand jobs may break at once."""
    alerts = Alerts({}, 0.0)
    many = [one(subject=f"j{number}") for number in range(2 * MOST)]
    alerts.take([*many, AlertFinding("no_worker", "stage", "fetch", "x", severity="critical")], 0.0)
    assert len(alerts.raised) == MOST
    assert "no_worker:fetch" in alerts.raised
