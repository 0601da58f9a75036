// Repeats by itself what a reload does: the block `live` of a page, and the figures of charts. Nothing works by it alone.
"use strict";

// A refresh would take away what somebody is using: an open question, chosen rows, a field, marked text.
function isInUse(live) {
  if (live.querySelector("details[open], input[type=checkbox]:checked")) return true;
  const focused = document.activeElement;
  if (live.contains(focused) && focused.matches("input, select, textarea")) return true;
  const marked = document.getSelection();
  return !!marked && !marked.isCollapsed && live.contains(marked.anchorNode);
}

function keepLive() {
  const live = document.getElementById("live");
  const everyS = Number(live && live.dataset.every);
  if (!everyS) return;
  setInterval(() => {
    if (!document.hidden && !isInUse(live)) htmx.trigger(live, "refresh");
  }, everyS * 1000);
}

// ---------------------------------------------------------------- charts

const CHART_S = 10;

function columns(points) {
  return [points.at, ...Object.values(points.series)];
}

// Times in UTC, as everywhere on the pages; seconds where the marks are closer than a minute.
function clock(_plot, marks) {
  const end = marks.length > 1 && marks[1] - marks[0] < 60 ? 19 : 16;
  return marks.map((at) => new Date(at * 1000).toISOString().slice(11, end));
}

function draw(figure) {
  const points = JSON.parse(figure.dataset.points);
  const svg = figure.querySelector("svg");
  const colour = (name) => () => getComputedStyle(figure).getPropertyValue(name); // at each drawing: the theme may change
  const lines = { stroke: colour("--rule"), width: 1 };
  const axis = { stroke: colour("--ink-dim"), grid: lines, ticks: lines };
  const series = Object.keys(points.series).map((label, index) => ({
    label, width: 1.5, stroke: colour(`--line${index + 1}`), spanGaps: false, points: { show: false },
  }));
  const area = document.createElement("div");
  svg.replaceWith(area);
  const plot = new uPlot({
    width: area.clientWidth || 300, height: 160, series: [{}, ...series], axes: [{ ...axis, values: clock, space: 70 }, { ...axis, size: 56 }],
    padding: [8, 32, 0, 0], legend: { show: false }, cursor: { drag: { x: false, y: false } }, scales: { y: { range: (_, low, high) => [0, high || 1] } },
  }, columns(points), area);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false));
  new ResizeObserver(() => plot.setSize({ width: area.clientWidth, height: 160 })).observe(area);
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(figure.dataset.source);
      if (answer.ok) plot.setData(columns(await answer.json()));
    } catch { /* the service is away: the next look may find it */ }
  }, CHART_S * 1000);
}

document.addEventListener("DOMContentLoaded", () => {
  keepLive();
  document.querySelectorAll("figure.chart").forEach(draw);
});

document.addEventListener("keydown", (event) => {
  const field = document.getElementById("q");
  if (event.key === "/" && field && !event.target.closest("input, textarea, select")) {
    event.preventDefault();
    field.focus();
  }
});
