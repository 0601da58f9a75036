"""Samples of a fleet: what it did between two looks, and how samples become series. Pure.

A job's sample is there only if it did something. So a job that rests costs nothing, and its series is 0 there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from crawlog.streams.fleet import JobView, StageView
from crawlog.streams.jobs import ended, traits

EVERY_S = 10  # Time between two samples, seconds

ROLLED_S = 300  # Time that a rolled-up sample is the mean of, seconds

MOST_JOBS = 200  # Jobs with samples of their own: those that did most

STAGES = ("fetch", "parse", "sink")

# Series of the whole fleet: of stages, records or pages a second and the lag in records; pages and rows a minute.
FLEET_SERIES = (
    *(f"{stage}.{of}" for stage in STAGES for of in ("rate", "lag")),
    "pages",
    "rows",
    "queued",
    "running",
    "workers",
    "dead",
)

CLASSES = ("2xx", "3xx", "4xx", "5xx")

JOB_SERIES = ("pages", "rows", *CLASSES)  # Series of a job, all of them a minute

LEFT_OUT = len(FLEET_SERIES)  # Place behind the fleet's values: the number of busy jobs without a sample


class SeriesAnswer(msgspec.Struct, frozen=True):
    """Series over time.

    Attributes:
        at: UTC epoch seconds, ascending: the begin of what a value is the mean of.
        step_s: How long that is.
        series: Values by name, as many as there are times; null where the service did not run, or had no sample.
    """

    at: list[float]
    series: dict[str, list[float | None]]
    step_s: int = EVERY_S


class FleetLook(NamedTuple):
    """What one look at the fleet shows.

    Attributes:
        workers: Number of living processes.
        dead: Number of open dead letters.
    """

    at: float
    jobs: Sequence[JobView]
    stages: Sequence[StageView]
    workers: int
    dead: int


class JobTotals(NamedTuple):
    """Counts of a job that only grow within an epoch."""

    epoch: int
    values: tuple[int, ...]


class FleetSample(NamedTuple):
    """What is kept of a look: values in the order of FLEET_SERIES with LEFT_OUT, and of JOB_SERIES by job."""

    fleet: list[float]
    jobs: dict[str, list[float]]


def totals(view: JobView) -> JobTotals:
    """Pages, rows, and final answers by class, of a job."""
    classes = dict.fromkeys(CLASSES, 0)
    for code, count in view.counts.statuses.items():
        if (name := f"{code[:1]}xx") in classes:
            classes[name] += count
    return JobTotals(view.epoch, (ended(view.counts), view.remarks.rows, *classes.values()))


class Sampler:
    """Makes samples of looks. A job that is met for the first time adds nothing: what it did may be long ago."""

    def __init__(self) -> None:
        self._at = 0.0
        self._views: dict[str, tuple[JobView, JobTotals]] = {}

    def take(self, look: FleetLook) -> FleetSample:
        """The sample of a look, since the one before."""
        over_min, views = max(look.at - self._at, 1.0) / 60, {}
        found: dict[str, list[float]] = {}
        for view in look.jobs:
            known = self._views.get(view.name)
            if known is not None and known[0] is view:
                views[view.name] = known
                continue
            views[view.name] = view, totals(view)
            if self._at and (added := _added(views[view.name][1], known[1] if known else None)):
                found[view.name] = [round(one / over_min, 2) for one in added]
        self._at, self._views = look.at, views
        busy = sorted(found, key=lambda name: -sum(found[name]))
        rates = [sum(values[at] for values in found.values()) for at in (0, 1)]
        stages = {one.stage: one for one in look.stages}
        of_stages = [
            float(value) for name in STAGES if (one := stages.get(name)) for value in (one.pages_per_s, one.lag)
        ]
        running = sum(not traits(one.state).ended for one in look.jobs)
        fleet = [*(of_stages or [0.0] * 2 * len(STAGES)), *rates, sum(one.counts.queued for one in look.jobs)]
        fleet += [running, look.workers, look.dead, max(len(busy) - MOST_JOBS, 0)]
        return FleetSample([round(one, 2) for one in fleet], {name: found[name] for name in busy[:MOST_JOBS]})


def _added(now: JobTotals, before: JobTotals | None) -> list[int]:
    """What was added; nothing if all is 0."""
    if before is None or before.epoch != now.epoch:
        return []
    added = [max(new - old, 0) for new, old in zip(now.values, before.values, strict=True)]
    return added if any(added) else []


def rolled(samples: Sequence[Sequence[float]], count: int) -> list[float]:
    """The means over so many samples; those that are not there are 0."""
    return [round(sum(values) / count, 2) for values in zip(*samples, strict=True)]


def joined(
    rows: Iterable[tuple[float, Sequence[float], Sequence[float] | None]],
    names: Sequence[str],
    step_s: int,
    *,
    is_of_job: bool,
) -> SeriesAnswer:
    """Series of samples: time, the fleet's values, and a job's if there are some.

    Where the service did not run, one null stands, so that no line is drawn across. A job without a sample rested,
    unless jobs were left out then.
    """
    places = {name: place for place, name in enumerate(JOB_SERIES if is_of_job else FLEET_SERIES)}
    answer = SeriesAnswer([], {name: [] for name in names}, step_s)
    for at, fleet, own in rows:
        if answer.at and at - answer.at[-1] > 2 * step_s:
            _add(answer, answer.at[-1] + step_s, dict.fromkeys(names))
        values: Sequence[float] | None = own if is_of_job else fleet
        if values is None and not fleet[LEFT_OUT]:
            values = [0.0] * len(places)
        _add(answer, at, {name: values[places[name]] if values is not None else None for name in names})
    return answer


def _add(answer: SeriesAnswer, at: float, values: Mapping[str, float | None]) -> None:
    answer.at.append(at)
    for name, value in values.items():
        answer.series[name].append(value)
