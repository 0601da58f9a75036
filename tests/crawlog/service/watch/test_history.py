"""The history of rates: what a look adds, what is kept for how long, and what a chart gets."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.progress import JobCounts, JobRemarks
from crawlog.service.watch import FLEET_SERIES, JOB_SERIES, RateHistory
from crawlog.service.watch.history import FINE_S, KEPT_S
from crawlog.service.watch.samples import (
    EVERY_S,
    LEFT_OUT,
    MOST_JOBS,
    ROLLED_S,
    FleetLook,
    FleetSample,
    Sampler,
    rolled,
)
from crawlog.streams.fleet import JobView, StageView

AT = 1_800_000_000 // ROLLED_S * ROLLED_S  # Some time at which means of 5 min begin
STAGES = (StageView("fetch", 1, 7, 2.5), StageView("parse", 1, 0), StageView("sink", 1, 3, 1.0))


def view(name: str = "j", epoch: int = 0, rows: int = 0, **statuses: int) -> JobView:
    """A job with answers by status, `s200=3`, each a page."""
    counts = JobCounts(
        fetched=sum(statuses.values()), queued=5, statuses={code[1:]: count for code, count in statuses.items()}
    )
    return JobView(name, "running", epoch, counts=counts, remarks=JobRemarks(epoch, rows=rows))


def look(at: float, *jobs: JobView) -> FleetLook:
    """A look at a fleet with these jobs."""
    return FleetLook(AT + at, jobs, STAGES, 4, 2)


def sampled(*looks: FleetLook) -> FleetSample:
    """The sample of the last look."""
    sampler = Sampler()
    return [sampler.take(one) for one in looks][-1]


def fleet(**values: float) -> list[float]:
    """Values of the fleet by series, dots as underscores; the rest is 0."""
    named = {name.replace("_", "."): value for name, value in values.items()}
    return [named.get(name, 0.0) for name in FLEET_SERIES] + [named.get("left.out", 0.0)]


@pytest.mark.parametrize(
    ("looks", "jobs"),
    [
        ([look(0, view(s200=9))], {}),
        ([look(0, view(s200=9)), look(10, view(s200=9))], {}),
        ([look(0, view(s200=9, rows=1)), look(10, view(s200=12, s403=2, rows=3))], {"j": [30, 12, 18, 0, 12, 0]}),
        ([look(0, view(s200=9)), look(30, view(s200=10))], {"j": [2, 0, 2, 0, 0, 0]}),
        ([look(0, view(s200=9)), look(10, view(epoch=1, s200=3))], {}),
        ([look(0, view(s200=9)), look(10, view(s200=4))], {}),
        ([look(0, view("a", s200=9)), look(10, view("b", s200=4))], {}),
    ],
)
def test_a_sample_has_what_jobs_did_since_the_look_before(looks: list[FleetLook], jobs: dict[str, list[float]]) -> None:
    """In a minute. What a job did before it was met, or before it began again, is left out."""
    found = sampled(*looks)
    assert found.jobs == jobs
    assert found.fleet[:LEFT_OUT] == [2.5, 7, 0, 0, 1, 3, *(jobs.get("j", [0, 0])[:2]), 5, 1, 4, 2]


def test_only_the_busiest_jobs_have_samples_of_their_own() -> None:
    """How many were left out is kept: the series of such a job has no 0 then."""
    names = [f"j{number}" for number in range(MOST_JOBS + 5)]
    found = sampled(
        look(0, *(view(name) for name in names)),
        look(10, *(view(name, s200=number + 1) for number, name in enumerate(names))),
    )
    assert set(found.jobs) == set(names[5:])
    assert found.fleet[LEFT_OUT] == 5


def series(history: RateHistory, name: str, since: float, now: float, job: str = "") -> dict[float, float | None]:
    """A series as values by time behind AT."""
    answer = history.series([name], AT + since, AT + now, job)
    return {at - AT: value for at, value in zip(answer.at, answer.series[name], strict=True)}


def test_a_job_that_rested_has_0_and_a_service_that_was_away_has_none(tmp_path: Path) -> None:
    """A line across that time would be invented, and so would a 0 of a job that was left out."""
    history = RateHistory(tmp_path / "service")
    history.note(AT + 0.4, FleetSample(fleet(pages=60), {"j": [60, 0, 60, 0, 0, 0]}))
    history.note(AT + 10, FleetSample(fleet(), {}))
    history.note(AT + 20, FleetSample(fleet(left_out=1), {}))
    history.note(AT + 90, FleetSample(fleet(pages=6), {"j": [6, 0, 6, 0, 0, 0]}))
    assert series(history, "pages", 0, 100) == {0: 60, 10: 0, 20: 0, 30: None, 90: 6}
    assert series(history, "2xx", 0, 100, "j") == {0: 60, 10: 0, 20: None, 30: None, 90: 6}
    assert series(history, "2xx", 0, 100, "other") == {0: 0, 10: 0, 20: None, 30: None, 90: 0}
    assert series(history, "pages", 20, 100) == {20: 0, 30: None, 90: 6}


@given(st.lists(st.one_of(st.none(), st.integers(0, 1_000)), min_size=1, max_size=30))
def test_a_rolled_up_sample_is_the_mean_over_the_time_that_was_sampled(values: list[int | None]) -> None:
    """A job's missing samples are 0."""
    samples = [[float(value)] for value in values if value is not None]
    if samples:
        total = sum(value for value in values if value is not None)
        assert rolled(samples, len(values)) == [pytest.approx(total / len(values), abs=0.01)]


def test_samples_are_rolled_up_and_old_ones_dropped(tmp_path: Path) -> None:
    """So the file has a bound; a restart between goes on."""
    history = RateHistory(tmp_path)
    begin = -2 * ROLLED_S
    for at in range(begin, 2 * ROLLED_S, EVERY_S):
        own = {"j": [float(at % 20), 0, 0, 0, 0, 0]} if at % 20 else {}
        history.note(AT + at, FleetSample(fleet(pages=1 if at < 0 else 3), own))
        if at == 0:
            history.close()
            history = RateHistory(tmp_path)
    week = FINE_S + 10
    assert series(history, "pages", -week, 0) == {begin: 1, begin + ROLLED_S: 1, 0: 3}
    assert series(history, "pages", -week, 0, "j") == {begin: 5, begin + ROLLED_S: 5, 0: 5}
    later = FINE_S + 3 * ROLLED_S
    history.note(AT + later, FleetSample(fleet(pages=9), {}))
    assert min(series(history, "pages", later - FINE_S, later)) >= later - FINE_S
    assert [*series(history, "pages", -week, later)][:2] == [begin, begin + ROLLED_S]
    end = KEPT_S + 3 * ROLLED_S
    history.note(AT + end, FleetSample(fleet(), {}))
    history.note(AT + end + ROLLED_S, FleetSample(fleet(), {}))
    with sqlite3.connect(tmp_path / "history.sqlite") as database:
        left = database.execute("SELECT id, step, at FROM samples WHERE at < ?", (AT + 2 * ROLLED_S,)).fetchall()
        assert (left, database.execute("SELECT name FROM names").fetchall()) == ([], [])


def test_a_damaged_file_and_one_of_another_version_begin_anew(tmp_path: Path) -> None:
    """It only shows what was; the service starts all the same."""
    for version in range(2):
        path = tmp_path / "history.sqlite"
        if version:
            with sqlite3.connect(path) as database:
                database.execute("PRAGMA user_version = 77")
        else:
            path.write_bytes(b"no database" * 1_000)
        history = RateHistory(tmp_path)
        history.note(AT, FleetSample(fleet(pages=4), {}))
        assert series(history, "pages", 0, 10) == {0: 4}
        history.close()


def test_a_sample_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    """Nor does it keep a number for a name that is not in the file."""
    history = RateHistory(tmp_path)
    broken = FleetSample(fleet(), {"j": [1, 0, 0, 0, 0, 0], "k": [object()]})  # type: ignore[list-item]  # no number
    with pytest.raises(TypeError):
        history.note(AT, broken)
    history.note(AT, FleetSample(fleet(), {"k": [2, 0, 0, 0, 0, 0], "j": [1, 0, 0, 0, 0, 0]}))
    assert (series(history, "pages", 0, 9, "j"), series(history, "pages", 0, 9, "k")) == ({0: 1}, {0: 2})


def test_raised_alerts_outlive_the_service(tmp_path: Path) -> None:
    """The newest set alone."""
    history = RateHistory(tmp_path)
    history.keep_alerts({"a": "1", "b": "2"})
    history.keep_alerts({"b": "3"})
    history.close()
    assert RateHistory(tmp_path).alerts() == {"b": "3"}


def test_names_of_series_are_told_apart() -> None:
    """Each has its place."""
    assert len({*FLEET_SERIES}) == len(FLEET_SERIES)
    assert len({*JOB_SERIES}) == len(JOB_SERIES)
