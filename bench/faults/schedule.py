"""A fault, and one run of it: prepare, start, hurt by the dice of a seed, finish, judge."""

import contextlib
import random
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from bench.faults import judge
from bench.faults.crawl import Crawl, Size
from bench.faults.graph import Graph
from tests.support.synthetic_site import free_port

LIMIT = 3.0
"""A run may take so many times as long as a calm one, and `GRACE_S` more."""

GRACE_S = 180.0


class Fault:
    """One way to hurt a crawl.

    Attributes:
        name: As `--faults` takes it.
        says: Its effect, in a few words.
        apart: Whether the harness owns broker and workers.
        brokers: How many; more than one are a cluster, with `apart`.
        machines: Whether each worker has its own folder.
        settings: By dotted name.
        again_percent: Requests that may be repeated, in percent of the pages.
        limits: Figures of its own that break a promise above this.
        grace_s: It may take so much longer than `LIMIT` calm runs.
        sizes: Changes of the size, e.g. another number of workers.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    apart: ClassVar[bool] = False
    brokers: ClassVar[int] = 1
    machines: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, object]] = {}
    again_percent: ClassVar[float] = 0.0
    limits: ClassVar[Mapping[str, float]] = {}
    grace_s: ClassVar[float] = GRACE_S
    sizes: ClassVar[Mapping[str, Any]] = {}

    def lacks(self) -> str:
        """Why it cannot be caused on this machine; empty when it can."""
        return ""

    def prepare(self, crawl: Crawl) -> None:
        """Before the crawl starts."""

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:
        """Hurts the crawl while it runs; returns figures of its own, by title."""
        raise NotImplementedError

    def judged(self, seed: int, crawl: Crawl, figures: dict[str, float], took_s: float) -> "Outcome":
        """The outcome of a run that has ended, or had the time to."""
        return _judged(self, seed, crawl, figures, took_s)

    def after(self, crawl: Crawl) -> None:
        """Whatever happened: undo changes that would outlive the crawl."""


class Calm(Fault):
    """The measure of the others."""

    name = "calm"
    says = "nothing"

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:  # noqa: ARG002  # the base's signature
        """Nothing."""
        return {}


@dataclass
class Outcome:
    """One run, as it is kept.

    Attributes:
        counts: Findings by check; -1 where a check had nothing to look at.
        figures: Of the fault itself.
        pending: Faults that hit while there was work to do.
        problems: Checks over their budget, one line each with the first places.
    """

    fault: str
    seed: int
    hosts: int
    pages: int
    took_s: float
    requests: int
    faults: int
    pending: int
    again_percent: float
    raw_doubles: int
    counts: dict[str, int]
    figures: dict[str, float]
    problems: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def is_good(self) -> bool:
        """Whether everything was kept, under faults that hit."""
        return not self.problems


def run(fault: Fault, seed: int, size: Size, folder: Path) -> Outcome:
    """One run of one fault; the folder is removed when all was well."""
    sized = replace(size, **fault.sizes)
    if why := fault.lacks():
        return Outcome(fault.name, seed, sized.hosts, sized.pages, 0, 0, 0, 0, 0.0, 0, {}, {}, [], why)
    shutil.rmtree(folder, ignore_errors=True)
    graph = Graph(sized.hosts, sized.pages, seed, free_port())
    dice = random.Random(f"{fault.name}/{seed}")
    options: dict[str, Any] = {
        "apart": fault.apart, "brokers": fault.brokers, "machines": fault.machines, "settings": fault.settings
    }  # fmt: skip
    with Crawl(folder, graph, sized, **options) as crawl, contextlib.ExitStack() as stack:
        crawl.title = f"{fault.name} seed {seed}"
        stack.callback(fault.after, crawl)
        fault.prepare(crawl)
        began = time.monotonic()
        crawl.start()
        figures = fault.hurt(crawl, dice)
        limit_s = LIMIT * sized.calm_s + fault.grace_s
        has_ended = crawl.finish(max(limit_s - (time.monotonic() - began), 60.0))
        took_s = time.monotonic() - began
        outcome = fault.judged(seed, crawl, figures, took_s)
        if not has_ended:
            outcome.problems.append(f"did not end within {limit_s:.0f} s")
        if outcome.problems:
            (folder / "tail.txt").write_text(crawl.tail())
            events = [f"{event.at:.3f} {event.what} at {event.served} of {event.pages}" for event in crawl.events]
            (folder / "events.txt").write_text("\n".join([*events, *map(str, crawl.poison), ""]))
    if outcome.is_good:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def broken(fault: Fault, figures: Mapping[str, float]) -> list[str]:
    """The promises of a fault that its own figures break."""
    return [
        f"{title}: {figures[title]:g}, at most {most:g}"
        for title, most in fault.limits.items()
        if figures.get(title, 0.0) > most
    ]


def _judged(fault: Fault, seed: int, crawl: Crawl, figures: dict[str, float], took_s: float) -> Outcome:
    if not crawl.has_ended:
        crawl.kill_all()  # it was told to end in time
    seen = crawl.evidence()
    findings = judge.judge(seen)
    if not fault.apart:
        del findings["foreign"]  # all workers of one `crawlog run` have one name
    percent = judge.again_percent(seen, findings)
    problems = [
        f"{name} {found.times}: {'; '.join(found.examples)}"
        for name, found in findings.items()
        if found.times and name != "repeated"
    ]
    if percent > fault.again_percent:
        problems.append(f"repeated {percent:.2f} %, at most {fault.again_percent} %: {findings['repeated'].examples}")
    problems += broken(fault, figures)
    pending = sum(event.is_pending for event in crawl.events)
    if fault.name != Calm.name and not pending:
        problems.append("no fault hit while there was work to do")
    return Outcome(
        fault.name, seed, crawl.size.hosts, crawl.size.pages, round(took_s, 1), len(seen.requests), len(crawl.events),
        pending, round(percent, 2), judge.raw_doubles(seen),
        {name: findings[name].times if name in findings else -1 for name in judge.CHECKS},
        {name: round(value, 2) for name, value in figures.items()}, problems,
    )  # fmt: skip
