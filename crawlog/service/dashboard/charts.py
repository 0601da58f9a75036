"""Charts: a series as points of an SVG, for browsers without scripts; uPlot draws the same where scripts run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

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


def svg_points(chart: Chart, name: str) -> str:
    """The attribute `points` of a polyline; gaps are bridged."""
    begin, end = (chart.at[0], chart.at[-1]) if chart.at else (0.0, 1.0)
    width, top = max(end - begin, 1e-9), chart.top or 1.0
    pairs = zip(chart.at, chart.series[name], strict=True)
    shown = ((at, value) for at, value in pairs if value is not None)
    return " ".join(f"{(at - begin) / width * WIDTH:.1f},{HEIGHT - value / top * HEIGHT:.1f}" for at, value in shown)
