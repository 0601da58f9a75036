"""Charts of the history: an SVG for browsers without scripts; uPlot draws the same where scripts run."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from aiohttp import web

from crawlog.service.answers import AnswerError
from crawlog.service.api_watch import series_of
from crawlog.service.routing import in_thread, is_part

HOUR_S = 3_600.0  # Time that a chart shows at first, seconds

# Title and unit of a chart, and its series in the history, each with the name that the chart shows.
WantedChart = tuple[str, str, Mapping[str, str]]

WIDTH, HEIGHT = 600, 120  # Of the SVG's own coordinates


class Chart(NamedTuple):
    """A chart.

    Attributes:
        source: Path below the prefix, with its query, that answers `{"at": [epoch seconds], "series":
            {name: [value]}}`; the browser asks it for newer values.
        at: UTC epoch seconds, ascending.
        series: Values by name, as many as there are times; None where there is no sample.
    """

    title: str
    unit: str
    source: str
    at: Sequence[float]
    series: dict[str, Sequence[float | None]]

    @property
    def top(self) -> float:
        """The greatest value."""
        return max((value for values in self.series.values() for value in values if value is not None), default=0.0)

    @property
    def data(self) -> dict[str, Any]:
        """What the browser draws at first, in the form of `source`."""
        return {"at": list(self.at), "series": {name: list(values) for name, values in self.series.items()}}


async def last_hour(request: web.Request, wanted: Iterable[WantedChart], job: str = "") -> list[Chart]:
    """Charts of the service's history; none if it keeps none, or for a refresh, whose block has no charts.

    Args:
        job: Whose series they are; empty for the fleet.
    """
    return [] if is_part(request) else await in_thread(request, _charts, request.app, wanted, job)


def _charts(app: web.Application, wanted: Iterable[WantedChart], job: str) -> list[Chart]:
    try:
        return [_chart(app, one, job) for one in wanted]
    except AnswerError:  # without a history, the page shows all else
        return []


def _chart(app: web.Application, wanted: WantedChart, job: str) -> Chart:
    title, unit, names = wanted
    asked, now = {"job": job, "series": ",".join(names)}, time.time()
    found = series_of(app, asked["series"], job, now - HOUR_S, now)
    series: dict[str, Sequence[float | None]] = {shown: found.series[name] for name, shown in names.items()}
    return Chart(title, unit, f"/api/v1/history?{urlencode(asked)}", found.at, series)


def svg_points(chart: Chart, name: str) -> str:
    """The attribute `points` of a polyline; gaps are bridged."""
    begin, end = (chart.at[0], chart.at[-1]) if chart.at else (0.0, 1.0)
    width, top = max(end - begin, 1e-9), chart.top or 1.0
    pairs = zip(chart.at, chart.series[name], strict=True)
    shown = ((at, value) for at, value in pairs if value is not None)
    return " ".join(f"{(at - begin) / width * WIDTH:.1f},{HEIGHT - value / top * HEIGHT:.1f}" for at, value in shown)
